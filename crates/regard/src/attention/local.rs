//! Local self-attention: every pixel looks at a small window around itself.
//! Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models", arXiv:1906.05909.
//!
//! `out_i = sum_j softmax_j(scale * q_i . (k_j + r_{j-i})) v_j` over the `k x k` window of `i`, for each
//! head. `r` joins an embedding of the row offset and one of the column offset, each of half the head's
//! width. Pixels outside the image are masked.
//!
//! Differences from the public port (leaderj1001): scores are sums over a head's channels, not
//! kept for each channel; every head has row and column embeddings; padding is masked in the softmax.

use burn::tensor::Tensor;
use burn::tensor::activation::softmax;

use regard_kernels::local as kernels;
use regard_kernels::window::Window;

use super::window::{Border, outside, unfold};
use super::{Attended, check};
use crate::Pass;
use crate::fused::{self, Kernel, Saved};
use crate::pass::{Geometry, Reach};

/// Heads and window of local attention.
#[derive(Clone, Debug)]
pub struct Local {
    /// Heads; channels are heads-major, `A*K`.
    pub heads: usize,
    /// Side of the window; its offsets are `-(k-1)/2 ..= k/2`.
    pub window: usize,
    /// Embeddings of the offsets, if positions matter.
    pub relative: Option<Relative>,
    /// Factor of the scores; the paper has none.
    pub scale: Option<f64>,
}

/// Embeddings of row and column offsets, the smallest offset first.
#[derive(Clone, Debug)]
pub struct Relative {
    /// `[A, K/2, offsets]`, multiplied with the first half of a head's channels.
    pub rows: Tensor<3>,
    /// `[A, K/2, offsets]`, multiplied with the second half.
    pub columns: Tensor<3>,
}

/// `[B, A*K, H, W], [B, A*K, H, W], [B, A*V, H, W] -> [B, A*V, H, W]`, weights `[B, A, k*k, H*W]`.
///
/// # Panics
/// When the shapes do not fit together; the message names the axis and both sizes.
pub fn local(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, options: &Local, pass: &mut Pass) -> Attended<4> {
    check_shapes(&query, &key, &value, options);
    if !pass.wants_weights() && fused::runs_on(&query) && options.window <= Window::LARGEST {
        return Attended { out: fused(query, key, value, options), weights: None };
    }
    let ([_, _, height, width], side) = (query.dims(), options.window);
    let (out, weights) = plain(query, key, value, options);
    pass.record_weights(&weights, |_| Geometry::within_map([height, width], Reach::Window { side, mirrored: false }));
    Attended { out, weights: pass.wants_weights().then_some(weights) }
}

