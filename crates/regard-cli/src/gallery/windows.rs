//! Operators in which every pixel attends to its neighbourhood.
//!
//! Their maps are tiles: each shows the attention of its centre pixel in its window.

use burn::module::Module as _;
use burn::tensor::Tensor;
use regard::attention::{PairPosition, PairRelation, PatchRelation};
use regard::layers::{AttentionStemConfig, LocalAttentionConfig, SanRelation, SanUnitConfig, Sharing};
use std::time::Duration;

use super::scene::SIDE;
use super::{AttentionMap, GalleryContext, OperatorRun, values};

const CHANNELS: usize = 32;
const WINDOW: usize = 7;

pub fn local(context: &GalleryContext) -> OperatorRun {
    let config = LocalAttentionConfig {
        channels_in: CHANNELS,
        channels_out: CHANNELS,
        heads: 4,
        window: WINDOW,
        relative: true,
    };
    let layer = config.init(&context.device).expect("these sizes fit together");
    let map = context.features(CHANNELS);
    let (time, weights) = context.watch(|pass| layer.forward(map.clone(), pass));
    shown(context, layer.num_params(), time, tiles(weights, WINDOW))
}

pub fn stem(context: &GalleryContext) -> OperatorRun {
    const BLOCK: usize = 4;
    let config = AttentionStemConfig {
        channels_in: CHANNELS,
        channels_out: CHANNELS,
        heads: 4,
        block: BLOCK,
        maps: 4,
        relative: true,
    };
    let layer = config.init(&context.device).expect("these sizes fit together");
    let map = context.features(CHANNELS);
    let (time, weights) = context.watch(|pass| layer.forward(map.clone(), pass));
    // [blocks, heads, queries, keys]: in every block, the query just past the centre
    let [blocks, _, _, places] = weights.dims();
    let query = BLOCK / 2 * BLOCK + BLOCK / 2;
    let weights = values(weights.mean_dim(1).slice([0..blocks, 0..1, query..query + 1, 0..places]));
    let mut heat = vec![f32::NAN; SIDE * SIDE];
    for (index, weight) in weights.iter().enumerate() {
        let (block, place) = (index / places, index % places);
        let row = block / (SIDE / BLOCK) * BLOCK + place / BLOCK;
        let column = block % (SIDE / BLOCK) * BLOCK + place % BLOCK;
        heat[row * SIDE + column] = *weight;
    }
    shown(context, layer.num_params(), time, heat)
}

pub fn summation(context: &GalleryContext) -> OperatorRun {
    pairwise(context, PairRelation::Summation)
}

pub fn subtraction(context: &GalleryContext) -> OperatorRun {
    pairwise(context, PairRelation::Subtraction)
}

pub fn pair_concatenation(context: &GalleryContext) -> OperatorRun {
    pairwise(context, PairRelation::Concatenation)
}

pub fn hadamard(context: &GalleryContext) -> OperatorRun {
    pairwise(context, PairRelation::Hadamard)
}

pub fn pair_dot(context: &GalleryContext) -> OperatorRun {
    pairwise(context, PairRelation::Dot)
}

pub fn star(context: &GalleryContext) -> OperatorRun {
    patchwise(context, PatchRelation::Star)
}

pub fn clique(context: &GalleryContext) -> OperatorRun {
    patchwise(context, PatchRelation::Clique)
}

pub fn patch_concatenation(context: &GalleryContext) -> OperatorRun {
    patchwise(context, PatchRelation::Concatenation)
}

fn pairwise(context: &GalleryContext, relation: PairRelation) -> OperatorRun {
    san(context, SanRelation::Pairwise { relation, position: PairPosition::Relative }, WINDOW)
}

/// The clique compares all pairs of pixels in a footprint, so its footprint is only 5 x 5.
fn patchwise(context: &GalleryContext, relation: PatchRelation) -> OperatorRun {
    san(context, SanRelation::Patchwise { relation }, 5)
}

fn san(context: &GalleryContext, relation: SanRelation, window: usize) -> OperatorRun {
    let config = SanUnitConfig {
        channels_in: CHANNELS,
        channels_out: CHANNELS,
        channels_relation: CHANNELS / 4,
        share: 8,
        window,
        relation,
        sharing: Sharing::AllDifferent,
    };
    let unit = config.init(&context.device).expect("these sizes fit together");
    let map = context.features(CHANNELS);
    let (time, weights) = context.watch(|pass| unit.forward(map.clone(), pass));
    shown(context, unit.num_params(), time, tiles(weights, window))
}

/// `[1, A, k*k, H*W] -> [H, W]`: windows as tiles, with the mean absolute weight over heads.
fn tiles(weights: Tensor<4>, window: usize) -> Vec<f32> {
    let weights = values(weights.abs().mean_dim(1));
    let mut heat = vec![f32::NAN; SIDE * SIDE];
    for row in 0..SIDE / window * window {
        for column in 0..SIDE / window * window {
            let (inner_row, inner_column) = (row % window, column % window);
            let middle = (row - inner_row + window / 2) * SIDE + column - inner_column + window / 2;
            heat[row * SIDE + column] = weights[(inner_row * window + inner_column) * SIDE * SIDE + middle];
        }
    }
    heat
}

fn shown(context: &GalleryContext, parameters: usize, time: Duration, values: Vec<f32>) -> OperatorRun {
    let heat = AttentionMap { rows: SIDE, columns: SIDE, values, query: None };
    OperatorRun { parameters, time, picture: context.picture.clone(), heat, result: None }
}
