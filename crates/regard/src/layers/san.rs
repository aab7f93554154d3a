//! The self-attention unit of SAN: three 1x1 convolutions, gamma, and pairwise or patchwise attention.
//! Zhao, Jia, Koltun 2020, "Exploring Self-attention for Image Recognition".
//!
//! The published code (hszhao/SAN) has subtraction with relative position and patch concatenation,
//! with three different convolutions; the other variants follow the paper's text.

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::Pointwise;
use super::joint::joint;
use super::local::positive;
use crate::attention::{
    Attended, Gamma, PairPosition, PairRelation, Pairwise, PatchRelation, Patchwise, pairwise, patchwise,
};
use crate::{Error, Pass};

mod cost;

/// The sizes of one unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SanUnitConfig {
    /// Input channels.
    pub channels_in: usize,
    /// Output channels, also of beta.
    pub channels_out: usize,
    /// Channels of phi and psi; with [`Sharing`] of all three, only gamma's hidden width.
    pub channels_relation: usize,
    /// Number of value channels that share weights.
    pub share: usize,
    /// Side of the footprint, odd.
    pub window: usize,
    pub relation: SanRelation,
    pub sharing: Sharing,
}

/// The operator and relation of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum SanRelation {
    Pairwise { relation: PairRelation, position: PairPosition },
    Patchwise { relation: PatchRelation },
}

/// Which of the three convolutions are shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// None: phi, psi and beta differ.
    AllDifferent,
    /// phi = psi.
    RelationShared,
    /// phi = psi = beta.
    AllShared,
}

impl SanUnitConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        positive("channels_in", self.channels_in)?;
        positive("channels_out", self.channels_out)?;
        positive("channels_relation", self.channels_relation)?;
        positive("share", self.share)?;
        if !self.channels_out.is_multiple_of(self.share) {
            let reason = format!("must divide channels_out {}, got {}", self.channels_out, self.share);
            return Err(Error::config("share", reason));
        }
        if self.window.is_multiple_of(2) {
            return Err(Error::config("window", format!("must be odd, got {}", self.window)));
        }
        Ok(())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<SanUnit, Error> {
        self.validate()?;
        let (window, width) = (self.window, self.related_channels());
        let weights = self.channels_out / self.share;
        let Convolutions { phi, psi, beta } = self.convolutions(device);
        Ok(match self.relation {
            SanRelation::Pairwise { relation, position } => {
                let inputs = relation.channels(width) + position.channels();
                let place = (position != PairPosition::None).then(|| Pointwise::new(2, 2, device));
                let gamma = Gamma::new(inputs, self.channels_relation, weights, device);
                let options = Pairwise { relation, position, window };
                SanUnit::Pairwise(PairwiseUnit { phi, psi, beta, place, gamma, options })
            }
            SanRelation::Patchwise { relation } => {
                let inputs = relation.channels(self.centre_channels(relation), width, window);
                let gamma = Gamma::new(inputs, weights, weights * window * window, device);
                let options = Patchwise { relation, window };
                SanUnit::Patchwise(PatchwiseUnit { phi, psi, beta, gamma, options })
            }
        })
    }

    fn convolutions(&self, device: &Device) -> Convolutions {
        let related = || Some(Pointwise::new(self.channels_in, self.channels_relation, device));
        let (phi, psi) = match self.sharing {
            Sharing::AllDifferent => (related(), related()),
            Sharing::RelationShared => (related(), None),
            Sharing::AllShared => (None, None),
        };
        Convolutions { phi, psi, beta: Pointwise::new(self.channels_in, self.channels_out, device) }
    }

    /// Output channels of phi and psi.
    const fn related_channels(&self) -> usize {
        match self.sharing {
            Sharing::AllDifferent | Sharing::RelationShared => self.channels_relation,
            Sharing::AllShared => self.channels_out,
        }
    }

    /// Channels of the centre concatenated with the patch: 0 if the patch already contains the same features.
    fn centre_channels(&self, relation: PatchRelation) -> usize {
        match (relation, self.sharing) {
            (PatchRelation::Concatenation, Sharing::AllShared) => 0,
            _ => self.related_channels(),
        }
    }
}