/// The output from a fused kernel, which never forms the weights.
fn fused(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, options: &Local) -> Tensor<4> {
    let [batch, channels, height, width] = query.dims();
    let value_channels = value.dims()[1];
    let kernel = Fused(kernels::Local {
        batch,
        heads: options.heads,
        width: channels / options.heads,
        value_width: value_channels / options.heads,
        window: Window::new(height, width, options.window),
        relative: options.relative.is_some(),
    });
    let query = match options.scale {
        Some(scale) => query.mul_scalar(scale),
        None => query,
    };
    let shape = [batch, value_channels, height, width];
    let [query, key, value] = [query, key, value].map(Tensor::into_dispatch);
    match &options.relative {
        None => fused::apply(kernel, [query, key, value], shape),
        Some(Relative { rows, columns }) => {
            let [rows, columns] = [rows, columns].map(|embedding| embedding.clone().into_dispatch());
            fused::apply(kernel, [query, key, value, rows, columns], shape)
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Fused(pub(super) kernels::Local);

impl Fused {
    /// Multiply-adds of scores and sums; neighbours beyond the border count.
    fn neighbours_of_widths(&self) -> u64 {
        let kernels::Local { batch, heads, width, value_width, window, .. } = &self.0;
        (batch * heads * window.pixels() * window.offsets() * (width + value_width)) as u64
    }
}

impl Kernel<3> for Fused {
    fn multiply_adds(&self, _: [usize; 3]) -> Option<u64> {
        Some(self.neighbours_of_widths())
    }
    fn forward(&self, [query, key, value]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        (self.0.forward([query, key, value, &[], &[]]), Vec::new())
    }
    fn backward(&self, [query, key, value]: [&[f32]; 3], _: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let [query, key, value, ..] = self.0.backward([query, key, value, &[], &[]], grad);
        [query, key, value]
    }
}

impl Kernel<5> for Fused {
    fn multiply_adds(&self, _: [usize; 5]) -> Option<u64> {
        Some(self.neighbours_of_widths())
    }
    fn forward(&self, inputs: [&[f32]; 5]) -> (Vec<f32>, Vec<f32>) {
        (self.0.forward(inputs), Vec::new())
    }
    fn backward(&self, inputs: [&[f32]; 5], _: Saved, grad: &[f32]) -> [Vec<f32>; 5] {
        self.0.backward(inputs, grad)
    }
}

/// The output and the weights, from Burn operations.
fn plain(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, options: &Local) -> (Tensor<4>, Tensor<4>) {
    let [batch, channels, height, width] = query.dims();
    let [_, value_channels, _, _] = value.dims();
    let (heads, pixels, offsets) = (options.heads, height * width, options.window * options.window);
    let (head_width, value_width) = (channels / heads, value_channels / heads);
    let hidden = outside(options.window, (height, width), &query.device())
        .reshape([1, 1, offsets, pixels])
        .expand([batch, heads, offsets, pixels]);

    let query = query.reshape([batch, heads, head_width, pixels]);
    let key = unfold(key, options.window, Border::Zero).reshape([batch, heads, head_width, offsets, pixels]);
    let mut scores = (query.clone().reshape([batch, heads, head_width, 1, pixels]) * key)
        .sum_dim(2)
        .reshape([batch, heads, offsets, pixels]);
    if let Some(relative) = &options.relative {
        scores = scores + relative_scores(query, relative);
    }
    if let Some(scale) = options.scale {
        scores = scores.mul_scalar(scale);
    }
    // every window contains its own pixel, so every row has a key
    let weights = softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 2);

    let value = unfold(value, options.window, Border::Zero).reshape([batch, heads, value_width, offsets, pixels]);
    let out = (value * weights.clone().reshape([batch, heads, 1, offsets, pixels])).sum_dim(3);
    (out.reshape([batch, value_channels, height, width]), weights)
}

/// `[B, A, K, H*W] -> [B, A, k*k, H*W]`: `q . r` for every offset of the window.
fn relative_scores(query: Tensor<4>, relative: &Relative) -> Tensor<4> {
    let [batch, heads, head_width, pixels] = query.dims();
    let [_, half, window] = relative.rows.dims();
    let toward = |embedding: &Tensor<3>, start: usize| {
        let embedding = embedding.clone().swap_dims(1, 2).reshape([1, heads, window, half]);
        embedding.matmul(query.clone().narrow(2, start, half)) // [B, A, k, H*W]
    };
    let rows = toward(&relative.rows, 0).reshape([batch, heads, window, 1, pixels]);
    let columns = toward(&relative.columns, head_width - half).reshape([batch, heads, 1, window, pixels]);
    (rows + columns).reshape([batch, heads, window * window, pixels])
}

/// Panics unless the embeddings cover `offsets` offsets with half the width of each head.
#[track_caller]
pub(super) fn check_relative(operator: &str, relative: &Relative, heads: usize, head_width: usize, offsets: usize) {
    check::divides(operator, ("halves", 2), ("head width", head_width));
    for (name, embedding) in [("row embedding", &relative.rows), ("column embedding", &relative.columns)] {
        let [embedding_heads, half, embedding_offsets] = embedding.dims();
        check::agree(operator, "heads", (name, embedding_heads), ("query", heads));
        check::agree(operator, "width", (name, half), ("half a head", head_width / 2));
        check::agree(operator, "offsets", (name, embedding_offsets), ("window", offsets));
    }
}

fn check_shapes(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>, options: &Local) {
    const NAME: &str = "local";
    let [batch, channels, height, width] = query.dims();
    check::not_empty(NAME, "query", &[("batch", batch), ("channels", channels), ("height", height), ("width", width)]);
    check::not_empty(NAME, "value", &[("channels", value.dims()[1])]);
    for (axis, name) in [(0, "batch"), (1, "channels"), (2, "height"), (3, "width")] {
        check::agree(NAME, name, ("query", query.dims()[axis]), ("key", key.dims()[axis]));
    }
    for (axis, name) in [(0, "batch"), (2, "height"), (3, "width")] {
        check::agree(NAME, name, ("key", key.dims()[axis]), ("value", value.dims()[axis]));
    }
    check::divides(NAME, ("heads", options.heads), ("query channels", channels));
    check::divides(NAME, ("heads", options.heads), ("value channels", value.dims()[1]));
    super::window::check_window(NAME, options.window, Border::Zero, (height, width));
    if let Some(relative) = &options.relative {
        check_relative(NAME, relative, options.heads, channels / options.heads, options.window);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{DotProduct, dot_product, naive};
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, values};

    fn relative(heads: usize, half: usize, window: usize) -> Relative {
        Relative { rows: random([heads, half, window], 21), columns: random([heads, half, window], 22) }
    }

    fn maps(shape: [usize; 4], value_channels: usize) -> [Tensor<4>; 3] {
        let [batch, _, height, width] = shape;
        [random(shape, 11), random(shape, 12), random([batch, value_channels, height, width], 13)]
    }

    fn attend([query, key, value]: [Tensor<4>; 3], options: &Local) -> (Tensor<4>, Tensor<4>) {
        let attended = local(query, key, value, options, &mut Pass::recording());
        (attended.out, attended.weights.unwrap())
    }

    #[test]
    fn every_window_is_its_naive_twin() {
        for window in 1..=11 {
            for (embedded, scale) in [(true, None), (false, Some(0.4)), (true, Some(0.7))] {
                let relative = embedded.then(|| relative(2, 2, window));
                let options = Local { heads: 2, window, relative, scale };
                let inputs = maps([2, 8, 4, 5], 6);
                let (out, weights) = attend(inputs.clone(), &options);
                let [query, key, value] = inputs.each_ref().map(naive::Images::from);
                let (twin_out, twin_weights) = naive::local(&query, &key, &value, &options);
                assert_eq!((out.dims(), weights.dims()), ([2, 6, 4, 5], [2, 2, window * window, 20]));
                naive::assert_twin(&out, &twin_out);
                naive::assert_twin(&weights, &twin_weights);
            }
        }
    }

    #[test]
    fn rows_of_weights_sum_to_one() {
        let options = Local { heads: 2, window: 4, relative: Some(relative(2, 2, 4)), scale: None };
        let (_, weights) = attend(maps([2, 8, 5, 3], 8), &options);
        assert_close(&weights.sum_dim(2), &Tensor::ones([2, 2, 1, 15], &crate::device::cpu()), 1e-6);
    }

    #[test]
    fn keys_outside_the_image_have_no_weight() {
        let options = Local { heads: 2, window: 5, relative: Some(relative(2, 2, 5)), scale: None };
        let (_, weights) = attend(maps([1, 8, 3, 4], 8), &options);
        let weights = values(&weights);
        for (index, weight) in weights.iter().enumerate() {
            let (offset, pixel) = (index / 12 % 25, index % 12);
            let outside = naive::neighbour(pixel, offset, 5, (3, 4)).is_none();
            assert_eq!(outside, *weight == 0.0, "offset {offset} of pixel {pixel} weighs {weight}");
        }
    }

    #[test]
    fn a_window_over_the_whole_image_is_global_attention() {
        for (window, height, width) in [(5, 3, 3), (6, 3, 3), (7, 4, 2), (11, 5, 6)] {
            let [query, key, value] = maps([2, 8, height, width], 6);
            let options = Local { heads: 2, window, relative: None, scale: Some(0.6) };
            let (out, _) = attend([query.clone(), key.clone(), value.clone()], &options);
            let tokens = |map: Tensor<4>| {
                let [batch, channels, _, _] = map.dims();
                map.reshape([batch, 2, channels / 2, height * width]).swap_dims(2, 3)
            };
            let options = DotProduct { scale: Some(0.6), ..DotProduct::default() };
            let global = dot_product(tokens(query), tokens(key), tokens(value), &options, &mut Pass::silent()).out;
            assert_close(&out, &global.swap_dims(2, 3).reshape([2, 6, height, width]), 1e-5);
        }
    }

    #[test]
    fn a_pixel_beyond_the_window_changes_nothing() {
        let options = Local { heads: 1, window: 3, relative: None, scale: None };
        let [query, key, value] = maps([1, 4, 5, 5], 4);
        let (before, _) = attend([query.clone(), key.clone(), value.clone()], &options);
        let far = |map: Tensor<4>| map.slice_fill([0..1, 0..4, 4..5, 4..5], 9.0);
        let (after, _) = attend([query, far(key), far(value)], &options);
        let near = |map: Tensor<4>| map.slice([0..1, 0..4, 0..3, 0..3]);
        assert_close(&near(before.clone()), &near(after.clone()), 0.0);
        assert!((before - after).abs().max().into_scalar::<f32>() > 0.1, "the changed pixel was never seen");
    }

    #[test]
    fn a_batch_of_two_equals_two_batches_of_one() {
        let options = Local { heads: 2, window: 4, relative: Some(relative(2, 2, 4)), scale: None };
        let inputs = maps([2, 8, 4, 3], 8);
        let (both, _) = attend(inputs.clone(), &options);
        for sample in 0..2 {
            let (alone, _) = attend(inputs.clone().map(|map| map.narrow(0, sample, 1)), &options);
            assert_close(&both.clone().narrow(0, sample, 1), &alone, 1e-6);
        }
    }

    #[test]
    fn recorded_equals_unrecorded() {
        let options = Local { heads: 2, window: 7, relative: Some(relative(2, 2, 7)), scale: None };
        let [query, key, value] = maps([2, 8, 6, 5], 8);
        let silent = local(query.clone(), key.clone(), value.clone(), &options, &mut Pass::silent());
        assert!(silent.weights.is_none());
        let mut pass = Pass::recording();
        let recorded = local(query, key, value, &options, &mut pass);
        assert_close(&silent.out, &recorded.out, 1e-5);
        assert_close(&pass.into_trace().get::<4>("weights").unwrap(), &recorded.weights.unwrap(), 0.0);
    }

    #[test]
    fn gradients_are_differences() {
        for window in [2, 3] {
            let len = 2 * 4 * 3 * 4;
            let inputs = [
                ("query", noise(len, 1)),
                ("key", noise(len, 2)),
                ("value", noise(len, 3)),
                ("rows", noise(2 * window, 4)),
                ("columns", noise(2 * window, 5)),
            ];
            assert_gradients_are_differences(&inputs, |inputs| {
                let map = |index: usize| inputs[index].clone().reshape([2, 4, 3, 4]);
                let embedding = |index: usize| inputs[index].clone().reshape([2, 1, window]);
                let relative = Relative { rows: embedding(3), columns: embedding(4) };
                let options = Local { heads: 2, window, relative: Some(relative), scale: Some(0.9) };
                local(map(0), map(1), map(2), &options, &mut Pass::silent()).out
            });
        }
    }

    #[test]
    fn what_is_not_a_number_stays_where_it_is_seen() {
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for which in 0..3 {
                let options = Local { heads: 1, window: 3, relative: None, scale: None };
                let mut inputs = maps([1, 4, 5, 5], 4);
                inputs[which] = inputs[which].clone().slice_fill([0..1, 0..1, 0..1, 0..1], poison);
                for mut pass in [Pass::recording(), Pass::silent()] {
                    let [query, key, value] = inputs.clone();
                    let out = local(query, key, value, &options, &mut pass).out;
                    let far = values(&out.slice([0..1, 0..4, 2..5, 2..5]));
                    assert!(far.iter().all(|value| value.is_finite()), "{poison} in input {which} reached {far:?}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "local: query has height 3, key has height 4")]
    fn maps_of_different_heights_are_refused() {
        let options = Local { heads: 1, window: 3, relative: None, scale: None };
        attend([random([1, 2, 3, 3], 1), random([1, 2, 4, 3], 2), random([1, 2, 3, 3], 3)], &options);
    }

    #[test]
    #[should_panic(expected = "local: 3 heads do not divide query channels 8")]
    fn heads_that_do_not_divide_the_channels_are_refused() {
        attend(maps([1, 8, 3, 3], 8), &Local { heads: 3, window: 3, relative: None, scale: None });
    }

    #[test]
    #[should_panic(expected = "local: row embedding has offsets 5, window has offsets 3")]
    fn embeddings_for_another_window_are_refused() {
        let options = Local { heads: 2, window: 3, relative: Some(relative(2, 2, 5)), scale: None };
        attend(maps([1, 8, 3, 3], 8), &options);
    }

    #[test]
    #[should_panic(expected = "local: window is 0, needs at least 1")]
    fn an_empty_window_is_refused() {
        attend(maps([1, 8, 3, 3], 8), &Local { heads: 2, window: 0, relative: None, scale: None });
    }
}
