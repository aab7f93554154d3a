//! Operators in which every pixel looks at the pixels near it.
//!
//! Their maps are tiles: each shows what its middle pixel looks at in its window.

use burn::module::Module as _;
use burn::tensor::Tensor;
use regard::attention::{PairPosition, PairRelation, PatchRelation};
use regard::layers::{AttentionStemConfig, LocalAttentionConfig, SanRelation, SanUnitConfig, Sharing};
use std::time::Duration;

use super::scene::SIDE;
use super::{Heat, Shown, Stage, values};

const CHANNELS: usize = 32;
const WINDOW: usize = 7;

pub fn local(stage: &Stage) -> Shown {
    let config = LocalAttentionConfig {
        channels_in: CHANNELS,
        channels_out: CHANNELS,
        heads: 4,
        window: WINDOW,
        relative: true,
    };
    let layer = config.init(&stage.device).expect("these sizes fit together");
    let map = stage.features(CHANNELS);
    let (time, weights) = stage.watch(|pass| layer.forward(map.clone(), pass));
    shown(stage, layer.num_params(), time, tiles(weights, WINDOW))
}

pub fn stem(stage: &Stage) -> Shown {
    const BLOCK: usize = 4;
    let config = AttentionStemConfig {
        channels_in: CHANNELS,
        channels_out: CHANNELS,
        heads: 4,
        block: BLOCK,
        maps: 4,
        relative: true,
    };
    let layer = config.init(&stage.device).expect("these sizes fit together");
    let map = stage.features(CHANNELS);
    let (time, weights) = stage.watch(|pass| layer.forward(map.clone(), pass));
    // [blocks, heads, queries, keys]: in every block, the query a little past its middle
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
    shown(stage, layer.num_params(), time, heat)
}

pub fn summation(stage: &Stage) -> Shown {
    pairwise(stage, PairRelation::Summation)
}

pub fn subtraction(stage: &Stage) -> Shown {
    pairwise(stage, PairRelation::Subtraction)
}

pub fn pair_concatenation(stage: &Stage) -> Shown {
    pairwise(stage, PairRelation::Concatenation)
}

pub fn hadamard(stage: &Stage) -> Shown {
    pairwise(stage, PairRelation::Hadamard)
}

pub fn pair_dot(stage: &Stage) -> Shown {
    pairwise(stage, PairRelation::Dot)
}

pub fn star(stage: &Stage) -> Shown {
    patchwise(stage, PatchRelation::Star)
}

pub fn clique(stage: &Stage) -> Shown {
    patchwise(stage, PatchRelation::Clique)
}

pub fn patch_concatenation(stage: &Stage) -> Shown {
    patchwise(stage, PatchRelation::Concatenation)
}

fn pairwise(stage: &Stage, relation: PairRelation) -> Shown {
    san(stage, SanRelation::Pairwise { relation, position: PairPosition::Relative }, WINDOW)
}

/// The clique compares every pixel of a footprint with every other: five a side are enough to see it.
fn patchwise(stage: &Stage, relation: PatchRelation) -> Shown {
    san(stage, SanRelation::Patchwise { relation }, 5)
}

fn san(stage: &Stage, relation: SanRelation, window: usize) -> Shown {
    let config = SanUnitConfig {
        channels_in: CHANNELS,
        channels_out: CHANNELS,
        channels_relation: CHANNELS / 4,
        share: 8,
        window,
        relation,
        sharing: Sharing::AllDifferent,
    };
    let unit = config.init(&stage.device).expect("these sizes fit together");
    let map = stage.features(CHANNELS);
    let (time, weights) = stage.watch(|pass| unit.forward(map.clone(), pass));
    shown(stage, unit.num_params(), time, tiles(weights, window))
}

/// `[1, A, k*k, H*W] -> [H, W]`: windows side by side, the strength of all heads together.
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

fn shown(stage: &Stage, parameters: usize, time: Duration, values: Vec<f32>) -> Shown {
    let heat = Heat { rows: SIDE, columns: SIDE, values, query: None };
    Shown { parameters, time, picture: stage.picture.clone(), heat, result: None }
}
