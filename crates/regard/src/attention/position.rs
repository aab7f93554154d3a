//! Position encodings without parameters, and learned positions resampled to another grid.
//!
//! | function | what | source |
//! |---|---|---|
//! | [`sinusoidal`] | sines and cosines of a token's index | Vaswani et al. 2017, arXiv:1706.03762 |
//! | [`sine_2d`] | the same of a pixel's row and column, padding left out | Carion et al. 2020 (DETR), arXiv:2005.12872 |
//! | [`absolute`] | column and row between -1 and 1 | Zhao et al. 2020 (SAN), arXiv:2004.13621 |
//! | [`relative`], [`relative_2d`] | indices of offsets between tokens, for a learned table | Shaw et al. 2018, arXiv:1803.02155 |
//! | [`resample`] | learned positions of one grid for another, bicubic | Dosovitskiy et al. 2020, arXiv:2010.11929 |
//! | [`resample_nearest`] | the same, each the nearest one | Bertasius et al. 2021 (TimeSformer), arXiv:2102.05095 |
//!
//! Learned positions themselves are parameters: [`LearnedPosition`](crate::layers::LearnedPosition).

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};
use std::f64::consts::TAU;

use super::check;
use crate::data::nearest_indices;

/// Base of the wavelengths in both sine encodings.
const TEMPERATURE: f64 = 10_000.0;

/// `[positions, D]`: sine in even columns, cosine in odd ones, of `position / 10000^(2i/D)`.
///
/// # Panics
/// When a size is zero.
#[must_use]
pub fn sinusoidal(positions: usize, width: usize, device: &Device) -> Tensor<2> {
    sinusoidal_from(0, positions, width, device)
}

/// [`sinusoidal`] for positions that start at `first`.
///
/// # Panics
/// When a size is zero.
#[must_use]
pub fn sinusoidal_from(first: usize, positions: usize, width: usize, device: &Device) -> Tensor<2> {
    let wavelengths: Vec<f64> = (0..width.div_ceil(2)).map(|pair| wavelength(pair, width)).collect();
    let value = |position: usize, column: usize| {
        let angle = position as f64 / wavelengths[column / 2];
        if column.is_multiple_of(2) { angle.sin() } else { angle.cos() }
    };
    encoding([first, positions, width], value, device)
}

/// All sines, then all cosines, with wavelengths up to and including 10000: the encoding of fairseq and tensor2tensor.
///
/// # Panics
/// When a size is zero.
#[must_use]
pub fn sines_then_cosines(first: usize, positions: usize, width: usize, device: &Device) -> Tensor<2> {
    let half = width / 2;
    let step = TEMPERATURE.ln() / (half.max(2) - 1) as f64;
    let rates: Vec<f64> = (0..half).map(|pair| (-step * pair as f64).exp()).collect();
    let value = |position: usize, column: usize| match column / half.max(1) {
        0 if half > 0 => (position as f64 * rates[column]).sin(),
        1 if half > 0 => (position as f64 * rates[column - half]).cos(),
        _ => 0.0, // the last column of an odd width
    };
    encoding([first, positions, width], value, device)
}

fn encoding([first, positions, width]: [usize; 3], value: impl Fn(usize, usize) -> f64, device: &Device) -> Tensor<2> {
    check::not_empty("sinusoidal", "encoding", &[("positions", positions), ("width", width)]);
    let mut values = Vec::with_capacity(positions * width);
    for position in first..first + positions {
        values.extend((0..width).map(|column| value(position, column) as f32));
    }
    Tensor::from_data(TensorData::new(values, [positions, width]), device)
}

/// `10000^(2*pair/width)`
fn wavelength(pair: usize, width: usize) -> f64 {
    TEMPERATURE.powf(2.0 * pair as f64 / width as f64)
}

