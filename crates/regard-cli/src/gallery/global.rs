//! Operators in which every patch looks at every patch.

use burn::tensor::Tensor;
use regard::attention::{self, AdditiveWeights, Affinity, DotProduct, NonLocalOptions, split_heads};
use std::time::Duration;

use super::{Heat, Shown, Stage, values};

const WIDTH: usize = 64;

pub fn dot_product(stage: &Stage) -> Shown {
    let tokens = split_heads(stage.tokens(&stage.picture, WIDTH), 4);
    let options = DotProduct::default();
    let (time, weights) =
        stage.watch(|pass| attention::dot_product(tokens.clone(), tokens.clone(), tokens.clone(), &options, pass));
    shown(stage, 0, time, weights.mean_dim(1).squeeze_dim(1))
}

pub fn additive(stage: &Stage) -> Shown {
    let tokens = stage.tokens(&stage.picture, WIDTH);
    let weights = AdditiveWeights {
        query: stage.random([WIDTH, WIDTH], 21).mul_scalar(0.1),
        key: stage.random([WIDTH, WIDTH], 22).mul_scalar(0.1),
        energy: stage.random([WIDTH], 23),
    };
    let (time, formed) =
        stage.watch(|pass| attention::additive(tokens.clone(), tokens.clone(), tokens.clone(), &weights, None, pass));
    shown(stage, 2 * WIDTH * WIDTH + WIDTH, time, formed)
}

pub fn gaussian(stage: &Stage) -> Shown {
    let tokens = stage.tokens(&stage.picture, WIDTH);
    non_local(stage, Affinity::Gaussian, tokens, 0)
}

pub fn embedded_gaussian(stage: &Stage) -> Shown {
    embedded(stage, Affinity::EmbeddedGaussian)
}

pub fn non_local_dot_product(stage: &Stage) -> Shown {
    embedded(stage, Affinity::DotProduct)
}

pub fn concatenation(stage: &Stage) -> Shown {
    embedded(stage, Affinity::Concatenation)
}

fn embedded(stage: &Stage, affinity: Affinity) -> Shown {
    // theta and phi start as one matrix, so that what is alike stays alike
    let inner = WIDTH / 2;
    let theta = stage.random([1, WIDTH, inner], 24).mul_scalar((3.0 / inner as f64).sqrt());
    let tokens = stage.tokens(&stage.picture, WIDTH).matmul(theta);
    non_local(stage, affinity, tokens, 2 * WIDTH * inner)
}

fn non_local(stage: &Stage, affinity: Affinity, tokens: Tensor<3>, mut parameters: usize) -> Shown {
    let width = tokens.dims()[2];
    let concatenation = (affinity == Affinity::Concatenation).then(|| stage.random([2 * width], 26));
    parameters += concatenation.as_ref().map_or(0, |weights| weights.dims()[0]);
    let scale = (affinity != Affinity::Concatenation).then(|| 1.0 / (width as f64).sqrt());
    let options = NonLocalOptions { affinity, scale, concatenation };
    let (time, weights) =
        stage.watch(|pass| attention::non_local(tokens.clone(), tokens.clone(), tokens.clone(), &options, pass));
    shown(stage, parameters, time, weights)
}

/// What the patch on the red disc looks at; weights are `[1, N, N]`.
fn shown(stage: &Stage, parameters: usize, time: Duration, weights: Tensor<3>) -> Shown {
    let side = Stage::GRID;
    let query = Stage::QUERY.0 * side + Stage::QUERY.1;
    let values: Vec<f32> =
        values(weights)[query * side * side..][..side * side].iter().map(|weight| weight.abs()).collect();
    let heat = Heat { rows: side, columns: side, values, query: Some(Stage::QUERY) };
    Shown { parameters, time, picture: stage.picture.clone(), heat, result: None }
}
