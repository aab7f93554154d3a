//! Patchwise self-attention: the weights of a footprint are one function of the whole patch.
//! Zhao, Jia, Koltun 2020, "Exploring Self-attention for Image Recognition" (SAN).
//!
//! `out_i = sum_j gamma(delta(x_footprint))_j * beta_j` over the `k x k` footprint of `i`, mirrored at the
//! edge of the image. There is neither softmax nor position: every offset of the patch has its own channels in
//! gamma, which generalises convolution. Value channel `c` uses weight channel `c mod Cw`; gamma's output
//! `cw*k*k + o` is the weight of offset `o`.
//!
//! The published code has concatenation only; star and clique follow the paper's text.

use burn::tensor::Tensor;
use regard_kernels::patchwise::{PatchAggregate, PatchRelate, Relation};
use regard_kernels::window::Window;
use serde::{Deserialize, Serialize};

use super::window::{Border, aggregate, check_odd, check_window, unfold};
use super::{Attended, Gamma, check};
use crate::Pass;
use crate::batch_norm::NormStatistics;
use crate::fused::{self, Kernel, Saved};
use crate::pass::{Geometry, Reach};

/// The relation `delta` of a whole patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PatchRelation {
    /// `<phi_i, psi_j>` for every `j`: the centre with every pixel.
    Star,
    /// `<phi_j, psi_l>` for every pair of pixels, in order of `j`, then `l`.
    Clique,
    /// `[phi_i, psi_j for every j]`, channel by channel; without phi only the patch.
    Concatenation,
}

impl PatchRelation {
    /// Channels of the relation; `centre` and `width` are those of phi (0 without it) and psi.
    pub const fn channels(self, centre: usize, width: usize, window: usize) -> usize {
        let offsets = window * window;
        match self {
            Self::Star => offsets,
            Self::Clique => offsets * offsets,
            Self::Concatenation => centre + width * offsets,
        }
    }
}

/// Relation and footprint of patchwise attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patchwise {
    pub relation: PatchRelation,
    /// Side of the footprint, odd.
    pub window: usize,
}

impl Patchwise {
    /// The first kernel's arguments; `beside` says whether phi is concatenated with the patch.
    pub(crate) fn kernel(
        &self,
        batch: usize,
        features: usize,
        beside: bool,
        [height, width]: [usize; 2],
        gamma: &Gamma,
    ) -> PatchRelate {
        PatchRelate {
            batch,
            features,
            hidden: gamma.hidden(),
            window: Window::new(height, width, self.window),
            relation: match (self.relation, beside) {
                (PatchRelation::Star, _) => Relation::Star,
                (PatchRelation::Clique, _) => Relation::Clique,
                (PatchRelation::Concatenation, true) => Relation::Concatenation,
                (PatchRelation::Concatenation, false) => Relation::Patch,
            },
            epsilon: gamma.norm1.epsilon as f32,
        }
    }
}

/// `phi [B, R, H, W], psi [B, R, H, W], beta [B, C, H, W] -> [B, C, H, W]`, weights `[B, Cw, k*k, H*W]`.
///
/// Concatenation does not need phi: if phi is the same map as psi, the patch already contains the centre.
///
/// # Panics
/// When the shapes do not fit together; the message names the axis and both sizes.
pub fn patchwise(
    phi: Option<Tensor<4>>,
    psi: Tensor<4>,
    beta: Tensor<4>,
    gamma: &Gamma,
    options: &Patchwise,
    pass: &mut Pass,
) -> Attended<4> {
    check_shapes(phi.as_ref(), &psi, &beta, gamma, options);
    if !pass.wants_weights() && fused::runs_on(&psi) && options.window <= Window::LARGEST {
        return Attended { out: fused(phi, psi, beta, gamma, options), weights: None };
    }
    let ([_, _, height, width], side) = (psi.dims(), options.window);
    let (out, weights) = plain(phi, psi, beta, gamma, options);
    pass.record_weights(&weights, |_| Geometry {
        sums_to_one: false,
        ..Geometry::within_map([height, width], Reach::Window { side, mirrored: true })
    });
    Attended { out, weights: pass.wants_weights().then_some(weights) }
}

