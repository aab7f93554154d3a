//! RegNet Y: block widths that follow a quantised line, grouped convolutions, channels gated by squeeze and excitation.
//! Radosavovic et al. 2020, "Designing Network Design Spaces", arXiv:2003.13678; gates: Hu et al., arXiv:1709.01507.
//!
//! The teacher of DeiT. A design is five numbers; depths and widths of the stages are computed from them.
//! Key names are timm's. The bottleneck ratio is 1, as in every `RegNetY` of the paper, and is fixed here.

use burn::module::Module;
use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{FamilyConfig, Inspect, Packing, Preset};
use crate::cost::{Costed, Ledger, Work};
use crate::data::Preprocess;
use crate::layers::{BatchNorm, ConvNorm, GlobalAverage, Linear, square};
use crate::models::limits::check_image;
use crate::{Error, Pass};

/// A network design in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegNetConfig {
    /// Nominal rows and columns of the pictures; other sizes work too.
    pub image: [usize; 2],
    /// Channels of a picture.
    pub channels: usize,
    pub classes: usize,
    pub stem_width: usize,
    /// Number of blocks, `d`.
    pub depth: usize,
    /// Initial width, `w_0`.
    pub initial_width: usize,
    /// Slope of the width per block, `w_a`.
    pub slope: f64,
    /// Ratio of the widths of neighbouring stages, `w_m`.
    pub multiplier: f64,
    /// Channels of a group, `g`.
    pub group_width: usize,
    /// Hidden width of squeeze and excitation, as a fraction of the block's input.
    pub squeeze: f64,
}

/// A stage, computed from the five numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegNetStagePlan {
    pub width: usize,
    pub blocks: usize,
    /// Channels of a group.
    pub group: usize,
}

impl RegNetConfig {
    /// A network for ImageNet from depth, `w_0`, `w_a`, `w_m` and group width.
    #[must_use]
    pub const fn imagenet(depth: usize, initial_width: usize, line: [f64; 2], group_width: usize) -> Self {
        let [slope, multiplier] = line;
        Self {
            image: [224, 224],
            channels: 3,
            classes: 1000,
            stem_width: 32,
            depth,
            initial_width,
            slope,
            multiplier,
            group_width,
            squeeze: 0.25,
        }
    }