/// `[B, H, W]`, true for padding, to `[B, D, H, W]`: half of the channels for the row, then half for the column.
///
/// A pixel's position is the number of real pixels up to it over the number in its whole column (or row), times 2π;
/// within each half, sine and cosine alternate. [`no_padding`] gives the mask of a batch without padding.
///
/// # Panics
/// When 4 does not divide the width: two axes, a sine and a cosine each.
#[must_use]
pub fn sine_2d(padding: Tensor<3, Bool>, width: usize) -> Tensor<4> {
    let [batch, height, columns] = padding.dims();
    check::not_empty("sine_2d", "padding mask", &[("batch", batch), ("height", height), ("width", columns)]);
    check::not_empty("sine_2d", "encoding", &[("width", width)]);
    check::divides("sine_2d", ("sines and cosines of two axes", 4), ("width", width));
    let device = padding.device();
    let waves = width / 4;
    let wavelengths: Vec<f32> = (0..waves).map(|i| wavelength(i, width / 2) as f32).collect();
    let wavelengths =
        Tensor::<1>::from_data(TensorData::from(wavelengths.as_slice()), &device).reshape([1, 1, 1, waves]);

    let real = padding.bool_not().float();
    let half = |axis: usize| {
        let count = real.clone().cumsum(axis);
        let last = count.dims()[axis] as i64 - 1;
        let total = count.clone().slice_dim(axis, last..=last);
        let place = count.div(total.add_scalar(1e-6)).mul_scalar(TAU);
        let angles = place.unsqueeze_dim::<4>(3).div(wavelengths.clone());
        let waves: Tensor<5> = Tensor::stack(vec![angles.clone().sin(), angles.cos()], 4);
        waves.reshape([batch, height, columns, width / 2])
    };
    Tensor::cat(vec![half(1), half(2)], 3).permute([0, 3, 1, 2])
}

/// The mask `[B, H, W]` of images without padding.
#[must_use]
pub fn no_padding([batch, height, width]: [usize; 3], device: &Device) -> Tensor<3, Bool> {
    Tensor::<3>::zeros([batch, height, width], device).greater_elem(0.5)
}

/// `[2, H, W]`: the column from -1 to 1 in channel 0, the row in channel 1; an axis of size 1 is at -1.
///
/// # Panics
/// When a size is zero.
#[must_use]
pub fn absolute(height: usize, width: usize, device: &Device) -> Tensor<3> {
    check::not_empty("absolute", "grid", &[("height", height), ("width", width)]);
    let place = |index: usize, count: usize| {
        if count == 1 { -1.0 } else { 2.0 * index as f32 / (count - 1) as f32 - 1.0 }
    };
    let columns = (0..height).flat_map(|_| (0..width).map(|w| place(w, width)));
    let rows = (0..height).flat_map(|h| (0..width).map(move |_| place(h, height)));
    let values: Vec<f32> = columns.chain(rows).collect();
    Tensor::from_data(TensorData::new(values, [2, height, width]), device)
}

/// `[N, M]`: the row of `key - query` in a table of all `N + M - 1` offsets, the smallest first.
///
/// # Panics
/// When a size is zero.
#[must_use]
pub fn relative(queries: usize, keys: usize, device: &Device) -> Tensor<2, Int> {
    check::not_empty("relative", "table", &[("queries", queries), ("keys", keys)]);
    indices(queries, keys, |query, key| key + queries - 1 - query, device)
}

/// `[H*W, H*W]` twice: the row of each pair of positions in a table of `2*H - 1` offsets of rows, and in one of `2*W - 1`
/// offsets of columns.
///
/// # Panics
/// When a size is zero.
#[must_use]
pub fn relative_2d(height: usize, width: usize, device: &Device) -> [Tensor<2, Int>; 2] {
    check::not_empty("relative_2d", "grid", &[("height", height), ("width", width)]);
    let places = height * width;
    let rows = |query: usize, key: usize| key / width + height - 1 - query / width;
    let columns = |query: usize, key: usize| key % width + width - 1 - query % width;
    [indices(places, places, rows, device), indices(places, places, columns, device)]
}

