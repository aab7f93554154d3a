//! SASA: a residual network whose spatial convolutions are local self-attention, the first one too.
//! Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models", arXiv:1906.05909.
//!
//! There is no published code. Where the paper leaves a choice:
//! - attention in a block with stride 2 runs at full size, followed by a 2x2 average, norm and ReLU;
//! - the average of an odd side has a last window of one pixel, so that it fits the shortcut's stride of 2;
//! - the number of value maps in the stem is a field, 4 by default as in a public port (leaderj1001), 6 fits the
//!   paper's costs of ResNet-38 better; the stem's norm is followed by a ReLU, as after the convolution;
//! - projections are full, not one small one per head: only this gives the paper's parameter counts.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::module::{avg_pool2d, max_pool2d};
use burn::tensor::ops::{AvgPoolOptions, MaxPoolOptions};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::backbone::head;
use super::{Backbone, FamilyConfig, FeatureMap, Inspect, Packing, Preset, StagedBackbone};
use crate::convolution::{After, Convolve};
use crate::cost::Ledger;
use crate::data::Preprocess;
use crate::layers::{
    AttentionStem, AttentionStemConfig, BatchNorm, Linear, LocalAttention, LocalAttentionConfig, Pointwise, block_max,
    positive,
};
use crate::models::limits::check_image;
use crate::{Error, Pass};

mod cost;

/// A network of any number of groups; every group but the first halves the map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SasaConfig {
    /// Rows and columns.
    pub image: [usize; 2],
    pub channels: usize,
    pub classes: usize,
    pub stem: StemChoice,
    /// Output channels of the stem.
    pub stem_width: usize,
    /// Width inside the blocks of each group; a block has four times as many output channels.
    pub widths: Vec<usize>,
    /// Blocks of each group.
    pub blocks: Vec<usize>,
    /// The spatial operator of each group.
    pub spatial: Vec<SpatialChoice>,
    pub heads: usize,
    /// Side of the attention window.
    pub window: usize,
    /// Whether there are relative position embeddings.
    pub relative: bool,
}

/// The stem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum StemChoice {
    /// A 7x7 convolution with stride 2 and a 3x3 max pool with stride 2.
    Convolution,
    /// Attention inside aligned blocks, and a max pool over each block.
    Attention { heads: usize, block: usize, maps: usize },
}

/// The spatial operator of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpatialChoice {
    Attention,
    /// A 3x3 convolution, as in the original network.
    Convolution,
}

/// Output channels of a block per width.
const EXPANSION: usize = 4;

/// A larger value is refused as a mistake, before memory is allocated.
const MOST_BLOCKS: usize = 1024;

impl SasaConfig {
    /// The paper's attention stem.
    pub const ATTENTION_STEM: StemChoice = StemChoice::Attention { heads: 4, block: 4, maps: 4 };

    /// A network of the paper: attention in every group.
    pub fn paper(blocks: [usize; 4], stem: StemChoice) -> Self {
        Self {
            image: [224, 224],
            channels: 3,
            classes: 1000,
            stem,
            stem_width: 64,
            widths: vec![64, 128, 256, 512],
            blocks: blocks.to_vec(),
            spatial: vec![SpatialChoice::Attention; 4],
            heads: 8,
            window: 7,
            relative: true,
        }
    }

    /// A network for pictures of 28 to 64 pixels.
    pub fn nano() -> Self {
        Self {
            image: [32, 32],
            classes: 10,
            stem: StemChoice::Attention { heads: 4, block: 2, maps: 4 },
            stem_width: 32,
            widths: vec![32, 64, 128],
            blocks: vec![2, 3, 3],
            spatial: vec![SpatialChoice::Attention; 3],
            window: 5,
            ..Self::paper([0; 4], Self::ATTENTION_STEM)
        }
    }

