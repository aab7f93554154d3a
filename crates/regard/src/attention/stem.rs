//! The attention stem: self-attention inside aligned blocks, with values that depend on the position in the block.
//! Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models", arXiv:1906.05909, section 3.2.
//!
//! Raw pixels carry too little content to attend by, so inside its `b x b` block a pixel's value is
//! a mixture `v_ab = (sum_m p(a, b, m) W_m) x_ab` of `M` linear maps, weighted by its position in the block:
//! `p(a, b, m) = softmax_m((row_a + column_b) . nu_m)`, the same for every head.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;

use regard_kernels::blocks::Blocks;
use regard_kernels::local::Local;
use regard_kernels::window::Window;

use super::dot_product::dot_product_with_geometry;
use super::local::{self, check_relative};
use super::{Attended, DotProduct, Relative, check, project};
use crate::Pass;
use crate::fused::{self, Kernel, Saved};
use crate::pass::{Geometry, Reach};

/// Heads and block of the attention stem.
#[derive(Clone, Debug)]
pub struct Stem {
    /// Heads; channels are heads-major, `A*K`.
    pub heads: usize,
    /// Side of a block.
    pub block: usize,
    /// Embeddings of the `2*b - 1` offsets inside a block, `[A, K/2, 2*b - 1]` each.
    pub relative: Option<Relative>,
    /// Factor of the scores; the paper has none.
    pub scale: Option<f64>,
}

/// `rows [E, b], columns [E, b], nu [M, E] -> [M, b, b]`: the weight of each value map at each position of a block.
///
/// # Panics
/// When the shapes do not fit together; the message names the axis and both sizes.
#[must_use]
pub fn mixture_weights(rows: Tensor<2>, columns: Tensor<2>, nu: Tensor<2>) -> Tensor<3> {
    const NAME: &str = "mixture_weights";
    let ([width, block], [maps, nu_width]) = (rows.dims(), nu.dims());
    check::agree(NAME, "width", ("columns", columns.dims()[0]), ("rows", width));
    check::agree(NAME, "block", ("columns", columns.dims()[1]), ("rows", block));
    check::agree(NAME, "width", ("nu", nu_width), ("rows", width));
    let places = rows.reshape([width, block, 1]) + columns.reshape([width, 1, block]);
    softmax(nu.matmul(places.reshape([width, block * block])), 0).reshape([maps, block, block])
}

/// `query, key [B, A*K, H, W], values [B, M, A*V, H, W], mixture [M, b, b] -> [B, A*V, H, W]`.
///
/// Weights are `[B*blocks, A, b*b, b*b]`; samples, blocks and positions are numbered row by row.
///
/// # Panics
/// When the shapes do not fit together; the message names the axis and both sizes.
pub fn stem(
    query: Tensor<4>,
    key: Tensor<4>,
    values: Tensor<5>,
    mixture: Tensor<3>,
    options: &Stem,
    pass: &mut Pass,
) -> Attended<4> {
    check_shapes(&query, &key, &values, &mixture, options);
    let [batch, _, height, width] = query.dims();
    let value = mix(values, mixture);
    let [query, key, value] = [query, key, value].map(|map| to_blocks(map, options.heads, options.block));
    let scale = options.scale.unwrap_or(1.0);
    let bias = options
        .relative
        .as_ref()
        .map(|relative| relative_scores(query.clone(), relative, options.block).mul_scalar(scale));
    let inside = DotProduct { scale: Some(scale), bias, ..DotProduct::default() };
    let geometry = |_: &Pass| Geometry::within_map([height, width], Reach::Block { side: options.block });
    let Attended { out, weights } = dot_product_with_geometry(query, key, value, &inside, pass, geometry);
    Attended { out: from_blocks(out, options.block, [batch, height, width]), weights }
}