struct Convolutions {
    phi: Option<Pointwise>,
    psi: Option<Pointwise>,
    beta: Pointwise,
}

/// `phi, psi, beta` of a map, each convolution run once.
fn features(map: Tensor<4>, phi_psi: [Option<&Pointwise>; 2], beta: &Pointwise) -> [Tensor<4>; 3] {
    match phi_psi {
        [Some(phi), Some(psi)] => joint(map, [phi, psi, beta]),
        [Some(phi), None] => {
            let [phi, beta] = joint(map, [phi, beta]);
            [phi.clone(), phi, beta]
        }
        [None, psi] => {
            let beta = beta.forward(map.clone());
            [beta.clone(), psi.map_or_else(|| beta.clone(), |psi| psi.forward(map)), beta]
        }
    }
}

/// A unit of either kind.
#[derive(Module, Debug)]
pub enum SanUnit {
    Pairwise(PairwiseUnit),
    Patchwise(PatchwiseUnit),
}

impl SanUnit {
    /// `[B, in, H, W] -> [B, out, H, W]`, weights `[B, out/share, k*k, H*W]`.
    ///
    /// # Panics
    /// When the map does not have `channels_in` channels, or is smaller than the reflected footprint.
    pub fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Attended<4> {
        match self {
            Self::Pairwise(unit) => unit.forward(map, pass),
            Self::Patchwise(unit) => unit.forward(map, pass),
        }
    }

    /// Side of the footprint.
    pub const fn window(&self) -> usize {
        match self {
            Self::Pairwise(unit) => unit.options.window,
            Self::Patchwise(unit) => unit.options.window,
        }
    }
}

/// Pairwise attention with its parameters.
#[derive(Module, Debug)]
pub struct PairwiseUnit {
    /// None if shared with beta.
    pub phi: Option<Pointwise>,
    /// None if shared with phi.
    pub psi: Option<Pointwise>,
    pub beta: Pointwise,
    /// Projects the coordinates of a pixel, if there is a position.
    pub place: Option<Pointwise>,
    pub gamma: Gamma,
    #[module(skip)]
    pub(crate) options: Pairwise,
}

impl PairwiseUnit {
    /// `[B, in, H, W] -> [B, out, H, W]`, weights `[B, out/share, k*k, H*W]`.
    ///
    /// # Panics
    /// When the map does not have `channels_in` channels, or is smaller than the reflected footprint.
    pub fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Attended<4> {
        let [_, _, height, width] = map.dims();
        let position = self.place.as_ref().map(|place| {
            let planes = coordinates(height, width, &map.device());
            place.forward(planes).squeeze_dim::<3>(0)
        });
        let [phi, psi, beta] = features(map, [self.phi.as_ref(), self.psi.as_ref()], &self.beta);
        pairwise(phi, psi, beta, position, &self.gamma, &self.options, pass)
    }
}

/// Patchwise attention with its parameters.
#[derive(Module, Debug)]
pub struct PatchwiseUnit {
    /// None if shared with beta.
    pub phi: Option<Pointwise>,
    /// None if shared with phi.
    pub psi: Option<Pointwise>,
    pub beta: Pointwise,
    pub gamma: Gamma,
    #[module(skip)]
    pub(crate) options: Patchwise,
}

impl PatchwiseUnit {
    /// `[B, in, H, W] -> [B, out, H, W]`, weights `[B, out/share, k*k, H*W]`.
    ///
    /// # Panics
    /// When the map does not have `channels_in` channels, or is smaller than the reflected footprint.
    pub fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Attended<4> {
        let [phi, psi, beta] = features(map, [self.phi.as_ref(), self.psi.as_ref()], &self.beta);
        let beside = self.phi.is_some() || self.options.relation != PatchRelation::Concatenation;
        patchwise(beside.then_some(phi), psi, beta, &self.gamma, &self.options, pass)
    }
}

