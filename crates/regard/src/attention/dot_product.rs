//! Scaled dot-product attention: every query looks at every key.
//! Vaswani et al. 2017, arXiv:1706.03762.
//!
//! `out_n = sum_m softmax_m(scale * q_n . k_m + bias_nm) v_m`. A query that may look at no key at all
//! gets zeros, never NaN.

use burn::tensor::activation::softmax;
use burn::tensor::{Bool, Tensor};

use regard_kernels::attention::Attention;

use super::{Attended, check};
use crate::Pass;
use crate::fused::{self, Kept, Kernel};

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
    check_shapes(&query, &key, &value, options);
    if !pass.listens("weights") && fused::runs_on(&query) {
        return Attended { out: fused(query, key, value, options), weights: None };
    }
    let (out, weights) = plain(query, key, value, options);
    pass.record("weights", &weights);
    Attended { out, weights: pass.listens("weights").then_some(weights) }
}

/// The same by the kernel that never forms the weights.
fn fused(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, options: &DotProduct) -> Tensor<4> {
    let [batch, heads, queries, width] = query.dims();
    let [_, _, keys, value_width] = value.dims();
    let visible = options
        .padding
        .as_ref()
        .map(|padding| padding.clone().into_data().iter::<bool>().map(|hidden| f32::from(u8::from(!hidden))).collect());
    let kernel = Fused(Attention {
        batch,
        heads,
        queries,
        keys,
        width,
        value_width,
        scale: scale(options, width) as f32,
        causal: options.causal,
        visible: visible.unwrap_or_default(),
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

impl Kernel<3> for Fused {
    fn forward(&self, [query, key, value]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        self.0.forward(query, key, value, &[])
    }
    fn backward(&self, [query, key, value]: [&[f32]; 3], kept: Kept, grad: &[f32]) -> [Vec<f32>; 3] {
        let [query, key, value, _] = self.0.backward([query, key, value, &[]], kept.out, kept.extra, grad);
        [query, key, value]
    }
}

impl Kernel<4> for Fused {
    fn forward(&self, [query, key, value, bias]: [&[f32]; 4]) -> (Vec<f32>, Vec<f32>) {
        self.0.forward(query, key, value, bias)
    }
    fn backward(&self, inputs: [&[f32]; 4], kept: Kept, grad: &[f32]) -> [Vec<f32>; 4] {
        self.0.backward(inputs, kept.out, kept.extra, grad)
    }
}

fn scale(options: &DotProduct, width: usize) -> f64 {
    options.scale.unwrap_or(1.0 / (width as f64).sqrt())
}

/// The same by ordinary Burn operations, forming the weights.
fn plain(query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, options: &DotProduct) -> (Tensor<4>, Tensor<4>) {
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
    let weights = match hidden {
        // a finite fill keeps a row without any key finite; the second fill makes its weights zero
        Some(hidden) => softmax(scores.mask_fill(hidden.clone(), -1e30), 3).mask_fill(hidden, 0.0),
        None => softmax(scores, 3),
    };
    (weights.clone().matmul(value), weights)
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