    /// Multiplies every width, including the stem's, by a factor: 0.25 to 1.5 in the paper.
    #[must_use]
    pub fn scaled(mut self, factor: f64) -> Self {
        for width in self.widths.iter_mut().chain([&mut self.stem_width]) {
            *width = (*width as f64 * factor).round() as usize;
        }
        self
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        positive("channels", self.channels)?;
        positive("classes", self.classes)?;
        positive("stem_width", self.stem_width)?;
        positive("heads", self.heads)?;
        positive("window", self.window)?;
        check_image(self.image)?;
        let groups = self.widths.len();
        if groups == 0 {
            return Err(Error::config("widths", "a network has at least one group"));
        }
        for (field, entries) in [("blocks", self.blocks.len()), ("spatial", self.spatial.len())] {
            if entries != groups {
                return Err(Error::config(field, format!("there are {entries} for {groups} widths")));
            }
        }
        (0..groups).try_for_each(|group| self.validate_group(group))?;
        self.validate_stem()
    }

    fn validate_group(&self, group: usize) -> Result<(), Error> {
        let (width, blocks) = (self.widths[group], self.blocks[group]);
        positive("widths", width)?;
        if !(1..=MOST_BLOCKS).contains(&blocks) {
            let reason = format!("group {group} has {blocks}, must have 1 to {MOST_BLOCKS}");
            return Err(Error::config("blocks", reason));
        }
        if self.spatial[group] == SpatialChoice::Convolution {
            return Ok(());
        }
        if !width.is_multiple_of(self.heads) {
            return Err(Error::config(
                "heads",
                format!("must divide width {width} of group {group}, got {}", self.heads),
            ));
        }
        if self.relative && !(width / self.heads).is_multiple_of(2) {
            let reason = format!(
                "the width of a head must be even for row and column embeddings, got {} in group {group}",
                width / self.heads
            );
            return Err(Error::config("relative", reason));
        }
        Ok(())
    }

    fn validate_stem(&self) -> Result<(), Error> {
        let Some(stem) = self.attention_stem() else { return Ok(()) };
        stem.validate().map_err(|error| Error::config("stem", error.to_string()))?;
        let block = stem.block;
        match self.image.into_iter().find(|side| !side.is_multiple_of(block)) {
            Some(side) => {
                Err(Error::config("image", format!("blocks of {block} x {block} do not fill a side of {side}")))
            }
            None => Ok(()),
        }
    }

    fn attention_stem(&self) -> Option<AttentionStemConfig> {
        let StemChoice::Attention { heads, block, maps } = self.stem else { return None };
        let (channels_in, channels_out) = (self.channels, self.stem_width);
        Some(AttentionStemConfig { channels_in, channels_out, heads, block, maps, relative: self.relative })
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Sasa, Error> {
        let trunk = self.trunk(device)?;
        positive("classes", self.classes)?;
        let features = EXPANSION * self.widths[self.widths.len() - 1];
        Ok(Sasa { fc: Some(Linear::new(features, self.classes, device)), ..trunk })
    }

    /// The network without its head, for a detector; `classes` has no meaning.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn trunk(&self, device: &Device) -> Result<Sasa, Error> {
        Self { classes: 1, ..self.clone() }.validate()?;
        let bn = norm(self.stem_width, device);
        let stem = if let Some(attn) = self.attention_stem() {
            SasaStem::Attention(AttendingStem { attn: attn.init(device)?, bn })
        } else {
            let conv = convolution(self.channels, self.stem_width, 7, 2, device);
            SasaStem::Convolution(ConvolvingStem { conv, bn })
        };
        let groups = (0..self.widths.len()).map(|group| self.group(group, device)).collect::<Result<_, Error>>()?;
        Ok(Sasa { stem, groups, fc: None })
    }

    fn group(&self, group: usize, device: &Device) -> Result<Vec<SasaBlock>, Error> {
        let before = if group == 0 { self.stem_width } else { EXPANSION * self.widths[group - 1] };
        let width = self.widths[group];
        let block = |index: usize| {
            let (inputs, stride) = match index {
                0 => (before, if group == 0 { 1 } else { 2 }),
                _ => (EXPANSION * width, 1),
            };
            let attention = LocalAttentionConfig {
                channels_in: width,
                channels_out: width,
                heads: self.heads,
                window: self.window,
                relative: self.relative,
            };
            let spatial = match self.spatial[group] {
                SpatialChoice::Attention => Spatial::Attention(attention.init(device)?),
                SpatialChoice::Convolution => Spatial::Convolution(convolution(width, width, 3, stride, device)),
            };
            let shortcut = (index == 0).then(|| Shortcut {
                conv: convolution(inputs, EXPANSION * width, 1, stride, device),
                bn: norm(EXPANSION * width, device),
            });
            Ok(SasaBlock {
                conv1: Pointwise::unbiased(inputs, width, device),
                bn1: norm(width, device),
                spatial,
                bn2: norm(width, device),
                conv3: Pointwise::unbiased(width, EXPANSION * width, device),
                bn3: norm(EXPANSION * width, device),
                shortcut,
                stride,
            })
        };
        (0..self.blocks[group]).map(block).collect()
    }
}