/// The output from two fused kernels, with a norm between them.
fn fused(phi: Option<Tensor<4>>, psi: Tensor<4>, beta: Tensor<4>, gamma: &Gamma, options: &Patchwise) -> Tensor<4> {
    let [batch, features, height, width] = psi.dims();
    let values = beta.dims()[1];
    let window = Window::new(height, width, options.window);
    let norms = NormStatistics::new([&gamma.norm1], &psi.device()).expect("a single norm has one mode and one epsilon");
    let relate =
        Relate { case: options.kernel(batch, features, phi.is_some(), [height, width], gamma), norms: norms.clone() };
    let (parameters, psi) = (gamma.flat_first().into_dispatch(), psi.into_dispatch());
    let shape = [batch, gamma.hidden(), height, width];
    let hidden: Tensor<4> = match phi {
        Some(phi) => fused::apply(relate, [phi.into_dispatch(), psi, parameters], shape),
        None => fused::apply(relate, [psi, parameters], shape),
    };
    norms.update([&gamma.norm1]);
    let hidden = gamma.norm2.forward_relu(hidden);

    let weights = gamma.outputs() / window.offsets();
    let aggregate = Aggregate(PatchAggregate { batch, hidden: gamma.hidden(), values, weights, window });
    let inputs = [
        hidden.into_dispatch(),
        gamma.linear2.val().into_dispatch(),
        gamma.bias2.val().into_dispatch(),
        beta.into_dispatch(),
    ];
    fused::apply(aggregate, inputs, [batch, values, height, width])
}

#[derive(Clone, Debug)]
struct Relate {
    case: PatchRelate,
    norms: NormStatistics<1>,
}

impl Kernel<3> for Relate {
    fn forward(&self, inputs: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        let [moments] = self.norms.moments(|| [self.case.moments(inputs)]);
        (self.case.forward(inputs, moments), Vec::new())
    }
    fn backward(&self, inputs: [&[f32]; 3], _: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let [moments] = self.norms.moments(|| [self.case.moments(inputs)]);
        self.case.backward(inputs, moments, self.norms.statistics, grad)
    }
}

impl Kernel<2> for Relate {
    fn forward(&self, [psi, gamma]: [&[f32]; 2]) -> (Vec<f32>, Vec<f32>) {
        Kernel::<3>::forward(self, [&[], psi, gamma])
    }
    fn backward(&self, [psi, gamma]: [&[f32]; 2], saved: Saved, grad: &[f32]) -> [Vec<f32>; 2] {
        let [_, psi, gamma] = Kernel::<3>::backward(self, [&[], psi, gamma], saved, grad);
        [psi, gamma]
    }
}

#[derive(Clone, Debug)]
struct Aggregate(PatchAggregate);

impl Kernel<4> for Aggregate {
    fn forward(&self, inputs: [&[f32]; 4]) -> (Vec<f32>, Vec<f32>) {
        (self.0.forward(inputs), Vec::new())
    }
    fn backward(&self, inputs: [&[f32]; 4], _: Saved, grad: &[f32]) -> [Vec<f32>; 4] {
        self.0.backward(inputs, grad)
    }
}

/// The output and the weights, from Burn operations.
fn plain(
    phi: Option<Tensor<4>>,
    psi: Tensor<4>,
    beta: Tensor<4>,
    gamma: &Gamma,
    options: &Patchwise,
) -> (Tensor<4>, Tensor<4>) {
    let [batch, _, height, width] = psi.dims();
    let offsets = options.window * options.window;
    let weights = gamma.forward(relate(phi, psi, options));
    let weights = weights.reshape([batch, gamma.outputs() / offsets, offsets, height * width]);
    (aggregate(weights.clone(), beta, options.window), weights)
}

/// `[B, R, H, W], [B, R, H, W] -> [B, d, 1, H*W]`
fn relate(phi: Option<Tensor<4>>, psi: Tensor<4>, options: &Patchwise) -> Tensor<4> {
    let [batch, channels, height, width] = psi.dims();
    let (offsets, pixels) = (options.window * options.window, height * width);
    let patch = unfold(psi, options.window, Border::Reflect);
    match (options.relation, phi) {
        (PatchRelation::Star, Some(phi)) => {
            (phi.reshape([batch, channels, 1, pixels]) * patch).sum_dim(1).reshape([batch, offsets, 1, pixels])
        }
        (PatchRelation::Clique, Some(phi)) => {
            let first = unfold(phi, options.window, Border::Reflect).permute([0, 3, 2, 1]); // [B, H*W, k*k, R]
            let pairs = first.matmul(patch.permute([0, 3, 1, 2])); // [B, H*W, k*k, k*k]
            pairs.reshape([batch, pixels, 1, offsets * offsets]).swap_dims(1, 3)
        }
        (PatchRelation::Concatenation, Some(phi)) => {
            let patch = patch.reshape([batch, channels * offsets, 1, pixels]);
            let centre = phi.dims()[1];
            Tensor::cat(vec![phi.reshape([batch, centre, 1, pixels]), patch], 1)
        }
        (PatchRelation::Concatenation, None) => patch.reshape([batch, channels * offsets, 1, pixels]),
        (PatchRelation::Star | PatchRelation::Clique, None) => unreachable!("refused by check_shapes"),
    }
}