    /// Width, number of blocks and group of every stage: equation 2 to 4 of the paper.
    #[must_use]
    pub fn stages(&self) -> Vec<RegNetStagePlan> {
        let start = self.initial_width as f64;
        let mut stages: Vec<RegNetStagePlan> = Vec::new();
        for block in 0..self.depth {
            let line = start + self.slope * block as f64;
            let power = ((line / start).ln() / self.multiplier.ln()).round_ties_even();
            let width = 8.0 * (start * self.multiplier.powf(power) / 8.0).round_ties_even();
            let group = (self.group_width as f64).min(width);
            let width = group * (width / group).round_ties_even();
            let (width, group) = (width as usize, group as usize);
            match stages.last_mut() {
                Some(stage) if stage.width == width => stage.blocks += 1,
                _ => stages.push(RegNetStagePlan { width, blocks: 1, group }),
            }
        }
        stages
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        let between = |field: &'static str, value: f64, low: f64, high: f64| {
            if value >= low && value <= high {
                return Ok(());
            }
            Err(Error::config(field, format!("must be from {low} to {high}, got {value}")))
        };
        check_image(self.image)?;
        between("channels", self.channels as f64, 1.0, 65536.0)?;
        between("classes", self.classes as f64, 1.0, 65536.0)?;
        between("stem_width", self.stem_width as f64, 1.0, 65536.0)?;
        between("depth", self.depth as f64, 1.0, 1000.0)?;
        between("initial_width", self.initial_width as f64, 8.0, 65536.0)?;
        between("slope", self.slope, 0.0, 65536.0)?;
        between("multiplier", self.multiplier, 1.1, 16.0)?;
        between("group_width", self.group_width as f64, 1.0, 65536.0)?;
        between("squeeze", self.squeeze, 0.0, 16.0)?;
        let widest = self.stages().iter().map(|stage| stage.width).max().unwrap_or(0);
        if widest > 65536 {
            return Err(Error::config("slope", format!("makes a stage of width {widest}, at most are 65536")));
        }
        Ok(())
    }

    /// Initialises the network.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<RegNet, Error> {
        self.validate()?;
        let mut inputs = self.stem_width;
        let mut stages = Vec::new();
        for stage in self.stages() {
            let mut blocks = Vec::new();
            for index in 0..stage.blocks {
                let stride = if index == 0 { 2 } else { 1 };
                blocks.push(self.block(inputs, &stage, stride, device));
                inputs = stage.width;
            }
            stages.push(RegNetStage { b_: blocks });
        }
        let stem = normed(square([self.channels, self.stem_width], 3).with_stride([2, 2]), device);
        Ok(RegNet { stem, s_: stages, head: RegNetHead { fc: Linear::new(inputs, self.classes, device) } })
    }

    fn block(&self, inputs: usize, stage: &RegNetStagePlan, stride: usize, device: &Device) -> RegNetBlock {
        let width = stage.width;
        let hidden = ((inputs as f64 * self.squeeze).round_ties_even() as usize).max(1);
        let middle = square([width, width], 3).with_stride([stride, stride]).with_groups(width / stage.group);
        let projects = inputs != width || stride != 1;
        RegNetBlock {
            conv1: normed(square([inputs, width], 1), device),
            conv2: normed(middle, device),
            se: SqueezeExcitation { fc1: Linear::new(width, hidden, device), fc2: Linear::new(hidden, width, device) },
            conv3: normed(square([width, width], 1), device),
            downsample: projects.then(|| normed(square([inputs, width], 1).with_stride([stride, stride]), device)),
        }
    }
}

fn normed(config: burn::nn::conv::Conv2dConfig, device: &Device) -> ConvNorm {
    ConvNorm { bn: BatchNorm::new(config.channels[1], device), conv: config.init(device) }
}

/// The network; made by [`RegNetConfig::init`].
#[derive(Module, Debug)]
pub struct RegNet {
    pub stem: ConvNorm,
    /// The stages: `s1`, `s2`, ..
    pub s_: Vec<RegNetStage>,
    pub head: RegNetHead,
}

/// Blocks of one width.
#[derive(Module, Debug)]
pub struct RegNetStage {
    /// The blocks: `b1`, `b2`, ..
    pub b_: Vec<RegNetBlock>,
}

/// The classifier head.
#[derive(Module, Debug)]
pub struct RegNetHead {
    pub fc: Linear,
}

impl RegNet {
    /// `[B, C, H, W] -> [B, classes]`; records the maps that blocks (`s1.b1`) and stages (`s1`) give.
    ///
    /// # Panics
    /// When the pictures do not have the config's channels.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let ([_, channels, ..], [_, wanted, ..]) = (images.dims(), self.stem.conv.weight.lazy_shape().dims::<4>());
        assert!(channels == wanted, "regnet: images have channels {channels}, the model has channels {wanted}");
        let mut map = relu(self.stem.forward(images));
        pass.begin_blocks(self.s_.iter().map(|stage| stage.b_.len()).sum());
        for (number, stage) in (1..).zip(&self.s_) {
            for (index, block) in (1..).zip(&stage.b_) {
                pass.next_block();
                map = pass.within(format!("s{number}.b{index}"), |pass| block.forward(map, pass));
                map = pass.watch(&format!("s{number}.b{index}"), map);
            }
            map = pass.watch(&format!("s{number}"), map);
        }
        self.head.fc.forward(GlobalAverage.forward(map))
    }
}

/// Has no packed form: it runs layer by layer.
impl Packing for RegNet {}

impl Inspect for RegNet {
    fn blocks(&self) -> &'static str {
        "*.*"
    }

    fn first_filters(&self) -> Option<Tensor<4>> {
        Some(self.stem.conv.weight.val())
    }
}