/// `pixels [B, I, H, W], query, key [A*K, I], values [M*A*V, I], mixture [M, b, b] -> [B, A*V, H, W]`: projections and
/// [`stem`] in one, on the CPU.
///
/// Works on tiles of sixteen interleaved blocks, so that only the pixels and the output are rearranged. The value maps of
/// a position are mixed before they are applied, since both are linear.
pub(crate) fn fused(
    pixels: Tensor<4>,
    [query, key, values]: [Tensor<2>; 3],
    mixture: Tensor<3>,
    options: &Stem,
) -> Tensor<4> {
    let ([batch, inputs, height, width], [maps, block, _]) = (pixels.dims(), mixture.dims());
    let (channels, outputs, places) = (query.dims()[0], values.dims()[0] / maps, block * block);
    let blocks = Blocks { batch, channels: inputs, height, width, block };
    let groups = blocks.groups();
    let pixels = fused::apply(InterleaveBlocks(blocks), [pixels.into_dispatch()], [groups, inputs, places, TILE]);
    let scale = options.scale.unwrap_or(1.0);
    let query = project(pixels.clone(), query.mul_scalar(scale), None);
    let key = project(pixels.clone(), key, None);
    // [O, p, I, p'] is the mixed map of position p where p' = p, else 0: (channel, position) pairs are the channels
    let mixed = mixture.reshape([maps, places]).transpose().matmul(values.reshape([maps, outputs * inputs]));
    let mixed = mixed.reshape([places, outputs, inputs, 1]).swap_dims(0, 1);
    let same = Tensor::<2>::eye(places, &pixels.device()).reshape([1, places, 1, places]);
    let values = (mixed * same).reshape([outputs * places, inputs * places]);
    let value = project(pixels.reshape([groups, inputs * places, 1, TILE]), values, None);

    let kernel = Local {
        batch: groups,
        heads: options.heads,
        width: channels / options.heads,
        value_width: outputs / options.heads,
        window: Window::beside(block, block, 2 * block - 1),
        relative: options.relative.is_some(),
    };
    let shape = [groups, outputs, places, TILE];
    let [query, key, value] = [query, key, value.reshape(shape)].map(Tensor::into_dispatch);
    let out: Tensor<4> = match &options.relative {
        None => fused::apply(local::Fused(kernel), [query, key, value], shape),
        Some(Relative { rows, columns }) => {
            let [rows, columns] = [rows, columns].map(|embedding| embedding.clone().into_dispatch());
            fused::apply(local::Fused(kernel), [query, key, value, rows, columns], shape)
        }
    };
    fused::apply(
        SeparateBlocks(Blocks { channels: outputs, ..blocks }),
        [out.into_dispatch()],
        [batch, outputs, height, width],
    )
}

/// Whether [`fused`] supports this input.
pub(crate) fn can_fuse(pixels: &Tensor<4>, options: &Stem, pass: &Pass) -> bool {
    let [batch, _, height, width] = pixels.dims();
    let [fills, fits] = [
        height.is_multiple_of(options.block) && width.is_multiple_of(options.block),
        2 * options.block - 1 <= Window::LARGEST,
    ];
    batch > 0 && fills && fits && !pass.wants_weights() && fused::runs_on(pixels)
}

/// Number of interleaved blocks.
const TILE: usize = 16;

#[derive(Clone, Debug)]
struct InterleaveBlocks(Blocks);

impl Kernel<1> for InterleaveBlocks {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (self.0.interleave(x), Vec::new())
    }
    fn backward(&self, _: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [self.0.separate(grad)]
    }
}

#[derive(Clone, Debug)]
struct SeparateBlocks(Blocks);

impl Kernel<1> for SeparateBlocks {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (self.0.separate(x), Vec::new())
    }
    fn backward(&self, _: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [self.0.interleave(grad)]
    }
}

/// `[B, M, C, H, W], [M, b, b] -> [B, C, H, W]`
fn mix(values: Tensor<5>, mixture: Tensor<3>) -> Tensor<4> {
    let ([batch, maps, channels, height, width], [_, block, _]) = (values.dims(), mixture.dims());
    let values = values.reshape([batch, maps, channels * (height / block), block, width / block, block]);
    let mixed = (values * mixture.reshape([1, maps, 1, block, 1, block])).sum_dim(1);
    mixed.reshape([batch, channels, height, width])
}

