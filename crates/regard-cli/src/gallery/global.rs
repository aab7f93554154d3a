//! Operators in which every patch attends to every patch.

use burn::tensor::Tensor;
use regard::attention::{self, AdditiveWeights, Affinity, DotProduct, NonLocalOptions, split_heads};
use std::time::Duration;

use super::{AttentionMap, GalleryContext, OperatorRun, values};

const WIDTH: usize = 64;

pub fn dot_product(context: &GalleryContext) -> OperatorRun {
    let tokens = split_heads(context.tokens(&context.picture, WIDTH), 4);
    let options = DotProduct::default();
    let (time, weights) =
        context.watch(|pass| attention::dot_product(tokens.clone(), tokens.clone(), tokens.clone(), &options, pass));
    shown(context, 0, time, weights.mean_dim(1).squeeze_dim(1))
}

pub fn additive(context: &GalleryContext) -> OperatorRun {
    let tokens = context.tokens(&context.picture, WIDTH);
    let weights = AdditiveWeights {
        query: context.random([WIDTH, WIDTH], 21).mul_scalar(0.1),
        key: context.random([WIDTH, WIDTH], 22).mul_scalar(0.1),
        energy: context.random([WIDTH], 23),
    };
    let (time, formed) =
        context.watch(|pass| attention::additive(tokens.clone(), tokens.clone(), tokens.clone(), &weights, None, pass));
    shown(context, 2 * WIDTH * WIDTH + WIDTH, time, formed)
}

pub fn gaussian(context: &GalleryContext) -> OperatorRun {
    let tokens = context.tokens(&context.picture, WIDTH);
    non_local(context, Affinity::Gaussian, tokens, 0)
}

pub fn embedded_gaussian(context: &GalleryContext) -> OperatorRun {
    embedded(context, Affinity::EmbeddedGaussian)
}

pub fn non_local_dot_product(context: &GalleryContext) -> OperatorRun {
    embedded(context, Affinity::DotProduct)
}

pub fn concatenation(context: &GalleryContext) -> OperatorRun {
    embedded(context, Affinity::Concatenation)
}

fn embedded(context: &GalleryContext, affinity: Affinity) -> OperatorRun {
    // theta and phi are the same matrix, so that similar patches stay similar
    let inner = WIDTH / 2;
    let theta = context.random([1, WIDTH, inner], 24).mul_scalar((3.0 / inner as f64).sqrt());
    let tokens = context.tokens(&context.picture, WIDTH).matmul(theta);
    non_local(context, affinity, tokens, 2 * WIDTH * inner)
}

fn non_local(context: &GalleryContext, affinity: Affinity, tokens: Tensor<3>, mut parameters: usize) -> OperatorRun {
    let width = tokens.dims()[2];
    let concatenation = (affinity == Affinity::Concatenation).then(|| context.random([2 * width], 26));
    parameters += concatenation.as_ref().map_or(0, |weights| weights.dims()[0]);
    let scale = (affinity != Affinity::Concatenation).then(|| 1.0 / (width as f64).sqrt());
    let options = NonLocalOptions { affinity, scale, concatenation };
    let (time, weights) =
        context.watch(|pass| attention::non_local(tokens.clone(), tokens.clone(), tokens.clone(), &options, pass));
    shown(context, parameters, time, weights)
}

/// The attention of the patch on the red disc; weights are `[1, N, N]`.
fn shown(context: &GalleryContext, parameters: usize, time: Duration, weights: Tensor<3>) -> OperatorRun {
    let side = GalleryContext::GRID;
    let query = GalleryContext::QUERY.0 * side + GalleryContext::QUERY.1;
    let values: Vec<f32> =
        values(weights)[query * side * side..][..side * side].iter().map(|weight| weight.abs()).collect();
    let heat = AttentionMap { rows: side, columns: side, values, query: Some(GalleryContext::QUERY) };
    OperatorRun { parameters, time, picture: context.picture.clone(), heat, result: None }
}