impl FamilyConfig for RegNetConfig {}

impl Costed for RegNet {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("stem", &self.stem, shape);
        ledger.each("stem.relu", &shape, |elements| Work::Activation { elements });
        for (number, stage) in (1..).zip(&self.s_) {
            for (index, block) in (1..).zip(&stage.b_) {
                shape = ledger.part(format!("s{number}.b{index}"), block, shape);
            }
        }
        ledger.part("head.pool", &GlobalAverage, shape);
        ledger.within("head.fc", |ledger| self.head.fc.cost_as_head(ledger))
    }
}

/// 1x1, grouped 3x3, gates, 1x1; added to the input.
#[derive(Module, Debug)]
pub struct RegNetBlock {
    pub conv1: ConvNorm,
    pub conv2: ConvNorm,
    pub se: SqueezeExcitation,
    pub conv3: ConvNorm,
    /// The shortcut's projection, if the shape changes.
    pub downsample: Option<ConvNorm>,
}

impl RegNetBlock {
    fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let shortcut = self.downsample.as_ref().map_or_else(|| map.clone(), |part| part.forward(map.clone()));
        let out = relu(self.conv2.forward(relu(self.conv1.forward(map))));
        let out = pass.within("se", |pass| self.se.forward(out, pass));
        relu(pass.branch(self.conv3.forward(out)) + shortcut)
    }
}

impl Costed for RegNetBlock {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let activation = |elements| Work::Activation { elements };
        let mut out = ledger.part("conv1", &self.conv1, shape.clone());
        ledger.each("conv1.relu", &out, activation);
        out = ledger.part("conv2", &self.conv2, out);
        ledger.each("conv2.relu", &out, activation);
        out = ledger.part("se", &self.se, out);
        out = ledger.part("conv3", &self.conv3, out);
        if let Some(downsample) = &self.downsample {
            ledger.part("downsample", downsample, shape);
        }
        ledger.each("add", &out, |elements| Work::Add { elements });
        ledger.each("relu", &out, activation);
        out
    }
}

/// Squeeze and excitation: a gate for every channel, from the means of all channels.
#[derive(Module, Debug)]
pub struct SqueezeExcitation {
    pub fc1: Linear,
    pub fc2: Linear,
}

impl SqueezeExcitation {
    /// `[B, C, H, W]` to the same; records `gates`, `[B, C]`.
    pub fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let means = GlobalAverage.forward(map.clone());
        let gates = sigmoid(self.fc2.forward(relu(self.fc1.forward(means))));
        pass.record("gates", &gates);
        map * gates.unsqueeze_dims::<4>(&[2, 3])
    }
}

impl Costed for SqueezeExcitation {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let activation = |elements| Work::Activation { elements };
        let means = ledger.part("pool", &GlobalAverage, shape.clone());
        let hidden = ledger.part("fc1", &self.fc1, means);
        ledger.each("relu", &hidden, activation);
        let gates = ledger.part("fc2", &self.fc2, hidden);
        ledger.each("sigmoid", &gates, activation);
        ledger.each("gate", &shape, activation);
        shape
    }
}

const PAPER: &str = "arXiv:2003.13678";

const fn preset(name: &'static str, config: fn() -> RegNetConfig) -> Preset<RegNetConfig> {
    Preset { name, paper: PAPER, preprocess: Preprocess::TORCHVISION, config }
}

/// The networks of the paper that DeiT compares with.
pub const PRESETS: &[Preset<RegNetConfig>] = &[
    preset("regnety-4gf", || RegNetConfig::imagenet(22, 96, [31.41, 2.24], 64)),
    preset("regnety-8gf", || RegNetConfig::imagenet(17, 192, [76.82, 2.19], 56)),
    preset("regnety-16gf", || RegNetConfig::imagenet(18, 200, [106.23, 2.48], 112)),
];

#[cfg(test)]
mod tests;
