//! Every window operator by its definition: loops over numbers in f64, slow on purpose.
//! Only tests call these: the operators must agree with them.

use burn::tensor::Tensor;

use super::{Local, PairPosition, PairRelation, Pairwise, PatchRelation, Patchwise, Relative, Stem};
use crate::testing::values;

/// `[B, C, H, W]` numbers.
pub struct Images {
    values: Vec<f64>,
    pub batch: usize,
    pub channels: usize,
    pub size: (usize, usize),
}

impl From<&Tensor<4>> for Images {
    fn from(tensor: &Tensor<4>) -> Self {
        let [batch, channels, height, width] = tensor.dims();
        Self { values: wide(tensor), batch, channels, size: (height, width) }
    }
}

impl Images {
    pub fn at(&self, batch: usize, channel: usize, pixel: usize) -> f64 {
        self.values[(batch * self.channels + channel) * self.pixels() + pixel]
    }

    fn pixel(&self, batch: usize, pixel: usize) -> Vec<f64> {
        (0..self.channels).map(|channel| self.at(batch, channel, pixel)).collect()
    }

    fn pixels(&self) -> usize {
        self.size.0 * self.size.1
    }
}

/// Asserts that an operator equals its twin to 1e-5.
#[track_caller]
pub fn assert_twin<const D: usize>(actual: &Tensor<D>, twin: &[f64]) {
    let actual = values(actual);
    assert_eq!(actual.len(), twin.len(), "numbers of elements differ");
    for (index, (actual, twin)) in actual.iter().zip(twin).enumerate() {
        assert!((f64::from(*actual) - twin).abs() <= 1e-5, "[{index}]: {actual}, the naive twin has {twin}");
    }
}

/// The pixel at an offset of the window, if it is inside the image.
pub fn neighbour(pixel: usize, offset: usize, window: usize, size: (usize, usize)) -> Option<usize> {
    let (row, column) = position(pixel, offset, window, size);
    let inside = |index: isize, size: usize| usize::try_from(index).ok().filter(|index| *index < size);
    Some(inside(row, size.0)? * size.1 + inside(column, size.1)?)
}

/// The pixel at an offset of the window, mirrored at the edge of the image.
pub fn reflected_neighbour(pixel: usize, offset: usize, window: usize, size: (usize, usize)) -> usize {
    let (row, column) = position(pixel, offset, window, size);
    let mirrored = |index: isize, size: usize| {
        let last = size as isize - 1;
        if index < 0 {
            -index as usize
        } else if index > last {
            (last - (index - last)) as usize
        } else {
            index as usize
        }
    };
    mirrored(row, size.0) * size.1 + mirrored(column, size.1)
}

fn position(pixel: usize, offset: usize, window: usize, size: (usize, usize)) -> (isize, isize) {
    let before = (window as isize - 1) / 2;
    let shifted = |index: usize, offset: usize| index as isize + offset as isize - before;
    (shifted(pixel / size.1, offset / window), shifted(pixel % size.1, offset % window))
}

pub fn softmax(scores: &[f64]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
    scores.iter().map(|score| (score - largest).exp() / total).collect()
}

pub fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(l, r)| l * r).sum()
}

fn wide<const D: usize>(tensor: &Tensor<D>) -> Vec<f64> {
    values(tensor).into_iter().map(f64::from).collect()
}

/// `q . r`: the first half of the head with the row embedding, the second half with the column embedding.
fn relative_score(relative: &Relative, head: usize, query: &[f64], row_offset: usize, column_offset: usize) -> f64 {
    let [_, half, offsets] = relative.rows.dims();
    let (rows, columns) = (wide(&relative.rows), wide(&relative.columns));
    (0..half)
        .map(|channel| {
            let at = (head * half + channel) * offsets;
            query[channel] * rows[at + row_offset] + query[half + channel] * columns[at + column_offset]
        })
        .sum()
}