fn norm(width: usize, device: &Device) -> BatchNorm {
    BatchNorm::new(width, device)
}

/// A convolution without bias, zero-padded so that stride 1 keeps the size.
fn convolution(inputs: usize, outputs: usize, side: usize, stride: usize, device: &Device) -> Conv2d {
    let around = side / 2;
    Conv2dConfig::new([inputs, outputs], [side, side])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(around, around, around, around))
        .with_bias(false)
        .init(device)
}

/// A network of stand-alone self-attention.
#[derive(Module, Debug)]
pub struct Sasa {
    pub stem: SasaStem,
    pub groups: Vec<Vec<SasaBlock>>,
    /// None in a trunk.
    pub fc: Option<Linear>,
}

impl Sasa {
    /// `[B, C, H, W] -> [B, classes]`; records the weights of every block (`groups.0.0.spatial.weights`) and of an
    /// attention stem (`stem.attn.weights`), and the maps that blocks give (`groups.0.0`).
    ///
    /// # Panics
    /// When pictures have another number of channels, the blocks of an attention stem do not fill them, or the network is a trunk.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let map = self.through_groups(images, pass, |_, _| ());
        let features: Tensor<2> = map.flatten::<3>(2, 3).mean_dim(2).squeeze_dim(2);
        head(self.fc.as_ref()).forward(features)
    }
}

impl Sasa {
    /// The map of the last group; `after` sees the map of every group.
    fn through_groups(
        &self,
        images: Tensor<4>,
        pass: &mut Pass,
        mut after: impl FnMut(usize, &Tensor<4>),
    ) -> Tensor<4> {
        let mut map = pass.within("stem", |pass| self.stem.forward(images, pass));
        pass.begin_blocks(self.groups.iter().map(Vec::len).sum());
        for (group, blocks) in self.groups.iter().enumerate() {
            for (index, block) in blocks.iter().enumerate() {
                pass.next_block();
                map = pass.within(format!("groups.{group}.{index}"), |pass| block.forward(map, pass));
                map = pass.watch(&format!("groups.{group}.{index}"), map);
            }
            after(group, &map);
        }
        map
    }
}

impl Backbone for Sasa {
    fn features(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<FeatureMap> {
        let first = match &self.stem {
            SasaStem::Convolution(_) => 4,
            SasaStem::Attention(stem) => stem.attn.block(),
        };
        let mut features = Vec::new();
        self.through_groups(images, pass, |group, map| {
            features.push(FeatureMap { name: format!("groups.{group}"), stride: first << group, map: map.clone() });
        });
        features
    }
}

impl StagedBackbone for Sasa {
    fn stage_costs(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<Vec<usize>> {
        cost::of_groups(self, shape, ledger)
    }
}

/// Has no packed form: it runs layer by layer.
impl Packing for Sasa {}

impl Inspect for Sasa {
    fn blocks(&self) -> &'static str {
        "groups.*.*"
    }

