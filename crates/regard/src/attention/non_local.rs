//! Non-local operation: the output at every position is a weighted sum over all positions.
//! Wang et al. 2018, "Non-local Neural Networks", arXiv:1711.07971, equations 1 to 6.
//!
//! `out_i = 1/C(x) sum_j f(theta_i, phi_j) g_j`, where `f` and its normaliser `C` are an [`Affinity`].
//! The Gaussian is the embedded Gaussian with `theta = phi = x`: the formula is the same, and the caller
//! computes the embeddings.
//!
//! Differences from the paper: `scale` multiplies the dot products, as the authors' released code does
//! for the softmax forms (`C'^-0.5`). The paper has no scale, and there is none by default.

use burn::tensor::activation::relu;
use burn::tensor::{Tensor, module::linear};
use regard_kernels::pair_relu::PairRelu;
use serde::{Deserialize, Serialize};

use super::{Attended, DotProduct, check, dot_product};
use crate::Pass;
use crate::fused::{self, Kernel, Saved};
use crate::pass::Geometry;

const NAME: &str = "non_local";

/// How two positions are compared, and how the comparisons of one position are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Affinity {
    /// `exp(x_i . x_j)` of the features themselves, normalised by softmax over j.
    Gaussian,
    /// `exp(theta_i . phi_j)`, normalised by softmax over j.
    #[default]
    EmbeddedGaussian,
    /// `theta_i . phi_j`, divided by the number of keys.
    DotProduct,
    /// `ReLU(w_f . [theta_i, phi_j])`, divided by the number of keys.
    Concatenation,
}

impl Affinity {
    /// Whether the weights of a position sum to one: those of a softmax do.
    #[must_use]
    pub const fn sums_to_one(self) -> bool {
        matches!(self, Self::Gaussian | Self::EmbeddedGaussian)
    }
}

/// The affinity and its parameters.
#[derive(Clone, Debug, Default)]
pub struct NonLocalOptions {
    /// How two positions are compared.
    pub affinity: Affinity,
    /// Factor of `theta_i . phi_j`; 1 when not given. The concatenation takes none.
    pub scale: Option<f64>,
    /// `w_f [2*C']`, the half for theta first. Only for the concatenation.
    pub concatenation: Option<Tensor<1>>,
}

/// `theta [B, N, C'], phi [B, M, C'], g [B, M, V] -> [B, N, V]`, weights `[B, N, M]`.
///
/// # Panics
/// When the shapes do not fit together, or the options do not fit the affinity.
pub fn non_local(
    theta: Tensor<3>,
    phi: Tensor<3>,
    g: Tensor<3>,
    options: &NonLocalOptions,
    pass: &mut Pass,
) -> Attended<3, 3> {
    check_shapes(&theta, &phi, &g, options);
    let records = pass.wants_weights();
    let [queries, positions] = [theta.dims()[1], phi.dims()[1]];
    let keys = positions as f64;
    let (out, weights) = match options.affinity {
        Affinity::Gaussian | Affinity::EmbeddedGaussian => softmax_form(theta, phi, g, options, records),
        Affinity::DotProduct => {
            let scale = options.scale.unwrap_or(1.0) / keys;
            if !records && regrouping_is_cheaper(&theta, &phi, &g) {
                // (theta phi') g = theta (phi' g): without a softmax the weights need not be formed
                (theta.matmul(phi.transpose().matmul(g).mul_scalar(scale)), None)
            } else {
                weighted(theta.matmul(phi.transpose()).mul_scalar(scale), g)
            }
        }
        Affinity::Concatenation => {
            let weight = options.concatenation.clone().expect("check_shapes wants it");
            let [rows, columns] = concatenation(theta, phi, weight);
            if !records && fused::runs_on(&g) {
                (pair_relu(rows, columns, g), None)
            } else {
                weighted(relu(rows + columns.swap_dims(1, 2)).div_scalar(keys), g)
            }
        }
    };
    if let Some(weights) = &weights {
        let sums_to_one = options.affinity.sums_to_one();
        pass.record_weights(weights, |pass| Geometry { sums_to_one, ..pass.geometry(queries, positions) });
    }
    Attended { out, weights: weights.filter(|_| records) }
}

