//! The trunk of a detector: a classifier of the zoo without its head, which gives a map for every stage.
//!
//! Parameters have the names that they have in the classifier, so that ImageNet weights fit and a detector's own names are
//! these behind its prefix: `backbone.body.layer1.0.conv1.weight` in torchvision, `backbone.0.body..` in DETR.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{Backbone, FeatureMap, ModelConfig, StagedBackbone, resnet, san, sasa};
use crate::cost::{Costed, Ledger};
use crate::layers::{LastStage, NormKind};
use crate::models::limits::check_parameters;
use crate::{Error, Pass};

/// Which classifier, and what is different in a detector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrunkConfig {
    /// A residual network, SASA or SAN; its `classes` and `image` have no meaning here.
    pub network: ModelConfig,
    /// Frozen norms are for residual networks.
    #[serde(default)]
    pub norm: NormKind,
    /// A dilated last stage is for residual networks.
    #[serde(default)]
    pub last_stage: LastStage,
}

/// One stage of a trunk: C2 to C5 are stages 0 to 3 of a residual network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrunkStage {
    pub channels: usize,
    /// Pixels of the image from one position to the next, down and to the right.
    pub stride: usize,
}

impl TrunkConfig {
    /// A classifier as it is, with norms that are trained.
    pub const fn new(network: ModelConfig) -> Self {
        Self { network, norm: NormKind::Batch, last_stage: LastStage::Strided }
    }

    /// The trunk with random parameters, which are initialised on first use.
    ///
    /// # Errors
    /// When a field is out of range, or the classifier has no feature maps; the error names it.
    pub fn init(&self, device: &Device) -> Result<Trunk, Error> {
        let Self { network, norm, last_stage } = self;
        if let ModelConfig::Resnet(config) = network {
            return config.trunk(*norm, *last_stage, device).and_then(check_parameters).map(Trunk::Resnet);
        }
        let family = network.family();
        if *norm != NormKind::Batch {
            return Err(Error::config(
                "norm",
                format!("frozen norms are for residual networks, the trunk is {family}"),
            ));
        }
        if *last_stage != LastStage::Strided {
            return Err(Error::config(
                "last_stage",
                format!("dilation is for residual networks, the trunk is {family}"),
            ));
        }
        match network {
            ModelConfig::San(config) => config.trunk(device).and_then(check_parameters).map(Trunk::San),
            ModelConfig::Sasa(config) => config.trunk(device).and_then(check_parameters).map(Trunk::Sasa),
            _ => {
                let reason = format!("a trunk is resnet, san or sasa, which give a map for every stage, got {family}");
                Err(Error::config("network", reason))
            }
        }
    }

    /// Channels and stride of every stage, without making a parameter.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn stages(&self) -> Result<Vec<TrunkStage>, Error> {
        // every stride divides it
        const SIDE: usize = 1 << 12;
        let trunk = self.init(&crate::device::cpu())?;
        let shapes = trunk.stage_costs(vec![self.network.channels(), SIDE, SIDE], &mut Ledger::default());
        Ok(shapes.iter().map(|shape| TrunkStage { channels: shape[0], stride: SIDE / shape[1] }).collect())
    }
}

/// The trunk; made by [`TrunkConfig::init`].
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a detector has one
pub enum Trunk {
    Resnet(resnet::ResNet),
    San(san::San),
    Sasa(sasa::Sasa),
}

impl Trunk {
    fn network(&self) -> &dyn StagedBackbone {
        match self {
            Self::Resnet(network) => network,
            Self::San(network) => network,
            Self::Sasa(network) => network,
        }
    }

    /// The maps of some stages, from 0, in this order.
    ///
    /// # Panics
    /// When the images do not fit the network, or there is no such stage.
    pub fn maps(&self, images: Tensor<4>, stages: &[usize], pass: &mut Pass) -> Vec<FeatureMap> {
        let maps = self.features(images, pass);
        stages.iter().map(|stage| maps[*stage].clone()).collect()
    }
}

impl Backbone for Trunk {
    fn features(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<FeatureMap> {
        self.network().features(images, pass)
    }
}

impl StagedBackbone for Trunk {
    fn stage_costs(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<Vec<usize>> {
        self.network().stage_costs(shape, ledger)
    }
}

impl Costed for Trunk {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        self.last_cost(shape, ledger)
    }
}

#[cfg(test)]
mod tests {
    use super::super::preset;
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, random, random_on, weights};

    fn trunk(name: &str) -> TrunkConfig {
        TrunkConfig::new(preset(name).unwrap().config)
    }

    fn frozen(name: &str) -> TrunkConfig {
        TrunkConfig { norm: NormKind::FROZEN, ..trunk(name) }
    }