fn indices(queries: usize, keys: usize, index: impl Fn(usize, usize) -> usize, device: &Device) -> Tensor<2, Int> {
    let values: Vec<i64> = (0..queries)
        .flat_map(|query| (0..keys).map(move |key| (query, key)))
        .map(|(q, k)| index(q, k) as i64)
        .collect();
    Tensor::from_data(TensorData::new(values, [queries, keys]), device)
}

/// A learned table `[offsets, A]` looked up at `[N, M]` indices: `[1, A, N, M]`, a bias for
/// [`dot_product`](fn@super::dot_product).
///
/// # Panics
/// When an index is not in the table (on devices that check).
#[must_use]
pub fn relative_bias(table: Tensor<2>, index: Tensor<2, Int>) -> Tensor<4> {
    let ([_, heads], [queries, keys]) = (table.dims(), index.dims());
    let looked_up = table.select(0, index.reshape([queries * keys]));
    looked_up.reshape([1, queries, keys, heads]).permute([0, 3, 1, 2])
}

/// `[B, P + h*w, D] -> [B, P + H*W, D]` for `from = [h, w]` and `to = [H, W]`: of every new position the nearest old one, the
/// `prefix` of `P` tokens kept. A list of positions is a grid of one row.
///
/// Equals `F.interpolate(mode="nearest")`.
///
/// # Panics
/// When the tokens are not the prefix and the grid, or a size is zero.
#[must_use]
pub fn resample_nearest(positions: Tensor<3>, from: [usize; 2], to: [usize; 2], prefix: usize) -> Tensor<3> {
    const NAME: &str = "resample_nearest";
    let sizes = |[height, width]: [usize; 2]| [("height", height), ("width", width)];
    check::not_empty(NAME, "grid `from`", &sizes(from));
    check::not_empty(NAME, "grid `to`", &sizes(to));
    let tokens = positions.dims()[1];
    check::agree(NAME, "tokens", ("positions", tokens), ("prefix and grid `from`", prefix + from[0] * from[1]));
    let [rows, columns] = [0, 1].map(|axis| nearest_indices(from[axis], to[axis]));
    let places = rows.iter().flat_map(|row| columns.iter().map(move |column| prefix + row * from[1] + column));
    let indices: Vec<i64> = (0..prefix).chain(places).map(|index| index as i64).collect();
    let count = indices.len();
    let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [count]), &positions.device());
    positions.select(1, indices)
}

/// `[1, P + h*w, D] -> [1, P + H*W, D]` for `from = [h, w]` and `to = [H, W]`: bicubic over the grid, the `prefix` of `P`
/// tokens kept.
///
/// Equals `F.interpolate(mode="bicubic", antialias=True, align_corners=False)`: Keys' cubic with a = -0.5, widened by
/// the factor when a grid shrinks, weights normalised at the border.
///
/// # Panics
/// When the tokens are not the prefix and the grid, or a size is zero.
#[must_use]
pub fn resample(positions: Tensor<3>, from: [usize; 2], to: [usize; 2], prefix: usize) -> Tensor<3> {
    let [batch, tokens, width] = positions.dims();
    let sizes = |[height, width]: [usize; 2]| [("height", height), ("width", width)];
    check::not_empty("resample", "positions", &[("batch", batch), ("width", width)]);
    check::not_empty("resample", "grid `from`", &sizes(from));
    check::not_empty("resample", "grid `to`", &sizes(to));
    check::agree("resample", "tokens", ("positions", tokens), ("prefix and grid `from`", prefix + from[0] * from[1]));
    if from == to {
        return positions;
    }
    let device = positions.device();
    let patches = positions.clone().slice([0..batch, prefix..tokens]);
    // rows first: [B, h, w*D] -> [B, H, w*D]; then columns: [B*H, w, D] -> [B*H, W, D]
    let rows = bicubic(from[0], to[0], &device).unsqueeze::<3>();
    let columns = bicubic(from[1], to[1], &device).unsqueeze::<3>();
    let patches = rows.matmul(patches.reshape([batch, from[0], from[1] * width]));
    let patches = columns.matmul(patches.reshape([batch * to[0], from[1], width]));
    let patches = patches.reshape([batch, to[0] * to[1], width]);
    if prefix == 0 { patches } else { Tensor::cat(vec![positions.slice([0..batch, 0..prefix]), patches], 1) }
}