/// `[1, 2, H, W]`: every pixel's column, then its row, from -1 to 1.
fn coordinates(height: usize, width: usize, device: &Device) -> Tensor<4> {
    let along = |index: usize, size: usize| -1.0 + 2.0 * index as f32 / (size.max(2) - 1) as f32;
    let pixels = || (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
    let columns = pixels().map(|(_, column)| along(column, width));
    let rows = pixels().map(|(row, _)| along(row, height));
    Tensor::from_data(TensorData::new(columns.chain(rows).collect::<Vec<f32>>(), [1, 2, height, width]), device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_norm::{BatchNorm, RunningStat};
    use crate::device;
    use crate::testing::{Fixture, assert_close, assert_gradient_close, random, random_on, values};
    use burn::module::Param;
    use burn::tensor::Gradients;

    const SHARINGS: [Sharing; 3] = [Sharing::AllDifferent, Sharing::RelationShared, Sharing::AllShared];

    fn pairs(relation: PairRelation) -> SanRelation {
        SanRelation::Pairwise { relation, position: PairPosition::Relative }
    }

    fn config(relation: SanRelation, sharing: Sharing) -> SanUnitConfig {
        SanUnitConfig {
            channels_in: 32,
            channels_out: 32,
            channels_relation: 8,
            share: 8,
            window: 3,
            relation,
            sharing,
        }
    }

    /// A unit of either kind, seen part by part.
    struct Parts<'a> {
        convolutions: Vec<(&'static str, &'a mut Pointwise)>,
        gamma: &'a mut Gamma,
    }

    fn parts(unit: &mut SanUnit) -> Parts<'_> {
        let (phi, psi, beta, place, gamma) = match unit {
            SanUnit::Pairwise(unit) => {
                (&mut unit.phi, &mut unit.psi, &mut unit.beta, unit.place.as_mut(), &mut unit.gamma)
            }
            SanUnit::Patchwise(unit) => (&mut unit.phi, &mut unit.psi, &mut unit.beta, None, &mut unit.gamma),
        };
        let mut convolutions =
            vec![("conv1", phi.as_mut().unwrap()), ("conv2", psi.as_mut().unwrap()), ("conv3", beta)];
        convolutions.extend(place.map(|place| ("conv_p", place)));
        Parts { convolutions, gamma }
    }

    fn matrix(fixture: &Fixture, name: &str, device: &Device) -> Tensor<2> {
        fixture.tensor_on::<4>(name, device).flatten(1, 3)
    }

    fn load(unit: &mut SanUnit, fixture: &Fixture, device: &Device) {
        let vector = |name: &str| fixture.tensor_on::<1>(&format!("model/{name}"), device);
        let Parts { convolutions, gamma } = parts(unit);
        for (name, convolution) in convolutions {
            convolution.weight = Param::from_tensor(matrix(fixture, &format!("model/{name}.weight"), device));
            convolution.bias = Some(Param::from_tensor(vector(&format!("{name}.bias"))));
        }
        let norm = |norm: &mut BatchNorm, name: &str| {
            norm.gamma = Param::from_tensor(vector(&format!("{name}.weight")));
            norm.beta = Param::from_tensor(vector(&format!("{name}.bias")));
            norm.running_mean = RunningStat::new(vector(&format!("{name}.running_mean")));
            norm.running_var = RunningStat::new(vector(&format!("{name}.running_var")));
            norm.training = Param::from_bool(false);
        };
        norm(&mut gamma.norm1, "conv_w.0");
        norm(&mut gamma.norm2, "conv_w.3");
        gamma.linear1 = Param::from_tensor(matrix(fixture, "model/conv_w.2.weight", device));
        gamma.linear2 = Param::from_tensor(matrix(fixture, "model/conv_w.5.weight", device));
        gamma.bias2 = Param::from_tensor(vector("conv_w.5.bias"));
    }

    fn assert_vector_gradient(fixture: &Fixture, name: &str, parameter: &Param<Tensor<1>>, grads: &Gradients) {
        let expected = fixture.tensor(&format!("io/grad.{name}"));
        assert_gradient_close(name, &parameter.val().grad(grads).unwrap(), &expected);
    }

    fn assert_matrix_gradient(fixture: &Fixture, name: &str, parameter: &Param<Tensor<2>>, grads: &Gradients) {
        let expected = matrix(fixture, &format!("io/grad.{name}"), &device::cpu());
        assert_gradient_close(name, &parameter.val().grad(grads).unwrap(), &expected);
    }

    /// A bias before a softmax shifts all scores alike: its gradient is zero, and what the reference has is
    /// rounding, which cannot be compared relative to itself. Both must vanish beside the weight's gradient.
    fn assert_bias_cancels(fixture: &Fixture, gamma: &Gamma, grads: &Gradients) {
        let weight = matrix(fixture, "io/grad.conv_w.5.weight", &device::cpu()).abs().max().into_scalar::<f32>();
        for bias in [fixture.tensor("io/grad.conv_w.5.bias"), gamma.bias2.val().grad(grads).unwrap()] {
            let bias = bias.abs().max().into_scalar::<f32>();
            assert!(bias < 1e-5 * weight, "conv_w.5.bias: gradient {bias:e} beside the weight's {weight:e}");
        }
    }

    fn assert_parity(case: &str, relation: SanRelation) {
        let fixture = Fixture::load(case);
        let device = device::cpu().autodiff();
        let config = SanUnitConfig {
            channels_in: fixture.usize("cin"),
            channels_out: fixture.usize("cout"),
            channels_relation: fixture.usize("rel"),
            share: fixture.usize("share"),
            window: fixture.usize("kernel"),
            relation,
            sharing: Sharing::AllDifferent,
        };
        let mut unit = config.init(&device).unwrap();
        load(&mut unit, &fixture, &device);
        for mut pass in [Pass::silent(), Pass::recording()] {
            let input = fixture.tensor_on::<4>("io/input", &device).require_grad();
            let out = unit.forward(input.clone(), &mut pass).out;
            assert_close(&out, &fixture.tensor("io/output"), 1e-5);
            let grads = (out * fixture.tensor_on("io/output_grad", &device)).sum().backward();
            assert_gradient_close("input", &input.grad(&grads).unwrap(), &fixture.tensor("io/input_grad"));
            let Parts { convolutions, gamma } = parts(&mut unit);
            for (name, convolution) in convolutions {
                assert_matrix_gradient(&fixture, &format!("{name}.weight"), &convolution.weight, &grads);
                let bias = convolution.bias.as_ref().unwrap();
                assert_vector_gradient(&fixture, &format!("{name}.bias"), bias, &grads);
            }
            for (name, norm) in [("conv_w.0", &gamma.norm1), ("conv_w.3", &gamma.norm2)] {
                assert_vector_gradient(&fixture, &format!("{name}.weight"), &norm.gamma, &grads);
                assert_vector_gradient(&fixture, &format!("{name}.bias"), &norm.beta, &grads);
            }
            assert_matrix_gradient(&fixture, "conv_w.2.weight", &gamma.linear1, &grads);
            assert_matrix_gradient(&fixture, "conv_w.5.weight", &gamma.linear2, &grads);
            match relation {
                SanRelation::Pairwise { .. } => assert_bias_cancels(&fixture, gamma, &grads),
                SanRelation::Patchwise { .. } => {
                    assert_vector_gradient(&fixture, "conv_w.5.bias", &gamma.bias2, &grads);
                }
            }
        }
    }

    #[test]
    fn subtraction_equals_its_reference() {
        assert_parity("san_unit_subtraction", pairs(PairRelation::Subtraction));
    }

    #[test]
    fn subtraction_with_absolute_position_equals_its_reference() {
        let (relation, position) = (PairRelation::Subtraction, PairPosition::Absolute);
        assert_parity("san_unit_subtraction_absolute", SanRelation::Pairwise { relation, position });
    }

    #[test]
    fn subtraction_without_position_equals_its_reference() {
        let (relation, position) = (PairRelation::Subtraction, PairPosition::None);
        assert_parity("san_unit_subtraction_none", SanRelation::Pairwise { relation, position });
    }

    #[test]
    fn summation_equals_its_reference() {
        assert_parity("san_unit_summation", pairs(PairRelation::Summation));
    }

    #[test]
    fn concatenation_equals_its_reference() {
        assert_parity("san_unit_concatenation", pairs(PairRelation::Concatenation));
    }

    #[test]
    fn hadamard_product_equals_its_reference() {
        assert_parity("san_unit_hadamard", pairs(PairRelation::Hadamard));
    }

    #[test]
    fn dot_product_equals_its_reference() {
        assert_parity("san_unit_dot", pairs(PairRelation::Dot));
    }

    #[test]
    fn star_equals_its_reference() {
        assert_parity("san_unit_star", SanRelation::Patchwise { relation: PatchRelation::Star });
    }

    #[test]
    fn clique_equals_its_reference() {
        assert_parity("san_unit_clique", SanRelation::Patchwise { relation: PatchRelation::Clique });
    }

    #[test]
    fn patch_concatenation_equals_its_reference() {
        assert_parity(
            "san_unit_patch_concatenation",
            SanRelation::Patchwise { relation: PatchRelation::Concatenation },
        );
    }

    fn gamma_inputs(unit: &SanUnit) -> usize {
        match unit {
            SanUnit::Pairwise(unit) => unit.gamma.inputs(),
            SanUnit::Patchwise(unit) => unit.gamma.inputs(),
        }
    }

    #[test]
    fn every_relation_and_sharing_has_the_width_of_the_paper() {
        let patches = |relation| SanRelation::Patchwise { relation };
        for (relation, expected) in [
            (pairs(PairRelation::Summation), [8 + 2, 8 + 2, 32 + 2]),
            (pairs(PairRelation::Subtraction), [8 + 2, 8 + 2, 32 + 2]),
            (pairs(PairRelation::Hadamard), [8 + 2, 8 + 2, 32 + 2]),
            (pairs(PairRelation::Concatenation), [16 + 2, 16 + 2, 64 + 2]),
            (pairs(PairRelation::Dot), [1 + 2, 1 + 2, 1 + 2]),
            (patches(PatchRelation::Star), [9, 9, 9]),
            (patches(PatchRelation::Clique), [81, 81, 81]),
            (patches(PatchRelation::Concatenation), [8 * 10, 8 * 10, 32 * 9]),
        ] {
            for (sharing, expected) in SHARINGS.into_iter().zip(expected) {
                let unit = config(relation, sharing).init(&device::cpu()).unwrap();
                assert_eq!(gamma_inputs(&unit), expected, "{relation:?} {sharing:?}");
                let attended = unit.forward(random([2, 32, 4, 5], 1), &mut Pass::recording());
                assert_eq!((attended.out.dims(), attended.weights.unwrap().dims()), ([2, 32, 4, 5], [2, 4, 9, 20]));
            }
        }
    }

    #[test]
    fn one_shared_convolution_equals_equal_convolutions() {
        for relation in [pairs(PairRelation::Subtraction), SanRelation::Patchwise { relation: PatchRelation::Star }] {
            let wide = SanUnitConfig { channels_relation: 32, ..config(relation, Sharing::AllDifferent) };
            let mut different = wide.init(&device::cpu()).unwrap();
            let mut shared =
                SanUnitConfig { sharing: Sharing::AllShared, ..wide.clone() }.init(&device::cpu()).unwrap();
            match (&mut different, &mut shared) {
                (SanUnit::Pairwise(different), SanUnit::Pairwise(shared)) => {
                    (different.phi, different.psi) = (Some(shared.beta.clone()), Some(shared.beta.clone()));
                    different.beta = shared.beta.clone();
                    different.place.clone_from(&shared.place);
                    different.gamma = shared.gamma.clone();
                }
                (SanUnit::Patchwise(different), SanUnit::Patchwise(shared)) => {
                    (different.phi, different.psi) = (Some(shared.beta.clone()), Some(shared.beta.clone()));
                    different.beta = shared.beta.clone();
                    different.gamma = shared.gamma.clone();
                }
                _ => unreachable!("both have the same relation"),
            }
            let map = random([1, 32, 4, 4], 1);
            let out = |unit: &SanUnit| unit.forward(map.clone(), &mut Pass::silent()).out;
            assert_close(&out(&shared), &out(&different), 1e-6);
        }
    }

    #[test]
    fn training_sends_a_gradient_to_every_parameter() {
        let device = device::cpu().autodiff();
        for relation in [pairs(PairRelation::Concatenation), SanRelation::Patchwise { relation: PatchRelation::Clique }]
        {
            let mut unit = config(relation, Sharing::AllDifferent).init(&device).unwrap();
            let out = unit.forward(random_on([2, 32, 4, 5], 1, &device), &mut Pass::silent()).out;
            let grads = out.powi_scalar(2).sum().backward();
            let Parts { convolutions, gamma } = parts(&mut unit);
            for (name, convolution) in convolutions {
                let grad = convolution.weight.val().grad(&grads).unwrap();
                assert!(grad.abs().max().into_scalar::<f32>() > 0.0, "{name}");
            }
            for parameter in [&gamma.linear1, &gamma.linear2] {
                assert!(parameter.val().grad(&grads).unwrap().abs().max().into_scalar::<f32>() > 0.0);
            }
            for parameter in [&gamma.norm1.gamma, &gamma.norm1.beta, &gamma.norm2.gamma, &gamma.norm2.beta] {
                assert!(parameter.val().grad(&grads).unwrap().abs().max().into_scalar::<f32>() > 0.0);
            }
        }
    }

    #[test]
    fn coordinates_run_from_minus_one_to_one_columns_first() {
        assert_eq!(
            values(&coordinates(2, 3, &device::cpu())),
            [-1.0, 0.0, 1.0, -1.0, 0.0, 1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
        );
        assert_eq!(values(&coordinates(1, 1, &device::cpu())), [-1.0, -1.0], "one pixel is where linspace starts");
    }

    #[test]
    fn what_cannot_work_is_named() {
        let good = config(pairs(PairRelation::Dot), Sharing::AllDifferent);
        let refusal = |config: SanUnitConfig| config.init(&device::cpu()).unwrap_err().to_string();
        assert_eq!(refusal(SanUnitConfig { share: 5, ..good.clone() }), "`share`: must divide channels_out 32, got 5");
        assert_eq!(refusal(SanUnitConfig { window: 4, ..good.clone() }), "`window`: must be odd, got 4");
        assert_eq!(
            refusal(SanUnitConfig { channels_relation: 0, ..good }),
            "`channels_relation`: must be at least 1, got 0"
        );
    }

    #[test]
    fn a_config_reads_in_words_and_refuses_unknown_ones() {
        let json = r#"{ "channels_in": 32, "channels_out": 32, "channels_relation": 8, "share": 8, "window": 3,
            "relation": { "pairwise": { "relation": "subtraction", "position": "relative" } },
            "sharing": "relation-shared" }"#;
        let read = serde_json::from_str::<SanUnitConfig>(json).unwrap();
        assert_eq!(read, config(pairs(PairRelation::Subtraction), Sharing::RelationShared));
        assert_eq!(serde_json::from_str::<SanUnitConfig>(&serde_json::to_string(&read).unwrap()).unwrap(), read);
        for (from, to) in [("subtraction", "division"), ("window", "kernel"), ("position", "place")] {
            assert!(serde_json::from_str::<SanUnitConfig>(&json.replace(from, to)).is_err(), "{to}");
        }
    }
}
