//! Scaled dot-product attention: every query attends to every key.
//! Vaswani et al. 2017, arXiv:1706.03762.
//!
//! `out_n = sum_m softmax_m(scale * q_n . k_m + bias_nm) v_m`. A query that may look at no key at all
//! gets zeros, never NaN.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

use regard_kernels::attention::Attention;

use super::{Attended, check};
use crate::Pass;
use crate::fused::{self, Kernel, Saved};
use crate::pass::Geometry;

/// Which keys a query may look at, and how scores become weights.
#[derive(Clone, Debug, Default)]
pub struct DotProduct {
    /// Factor of the scores; `1/sqrt(K)` when not given.
    pub scale: Option<f64>,
    /// Query n sees keys 0..=n + (M - N): the last query sees every key.
    pub causal: bool,
    /// `[B, M]`, true for keys that are padding.
    pub padding: Option<Tensor<2, Bool>>,
    /// `[B or 1, A or 1, N, M]`, added to the scores.
    pub bias: Option<Tensor<4>>,
}

/// `[B, A, N, K], [B, A, M, K], [B, A, M, V] -> [B, A, N, V]`, weights `[B, A, N, M]`.
///
/// # Panics
/// When the shapes do not fit together; the message names the axis and both sizes.
pub fn dot_product(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    options: &DotProduct,
    pass: &mut Pass,
) -> Attended<4> {
    let [queries, keys] = [query.dims()[2], key.dims()[2]];
    dot_product_with_geometry(query, key, value, options, pass, |pass| pass.geometry(queries, keys))
}

/// [`dot_product`] for an operator that knows the geometry of its weights.
pub(super) fn dot_product_with_geometry(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    options: &DotProduct,
    pass: &mut Pass,
    geometry: impl FnOnce(&Pass) -> Geometry,
) -> Attended<4> {
    check_shapes(&query, &key, &value, options);
    if !pass.wants_weights() && fused::runs_on(&query) {
        return Attended { out: fused(query, key, value, options), weights: None };
    }
    let weights = pass.watch_weights(weights(query, key, options), geometry);
    let out = weights.clone().matmul(value);
    Attended { out, weights: pass.wants_weights().then_some(weights) }
}

/// Tokens look at each other: `[B, N, 3*A*K] -> [B, N, A*K]`, rows of query, key and value, each of all heads.
///
/// Records the weights, as [`dot_product`] does.
///
/// # Panics
/// When three times the heads do not divide the width.
pub fn self_attention(qkv: Tensor<3>, heads: usize, pass: &mut Pass) -> Tensor<3> {
    masked_self_attention(qkv, heads, &DotProduct::default(), pass)
}

/// [`self_attention`] with a mask.
///
/// # Panics
/// When three times the heads do not divide the width, or a mask is of another size.
pub fn masked_self_attention(qkv: Tensor<3>, heads: usize, options: &DotProduct, pass: &mut Pass) -> Tensor<3> {
    let [batch, tokens, width] = qkv.dims();
    check::divides("self_attention", ("heads", 3 * heads), ("width", width));
    let dim = width / 3;
    if !pass.wants_weights() && fused::runs_on(&qkv) && batch * tokens > 0 && options.bias.is_none() {
        let width = dim / heads;
        if let Some(padding) = &options.padding {
            check::agree("self_attention", "batch", ("padding mask", padding.dims()[0]), ("tokens", batch));
            check::agree("self_attention", "tokens", ("padding mask", padding.dims()[1]), ("tokens", tokens));
        }
        let kernel = Fused(Attention {
            batch,
            heads,
            queries: tokens,
            keys: tokens,
            width,
            value_width: width,
            scale: scale(options, width) as f32,
            causal: options.causal,
            visible: visible(options),
            bias: None,
        });
        return fused::apply(kernel, [qkv.into_dispatch()], [batch, tokens, dim]);
    }
    let [query, key, value] = [0, 1, 2].map(|part| split_heads(qkv.clone().narrow(2, part * dim, dim), heads));
    merge_heads(dot_product(query, key, value, options, pass).out)
}