/// Output `[B, C, H, W]` and weights `[B, A, k*k, H*W]`.
pub fn local(query: &Images, key: &Images, value: &Images, options: &Local) -> (Vec<f64>, Vec<f64>) {
    let (heads, window, pixels) = (options.heads, options.window, query.pixels());
    let (head_width, value_width) = (query.channels / heads, value.channels / heads);
    let mut out = vec![0.0; query.batch * value.channels * pixels];
    let mut weights = vec![0.0; query.batch * heads * window * window * pixels];
    for batch in 0..query.batch {
        for head in 0..heads {
            let own = head * head_width..(head + 1) * head_width;
            for pixel in 0..pixels {
                let seen: Vec<(usize, usize)> = (0..window * window)
                    .filter_map(|offset| Some((offset, neighbour(pixel, offset, window, query.size)?)))
                    .collect();
                let query = &query.pixel(batch, pixel)[own.clone()];
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|(offset, other)| {
                        let content = dot(query, &key.pixel(batch, *other)[own.clone()]);
                        let place = options.relative.as_ref().map_or(0.0, |relative| {
                            relative_score(relative, head, query, offset / window, offset % window)
                        });
                        options.scale.unwrap_or(1.0) * (content + place)
                    })
                    .collect();
                for ((offset, other), weight) in seen.iter().zip(softmax(&scores)) {
                    weights[((batch * heads + head) * window * window + offset) * pixels + pixel] = weight;
                    for channel in head * value_width..(head + 1) * value_width {
                        out[(batch * value.channels + channel) * pixels + pixel] +=
                            weight * value.at(batch, channel, *other);
                    }
                }
            }
        }
    }
    (out, weights)
}

/// Two layers of SAN's gamma, by running statistics.
pub struct Gamma {
    layers: [Layer; 2],
    bias: Vec<f64>,
}

struct Layer {
    mean: Vec<f64>,
    variance: Vec<f64>,
    scale: Vec<f64>,
    shift: Vec<f64>,
    weight: Vec<f64>,
    epsilon: f64,
}

impl From<&super::Gamma> for Gamma {
    fn from(gamma: &super::Gamma) -> Self {
        let layer = |norm: &crate::batch_norm::BatchNorm, weight: &Tensor<2>| Layer {
            mean: wide(&norm.running_mean.value()),
            variance: wide(&norm.running_var.value()),
            scale: wide(&norm.gamma.val()),
            shift: wide(&norm.beta.val()),
            weight: wide(weight),
            epsilon: norm.epsilon,
        };
        let layers = [layer(&gamma.norm1, &gamma.linear1.val()), layer(&gamma.norm2, &gamma.linear2.val())];
        Self { layers, bias: wide(&gamma.bias2.val()) }
    }
}

impl Gamma {
    pub fn apply(&self, relation: &[f64]) -> Vec<f64> {
        let hidden = self.layers[0].apply(relation);
        self.layers[1].apply(&hidden).iter().zip(&self.bias).map(|(out, bias)| out + bias).collect()
    }
}

impl Layer {
    fn apply(&self, input: &[f64]) -> Vec<f64> {
        let active: Vec<f64> = (0..input.len())
            .map(|channel| {
                let spread = (self.variance[channel] + self.epsilon).sqrt();
                (self.scale[channel] * (input[channel] - self.mean[channel]) / spread + self.shift[channel]).max(0.0)
            })
            .collect();
        self.weight.chunks(input.len()).map(|row| dot(row, &active)).collect()
    }
}

/// Output `[B, C, H, W]` and weights `[B, Cw, k*k, H*W]`; `position` is `[1, 2, H, W]`.
pub fn pairwise(
    [phi, psi, beta]: [&Images; 3],
    position: Option<&Images>,
    gamma: &Gamma,
    options: &Pairwise,
) -> (Vec<f64>, Vec<f64>) {
    by_footprint(beta, gamma.bias.len(), options.window, |batch, pixel, footprint| {
        let own = phi.pixel(batch, pixel);
        let scores: Vec<Vec<f64>> = footprint
            .iter()
            .map(|&other| {
                let mut relation = pair_relation(options.relation, &own, &psi.pixel(batch, other));
                if let Some(position) = position {
                    let (here, there) = (position.pixel(0, pixel), position.pixel(0, other));
                    match options.position {
                        PairPosition::Relative => relation.extend([here[0] - there[0], here[1] - there[1]]),
                        PairPosition::Absolute => relation.extend(there),
                        PairPosition::None => {}
                    }
                }
                gamma.apply(&relation)
            })
            .collect();
        (0..gamma.bias.len())
            .flat_map(|channel| softmax(&scores.iter().map(|score| score[channel]).collect::<Vec<_>>()))
            .collect()
    })
}

fn pair_relation(relation: PairRelation, own: &[f64], other: &[f64]) -> Vec<f64> {
    let each = |combine: fn(f64, f64) -> f64| own.iter().zip(other).map(|(o, p)| combine(*o, *p)).collect();
    match relation {
        PairRelation::Summation => each(|o, p| o + p),
        PairRelation::Subtraction => each(|o, p| o - p),
        PairRelation::Hadamard => each(|o, p| o * p),
        PairRelation::Concatenation => [own, other].concat(),
        PairRelation::Dot => vec![dot(own, other)],
    }
}