    fn first_filters(&self) -> Option<Tensor<4>> {
        match &self.stem {
            SasaStem::Convolution(stem) => Some(stem.conv.weight.val()),
            SasaStem::Attention(_) => None,
        }
    }
}

impl FamilyConfig for SasaConfig {}

/// Either stem.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a model has one
pub enum SasaStem {
    Convolution(ConvolvingStem),
    Attention(AttendingStem),
}

#[derive(Module, Debug)]
pub struct ConvolvingStem {
    pub conv: Conv2d,
    pub bn: BatchNorm,
}

#[derive(Module, Debug)]
pub struct AttendingStem {
    pub attn: AttentionStem,
    pub bn: BatchNorm,
}

impl SasaStem {
    fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        match self {
            Self::Convolution(stem) => {
                let thirds = MaxPoolOptions::new([3, 3]).with_stride([2, 2]).with_padding([1, 1]);
                max_pool2d(stem.conv.convolve_then(images, After::norm_relu(&stem.bn)), thirds)
            }
            Self::Attention(stem) => {
                let attended = pass.within("attn", |pass| stem.attn.forward(images, pass)).out;
                block_max(stem.bn.forward_relu(attended), stem.attn.block())
            }
        }
    }
}

/// A bottleneck: narrow, mix pixels, widen, add.
#[derive(Module, Debug)]
pub struct SasaBlock {
    pub conv1: Pointwise,
    pub bn1: BatchNorm,
    pub spatial: Spatial,
    pub bn2: BatchNorm,
    pub conv3: Pointwise,
    pub bn3: BatchNorm,
    pub shortcut: Option<Shortcut>,
    stride: usize,
}

/// The spatial operator.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a model has a few
pub enum Spatial {
    Attention(LocalAttention),
    Convolution(Conv2d),
}

/// The shortcut of a block that changes shapes.
#[derive(Module, Debug)]
pub struct Shortcut {
    pub conv: Conv2d,
    pub bn: BatchNorm,
}

impl SasaBlock {
    /// `[B, C, H, W] -> [B, 4*width, H/stride, W/stride]`
    fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let narrow = self.bn1.forward_relu(self.conv1.forward(map.clone()));
        let mixed = match &self.spatial {
            Spatial::Convolution(conv) => conv.convolve(narrow),
            Spatial::Attention(attention) => {
                let attended = pass.within("spatial", |pass| attention.forward(narrow, pass)).out;
                if self.stride == 1 { attended } else { halves(attended) }
            }
        };
        let wide = self.bn3.forward(self.conv3.forward(self.bn2.forward_relu(mixed)));
        let around = match &self.shortcut {
            Some(shortcut) => shortcut.conv.convolve_then(map, After::norm(&shortcut.bn)),
            None => map,
        };
        relu(pass.branch(wide) + around)
    }
}

/// 2x2 average pooling; at the end of an odd side over the remaining pixels.
fn halves(map: Tensor<4>) -> Tensor<4> {
    let options = AvgPoolOptions::new([2, 2]).with_stride([2, 2]).with_count_include_pad(false).with_ceil_mode(true);
    avg_pool2d(map, options)
}

const PAPER: &str = "arXiv:1906.05909";
const BLOCKS_26: [usize; 4] = [1, 2, 4, 1];
const BLOCKS_38: [usize; 4] = [2, 3, 5, 2];
const BLOCKS_50: [usize; 4] = [3, 4, 6, 3];

/// The networks of the paper's main table, with either stem, and a small one.
pub const PRESETS: &[Preset<SasaConfig>] = &[
    preset("sasa-resnet26", || SasaConfig::paper(BLOCKS_26, SasaConfig::ATTENTION_STEM)),
    preset("sasa-resnet26-conv-stem", || SasaConfig::paper(BLOCKS_26, StemChoice::Convolution)),
    preset("sasa-resnet38", || SasaConfig::paper(BLOCKS_38, SasaConfig::ATTENTION_STEM)),
    preset("sasa-resnet38-conv-stem", || SasaConfig::paper(BLOCKS_38, StemChoice::Convolution)),
    preset("sasa-resnet50", || SasaConfig::paper(BLOCKS_50, SasaConfig::ATTENTION_STEM)),
    preset("sasa-resnet50-conv-stem", || SasaConfig::paper(BLOCKS_50, StemChoice::Convolution)),
    Preset { preprocess: Preprocess::WHOLE, ..preset("sasa-nano", SasaConfig::nano) },
];

const fn preset(name: &'static str, config: fn() -> SasaConfig) -> Preset<SasaConfig> {
    Preset { name, paper: PAPER, preprocess: Preprocess::TORCHVISION, config }
}

#[cfg(test)]
mod tests;