/// 1 for keys that take part and 0 for padding; empty for no padding.
fn visible(options: &DotProduct) -> Vec<f32> {
    let numbers = |padding: &Tensor<2, Bool>| {
        padding.clone().into_data().iter::<bool>().map(|hidden| f32::from(u8::from(!hidden))).collect()
    };
    options.padding.as_ref().map_or_else(Vec::new, numbers)
}

/// The output from a fused kernel, which never forms the weights.
fn fused(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, options: &DotProduct) -> Tensor<4> {
    let [batch, heads, queries, width] = query.dims();
    let [_, _, keys, value_width] = value.dims();
    let kernel = Fused(Attention {
        batch,
        heads,
        queries,
        keys,
        width,
        value_width,
        scale: scale(options, width) as f32,
        causal: options.causal,
        visible: visible(options),
        bias: options.bias.as_ref().map(|bias| [bias.dims()[0], bias.dims()[1]]),
    });
    let shape = [batch, heads, queries, value_width];
    let inputs = [query, key, value].map(Tensor::into_dispatch);
    match &options.bias {
        None => fused::apply(kernel, inputs, shape),
        Some(bias) => {
            let [query, key, value] = inputs;
            fused::apply(kernel, [query, key, value, bias.clone().into_dispatch()], shape)
        }
    }
}

#[derive(Clone, Debug)]
struct Fused(Attention);

impl Fused {
    /// Multiply-adds of scores and sums; hidden keys count.
    const fn pairs_of_widths(&self) -> u64 {
        let Attention { batch, heads, queries, keys, width, value_width, .. } = self.0;
        (batch * heads * queries * keys * (width + value_width)) as u64
    }
}

/// On joint rows of query, key and value.
impl Kernel<1> for Fused {
    const NEEDS_OUT: bool = true;

    fn multiply_adds(&self, _: [usize; 1]) -> Option<u64> {
        Some(self.pairs_of_widths())
    }

    fn forward(&self, [qkv]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        self.0.forward_rows(qkv)
    }
    fn backward(&self, [qkv]: [&[f32]; 1], saved: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [self.0.backward_rows(qkv, saved.out, saved.extra, grad)]
    }
}

impl Kernel<3> for Fused {
    const NEEDS_OUT: bool = true;

    fn multiply_adds(&self, _: [usize; 3]) -> Option<u64> {
        Some(self.pairs_of_widths())
    }

    fn forward(&self, [query, key, value]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        self.0.forward(query, key, value, &[])
    }
    fn backward(&self, [query, key, value]: [&[f32]; 3], saved: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let [query, key, value, _] = self.0.backward([query, key, value, &[]], saved.out, saved.extra, grad);
        [query, key, value]
    }
}

impl Kernel<4> for Fused {
    const NEEDS_OUT: bool = true;

    fn multiply_adds(&self, _: [usize; 4]) -> Option<u64> {
        Some(self.pairs_of_widths())
    }

    fn forward(&self, [query, key, value, bias]: [&[f32]; 4]) -> (Vec<f32>, Vec<f32>) {
        self.0.forward(query, key, value, bias)
    }
    fn backward(&self, inputs: [&[f32]; 4], saved: Saved, grad: &[f32]) -> [Vec<f32>; 4] {
        self.0.backward(inputs, saved.out, saved.extra, grad)
    }
}

fn scale(options: &DotProduct, width: usize) -> f64 {
    options.scale.unwrap_or(1.0 / (width as f64).sqrt())
}