/// Output `[B, C, H, W]` and weights `[B, Cw, k*k, H*W]`.
pub fn patchwise(
    phi: Option<&Images>,
    [psi, beta]: [&Images; 2],
    gamma: &Gamma,
    options: &Patchwise,
) -> (Vec<f64>, Vec<f64>) {
    let offsets = options.window * options.window;
    by_footprint(beta, gamma.bias.len() / offsets, options.window, |batch, pixel, footprint| {
        let psi_at: Vec<Vec<f64>> = footprint.iter().map(|&other| psi.pixel(batch, other)).collect();
        let relation: Vec<f64> = match options.relation {
            PatchRelation::Star => {
                let own = phi.unwrap().pixel(batch, pixel);
                psi_at.iter().map(|other| dot(&own, other)).collect()
            }
            PatchRelation::Clique => footprint
                .iter()
                .flat_map(|&first| {
                    let first = phi.unwrap().pixel(batch, first);
                    psi_at.iter().map(move |second| dot(&first, second))
                })
                .collect(),
            PatchRelation::Concatenation => {
                let mut relation = phi.map_or(vec![], |phi| phi.pixel(batch, pixel));
                for channel in 0..psi.channels {
                    relation.extend(psi_at.iter().map(|other| other[channel]));
                }
                relation
            }
        };
        gamma.apply(&relation)
    })
}

/// The weighted sum over every reflected footprint; each pixel has weights `[Cw, k*k]`.
fn by_footprint(
    beta: &Images,
    shared: usize,
    window: usize,
    weigh: impl Fn(usize, usize, &[usize]) -> Vec<f64>,
) -> (Vec<f64>, Vec<f64>) {
    let (offsets, pixels) = (window * window, beta.pixels());
    let mut out = vec![0.0; beta.batch * beta.channels * pixels];
    let mut all_weights = vec![0.0; beta.batch * shared * offsets * pixels];
    for batch in 0..beta.batch {
        for pixel in 0..pixels {
            let footprint: Vec<usize> =
                (0..offsets).map(|offset| reflected_neighbour(pixel, offset, window, beta.size)).collect();
            let weights = weigh(batch, pixel, &footprint);
            for (index, weight) in weights.iter().enumerate() {
                all_weights[(batch * shared * offsets + index) * pixels + pixel] = *weight;
            }
            for channel in 0..beta.channels {
                let own = &weights[(channel % shared) * offsets..][..offsets];
                let seen: Vec<f64> = footprint.iter().map(|&other| beta.at(batch, channel, other)).collect();
                out[(batch * beta.channels + channel) * pixels + pixel] = dot(own, &seen);
            }
        }
    }
    (out, all_weights)
}

/// Output `[B, C, H, W]`; `values[m]` is the m-th value map, `mixture` is `[M, b, b]`.
pub fn stem(query: &Images, key: &Images, value_maps: &[Images], mixture: &[f64], options: &Stem) -> Vec<f64> {
    let (heads, block, pixels) = (options.heads, options.block, query.pixels());
    let (_, width) = query.size;
    let (head_width, channels) = (query.channels / heads, value_maps[0].channels);
    let value_width = channels / heads;
    let mut out = vec![0.0; query.batch * channels * pixels];
    for batch in 0..query.batch {
        for head in 0..heads {
            let own = head * head_width..(head + 1) * head_width;
            for pixel in 0..pixels {
                let (row, column) = (pixel / width, pixel % width);
                let (top, left) = (row - row % block, column - column % block);
                let seen: Vec<usize> =
                    (0..block * block).map(|n| (top + n / block) * width + left + n % block).collect();
                let query = &query.pixel(batch, pixel)[own.clone()];
                let scores: Vec<f64> = seen
                    .iter()
                    .map(|&other| {
                        let content = dot(query, &key.pixel(batch, other)[own.clone()]);
                        let place = options.relative.as_ref().map_or(0.0, |relative| {
                            let row_offset = other / width + block - 1 - row;
                            let column_offset = other % width + block - 1 - column;
                            relative_score(relative, head, query, row_offset, column_offset)
                        });
                        options.scale.unwrap_or(1.0) * (content + place)
                    })
                    .collect();
                for (place, (other, weight)) in seen.iter().zip(softmax(&scores)).enumerate() {
                    for channel in head * value_width..(head + 1) * value_width {
                        let mixed: f64 = value_maps
                            .iter()
                            .enumerate()
                            .map(|(m, map)| mixture[m * block * block + place] * map.at(batch, channel, *other))
                            .sum();
                        out[(batch * channels + channel) * pixels + pixel] += weight * mixed;
                    }
                }
            }
        }
    }
    out
}
