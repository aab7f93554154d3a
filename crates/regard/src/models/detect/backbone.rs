//! The backbone of a detector with anchors: stages of a trunk, with or without a feature pyramid.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::boxes::Level;
use crate::cost::Ledger;
use crate::layers::{ExtraLevels, Pyramid, PyramidConfig};
use crate::models::{ModelConfig, StagedBackbone as _, Trunk, TrunkConfig, preset as classifier};
use crate::{Error, Pass};

/// A trunk, the stages that are read, and the pyramid.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneConfig {
    pub trunk: TrunkConfig,
    /// Indices of stages, finest first: C2 to C5 of a residual network are 0 to 3.
    pub stages: Vec<usize>,
    /// `None`: the stages without a pyramid.
    pub pyramid: Option<PyramidOptions>,
}

/// A feature pyramid over the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PyramidOptions {
    /// Channels of each level.
    pub width: usize,
    /// Whether its convolutions have norms instead of biases.
    pub norm: bool,
    pub extra: ExtraLevels,
}

/// A classifier of the zoo with some fields changed, for presets.
///
/// # Panics
/// When there is no such classifier or field.
pub(super) fn trunk(name: &str, changes: &[(&str, serde_json::Value)]) -> TrunkConfig {
    let network = classifier(name).expect("a classifier of ours").config;
    let change = |network: ModelConfig, (field, value): &(&str, serde_json::Value)| {
        network.with(field, value.clone()).expect("a field of this classifier")
    };
    TrunkConfig::new(changes.iter().fold(network, change))
}

/// The trunk of small detectors: strides of 4, 8 and 16.
pub(super) fn nano_trunk() -> TrunkConfig {
    let changes = [
        ("image", json!([64, 64])),
        ("stem", json!("large")),
        ("stem_width", json!(32)),
        ("layers", json!([2, 2, 1])),
        ("widths", json!([32, 64, 128])),
    ];
    trunk("resnet-nano", &changes)
}

/// A tiny residual trunk of one bottleneck per stage, as in torchvision's fixtures.
#[cfg(test)]
pub(super) fn tiny_trunk() -> TrunkConfig {
    let changes = [("stem_width", json!(8)), ("layers", json!([1, 1, 1, 1])), ("widths", json!([4, 6, 8, 10]))];
    TrunkConfig { norm: crate::layers::NormKind::FROZEN, ..trunk("resnet-50", &changes) }
}

impl BackboneConfig {
    /// Channels of the levels.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn width(&self) -> Result<usize, Error> {
        match (self.pyramid, self.inputs()?.last()) {
            (Some(pyramid), _) => Ok(pyramid.width),
            (None, Some(last)) => Ok(*last),
            (None, None) => Err(Error::config("stages", "a detector reads at least one")),
        }
    }

    /// Number of levels.
    #[must_use]
    pub fn levels(&self) -> usize {
        self.stages.len() + self.pyramid.map_or(0, |pyramid| pyramid.extra.count())
    }

    /// Channels of each stage that is read.
    fn inputs(&self) -> Result<Vec<usize>, Error> {
        let stages = self.trunk.stages()?;
        let rising = self.stages.windows(2).all(|pair| pair[0] < pair[1]);
        if self.stages.is_empty() || !rising || self.stages.iter().any(|stage| *stage >= stages.len()) {
            let reason = format!("must be some of 0 to {}, rising, got {:?}", stages.len() - 1, self.stages);
            return Err(Error::config("stages", reason));
        }
        Ok(self.stages.iter().map(|stage| stages[*stage].channels).collect())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<DetectorBackbone, Error> {
        let inputs = self.inputs()?;
        if self.pyramid.is_none() && inputs.len() > 1 {
            return Err(Error::config("stages", "several need a pyramid, which makes them of one width"));
        }
        let pyramid = |options: PyramidOptions| {
            let PyramidOptions { width, norm, extra } = options;
            PyramidConfig { inputs, width, norm, extra }.init(device)
        };
        Ok(DetectorBackbone {
            body: self.trunk.init(device)?,
            fpn: self.pyramid.map(pyramid).transpose()?,
            stages: self.stages.clone(),
        })
    }
}

/// Trunk and pyramid under torchvision's names; made by [`BackboneConfig::init`].
#[derive(Module, Debug)]
pub struct DetectorBackbone {
    pub body: Trunk,
    pub fpn: Option<Pyramid>,
    stages: Vec<usize>,
}

impl DetectorBackbone {
    /// `[B, C, H, W]` to the levels, the finest first. Records what the trunk does (`body.layer1`), watches every level of a
    /// pyramid (`fpn.layer_blocks.0`).
    ///
    /// # Panics
    /// When the images do not fit the trunk.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<Level> {
        let maps = pass.within("body", |pass| self.body.maps(images, &self.stages, pass));
        let mut strides: Vec<usize> = maps.iter().map(|map| map.stride).collect();
        let maps: Vec<Tensor<4>> = maps.into_iter().map(|map| map.map).collect();
        let maps = match &self.fpn {
            Some(fpn) => pass.within("fpn", |pass| fpn.forward(&maps, pass)),
            None => maps,
        };
        while strides.len() < maps.len() {
            strides.push(2 * strides[strides.len() - 1]);
        }
        maps.into_iter().zip(strides).map(|(map, stride)| Level { map, stride }).collect()
    }

    /// The full names under which a detector's levels are watched, the finest first; without a pyramid that of the last stage.
    pub(super) fn level_names(&self) -> Vec<String> {
        let names = match &self.fpn {
            Some(fpn) => fpn.level_names().into_iter().map(|name| format!("fpn.{name}")).collect(),
            None => self.stages.iter().map(|stage| format!("body.layer{}", stage + 1)).collect::<Vec<_>>(),
        };
        names.into_iter().map(|name| format!("backbone.{name}")).collect()
    }

    /// Adds the costs for a picture `[C, H, W]`; returns the shapes of the levels.
    pub fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<Vec<usize>> {
        let shapes = ledger.within("body", |ledger| self.body.stage_costs(shape, ledger));
        let shapes: Vec<Vec<usize>> = self.stages.iter().map(|stage| shapes[*stage].clone()).collect();
        match &self.fpn {
            Some(fpn) => ledger.within("fpn", |ledger| fpn.cost(&shapes, ledger)),
            None => shapes,
        }
    }
}