/// `[B, A, N, M]`, with Burn operations.
fn weights(query: Tensor<4>, key: Tensor<4>, options: &DotProduct) -> Tensor<4> {
    let [batch, heads, queries, width] = query.dims();
    let keys = key.dims()[2];
    let device = query.device();
    let mut scores = query.matmul(key.transpose()).mul_scalar(scale(options, width));
    if let Some(bias) = &options.bias {
        scores = scores + bias.clone();
    }
    let mut hidden: Option<Tensor<4, Bool>> = None;
    if options.causal {
        let future = Tensor::<2, Bool>::tril_mask([queries, keys], causal_diagonal(queries, keys), &device);
        hidden = Some(future.reshape([1, 1, queries, keys]).expand([batch, heads, queries, keys]));
    }
    if let Some(padding) = &options.padding {
        let padding = padding.clone().reshape([batch, 1, 1, keys]).expand([batch, heads, queries, keys]);
        hidden = Some(match hidden {
            Some(hidden) => hidden.bool_or(padding),
            None => padding,
        });
    }
    match hidden {
        // a finite fill keeps a row without any key finite; the second fill makes its weights zero
        Some(hidden) => softmax(scores.mask_fill(hidden.clone(), -1e30), 3).mask_fill(hidden, 0.0),
        None => softmax(scores, 3),
    }
}

fn causal_diagonal(queries: usize, keys: usize) -> i64 {
    keys as i64 - queries as i64
}

/// `[B, N, A*K] -> [B, A, N, K]`
///
/// # Panics
/// When the heads do not divide the width.
#[must_use]
pub fn split_heads(tokens: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, count, width] = tokens.dims();
    check::divides("split_heads", ("heads", heads), ("width", width));
    tokens.reshape([batch, count, heads, width / heads]).swap_dims(1, 2)
}

/// `[B, A, N, K] -> [B, N, A*K]`
#[must_use]
pub fn merge_heads(heads: Tensor<4>) -> Tensor<3> {
    let [batch, count, tokens, width] = heads.dims();
    heads.swap_dims(1, 2).reshape([batch, tokens, count * width])
}