fn softmax_form(
    theta: Tensor<3>,
    phi: Tensor<3>,
    g: Tensor<3>,
    options: &NonLocalOptions,
    records: bool,
) -> (Tensor<3>, Option<Tensor<3>>) {
    // an inner pass, so that the weights are recorded once and without an axis of heads
    let mut inner = if records { Pass::recording() } else { Pass::silent() };
    let one_head = |tokens: Tensor<3>| tokens.unsqueeze_dim::<4>(1);
    let softmax = DotProduct { scale: Some(options.scale.unwrap_or(1.0)), ..DotProduct::default() };
    let attended = dot_product(one_head(theta), one_head(phi), one_head(g), &softmax, &mut inner);
    (attended.out.squeeze_dim(1), attended.weights.map(|weights| weights.squeeze_dim(1)))
}

/// `w_f . [theta_i, phi_j]` as `a_i + b_j`, `[B, N, 1]` and `[B, M, 1]`: the pairs are never concatenated.
fn concatenation(theta: Tensor<3>, phi: Tensor<3>, weight: Tensor<1>) -> [Tensor<3>; 2] {
    let width = theta.dims()[2];
    let half = |from: usize| weight.clone().slice_dim(0, from..from + width).reshape([width, 1]);
    [linear(theta, half(0), None), linear(phi, half(width), None)]
}

/// The sum of the values under the weights `ReLU(a_i + b_j) / M`, which are not stored.
fn pair_relu(rows: Tensor<3>, columns: Tensor<3>, g: Tensor<3>) -> Tensor<3> {
    let ([batch, queries, _], [_, keys, width]) = (rows.dims(), g.dims());
    let inputs = [rows.into_dispatch(), columns.into_dispatch(), g.into_dispatch()];
    fused::apply(PairRelu { batch, queries, keys, width }, inputs, [batch, queries, width])
}

impl Kernel<3> for PairRelu {
    fn multiply_adds(&self, _: [usize; 3]) -> Option<u64> {
        Some((self.batch * self.queries * self.keys * self.width) as u64)
    }
    fn forward(&self, inputs: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        (PairRelu::forward(self, inputs), Vec::new())
    }
    fn backward(&self, inputs: [&[f32]; 3], _: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        PairRelu::backward(self, inputs, grad)
    }
}

fn weighted(weights: Tensor<3>, g: Tensor<3>) -> (Tensor<3>, Option<Tensor<3>>) {
    (weights.clone().matmul(g), Some(weights))
}

fn regrouping_is_cheaper(theta: &Tensor<3>, phi: &Tensor<3>, g: &Tensor<3>) -> bool {
    let ([_, queries, width], [_, keys, _], [_, _, values]) = (theta.dims(), phi.dims(), g.dims());
    (queries + keys) * width * values < queries * keys * (width + values)
}

