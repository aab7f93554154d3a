//! SAN: residual networks whose only spatial operator is vector self-attention over small footprints.
//! Zhao, Jia, Koltun 2020, "Exploring Self-attention for Image Recognition", arXiv:2004.13621.
//!
//! Differences from the published code (hszhao/SAN):
//! - it has only subtraction with relative positions and patch concatenation; the other variants of the paper's tables
//!   (relations, shared convolutions, positions, footprints) are fields of the configuration here;
//! - stages are a list, so `layer2.0.sam.conv1` is called `stages.2.layer.0.sam.phi`: see [`upstream_name`];
//! - 1x1 convolutions are linear maps `[out, in]`.

mod packed;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::backbone::head;
use super::{Backbone, FamilyConfig, FeatureMap, Inspect, Packing, Preset, StagedBackbone};
use crate::attention::{PairPosition, PairRelation, PatchRelation};
use crate::cost::{Costed, Ledger, Work};
use crate::data::Preprocess;
use crate::layers::packed::PackedForm;
use crate::layers::{BatchNorm, Linear, Pointwise, SanRelation, SanUnit, SanUnitConfig, Sharing, block_max, positive};
use crate::models::limits::check_image;
use crate::{Error, Pass};

/// A network of any number of stages; each halves the picture, so stage `s` sees `image / 2^(s+1)`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SanConfig {
    /// Rows and columns.
    pub image: [usize; 2],
    pub channels: usize,
    pub classes: usize,
    /// Channels of each stage, multiples of 32; the first is also the width of the first convolution.
    pub widths: Vec<usize>,
    /// Blocks of each stage.
    pub blocks: Vec<usize>,
    /// Side of the footprint in each stage, odd.
    pub footprints: Vec<usize>,
    pub relation: SanRelation,
    pub sharing: Sharing,
}

/// Number of value channels that share weights.
const SHARE: usize = 8;

/// Limit for clique relations, which grow with the fourth power of the side.
const LARGEST_FOOTPRINT: usize = 63;

/// A larger value is refused as a mistake, before memory is allocated.
const MOST_BLOCKS: usize = 1024;

impl SanConfig {
    /// Subtraction with relative positions, the paper's pairwise network.
    pub const PAIRWISE: SanRelation =
        SanRelation::Pairwise { relation: PairRelation::Subtraction, position: PairPosition::Relative };
    /// Concatenation, the paper's patchwise network.
    pub const PATCHWISE: SanRelation = SanRelation::Patchwise { relation: PatchRelation::Concatenation };

    /// A network of the paper with these numbers of blocks in its five stages.
    pub fn paper(blocks: [usize; 5], relation: SanRelation) -> Self {
        Self {
            image: [224, 224],
            channels: 3,
            classes: 1000,
            widths: vec![64, 256, 512, 1024, 2048],
            blocks: blocks.to_vec(),
            footprints: vec![3, 7, 7, 7, 7],
            relation,
            sharing: Sharing::AllDifferent,
        }
    }

    /// A network for pictures of 28 to 64 pixels.
    pub fn nano(relation: SanRelation) -> Self {
        Self {
            image: [32, 32],
            classes: 10,
            widths: vec![64, 256, 512],
            blocks: vec![2, 3, 4],
            footprints: vec![3, 5, 5],
            ..Self::paper([0; 5], relation)
        }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        positive("channels", self.channels)?;
        positive("classes", self.classes)?;
        check_image(self.image)?;
        let stages = self.widths.len();
        if stages == 0 {
            return Err(Error::config("widths", "a network has at least one stage"));
        }
        for (field, values) in [("blocks", &self.blocks), ("footprints", &self.footprints)] {
            if values.len() != stages {
                return Err(Error::config(field, format!("there are {} for {stages} widths", values.len())));
            }
        }
        (0..stages).try_for_each(|stage| self.validate_stage(stage))
    }