/// `[to, from]`: the weights of the old positions in each new one.
fn bicubic(from: usize, to: usize, device: &Device) -> Tensor<2> {
    let factor = from as f64 / to as f64;
    let stretch = factor.max(1.0);
    let support = 2.0 * stretch;
    let mut weights = vec![0f32; to * from];
    for (new, row) in weights.chunks_mut(from).enumerate() {
        let centre = factor * (new as f64 + 0.5);
        let first = (centre - support + 0.5).max(0.0) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        let weight = |old: usize| cubic((old as f64 - centre + 0.5) / stretch);
        let total: f64 = (first..end).map(weight).sum();
        for (old, entry) in row.iter_mut().enumerate().take(end).skip(first) {
            *entry = (weight(old) / total) as f32;
        }
    }
    Tensor::from_data(TensorData::new(weights, [to, from]), device)
}

/// Keys' cubic convolution with a = -0.5.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((x - 5.0) * x + 8.0) * x * A - 4.0 * A
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{Fixture, assert_close, assert_gradients_are_differences, distance, random, values};

    #[test]
    fn sinusoidal_equals_the_reference() {
        let fixture = Fixture::load("sinusoidal_position");
        let encoding = sinusoidal(fixture.usize("positions"), fixture.usize("d_model"), &cpu());
        assert_close(&encoding, &fixture.tensor("io/encoding"), 1e-5);
    }

    #[test]
    fn sinusoidal_of_the_first_position_is_zeros_and_ones_at_any_width() {
        for width in [1, 4, 7] {
            let first = values(&sinusoidal(3, width, &cpu()).slice_dim(0, 0..1));
            let expected: Vec<f32> = (0..width).map(|i| (i % 2) as f32).collect();
            assert_eq!(first, expected);
        }
    }

    #[test]
    fn the_nearest_positions_of_a_finer_grid_repeat_rows_and_columns_and_the_prefix_stays() {
        let table = Tensor::<1>::from_floats([9.0, 0.0, 1.0, 2.0, 3.0], &cpu()).reshape([1, 5, 1]);
        let finer = resample_nearest(table.clone(), [2, 2], [3, 4], 1);
        assert_eq!(values(&finer), [9.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]);
        assert_close(&resample_nearest(table.clone(), [2, 2], [2, 2], 1), &table, 0.0);
        let list = resample_nearest(table.clone(), [1, 5], [1, 2], 0);
        assert_eq!(values(&list), [9.0, 1.0], "the first and the third of five");
    }

    fn mask(rows: &[&[bool]]) -> Tensor<3, Bool> {
        let shape = [1, rows.len(), rows[0].len()];
        Tensor::from_data(TensorData::new(rows.concat(), shape), &cpu())
    }

    /// DETR's sine encoding of one image, pixel by pixel.
    fn naive_sine_2d(padding: &[&[bool]], width: usize) -> Vec<f32> {
        let (height, columns) = (padding.len(), padding[0].len());
        let half = width / 2;
        let mut out = vec![0.0; width * height * columns];
        for h in 0..height {
            for w in 0..columns {
                let above = (0..=h).filter(|i| !padding[*i][w]).count() as f64;
                let column = (0..height).filter(|i| !padding[*i][w]).count() as f64;
                let left = (0..=w).filter(|i| !padding[h][*i]).count() as f64;
                let row = (0..columns).filter(|i| !padding[h][*i]).count() as f64;
                for (from, place) in [(0, above / (column + 1e-6)), (half, left / (row + 1e-6))] {
                    for i in 0..half {
                        let angle = place * TAU / TEMPERATURE.powf((2 * (i / 2)) as f64 / half as f64);
                        let value = if i % 2 == 0 { angle.sin() } else { angle.cos() };
                        out[((from + i) * height + h) * columns + w] = value as f32;
                    }
                }
            }
        }
        out
    }

    const PADDED: [&[bool]; 3] =
        [&[false, false, false, true, true], &[false, false, false, true, true], &[true, true, true, true, true]];
    const FULL: [&[bool]; 3] = [&[false; 5]; 3];

    #[test]
    fn sine_2d_equals_its_definition() {
        for padding in [PADDED, FULL] {
            let encoding = sine_2d(mask(&padding), 12);
            assert_eq!(encoding.dims(), [1, 12, 3, 5]);
            assert!(distance(&values(&encoding), &naive_sine_2d(&padding, 12)) < 1e-5);
        }
    }

    #[test]
    fn sine_2d_of_a_padded_image_is_that_of_the_image_alone() {
        let padded = sine_2d(mask(&PADDED), 8).slice([0..1, 0..8, 0..2, 0..3]);
        assert_close(&padded, &sine_2d(no_padding([1, 2, 3], &cpu()), 8), 1e-6);
    }

    #[test]
    fn sine_2d_of_a_batch_of_two_is_two_batches_of_one() {
        let both = sine_2d(Tensor::cat(vec![mask(&PADDED), mask(&FULL)], 0), 8);
        assert_close(&both.clone().slice_dim(0, 0..1), &sine_2d(mask(&PADDED), 8), 1e-6);
        assert_close(&both.slice_dim(0, 1..2), &sine_2d(mask(&FULL), 8), 1e-6);
    }

    #[test]
    #[should_panic(expected = "sine_2d: 4 sines and cosines of two axes do not divide width 6")]
    fn a_width_without_room_for_both_axes_is_refused_by_name() {
        let _ = sine_2d(no_padding([1, 2, 2], &cpu()), 6);
    }

    #[test]
    fn absolute_positions_run_from_minus_one_to_one() {
        let expected = [[[-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]], [[-1.0, -1.0, -1.0], [1.0, 1.0, 1.0]]];
        assert_close(&absolute(2, 3, &cpu()), &Tensor::from_data(expected, &cpu()), 1e-6);
        assert_eq!(values(&absolute(1, 1, &cpu())), [-1.0, -1.0]);
    }

    fn whole(index: &Tensor<2, Int>) -> Vec<i64> {
        index.clone().into_data().convert::<i64>().try_to_vec().unwrap()
    }

    #[test]
    fn relative_indices_count_offsets_from_the_smallest() {
        assert_eq!(whole(&relative(3, 2, &cpu())), [2, 3, 1, 2, 0, 1]);
        let (height, width) = (2, 3);
        let [rows, columns] = relative_2d(height, width, &cpu()).map(|index| whole(&index));
        for query in 0..6 {
            for key in 0..6 {
                let row = (key / width) as i64 - (query / width) as i64;
                let column = (key % width) as i64 - (query % width) as i64;
                assert_eq!(rows[query * 6 + key], row + height as i64 - 1);
                assert_eq!(columns[query * 6 + key], column + width as i64 - 1);
            }
        }
    }

    #[test]
    fn a_relative_bias_is_the_row_of_its_offset() {
        let (table, index) = (random::<2>([4, 2], 1), relative(3, 2, &cpu()));
        let (entries, places) = (values(&table), whole(&index));
        let bias = values(&relative_bias(table, index));
        for head in 0..2 {
            for pair in 0..6 {
                assert_eq!(bias[head * 6 + pair], entries[places[pair] as usize * 2 + head]);
            }
        }
    }

    #[test]
    fn gradients_of_a_relative_bias_are_finite_differences() {
        assert_gradients_are_differences(&[("table", values(&random::<2>([4, 2], 1)))], |t| {
            let device = t[0].device();
            relative_bias(t[0].clone().reshape([4, 2]), relative(3, 2, &device))
        });
    }

    #[test]
    fn resampled_positions_equal_the_reference() {
        let fixture = Fixture::load("timm_vit_resized");
        let resampled = resample(fixture.tensor("model/pos_embed"), [4, 4], [6, 8], 1);
        assert_close(&resampled, &fixture.tensor("io/resampled_pos_embed"), 1e-5);
    }

    /// Bicubic resampling of one channel, position by position.
    fn naive_resample(old: &[f32], [h, w]: [usize; 2], [height, width]: [usize; 2]) -> Vec<f32> {
        let kernel = |x: f64| {
            let x = x.abs();
            if x <= 1.0 {
                1.5 * x.powi(3) - 2.5 * x.powi(2) + 1.0
            } else if x < 2.0 {
                -0.5 * x.powi(3) + 2.5 * x.powi(2) - 4.0 * x + 2.0
            } else {
                0.0
            }
        };
        let weight = |new: usize, old: usize, from: usize, to: usize| {
            let factor = from as f64 / to as f64;
            let distance = (old as f64 + 0.5) - (new as f64 + 0.5) * factor;
            kernel(distance / factor.max(1.0))
        };
        let mut out = Vec::new();
        for row in 0..height {
            for column in 0..width {
                let (mut sum, mut total) = (0.0, 0.0);
                for i in 0..h {
                    for j in 0..w {
                        let weight = weight(row, i, h, height) * weight(column, j, w, width);
                        sum += weight * f64::from(old[i * w + j]);
                        total += weight;
                    }
                }
                out.push((sum / total) as f32);
            }
        }
        out
    }

    #[test]
    fn resampling_equals_its_definition_between_any_two_grids() {
        for (from, to) in [([4, 4], [6, 8]), ([7, 5], [3, 2]), ([2, 9], [5, 4]), ([1, 3], [4, 1]), ([14, 14], [16, 7])]
        {
            let old = random([1, from[0] * from[1], 1], 3);
            let new = resample(old.clone(), from, to, 0);
            assert!(distance(&values(&new), &naive_resample(&values(&old), from, to)) < 1e-5, "{from:?} to {to:?}");
        }
    }

    #[test]
    fn resampling_to_the_same_grid_changes_nothing() {
        let positions = random([1, 8, 5], 1);
        assert_close(&resample(positions.clone(), [2, 3], [2, 3], 2), &positions, 0.0);
        // not only by the shortcut: the weights are the identity
        assert_close(&bicubic(5, 5, &cpu()), &Tensor::eye(5, &cpu()), 1e-6);
    }

    #[test]
    fn resampling_keeps_the_prefix_and_a_constant() {
        let prefix = random([1, 2, 3], 1);
        let positions = Tensor::cat(vec![prefix.clone(), Tensor::full([1, 12, 3], 0.7, &cpu())], 1);
        let resampled = resample(positions, [3, 4], [5, 2], 2);
        assert_close(&resampled.clone().slice([0..1, 0..2]), &prefix, 0.0);
        assert_close(&resampled.slice([0..1, 2..12]), &Tensor::full([1, 10, 3], 0.7, &cpu()), 1e-6);
    }

    #[test]
    fn gradients_of_resampling_are_finite_differences() {
        assert_gradients_are_differences(&[("positions", values(&random::<3>([1, 7, 2], 1)))], |t| {
            resample(t[0].clone().reshape([1, 7, 2]), [2, 3], [4, 2], 1)
        });
    }

    #[test]
    fn numbers_that_are_not_finite_neither_hang_nor_crash() {
        for bad in [f32::NAN, f32::INFINITY] {
            let positions = Tensor::full([1, 5, 2], bad, &cpu());
            assert_eq!(resample(positions, [2, 2], [3, 3], 1).dims(), [1, 10, 2]);
        }
    }

    #[test]
    #[should_panic(expected = "resample: positions has tokens 10, prefix and grid `from` has tokens 17")]
    fn positions_of_another_grid_are_refused_by_name() {
        let _ = resample(random([1, 10, 2], 1), [4, 4], [6, 8], 1);
    }
}