/// `[B, A*K, H, W] -> [B*blocks, A, b*b, K]`
fn to_blocks(map: Tensor<4>, heads: usize, block: usize) -> Tensor<4> {
    let [batch, channels, height, width] = map.dims();
    let (rows, columns, head_width) = (height / block, width / block, channels / heads);
    map.reshape([batch, heads, head_width, rows, block, columns, block]).permute([0, 3, 5, 1, 4, 6, 2]).reshape([
        batch * rows * columns,
        heads,
        block * block,
        head_width,
    ])
}

/// `[B*blocks, A, b*b, V] -> [B, A*V, H, W]`
fn from_blocks(blocks: Tensor<4>, block: usize, [batch, height, width]: [usize; 3]) -> Tensor<4> {
    let [_, heads, _, head_width] = blocks.dims();
    blocks
        .reshape([batch, height / block, width / block, heads, block, block, head_width])
        .permute([0, 3, 6, 1, 4, 2, 5])
        .reshape([batch, heads * head_width, height, width])
}

/// `[B*blocks, A, b*b, K] -> [B*blocks, A, b*b, b*b]`: `q . r` for every pair of positions.
fn relative_scores(query: Tensor<4>, relative: &Relative, block: usize) -> Tensor<4> {
    let [blocks, heads, places, head_width] = query.dims();
    let [_, half, offsets] = relative.rows.dims();
    let toward = |embedding: &Tensor<3>, start: usize| {
        let embedding = embedding.clone().reshape([1, heads, half, offsets]);
        query.clone().narrow(3, start, half).matmul(embedding).reshape([blocks, heads, block, block, offsets])
    };
    // for a query in row (or column) a, the offsets of the keys are 0 - a ..= b-1 - a
    let align = |scores: Tensor<5>, axis: usize| {
        let own = |a: usize| scores.clone().narrow(axis, a, 1).narrow(4, block - 1 - a, block);
        Tensor::cat((0..block).map(own).collect(), axis)
    };
    let rows = align(toward(&relative.rows, 0), 2).reshape([blocks, heads, places, block, 1]);
    let columns = align(toward(&relative.columns, head_width - half), 3).reshape([blocks, heads, places, 1, block]);
    (rows + columns).reshape([blocks, heads, places, places])
}