    /// Of a ledger for a picture of any size.
    fn parameters(config: &TrunkConfig) -> u64 {
        Ledger::of(&config.init(&device::cpu()).unwrap(), [3, 64, 64]).parameters()
    }

    #[test]
    fn a_trunk_has_the_parameters_of_its_classifier_without_the_head() {
        // torchvision's ResNet-50 has 25,557,032, of which the head is 2,049,000 and norms are 53,120
        assert_eq!(parameters(&trunk("resnet-50")), 25_557_032 - 2_049_000);
        assert_eq!(parameters(&frozen("resnet-50")), 25_557_032 - 2_049_000 - 53_120);
        for name in ["resnet-nano", "sasa-nano", "san-nano-pairwise"] {
            let config = preset(name).unwrap().config;
            let whole: Vec<String> = weights::shapes(&config.init(&device::cpu()).unwrap()).into_keys().collect();
            let mut names: Vec<String> =
                weights::shapes(&trunk(name).init(&device::cpu()).unwrap()).into_keys().collect();
            names.extend(["fc.bias".to_string(), "fc.weight".to_string()]);
            names.sort();
            assert_eq!(names, whole, "{name}");
        }
    }

    #[test]
    fn stages_are_what_the_maps_are() {
        let dilated = TrunkConfig { last_stage: LastStage::Dilated, ..frozen("resnet-26") };
        for (config, last) in [
            (trunk("resnet-nano"), TrunkStage { channels: 128, stride: 8 }),
            (frozen("resnet-26"), TrunkStage { channels: 2048, stride: 32 }),
            (dilated, TrunkStage { channels: 2048, stride: 16 }),
            (trunk("sasa-nano"), TrunkStage { channels: 512, stride: 8 }),
            (trunk("san-nano-pairwise"), TrunkStage { channels: 512, stride: 8 }),
        ] {
            let stages = config.stages().unwrap();
            assert_eq!(stages.last(), Some(&last), "{config:?}");
            let maps = config.init(&device::cpu()).unwrap().features(random([1, 3, 64, 64], 1), &mut Pass::silent());
            assert_eq!(maps.len(), stages.len());
            for (map, stage) in maps.iter().zip(stages) {
                assert_eq!(map.stride, stage.stride, "{}", map.name);
                assert_eq!(map.map.dims(), [1, stage.channels, 64 / stage.stride, 64 / stage.stride], "{}", map.name);
            }
        }
    }

    #[test]
    fn chosen_stages_come_in_the_order_asked_for() {
        let trunk = trunk("resnet-nano").init(&device::cpu()).unwrap();
        let maps = trunk.maps(random([1, 3, 16, 16], 1), &[3, 1], &mut Pass::silent());
        assert_eq!(maps.iter().map(|map| map.name.as_str()).collect::<Vec<_>>(), ["layer4", "layer2"]);
    }

    #[test]
    fn frozen_norms_have_no_gradient_and_do_not_move_in_training() {
        let device = device::cpu().autodiff();
        let model = frozen("resnet-nano").init(&device).unwrap();
        let before = weights::tensors(&model);
        let map = model.features(random_on([2, 3, 16, 16], 1, &device), &mut Pass::silent()).pop().unwrap().map;
        let gradients = map.powi_scalar(2).sum().backward();
        assert_eq!(weights::tensors(&model), before);
        assert_eq!(crate::testing::without_gradient(&model, &gradients), Vec::<String>::new());
    }

    #[test]
    fn with_the_classifiers_weights_it_gives_the_classifiers_maps() {
        let config = preset("resnet-nano").unwrap().config;
        let classifier = config.init(&device::cpu()).unwrap();
        let mut tensors = weights::tensors(&classifier);
        tensors.retain(|name, _| !name.starts_with("fc."));
        let image = random([1, 3, 16, 16], 1);
        let mut pass = Pass::recording();
        classifier.forward(image.clone(), &mut pass);
        let expected = pass.into_trace().get::<4>("layer4").unwrap();
        for config in [trunk("resnet-nano"), frozen("resnet-nano")] {
            let trunk = weights::fill(config.init(&device::cpu()).unwrap(), &tensors).unwrap();
            let map = trunk.features(image.clone(), &mut Pass::silent()).pop().unwrap().map;
            assert_close(&map, &expected, 1e-5);
        }
    }

    #[test]
    fn what_cannot_be_a_trunk_is_named() {
        let refusal = |config: TrunkConfig| config.init(&device::cpu()).unwrap_err().to_string();
        assert!(refusal(trunk("vit-nano")).contains("got vit"));
        assert!(refusal(frozen("sasa-nano")).contains("the trunk is sasa"));
        assert!(refusal(TrunkConfig { last_stage: LastStage::Dilated, ..trunk("resnet-18") }).contains("bottlenecks"));
    }
}