fn check_shapes(query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>, options: &DotProduct) {
    const NAME: &str = "dot_product";
    let ([batch, heads, queries, width], [_, _, keys, _]) = (query.dims(), key.dims());
    check::not_empty(NAME, "query", &[("batch", batch), ("heads", heads), ("tokens", queries), ("width", width)]);
    check::not_empty(NAME, "key", &[("tokens", keys)]);
    check::not_empty(NAME, "value", &[("width", value.dims()[3])]);
    for (axis, name) in [(0, "batch"), (1, "heads"), (3, "width")] {
        check::agree(NAME, name, ("query", query.dims()[axis]), ("key", key.dims()[axis]));
    }
    for (axis, name) in [(0, "batch"), (1, "heads"), (2, "tokens")] {
        check::agree(NAME, name, ("key", key.dims()[axis]), ("value", value.dims()[axis]));
    }
    if let Some(padding) = &options.padding {
        check::agree(NAME, "batch", ("padding mask", padding.dims()[0]), ("key", batch));
        check::agree(NAME, "tokens", ("padding mask", padding.dims()[1]), ("key", keys));
    }
    if let Some(bias) = &options.bias {
        let [bias_batch, bias_heads, rows, columns] = bias.dims();
        if bias_batch != 1 {
            check::agree(NAME, "batch", ("bias", bias_batch), ("query", batch));
        }
        if bias_heads != 1 {
            check::agree(NAME, "heads", ("bias", bias_heads), ("query", heads));
        }
        check::agree(NAME, "rows", ("bias", rows), ("query", queries));
        check::agree(NAME, "columns", ("bias", columns), ("key", keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, values};
    use burn::tensor::TensorData;
    use regard_kernels::naive;

    /// Two pictures, two heads, queries and keys of width 6, values of width 4.
    fn inputs(queries: usize, keys: usize) -> [Tensor<4>; 3] {
        [random([2, 2, queries, 6], 1), random([2, 2, keys, 6], 2), random([2, 2, keys, 4], 3)]
    }

    fn mask<const D: usize>(shape: [usize; D], hidden: impl Fn(usize) -> bool) -> Tensor<D, Bool> {
        let values: Vec<bool> = (0..shape.iter().product()).map(hidden).collect();
        Tensor::from_data(TensorData::new(values, shape.to_vec()), &device::cpu())
    }

    fn every_option(queries: usize, keys: usize) -> Vec<DotProduct> {
        let padding = Some(mask([2, keys], |i| i % 3 == 1));
        let plain = DotProduct::default();
        let mut all = vec![
            plain.clone(),
            DotProduct { scale: Some(0.3), ..plain.clone() },
            DotProduct { causal: true, ..plain.clone() },
            DotProduct { padding: padding.clone(), ..plain.clone() },
            DotProduct { causal: true, padding: padding.clone(), ..plain },
        ];
        for [batches, heads] in [[1, 1], [1, 2], [2, 1], [2, 2]] {
            let bias = Some(random([batches, heads, queries, keys], 4));
            all.push(DotProduct { bias, padding: padding.clone(), ..DotProduct::default() });
        }
        all
    }

    fn definition([query, key, value]: &[Tensor<4>; 3], options: &DotProduct) -> Vec<f64> {
        let ([_, heads, queries, width], [_, _, keys, value_width]) = (query.dims(), value.dims());
        let wide = |tensor: &Tensor<4>| naive::wide(&values(tensor));
        let (q, k, v) = (wide(query), wide(key), wide(value));
        let padding: Vec<bool> =
            options.padding.iter().flat_map(|p| p.clone().into_data().iter::<bool>().collect::<Vec<_>>()).collect();
        let bias = options.bias.as_ref().map(|bias| (bias.dims(), wide(bias)));
        (0..4)
            .flat_map(|head| {
                let hidden = |n: usize, m: usize| {
                    (options.causal && m + queries > n + keys) || padding.get(head / heads * keys + m) == Some(&true)
                };
                let added = |n: usize, m: usize| {
                    bias.as_ref().map_or(0.0, |([batches, bias_heads, ..], bias)| {
                        bias[((head / heads % batches * bias_heads + head % heads % bias_heads) * queries + n) * keys
                            + m]
                    })
                };
                let masks = naive::Masks { scale: scale(options, width), hidden: &hidden, bias: &added };
                let part = |x: &[f64], len: usize| x[head * len..][..len].to_vec();
                let sizes = [keys, width, value_width];
                naive::attention(
                    &part(&q, queries * width),
                    &part(&k, keys * width),
                    &part(&v, keys * value_width),
                    sizes,
                    &masks,
                )
            })
            .collect()
    }

    #[test]
    fn both_paths_equal_the_definition_under_every_option() {
        for (queries, keys) in [(5, 5), (3, 8), (8, 3), (1, 1)] {
            let [query, key, value] = inputs(queries, keys);
            for options in every_option(queries, keys) {
                let expected = definition(&[query.clone(), key.clone(), value.clone()], &options);
                for mut pass in [Pass::silent(), Pass::recording()] {
                    let out = dot_product(query.clone(), key.clone(), value.clone(), &options, &mut pass).out;
                    naive::assert_close(&values(&out), &expected, 1e-5);
                }
            }
        }
    }

    #[test]
    fn the_worked_example_of_the_lectures_comes_out() {
        // scores 112 and 96, divided by sqrt(64): 14 and 12; softmax 0.8808 and 0.1192
        let tensor = |values: Vec<f32>, rows: usize| {
            let width = values.len() / rows;
            Tensor::<4>::from_data(TensorData::new(values, [1, 1, rows, width]), &device::cpu())
        };
        let query = tensor([vec![1.0], vec![0.0; 63]].concat(), 1);
        let key = tensor([vec![112.0], vec![0.0; 63], vec![96.0], vec![0.0; 63]].concat(), 2);
        let value = tensor(vec![1.0, 0.0, 0.0, 1.0], 2);
        let out = values(&dot_product(query, key, value, &DotProduct::default(), &mut Pass::silent()).out);
        assert!((out[0] - 0.8808).abs() < 5e-5 && (out[1] - 0.1192).abs() < 5e-5, "{out:?}");
    }

    #[test]
    fn rows_of_weights_sum_to_one() {
        let [query, key, value] = inputs(4, 7);
        for options in every_option(4, 7) {
            let attended = dot_product(query.clone(), key.clone(), value.clone(), &options, &mut Pass::recording());
            assert_close(&attended.weights.unwrap().sum_dim(3), &Tensor::ones([2, 2, 4, 1], &device::cpu()), 1e-6);
        }
    }

    #[test]
    fn padded_keys_change_nothing() {
        let [query, key, value] = inputs(4, 6);
        let options = DotProduct { padding: Some(mask([2, 6], |i| i % 6 >= 4)), ..DotProduct::default() };
        let other = |tensor: Tensor<4>| tensor.slice_fill([0..2, 0..2, 4..6], 1e4);
        for recording in [false, true] {
            let pass = || if recording { Pass::recording() } else { Pass::silent() };
            let one = dot_product(query.clone(), key.clone(), value.clone(), &options, &mut pass()).out;
            let two = dot_product(query.clone(), other(key.clone()), other(value.clone()), &options, &mut pass()).out;
            assert_close(&one, &two, 0.0);
        }
    }

    #[test]
    fn a_causal_query_does_not_see_the_future() {
        let [query, key, value] = inputs(6, 6);
        let options = DotProduct { causal: true, ..DotProduct::default() };
        let one = dot_product(query.clone(), key.clone(), value.clone(), &options, &mut Pass::silent()).out;
        let later = |tensor: Tensor<4>| tensor.slice_fill([0..2, 0..2, 3..6], 3.0);
        let two = dot_product(query, later(key), later(value), &options, &mut Pass::silent()).out;
        assert_close(&one.clone().narrow(2, 0, 3), &two.clone().narrow(2, 0, 3), 0.0);
        assert!((one - two).abs().max().into_scalar::<f32>() > 0.1, "the changed keys were never seen");
    }

    #[test]
    fn a_query_without_any_key_gets_zeros() {
        let [query, key, value] = inputs(3, 4);
        let options = DotProduct { padding: Some(mask([2, 4], |i| i < 4)), ..DotProduct::default() };
        for mut pass in [Pass::silent(), Pass::recording()] {
            let out = dot_product(query.clone(), key.clone(), value.clone(), &options, &mut pass).out;
            assert!(values(&out.clone().narrow(0, 0, 1)).iter().all(|&x| x == 0.0));
            assert!(values(&out.narrow(0, 1, 1)).iter().all(|&x| x != 0.0));
        }
    }

    #[test]
    fn a_batch_of_two_equals_two_batches_of_one() {
        let all = inputs(5, 7);
        let run = |[query, key, value]: [Tensor<4>; 3]| {
            dot_product(query, key, value, &DotProduct::default(), &mut Pass::silent()).out
        };
        let both = run(all.clone());
        for sample in 0..2 {
            let one = run(all.clone().map(|tensor| tensor.narrow(0, sample, 1)));
            assert_close(&both.clone().narrow(0, sample, 1), &one, 0.0);
        }
    }

    #[test]
    fn gradients_of_both_paths_are_differences() {
        for recording in [false, true] {
            let inputs = [
                ("query", noise(2 * 2 * 3 * 4, 1)),
                ("key", noise(2 * 2 * 5 * 4, 2)),
                ("value", noise(2 * 2 * 5 * 3, 3)),
                ("bias", noise(2 * 3 * 5, 4)),
            ];
            assert_gradients_are_differences(&inputs, |inputs| {
                let bias = Some(inputs[3].clone().reshape([1, 2, 3, 5]));
                let options = DotProduct { bias, causal: true, ..DotProduct::default() };
                let mut pass = if recording { Pass::recording() } else { Pass::silent() };
                let map = |index: usize, rows: usize, width: usize| inputs[index].clone().reshape([2, 2, rows, width]);
                dot_product(map(0, 3, 4), map(1, 5, 4), map(2, 5, 3), &options, &mut pass).out
            });
        }
    }

    #[test]
    fn numbers_that_are_not_finite_neither_hang_nor_crash() {
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for which in 0..3 {
                let mut all = inputs(3, 4);
                all[which] = all[which].clone().slice_fill([0..1, 0..1, 0..1, 0..1], poison);
                for mut pass in [Pass::silent(), Pass::recording()] {
                    let [query, key, value] = all.clone();
                    let out = dot_product(query, key, value, &DotProduct::default(), &mut pass).out;
                    // the other head never sees it
                    assert!(values(&out.narrow(1, 1, 1)).iter().all(|x| x.is_finite()));
                }
            }
        }
    }

    #[test]
    fn heads_split_and_merge_without_loss() {
        let tokens = random([2, 5, 12], 1);
        let heads = split_heads(tokens.clone(), 3);
        assert_close(
            &heads.clone().slice([0..1, 1..2, 4..5]).reshape([4]),
            &tokens.clone().slice([0..1, 4..5, 4..8]).reshape([4]),
            0.0,
        );
        assert_close(&merge_heads(heads), &tokens, 0.0);
    }

    #[test]
    fn self_attention_is_dot_product_attention_of_its_parts() {
        let qkv = random([2, 5, 3 * 8], 1);
        let mut recording = Pass::recording();
        let expected = self_attention(qkv.clone(), 2, &mut recording);
        assert_close(&self_attention(qkv, 2, &mut Pass::silent()), &expected, 1e-6);
        assert_eq!(recording.into_trace().get::<4>("weights").unwrap().dims(), [2, 2, 5, 5]);
        let qkv = random([2, 5, 3 * 8], 2);
        for options in every_option(5, 5) {
            let expected = masked_self_attention(qkv.clone(), 2, &options, &mut Pass::recording());
            assert_close(&masked_self_attention(qkv.clone(), 2, &options, &mut Pass::silent()), &expected, 1e-6);
        }
        assert_gradients_are_differences(&[("qkv", noise(2 * 3 * 12, 1))], |p| {
            self_attention(p[0].clone().reshape([2, 3, 12]), 2, &mut Pass::silent())
        });
    }

    #[test]
    #[should_panic(expected = "split_heads: 5 heads do not divide width 64")]
    fn heads_that_do_not_divide_are_named() {
        let _ = split_heads(random([1, 2, 64], 1), 5);
    }

    #[test]
    #[should_panic(expected = "dot_product: padding mask has tokens 5, key has tokens 4")]
    fn a_mask_of_the_wrong_size_is_named() {
        let [query, key, value] = inputs(3, 4);
        let options = DotProduct { padding: Some(mask([2, 5], |_| false)), ..DotProduct::default() };
        dot_product(query, key, value, &options, &mut Pass::silent());
    }

    #[test]
    #[should_panic(expected = "dot_product: bias has columns 3, key has columns 4")]
    fn a_bias_of_the_wrong_size_is_named() {
        let [query, key, value] = inputs(3, 4);
        let options = DotProduct { bias: Some(random([1, 1, 3, 3], 1)), ..DotProduct::default() };
        dot_product(query, key, value, &options, &mut Pass::silent());
    }

    #[test]
    #[should_panic(expected = "dot_product: query has batch 0, needs at least 1")]
    fn an_empty_batch_is_refused() {
        let empty = |rows: usize| Tensor::<4>::zeros([0, 1, rows, 4], &device::cpu());
        dot_product(empty(2), empty(3), empty(3), &DotProduct::default(), &mut Pass::silent());
    }
}