fn check_shapes(theta: &Tensor<3>, phi: &Tensor<3>, g: &Tensor<3>, options: &NonLocalOptions) {
    let ([batch, queries, width], [_, keys, _]) = (theta.dims(), phi.dims());
    check::not_empty(NAME, "theta", &[("batch", batch), ("positions", queries), ("width", width)]);
    check::not_empty(NAME, "phi", &[("positions", keys)]);
    check::not_empty(NAME, "g", &[("width", g.dims()[2])]);
    check::agree(NAME, "batch", ("theta", batch), ("phi", phi.dims()[0]));
    check::agree(NAME, "width", ("theta", width), ("phi", phi.dims()[2]));
    check::agree(NAME, "batch", ("phi", phi.dims()[0]), ("g", g.dims()[0]));
    check::agree(NAME, "positions", ("phi", keys), ("g", g.dims()[1]));
    match (options.affinity, &options.concatenation) {
        (Affinity::Concatenation, None) => panic!("{NAME}: the concatenation needs a weight of width {}", 2 * width),
        (Affinity::Concatenation, Some(weight)) => {
            check::agree(NAME, "width", ("concatenation weight", weight.dims()[0]), ("[theta, phi]", 2 * width));
            assert!(options.scale.is_none(), "{NAME}: the concatenation has no dot product to scale");
        }
        (_, Some(_)) => panic!("{NAME}: a concatenation weight was given to {:?}", options.affinity),
        (_, None) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_gradients_are_differences, distance, random, values};

    const AFFINITIES: [Affinity; 4] =
        [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation];
    const SIZES: [usize; 5] = [2, 4, 5, 3, 6]; // B N M C' V

    fn inputs(seed: u64) -> [Tensor<3>; 3] {
        let [batch, queries, keys, width, values] = SIZES;
        [
            random([batch, queries, width], seed),
            random([batch, keys, width], seed + 1),
            random([batch, keys, values], seed + 2),
        ]
    }

    fn options(affinity: Affinity, scale: Option<f64>) -> NonLocalOptions {
        let concatenates = affinity == Affinity::Concatenation;
        NonLocalOptions {
            affinity,
            scale: scale.filter(|_| !concatenates),
            concatenation: concatenates.then(|| random([2 * SIZES[3]], 99)),
        }
    }

    fn run([theta, phi, g]: [Tensor<3>; 3], options: &NonLocalOptions) -> Attended<3, 3> {
        non_local(theta, phi, g, options, &mut Pass::recording())
    }

    /// The non-local operation by its definition.
    fn naive([theta, phi, g]: &[Tensor<3>; 3], options: &NonLocalOptions) -> (Vec<f32>, Vec<f32>) {
        let [batch, queries, keys, width, out_width] = SIZES;
        let (theta, phi, g) = (values(theta), values(phi), values(g));
        let scale = options.scale.unwrap_or(1.0) as f32;
        let (mut out, mut weights) = (Vec::new(), Vec::new());
        for b in 0..batch {
            for i in 0..queries {
                let mut row = Vec::new();
                for j in 0..keys {
                    let (mut product, mut joined) = (0.0, 0.0);
                    for c in 0..width {
                        let (t, p) = (theta[(b * queries + i) * width + c], phi[(b * keys + j) * width + c]);
                        product += scale * t * p;
                        if let Some(weight) = &options.concatenation {
                            let weight = values(weight);
                            joined += weight[c] * t + weight[width + c] * p;
                        }
                    }
                    row.push(match options.affinity {
                        Affinity::Gaussian | Affinity::EmbeddedGaussian => product.exp(),
                        Affinity::DotProduct => product,
                        Affinity::Concatenation => f32::max(joined, 0.0),
                    });
                }
                let normaliser = match options.affinity {
                    Affinity::Gaussian | Affinity::EmbeddedGaussian => row.iter().sum(),
                    Affinity::DotProduct | Affinity::Concatenation => keys as f32,
                };
                for w in &mut row {
                    *w /= normaliser;
                }
                for c in 0..out_width {
                    out.push((0..keys).map(|j| row[j] * g[(b * keys + j) * out_width + c]).sum());
                }
                weights.extend(row);
            }
        }
        (out, weights)
    }

    #[test]
    fn it_equals_its_definition() {
        for affinity in AFFINITIES {
            for scale in [None, Some(0.3)] {
                let options = options(affinity, scale);
                let attended = run(inputs(1), &options);
                let (out, weights) = naive(&inputs(1), &options);
                assert!(distance(&values(&attended.out), &out) < 1e-5, "{affinity:?}");
                assert!(distance(&values(&attended.weights.unwrap()), &weights) < 1e-5, "{affinity:?}");
            }
        }
    }

    #[test]
    fn rows_of_softmax_weights_sum_to_one() {
        for affinity in [Affinity::Gaussian, Affinity::EmbeddedGaussian] {
            let sums = run(inputs(3), &options(affinity, None)).weights.unwrap().sum_dim(2);
            assert_close(&sums.clone(), &sums.ones_like(), 1e-5);
        }
    }

    #[test]
    fn repeating_every_key_changes_nothing() {
        for affinity in AFFINITIES {
            let [theta, phi, g] = inputs(4);
            let twice = |t: &Tensor<3>| Tensor::cat(vec![t.clone(), t.clone()], 1);
            let doubled = run([theta.clone(), twice(&phi), twice(&g)], &options(affinity, None)).out;
            assert_close(&doubled, &run([theta, phi, g], &options(affinity, None)).out, 1e-5);
        }
    }

    #[test]
    fn a_batch_of_two_equals_two_batches_of_one() {
        for affinity in AFFINITIES {
            let both = run(inputs(5), &options(affinity, None)).out;
            for b in 0..2 {
                let one = inputs(5).map(|t| t.slice_dim(0, b..=b));
                assert_close(&both.clone().slice_dim(0, b..=b), &run(one, &options(affinity, None)).out, 1e-6);
            }
        }
    }

    #[test]
    fn recorded_and_silent_passes_agree_and_record_once() {
        for affinity in AFFINITIES {
            // few and many positions, so that the dot product takes both of its ways
            for (keys, regroups) in [(1, false), (9, true)] {
                let (theta, phi, g) = (random([2, 4, 3], 1), random([2, keys, 3], 2), random([2, keys, 5], 3));
                assert_eq!(regrouping_is_cheaper(&theta, &phi, &g), regroups);
                let options = options(affinity, Some(0.5));
                let silent = non_local(theta.clone(), phi.clone(), g.clone(), &options, &mut Pass::silent());
                assert!(silent.weights.is_none(), "nothing is recorded");
                let mut pass = Pass::recording();
                let recorded = pass.within("nl", |pass| non_local(theta, phi, g, &options, pass));
                assert_close(&silent.out, &recorded.out, 1e-5);
                let trace = pass.into_trace();
                assert_eq!(trace.names().collect::<Vec<_>>(), ["nl.weights"], "{affinity:?}");
                assert_close(&trace.get::<3>("nl.weights").unwrap(), &recorded.weights.unwrap(), 0.0);
            }
        }
    }

    #[test]
    fn gradients_are_finite_differences() {
        for affinity in AFFINITIES {
            let options = options(affinity, Some(0.5));
            let shapes = inputs(31);
            if let Some(weight) = &options.concatenation {
                // a difference across the corner of the ReLU would be no derivative
                let [theta, phi, _] = shapes.clone();
                let half = |from: usize| weight.clone().slice_dim(0, from..from + 3).reshape([3, 1]);
                let sum = linear(theta, half(0), None) + linear(phi, half(3), None).swap_dims(1, 2);
                let nearest = values(&sum).iter().fold(f32::MAX, |nearest, s| nearest.min(s.abs()));
                assert!(nearest > 0.045, "choose another seed: {nearest}");
            }
            let mut named = vec![("theta", values(&shapes[0])), ("phi", values(&shapes[1])), ("g", values(&shapes[2]))];
            if let Some(weight) = &options.concatenation {
                named.push(("concatenation", values(weight)));
            }
            assert_gradients_are_differences(&named, |t| {
                let [theta, phi, g] = [0, 1, 2].map(|i| t[i].clone().reshape(shapes[i].shape()));
                let options = NonLocalOptions { concatenation: t.get(3).cloned(), ..options.clone() };
                non_local(theta, phi, g, &options, &mut Pass::silent()).out
            });
        }
    }

    #[test]
    fn numbers_that_are_not_finite_neither_hang_nor_crash() {
        for affinity in AFFINITIES {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let [theta, phi, g] = inputs(1);
                let out = run([theta.mul_scalar(bad), phi, g], &options(affinity, None)).out;
                assert_eq!(out.dims(), [2, 4, 6]);
            }
        }
    }

    #[test]
    #[should_panic(expected = "non_local: theta has width 3, phi has width 4")]
    fn embeddings_of_different_width_are_refused_by_name() {
        let [theta, _, g] = inputs(1);
        run([theta, random([2, 5, 4], 1), g], &NonLocalOptions::default());
    }

    #[test]
    #[should_panic(expected = "non_local: concatenation weight has width 5, [theta, phi] has width 6")]
    fn a_concatenation_weight_of_another_width_is_refused_by_name() {
        let options = NonLocalOptions {
            affinity: Affinity::Concatenation,
            concatenation: Some(random([5], 1)),
            ..NonLocalOptions::default()
        };
        run(inputs(1), &options);
    }

    #[test]
    #[should_panic(expected = "non_local: the concatenation needs a weight of width 6")]
    fn a_missing_concatenation_weight_is_refused_by_name() {
        run(inputs(1), &NonLocalOptions { affinity: Affinity::Concatenation, ..NonLocalOptions::default() });
    }
}