    fn validate_stage(&self, stage: usize) -> Result<(), Error> {
        let (width, footprint) = (self.widths[stage], self.footprints[stage]);
        positive("widths", width)?;
        if !width.is_multiple_of(4 * SHARE) {
            let reason = format!("{width} of stage {stage} is not a multiple of {}", 4 * SHARE);
            return Err(Error::config("widths", reason));
        }
        if !(1..=MOST_BLOCKS).contains(&self.blocks[stage]) {
            let reason = format!("stage {stage} has {}, must have 1 to {MOST_BLOCKS}", self.blocks[stage]);
            return Err(Error::config("blocks", reason));
        }
        if footprint > LARGEST_FOOTPRINT {
            let reason = format!("must be at most {LARGEST_FOOTPRINT}, got {footprint} for stage {stage}");
            return Err(Error::config("footprints", reason));
        }
        if footprint.is_multiple_of(2) {
            let reason = format!("must be odd, got {footprint} for stage {stage}");
            return Err(Error::config("footprints", reason));
        }
        let [rows, columns] = self.image.map(|side| side.checked_shr(stage as u32 + 1).unwrap_or(0));
        if rows.min(columns) <= footprint / 2 {
            let [height, width] = self.image;
            let reason = format!(
                "{height} x {width} leaves {rows} x {columns} for stage {stage}, whose footprint of {footprint} \
                 mirrors {} beyond the edge",
                footprint / 2
            );
            return Err(Error::config("image", reason));
        }
        Ok(())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<San, Error> {
        let trunk = self.trunk(device)?;
        positive("classes", self.classes)?;
        Ok(San { fc: Some(Linear::new(self.widths[self.widths.len() - 1], self.classes, device)), ..trunk })
    }

    /// The network without its head, for a detector; `classes` has no meaning.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn trunk(&self, device: &Device) -> Result<San, Error> {
        Self { classes: 1, ..self.clone() }.validate()?;
        let first = self.widths[0];
        let stages = (0..self.widths.len()).map(|stage| self.stage(stage, device)).collect::<Result<_, Error>>()?;
        Ok(San {
            conv_in: Pointwise::unbiased(self.channels, first, device),
            bn_in: norm(first, device),
            stages,
            fc: None,
        })
    }

    fn stage(&self, stage: usize, device: &Device) -> Result<SanStage, Error> {
        let (before, width) = (self.widths[stage.saturating_sub(1)], self.widths[stage]);
        let block = |_| self.block(width, self.footprints[stage], device);
        Ok(SanStage {
            conv: Pointwise::unbiased(before, width, device),
            layer: (0..self.blocks[stage]).map(block).collect::<Result<_, Error>>()?,
            bn: norm(width, device),
        })
    }

    fn block(&self, width: usize, window: usize, device: &Device) -> Result<SanBlock, Error> {
        let unit = SanUnitConfig {
            channels_in: width,
            channels_out: width / 4,
            channels_relation: width / 16,
            share: SHARE,
            window,
            relation: self.relation,
            sharing: self.sharing,
        };
        Ok(SanBlock {
            bn1: norm(width, device),
            sam: unit.init(device)?,
            bn2: norm(width / 4, device),
            conv: Pointwise::new(width / 4, width, device),
        })
    }
}

fn norm(width: usize, device: &Device) -> BatchNorm {
    BatchNorm::new(width, device)
}

/// A self-attention network.
#[derive(Module, Debug)]
pub struct San {
    pub conv_in: Pointwise,
    pub bn_in: BatchNorm,
    pub stages: Vec<SanStage>,
    /// None in a trunk.
    pub fc: Option<Linear>,
}

impl San {
    /// `[B, C, H, W] -> [B, classes]`; records the weights of every block (`stages.0.layer.0.sam.weights`), and the maps
    /// that blocks (`stages.0.layer.0`) and stages (`stages.0`) give.
    ///
    /// # Panics
    /// When pictures have another number of channels, become smaller than a footprint mirrors, or the network is a trunk.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let map = self.through_stages(images, pass, |_, _| ());
        let features: Tensor<2> = map.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2);
        head(self.fc.as_ref()).forward(features)
    }
}