fn check_shapes(query: &Tensor<4>, key: &Tensor<4>, values: &Tensor<5>, mixture: &Tensor<3>, options: &Stem) {
    const NAME: &str = "stem";
    let [batch, channels, height, width] = query.dims();
    let [value_batch, maps, value_channels, value_height, value_width] = values.dims();
    check::not_empty(NAME, "query", &[("batch", batch), ("channels", channels), ("height", height), ("width", width)]);
    check::not_empty(NAME, "values", &[("maps", maps), ("channels", value_channels)]);
    for (axis, name) in [(0, "batch"), (1, "channels"), (2, "height"), (3, "width")] {
        check::agree(NAME, name, ("query", query.dims()[axis]), ("key", key.dims()[axis]));
    }
    check::agree(NAME, "batch", ("values", value_batch), ("query", batch));
    check::agree(NAME, "height", ("values", value_height), ("query", height));
    check::agree(NAME, "width", ("values", value_width), ("query", width));
    check::divides(NAME, ("heads", options.heads), ("query channels", channels));
    check::divides(NAME, ("heads", options.heads), ("value channels", value_channels));
    for (axis, size) in [("height", height), ("width", width)] {
        let block = options.block;
        assert!(
            block > 0 && size.is_multiple_of(block),
            "{NAME}: blocks of {block} x {block} do not fill {axis} {size}"
        );
    }
    check::agree(NAME, "maps", ("mixture", mixture.dims()[0]), ("values", maps));
    for axis in [1, 2] {
        check::agree(NAME, "side", ("mixture", mixture.dims()[axis]), ("block", options.block));
    }
    if let Some(relative) = &options.relative {
        check_relative(NAME, relative, options.heads, channels / options.heads, 2 * options.block - 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::dot_product;
    use crate::attention::naive;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, values};

    fn options(block: usize, relative: bool) -> Stem {
        let embedding = |seed: u64| random([2, 2, 2 * block - 1], seed);
        let relative = relative.then(|| Relative { rows: embedding(51), columns: embedding(52) });
        Stem { heads: 2, block, relative, scale: None }
    }

    fn mixture(block: usize) -> Tensor<3> {
        mixture_weights(random([5, block], 53), random([5, block], 54), random([3, 5], 55))
    }

    struct Inputs {
        query: Tensor<4>,
        key: Tensor<4>,
        values: Tensor<5>,
    }

    fn inputs([batch, height, width]: [usize; 3]) -> Inputs {
        Inputs {
            query: random([batch, 8, height, width], 56),
            key: random([batch, 8, height, width], 57),
            values: random([batch, 3, 6, height, width], 58),
        }
    }

    fn attend(inputs: &Inputs, options: &Stem) -> (Tensor<4>, Tensor<4>) {
        let Inputs { query, key, values } = inputs;
        let mut pass = Pass::recording();
        let attended = stem(query.clone(), key.clone(), values.clone(), mixture(options.block), options, &mut pass);
        (attended.out, attended.weights.unwrap())
    }

    #[test]
    fn every_block_is_its_naive_twin() {
        for block in 1..=4 {
            for (relative, scale) in [(false, None), (true, None), (true, Some(0.6))] {
                let options = Stem { scale, ..options(block, relative) };
                let inputs = inputs([2, 2 * block, 3 * block]);
                let (out, weights) = attend(&inputs, &options);
                assert_eq!(out.dims(), [2, 6, 2 * block, 3 * block]);
                assert_eq!(weights.dims(), [12, 2, block * block, block * block]);
                let maps: Vec<naive::Images> =
                    inputs.values.iter_dim(1).map(|map| naive::Images::from(&map.squeeze_dim::<4>(1))).collect();
                let mixture: Vec<f64> = values(&mixture(block)).into_iter().map(f64::from).collect();
                let (query, key) = (naive::Images::from(&inputs.query), naive::Images::from(&inputs.key));
                naive::assert_twin(&out, &naive::stem(&query, &key, &maps, &mixture, &options));
            }
        }
    }

    #[test]
    fn a_mixture_is_the_softmax_over_maps_of_row_plus_column() {
        let (rows, columns, nu) = (random([5, 3], 1), random([5, 3], 2), random([4, 5], 3));
        let mixture = values(&mixture_weights(rows.clone(), columns.clone(), nu.clone()));
        let (rows, columns, nu) = (values(&rows), values(&columns), values(&nu));
        for place in 0..9 {
            let scores: Vec<f64> = (0..4)
                .map(|m| {
                    (0..5)
                        .map(|e| f64::from(nu[m * 5 + e] * (rows[e * 3 + place / 3] + columns[e * 3 + place % 3])))
                        .sum()
                })
                .collect();
            for (m, expected) in naive::softmax(&scores).into_iter().enumerate() {
                assert!((f64::from(mixture[m * 9 + place]) - expected).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn rows_of_weights_sum_to_one() {
        let (_, weights) = attend(&inputs([2, 4, 4]), &options(2, true));
        assert_close(&weights.sum_dim(3), &Tensor::ones([8, 2, 4, 1], &crate::device::cpu()), 1e-6);
    }

    #[test]
    fn a_block_knows_nothing_of_the_others() {
        let mut inputs = inputs([1, 4, 6]);
        let options = options(2, true);
        let (before, _) = attend(&inputs, &options);
        inputs.query = inputs.query.slice_fill([0..1, 0..8, 0..2, 2..4], 3.0);
        inputs.key = inputs.key.slice_fill([0..1, 0..8, 0..2, 2..4], -2.0);
        inputs.values = inputs.values.slice_fill([0..1, 0..3, 0..6, 0..2, 2..4], 5.0);
        let (after, _) = attend(&inputs, &options);
        let changed = values(&(before - after).abs().max_dim(1));
        for (pixel, change) in changed.iter().enumerate() {
            let inside = pixel / 6 < 2 && (2..4).contains(&(pixel % 6));
            assert_eq!(inside, *change > 0.0, "pixel {pixel} changed by {change}");
        }
    }

    #[test]
    fn one_value_map_needs_no_mixture() {
        let Inputs { query, key, values } = inputs([1, 4, 4]);
        let options = options(4, false);
        let value = values.narrow(1, 0, 1);
        let mixture = mixture_weights(random([5, 4], 1), random([5, 4], 2), random([1, 5], 3));
        let out = stem(query.clone(), key.clone(), value.clone(), mixture, &options, &mut Pass::silent()).out;
        let tokens = |map: Tensor<4>, width: usize| map.reshape([1, 2, width, 16]).swap_dims(2, 3);
        let global = dot_product(
            tokens(query, 4),
            tokens(key, 4),
            tokens(value.squeeze_dim::<4>(1), 3),
            &DotProduct { scale: Some(1.0), ..DotProduct::default() },
            &mut Pass::silent(),
        );
        assert_close(&out, &global.out.swap_dims(2, 3).reshape([1, 6, 4, 4]), 1e-5);
    }

    #[test]
    fn a_batch_of_two_equals_two_batches_of_one() {
        let (both, options) = (inputs([2, 4, 2]), options(2, true));
        let (out, _) = attend(&both, &options);
        for sample in 0..2 {
            let one = Inputs {
                query: both.query.clone().narrow(0, sample, 1),
                key: both.key.clone().narrow(0, sample, 1),
                values: both.values.clone().narrow(0, sample, 1),
            };
            assert_close(&out.clone().narrow(0, sample, 1), &attend(&one, &options).0, 1e-6);
        }
    }

    #[test]
    fn recorded_equals_unrecorded() {
        let (inputs, options) = (inputs([2, 4, 4]), options(2, true));
        let (recorded, _) = attend(&inputs, &options);
        let Inputs { query, key, values } = inputs;
        let silent = stem(query, key, values, mixture(2), &options, &mut Pass::silent());
        assert!(silent.weights.is_none());
        assert_close(&silent.out, &recorded, 1e-5);
    }

    #[test]
    fn gradients_are_differences() {
        let inputs = [
            ("query", noise(4 * 8, 1)),
            ("key", noise(4 * 8, 2)),
            ("values", noise(3 * 4 * 8, 3)),
            ("place rows", noise(2 * 2, 4)),
            ("place columns", noise(2 * 2, 5)),
            ("nu", noise(3 * 2, 6)),
            ("rows", noise(2 * 3, 7)),
            ("columns", noise(2 * 3, 8)),
        ];
        assert_gradients_are_differences(&inputs, |inputs| {
            let input = |index: usize| inputs[index].clone();
            let mixture = mixture_weights(input(3).reshape([2, 2]), input(4).reshape([2, 2]), input(5).reshape([3, 2]));
            let relative = Relative { rows: input(6).reshape([2, 1, 3]), columns: input(7).reshape([2, 1, 3]) };
            let options = Stem { heads: 2, block: 2, relative: Some(relative), scale: None };
            let map = |index: usize| input(index).reshape([1, 4, 2, 4]);
            stem(map(0), map(1), input(2).reshape([1, 3, 4, 2, 4]), mixture, &options, &mut Pass::silent()).out
        });
    }

    #[test]
    fn what_is_not_a_number_stays_in_its_block() {
        for poison in [f32::NAN, f32::INFINITY] {
            let mut inputs = inputs([1, 4, 4]);
            inputs.key = inputs.key.slice_fill([0..1, 0..1, 0..1, 0..1], poison);
            let (out, _) = attend(&inputs, &options(2, true));
            let far = values(&out.slice([0..1, 0..6, 2..4, 0..4]));
            assert!(far.iter().all(|value| value.is_finite()));
        }
    }

    #[test]
    #[should_panic(expected = "stem: blocks of 4 x 4 do not fill width 6")]
    fn an_image_that_blocks_do_not_fill_is_refused() {
        attend(&inputs([1, 8, 6]), &options(4, false));
    }

    #[test]
    #[should_panic(expected = "stem: row embedding has offsets 3, window has offsets 7")]
    fn embeddings_for_another_block_are_refused() {
        attend(&inputs([1, 4, 4]), &Stem { block: 4, ..options(2, true) });
    }
}