fn check_shapes(phi: Option<&Tensor<4>>, psi: &Tensor<4>, beta: &Tensor<4>, gamma: &Gamma, options: &Patchwise) {
    const NAME: &str = "patchwise";
    let [batch, channels, height, width] = psi.dims();
    check::not_empty(NAME, "psi", &[("batch", batch), ("channels", channels), ("height", height), ("width", width)]);
    check::not_empty(NAME, "beta", &[("channels", beta.dims()[1])]);
    assert!(
        phi.is_some() || options.relation == PatchRelation::Concatenation,
        "patchwise: {:?} relates phi with psi, phi is missing",
        options.relation
    );
    if let Some(phi) = phi {
        for (axis, name) in [(0, "batch"), (1, "channels"), (2, "height"), (3, "width")] {
            check::agree(NAME, name, ("phi", phi.dims()[axis]), ("psi", psi.dims()[axis]));
        }
    }
    for (axis, name) in [(0, "batch"), (2, "height"), (3, "width")] {
        check::agree(NAME, name, ("psi", psi.dims()[axis]), ("beta", beta.dims()[axis]));
    }
    check_odd(NAME, options.window);
    check_window(NAME, options.window, Border::Reflect, (height, width));
    let centre = phi.map_or(0, |phi| phi.dims()[1]);
    let relation = options.relation.channels(centre, channels, options.window);
    check::agree(NAME, "channels", ("gamma", gamma.inputs()), ("the relation", relation));
    let offsets = options.window * options.window;
    check::divides(NAME, ("offsets", offsets), ("gamma outputs", gamma.outputs()));
    check::divides(NAME, ("weight channels", gamma.outputs() / offsets), ("beta channels", beta.dims()[1]));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::gamma::samples::{Widths, after};
    use crate::attention::naive;
    use crate::testing::{assert_close, assert_gradients_are_differences, assert_paths_agree, noise, random, values};

    const RELATIONS: [PatchRelation; 3] = [PatchRelation::Star, PatchRelation::Clique, PatchRelation::Concatenation];

    /// Three relation channels, four value channels, two weight channels.
    fn widths(options: &Patchwise, centre: bool) -> Widths {
        let inputs = options.relation.channels(if centre { 3 } else { 0 }, 3, options.window);
        Widths { inputs, hidden: 4, outputs: 2 * options.window * options.window }
    }

    fn maps(batch: usize, height: usize, width: usize) -> [Tensor<4>; 3] {
        [(3, 41), (3, 42), (4, 43)].map(|(channels, seed)| random([batch, channels, height, width], seed))
    }

    fn attend([phi, psi, beta]: [Tensor<4>; 3], options: &Patchwise) -> (Tensor<4>, Tensor<4>) {
        let gamma = widths(options, true).random(7);
        let attended = patchwise(Some(phi), psi, beta, &gamma, options, &mut Pass::recording());
        (attended.out, attended.weights.unwrap())
    }

    #[test]
    fn every_relation_is_its_naive_twin() {
        for relation in RELATIONS {
            for window in [1, 3, 5] {
                let options = Patchwise { relation, window };
                let inputs = maps(2, 4, 3);
                let (out, weights) = attend(inputs.clone(), &options);
                assert_eq!((out.dims(), weights.dims()), ([2, 4, 4, 3], [2, 2, window * window, 12]));
                let [phi, psi, beta] = inputs.each_ref().map(naive::Images::from);
                let twin = naive::Gamma::from(&widths(&options, true).random(7));
                let (twin_out, twin_weights) = naive::patchwise(Some(&phi), [&psi, &beta], &twin, &options);
                naive::assert_twin(&out, &twin_out);
                naive::assert_twin(&weights, &twin_weights);
            }
        }
    }

    #[test]
    fn every_footprint_of_the_paper_is_its_naive_twin() {
        for window in [3, 5, 7, 9, 11] {
            let options = Patchwise { relation: PatchRelation::Concatenation, window };
            let inputs = maps(1, 6, 7);
            let (out, _) = attend(inputs.clone(), &options);
            let [phi, psi, beta] = inputs.each_ref().map(naive::Images::from);
            let twin = naive::Gamma::from(&widths(&options, true).random(7));
            naive::assert_twin(&out, &naive::patchwise(Some(&phi), [&psi, &beta], &twin, &options).0);
        }
    }

    #[test]
    fn concatenation_of_the_patch_alone_is_its_naive_twin() {
        let options = Patchwise { relation: PatchRelation::Concatenation, window: 3 };
        let ([_, psi, beta], gamma) = (maps(2, 4, 3), widths(&options, false).random(7));
        let out = patchwise(None, psi.clone(), beta.clone(), &gamma, &options, &mut Pass::silent()).out;
        let (psi, beta, twin) = (naive::Images::from(&psi), naive::Images::from(&beta), naive::Gamma::from(&gamma));
        naive::assert_twin(&out, &naive::patchwise(None, [&psi, &beta], &twin, &options).0);
    }

    #[test]
    fn a_gamma_that_ignores_the_patch_is_a_convolution() {
        let options = Patchwise { relation: PatchRelation::Star, window: 3 };
        let [phi, psi, beta] = maps(1, 5, 4);
        let mut gamma = widths(&options, true).random(7);
        gamma.linear2 = gamma.linear2.map(|weight| weight.zeros_like());
        let filter = gamma.bias2.val().reshape([2, 1, 3, 3]).repeat_dim(0, 2); // channel c uses filter c mod 2
        let out = patchwise(Some(phi), psi, beta.clone(), &gamma, &options, &mut Pass::silent()).out;
        let inside = burn::tensor::module::conv2d(
            beta,
            filter,
            None,
            burn::tensor::ops::ConvOptions::new([1, 1], [0, 0], [1, 1], 4),
        );
        assert_close(&out.slice([0..1, 0..4, 1..4, 1..3]), &inside, 1e-5);
    }

    #[test]
    fn a_patch_is_not_a_set() {
        for relation in RELATIONS {
            let options = Patchwise { relation, window: 3 };
            let inputs = maps(1, 3, 3);
            let (out, _) = attend(inputs.clone(), &options);
            let (turned, _) = attend(inputs.map(|map| map.flip([3])), &options);
            assert!((turned.flip([3]) - out).abs().max().into_scalar::<f32>() > 1e-2);
        }
    }

    #[test]
    fn a_batch_of_two_equals_two_batches_of_one() {
        for relation in RELATIONS {
            let options = Patchwise { relation, window: 3 };
            let inputs = maps(2, 4, 3);
            let (both, _) = attend(inputs.clone(), &options);
            for sample in 0..2 {
                let (alone, _) = attend(inputs.clone().map(|map| map.narrow(0, sample, 1)), &options);
                assert_close(&both.clone().narrow(0, sample, 1), &alone, 1e-6);
            }
        }
    }

    #[test]
    fn recorded_equals_unrecorded() {
        for relation in RELATIONS {
            let options = Patchwise { relation, window: 3 };
            let ([phi, psi, beta], gamma) = (maps(2, 4, 5), widths(&options, true).random(7));
            let (recorded, weights) = attend([phi.clone(), psi.clone(), beta.clone()], &options);
            let silent = patchwise(Some(phi.clone()), psi.clone(), beta.clone(), &gamma, &options, &mut Pass::silent());
            assert!(silent.weights.is_none());
            assert_close(&silent.out, &recorded, 1e-5);
            let mut pass = Pass::recording();
            patchwise(Some(phi), psi, beta, &gamma, &options, &mut pass);
            assert_close(&pass.into_trace().get::<4>("weights").unwrap(), &weights, 0.0);
        }
    }

    #[test]
    fn in_training_recorded_and_unrecorded_agree_in_output_gradients_and_running_moments() {
        let device = crate::device::cpu().autodiff();
        for (relation, centre) in
            RELATIONS.map(|r| (r, true)).into_iter().chain([(PatchRelation::Concatenation, false)])
        {
            let options = Patchwise { relation, window: 3 };
            let run = |mut pass: Pass| {
                let gamma = widths(&options, centre).training(7);
                let [phi, psi, beta] =
                    maps(2, 4, 5).map(|map| Tensor::from_data(map.into_data(), &device).require_grad());
                let phi = centre.then_some(phi);
                let out = patchwise(phi.clone(), psi.clone(), beta.clone(), &gamma, &options, &mut pass).out;
                let seed = crate::testing::random_on([2, 4, 4, 5], 8, &device);
                let grads = (out.clone() * seed).sum().backward();
                let mut all = after(&gamma, &grads);
                all.push(("bias2", values(&gamma.bias2.val().grad(&grads).unwrap())));
                all.push(("out", values(&out)));
                for (name, map) in [("psi", Some(psi)), ("beta", Some(beta)), ("phi", phi)] {
                    all.extend(map.map(|map| (name, values(&map.grad(&grads).unwrap()))));
                }
                all
            };
            assert_paths_agree(&format!("{relation:?}"), &run(Pass::silent()), &run(Pass::recording()));
        }
    }

    #[test]
    fn gradients_are_differences() {
        for relation in RELATIONS {
            let options = Patchwise { relation, window: 3 };
            let widths = widths(&options, true);
            let mut inputs = vec![("phi", noise(3 * 12, 1)), ("psi", noise(3 * 12, 2)), ("beta", noise(4 * 12, 3))];
            inputs.extend(widths.smooth_parameters(5));
            assert_gradients_are_differences(&inputs, |inputs| {
                let map = |index: usize, channels: usize| inputs[index].clone().reshape([1, channels, 3, 4]);
                let gamma = widths.gamma(&inputs[3..]);
                patchwise(Some(map(0, 3)), map(1, 3), map(2, 4), &gamma, &options, &mut Pass::silent()).out
            });
        }
    }

    #[test]
    fn what_is_not_a_number_stays_where_it_is_seen() {
        for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for which in 0..3 {
                for relation in RELATIONS {
                    let mut inputs = maps(1, 5, 5);
                    inputs[which] = inputs[which].clone().slice_fill([0..1, 0..1, 0..1, 0..1], poison);
                    let options = Patchwise { relation, window: 3 };
                    for mut pass in [Pass::recording(), Pass::silent()] {
                        let ([phi, psi, beta], gamma) = (inputs.clone(), widths(&options, true).random(7));
                        let out = patchwise(Some(phi), psi, beta, &gamma, &options, &mut pass).out;
                        let far = values(&out.slice([0..1, 0..4, 2..5, 2..5]));
                        assert!(far.iter().all(|value| value.is_finite()), "{poison} in input {which} reached {far:?}");
                    }
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "patchwise: Clique relates phi with psi, phi is missing")]
    fn a_clique_without_phi_is_refused() {
        let options = Patchwise { relation: PatchRelation::Clique, window: 3 };
        let ([_, psi, beta], gamma) = (maps(1, 3, 3), widths(&options, true).random(7));
        patchwise(None, psi, beta, &gamma, &options, &mut Pass::silent());
    }

    #[test]
    #[should_panic(expected = "patchwise: gamma has channels 9, the relation has channels 30")]
    fn a_gamma_for_another_relation_is_refused() {
        let [phi, psi, beta] = maps(1, 3, 3);
        let gamma = widths(&Patchwise { relation: PatchRelation::Star, window: 3 }, true).random(7);
        let options = Patchwise { relation: PatchRelation::Concatenation, window: 3 };
        patchwise(Some(phi), psi, beta, &gamma, &options, &mut Pass::silent());
    }

    #[test]
    #[should_panic(expected = "patchwise: psi has width 3, beta has width 4")]
    fn values_of_another_width_are_refused() {
        let [phi, psi, _] = maps(1, 3, 3);
        attend([phi, psi, random([1, 4, 3, 4], 1)], &Patchwise { relation: PatchRelation::Star, window: 3 });
    }

    #[test]
    #[should_panic(expected = "patchwise: window 5 reflects 2 beyond the edge, image has width 2, needs at least 3")]
    fn a_footprint_larger_than_its_reflection_is_named() {
        attend(maps(1, 5, 2), &Patchwise { relation: PatchRelation::Star, window: 5 });
    }
}