impl San {
    /// The map of the last stage; `after` sees the map of every stage.
    fn through_stages(
        &self,
        images: Tensor<4>,
        pass: &mut Pass,
        mut after: impl FnMut(usize, &Tensor<4>),
    ) -> Tensor<4> {
        let mut map = self.bn_in.forward_relu(self.conv_in.forward(images));
        pass.begin_blocks(self.stages.iter().map(|stage| stage.layer.len()).sum());
        for (index, stage) in self.stages.iter().enumerate() {
            map = pass.within(format!("stages.{index}"), |pass| stage.forward(map, pass));
            map = pass.watch(&format!("stages.{index}"), map);
            after(index, &map);
        }
        map
    }
}

impl Backbone for San {
    fn features(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<FeatureMap> {
        let mut features = Vec::new();
        self.through_stages(images, pass, |stage, map| {
            features.push(FeatureMap { name: format!("stages.{stage}"), stride: 2 << stage, map: map.clone() });
        });
        features
    }
}

impl StagedBackbone for San {
    fn stage_costs(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<Vec<usize>> {
        let shape = ledger.part("conv_in", &self.conv_in, shape);
        let mut shape = ledger.part("bn_in", &self.bn_in, shape);
        ledger.each("relu", &shape, activation);
        let mut shapes = Vec::new();
        for (index, stage) in self.stages.iter().enumerate() {
            shape = ledger.part(format!("stages.{index}"), stage, shape);
            shapes.push(shape.clone());
        }
        shapes
    }
}

/// A stage: halves the picture, changes the width, then runs its blocks.
#[derive(Module, Debug)]
pub struct SanStage {
    pub conv: Pointwise,
    pub layer: Vec<SanBlock>,
    pub bn: BatchNorm,
}

impl SanStage {
    /// `[B, C, H, W] -> [B, width, H/2, W/2]`
    fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let mut map = self.conv.forward(block_max(map, 2));
        for (index, block) in self.layer.iter().enumerate() {
            pass.next_block();
            map = pass.within(format!("layer.{index}"), |pass| block.forward(map, pass));
            map = pass.watch(&format!("layer.{index}"), map);
        }
        self.bn.forward_relu(map)
    }
}

/// A block: norm, ReLU and attention at a quarter of the width, then norm, ReLU and a projection back.
#[derive(Module, Debug)]
pub struct SanBlock {
    pub bn1: BatchNorm,
    pub sam: SanUnit,
    pub bn2: BatchNorm,
    pub conv: Pointwise,
}

impl SanBlock {
    /// `[B, C, H, W] -> [B, C, H, W]`
    fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let normed = self.bn1.forward_relu(map.clone());
        let attended = pass.within("sam", |pass| self.sam.forward(normed, pass)).out;
        map + pass.branch(self.conv.forward(self.bn2.forward_relu(attended)))
    }
}

impl Inspect for San {
    fn blocks(&self) -> &'static str {
        "stages.*.layer.*"
    }

    fn pooled(&self) -> Option<&'static str> {
        // the norm at the end of a stage
        Some("stages.*")
    }
}

impl FamilyConfig for SanConfig {}

impl Packing for San {
    fn packed_form(&self) -> PackedForm<'_> {
        packed::kernel(self).map_or(PackedForm::None, |kernel| PackedForm::San(Box::new(kernel)))
    }
}

impl Costed for San {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = self.last_cost(shape, ledger);
        let Some(fc) = &self.fc else { return shape };
        ledger.pool("mean", &shape, [1, 1], shape[1] * shape[2]);
        ledger.within("fc", |ledger| fc.cost_as_head(ledger))
    }
}

impl Costed for SanStage {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.pool("pool", &shape, [shape[1] / 2, shape[2] / 2], 4);
        let mut shape = ledger.part("conv", &self.conv, shape);
        for (index, block) in self.layer.iter().enumerate() {
            shape = ledger.part(format!("layer.{index}"), block, shape);
        }
        ledger.part("bn", &self.bn, shape.clone());
        ledger.each("relu", &shape, activation);
        shape
    }
}

impl Costed for SanBlock {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.part("bn1", &self.bn1, shape);
        ledger.each("relu1", &shape, activation);
        let attended = ledger.part("sam", &self.sam, shape);
        ledger.part("bn2", &self.bn2, attended.clone());
        ledger.each("relu2", &attended, activation);
        let shape = ledger.part("conv", &self.conv, attended);
        ledger.each("add", &shape, |elements| Work::Add { elements });
        shape
    }
}

const fn activation(elements: u64) -> Work {
    Work::Activation { elements }
}

/// Our name of a tensor in a checkpoint of hszhao/SAN, such as `module.layer2.0.sam.conv_w.5.weight`.
pub fn upstream_name(key: &str) -> String {
    let mut name = key.strip_prefix("module.").unwrap_or(key).to_string();
    for part in ["conv", "bn", "layer"] {
        let numbered = name.strip_prefix(part).and_then(|rest| rest.split_once('.'));
        if let Some((stage, rest)) = numbered.filter(|(stage, _)| stage.parse::<usize>().is_ok()) {
            name = format!("stages.{stage}.{part}.{rest}");
            break;
        }
    }
    for (theirs, ours) in UNIT_NAMES {
        if let Some((block, rest)) = name.split_once(theirs) {
            name = format!("{block}{ours}{rest}");
            break;
        }
    }
    name
}

/// Names of the parts of a unit in the published code, and ours.
const UNIT_NAMES: &[(&str, &str)] = &[
    (".sam.conv1.", ".sam.phi."),
    (".sam.conv2.", ".sam.psi."),
    (".sam.conv3.", ".sam.beta."),
    (".sam.conv_p.", ".sam.place."),
    (".sam.conv_w.0.", ".sam.gamma.norm1."),
    (".sam.conv_w.2.weight", ".sam.gamma.linear1"),
    (".sam.conv_w.3.", ".sam.gamma.norm2."),
    (".sam.conv_w.5.weight", ".sam.gamma.linear2"),
    (".sam.conv_w.5.bias", ".sam.gamma.bias2"),
];

const PAPER: &str = "arXiv:2004.13621";
const BLOCKS_10: [usize; 5] = [2, 1, 2, 4, 1];
const BLOCKS_15: [usize; 5] = [3, 2, 3, 5, 2];
const BLOCKS_19: [usize; 5] = [3, 3, 4, 6, 3];

/// The networks of the paper's main table, and two small ones.
pub const PRESETS: &[Preset<SanConfig>] = &[
    preset("san10-pairwise", || SanConfig::paper(BLOCKS_10, SanConfig::PAIRWISE)),
    preset("san10-patchwise", || SanConfig::paper(BLOCKS_10, SanConfig::PATCHWISE)),
    preset("san15-pairwise", || SanConfig::paper(BLOCKS_15, SanConfig::PAIRWISE)),
    preset("san15-patchwise", || SanConfig::paper(BLOCKS_15, SanConfig::PATCHWISE)),
    preset("san19-pairwise", || SanConfig::paper(BLOCKS_19, SanConfig::PAIRWISE)),
    preset("san19-patchwise", || SanConfig::paper(BLOCKS_19, SanConfig::PATCHWISE)),
    Preset { preprocess: Preprocess::WHOLE, ..preset("san-nano-pairwise", || SanConfig::nano(SanConfig::PAIRWISE)) },
    Preset { preprocess: Preprocess::WHOLE, ..preset("san-nano-patchwise", || SanConfig::nano(SanConfig::PATCHWISE)) },
];

const fn preset(name: &'static str, config: fn() -> SanConfig) -> Preset<SanConfig> {
    Preset { name, paper: PAPER, preprocess: Preprocess::TORCHVISION, config }
}

#[cfg(test)]
mod tests;
