//! The convolutional body of residual networks: stem, and stages of basic or bottleneck blocks.
//! He et al. 2015, "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
//!
//! Differences from the paper: a bottleneck that halves the map does so in its middle convolution (called v1.5),
//! as torchvision, SAN and SASA have it, unless told otherwise; the middle convolution may be larger than 3x3 (SAN's
//! baselines); the last stage may be dilated and norms may be frozen (detectors).
//! Fields are named as in torchvision, so that its checkpoints fit.

use burn::module::Module;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::convolution::square;
use crate::batch_norm::{Norm, NormKind};
use crate::convolution::{After, Convolve};
use crate::cost::{Costed, Ledger, Work};
use crate::{Error, Pass};

/// What a residual block computes beside its shortcut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResidualBlock {
    /// Two convolutions of the stage's width.
    Basic,
    /// Down to the stage's width by 1x1, a convolution there, up to four times the width by 1x1.
    Bottleneck,
}

impl ResidualBlock {
    /// Channels that a block gives, in widths of its stage.
    pub const fn expansion(self) -> usize {
        match self {
            Self::Basic => 1,
            Self::Bottleneck => 4,
        }
    }
}

/// Which convolution of a bottleneck halves the map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BottleneckStride {
    /// The first, 1x1: the paper, Caffe's and detectron2's weights.
    First,
    /// The middle one: torchvision (v1.5).
    #[default]
    Middle,
}

/// What the last stage does with the size of its map: detectors look at a finer one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LastStage {
    /// Halves it, as in the classifier.
    #[default]
    Strided,
    /// Keeps it; blocks after the first see as far as before by dilation 2 (DC5 of torchvision and DETR).
    Dilated,
    /// Keeps it, with dilation 2 in the first block too (DC5 of detectron2).
    DilatedThroughout,
}

/// How pixels become the first map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResidualStem {
    /// 7x7 convolution of stride 2, then 3x3 max pool of stride 2: a quarter of the sides.
    Large,
    /// 3x3 convolution: small pictures keep their size.
    Small,
}

/// Stem and stages of one network; models make it of their own configs.
#[derive(Clone, Debug)]
pub struct ResidualBody {
    /// Channels of a picture.
    pub channels: usize,
    pub block: ResidualBlock,
    pub stem: ResidualStem,
    pub stem_width: usize,
    /// Blocks of each stage.
    pub layers: Vec<usize>,
    /// Width of each stage.
    pub widths: Vec<usize>,
    /// Side of every convolution in a block that is not 1x1.
    pub kernel: usize,
    pub stride: BottleneckStride,
    pub last_stage: LastStage,
    pub norm: NormKind,
}

/// Widths that cannot overflow what is computed from them.
const WIDTHS: std::ops::RangeInclusive<usize> = 1..=65536;

impl ResidualBody {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { channels, stem_width, layers, widths, kernel, last_stage, .. } = self;
        for (field, size) in [("channels", channels), ("stem_width", stem_width)] {
            if !WIDTHS.contains(size) {
                return Err(Error::config(field, format!("must be from 1 to 65536, got {size}")));
            }
        }
        if layers.is_empty() || !layers.iter().all(|blocks| (1..=1000).contains(blocks)) {
            return Err(Error::config("layers", format!("every stage has 1 to 1000 blocks, got {layers:?}")));
        }
        if widths.len() != layers.len() || !widths.iter().all(|width| WIDTHS.contains(width)) {
            let reason = format!("each of {} stages has a width from 1 to 65536, got {widths:?}", layers.len());
            return Err(Error::config("widths", reason));
        }
        if kernel % 2 == 0 || *kernel > 31 {
            return Err(Error::config("kernel", format!("must be odd and at most 31, got {kernel}")));
        }
        if *last_stage != LastStage::Strided && self.block == ResidualBlock::Basic {
            return Err(Error::config("last_stage", "dilation is for bottlenecks, the blocks are basic"));
        }
        if let NormKind::Frozen { epsilon } = self.norm
            && !(0.0..1.0).contains(&epsilon)
        {
            return Err(Error::config("norm", format!("epsilon must be at least 0 and below 1, got {epsilon}")));
        }
        Ok(())
    }

    /// Channels of the last map.
    pub fn outputs(&self) -> usize {
        self.widths.last().map_or(self.stem_width, |width| width * self.block.expansion())
    }

    /// Convolution, norm and, in the large stem, pool.
    pub fn stem(&self, device: &Device) -> (Conv2d, Norm, Option<MaxPool2d>) {
        let channels = [self.channels, self.stem_width];
        let norm = self.norm.init(self.stem_width, device);
        match self.stem {
            ResidualStem::Small => (square(channels, 3).init(device), norm, None),
            ResidualStem::Large => {
                let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
                let pool = MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding);
                (square(channels, 7).with_stride([2, 2]).init(device), norm, Some(pool.init()))
            }
        }
    }

    /// The blocks of every stage; each stage but the first halves the map, unless it is dilated.
    pub fn stages(&self, device: &Device) -> Vec<Vec<Residual>> {
        let mut inputs = self.stem_width;
        let stages = self.layers.iter().zip(&self.widths).enumerate();
        stages
            .map(|(stage, (&blocks, &width))| {
                let block = |index: usize| {
                    let keeps = self.last_stage != LastStage::Strided && stage + 1 == self.layers.len();
                    let dilates = keeps && (index > 0 || self.last_stage == LastStage::DilatedThroughout);
                    let stride = if stage > 0 && index == 0 && !keeps { 2 } else { 1 };
                    let block = self.residual([inputs, width], stride, 1 + usize::from(dilates), device);
                    inputs = width * self.block.expansion();
                    block
                };
                (0..blocks).map(block).collect()
            })
            .collect()
    }

    fn residual(&self, [inputs, width]: [usize; 2], stride: usize, dilation: usize, device: &Device) -> Residual {
        let outputs = width * self.block.expansion();
        let convolution = |channels: [usize; 2], kernel: usize, stride: usize| {
            square(channels, kernel).with_stride([stride, stride]).init(device)
        };
        let norm = |channels: usize| self.norm.init(channels, device);
        let dilated = |channels: [usize; 2], kernel: usize, stride: usize| {
            let side = dilation * (kernel / 2);
            let padding = PaddingConfig2d::Explicit(side, side, side, side);
            let config = square(channels, kernel).with_stride([stride, stride]);
            config.with_dilation([dilation, dilation]).with_padding(padding).init(device)
        };
        let first = self.stride == BottleneckStride::First;
        let projects = stride != 1 || inputs != outputs;
        let downsample = projects.then(|| (convolution([inputs, outputs], 1, stride), norm(outputs)));
        match self.block {
            ResidualBlock::Basic => Residual {
                conv1: convolution([inputs, width], self.kernel, stride),
                bn1: norm(width),
                conv2: convolution([width, width], self.kernel, 1),
                bn2: norm(width),
                conv3: None,
                bn3: None,
                downsample,
            },
            ResidualBlock::Bottleneck => Residual {
                conv1: convolution([inputs, width], 1, if first { stride } else { 1 }),
                bn1: norm(width),
                conv2: dilated([width, width], self.kernel, if first { 1 } else { stride }),
                bn2: norm(width),
                conv3: Some(convolution([width, outputs], 1, 1)),
                bn3: Some(norm(outputs)),
                downsample,
            },
        }
    }
}

/// One block; made by [`ResidualBody::stages`]. The third convolution is the bottleneck's.
#[derive(Module, Debug)]
pub struct Residual {
    pub conv1: Conv2d,
    pub bn1: Norm,
    pub conv2: Conv2d,
    pub bn2: Norm,
    pub conv3: Option<Conv2d>,
    pub bn3: Option<Norm>,
    /// The shortcut's projection, if the shape changes.
    pub downsample: Option<(Conv2d, Norm)>,
}

impl Residual {
    /// By which factor it shrinks the sides of a map.
    pub fn stride(&self) -> usize {
        self.conv1.stride[0] * self.conv2.stride[0]
    }

    /// `[B, C, H, W] -> [B, C', H', W']`
    pub fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Tensor<4> {
        let shortcut = match &self.downsample {
            Some((convolution, norm)) => convolution.convolve_then(map.clone(), After::norm(norm)),
            None => map.clone(),
        };
        let out = self.conv1.convolve_then(map, After::norm_relu(&self.bn1));
        let (out, last, norm) = match (&self.conv3, &self.bn3) {
            (Some(last), Some(norm)) => (self.conv2.convolve_then(out, After::norm_relu(&self.bn2)), last, norm),
            _ => (out, &self.conv2, &self.bn2),
        };
        if pass.drops_branches() {
            relu(pass.branch(last.convolve_then(out, After::norm(norm))) + shortcut)
        } else {
            last.convolve_then(out, After::norm_relu(norm).plus(shortcut))
        }
    }
}

impl Costed for Residual {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let activation = |elements| Work::Activation { elements };
        let mut out = ledger.part("conv1", &self.conv1, shape.clone());
        out = ledger.part("bn1", &self.bn1, out);
        ledger.each("relu1", &out, activation);
        out = ledger.part("conv2", &self.conv2, out);
        out = ledger.part("bn2", &self.bn2, out);
        if let (Some(convolution), Some(norm)) = (&self.conv3, &self.bn3) {
            ledger.each("relu2", &out, activation);
            out = ledger.part("conv3", convolution, out);
            out = ledger.part("bn3", norm, out);
        }
        if let Some((convolution, norm)) = &self.downsample {
            let shortcut = ledger.part("downsample.0", convolution, shape);
            ledger.part("downsample.1", norm, shortcut);
        }
        ledger.each("add", &out, |elements| Work::Add { elements });
        ledger.each("relu", &out, activation);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::pass::StochasticDepth;
    use crate::testing::{assert_close, random};
    use burn::module::Param;

    fn body(block: ResidualBlock) -> ResidualBody {
        let (layers, widths) = (vec![1, 2], vec![2, 4]);
        ResidualBody {
            channels: 3,
            block,
            stem: ResidualStem::Large,
            stem_width: 8,
            layers,
            widths,
            kernel: 3,
            stride: BottleneckStride::default(),
            last_stage: LastStage::default(),
            norm: NormKind::default(),
        }
    }

    #[test]
    fn a_block_whose_last_norm_is_zero_gives_its_positive_input() {
        for block in [ResidualBlock::Basic, ResidualBlock::Bottleneck] {
            let mut block = body(block).stages(&device::cpu()).remove(1).remove(1);
            assert!(block.downsample.is_none());
            let Norm::Batch(last) = block.bn3.as_mut().unwrap_or(&mut block.bn2) else { panic!("it is trained") };
            last.gamma = Param::from_tensor(last.gamma.val().zeros_like());
            let map = random([2, last.gamma.dims()[0], 3, 5], 1);
            assert_close(&block.forward(map.clone(), &mut Pass::silent()), &relu(map), 0.0);
        }
    }

    #[test]
    fn a_branch_that_is_left_out_leaves_the_shortcut() {
        let depth = StochasticDepth { rate: 1.0 - 1e-12, uniform: true, seed: 1, step: 1 };
        for block in body(ResidualBlock::Basic).stages(&device::cpu()).remove(1) {
            let map = random([2, block.conv1.weight.dims()[1], 3, 5], 1);
            let shortcut = match &block.downsample {
                Some((convolution, norm)) => norm.forward(convolution.convolve(map.clone())),
                None => map.clone(),
            };
            assert_close(&block.forward(map, &mut Pass::with_stochastic_depth(depth)), &relu(shortcut), 0.0);
        }
    }

    #[test]
    fn a_stage_but_the_first_halves_the_map_once() {
        for (block, outputs) in [(ResidualBlock::Basic, 4), (ResidualBlock::Bottleneck, 16)] {
            let stages = body(block).stages(&device::cpu());
            let maps: Vec<Tensor<4>> = stages
                .iter()
                .scan(random([1, 8, 7, 6], 1), |map, stage| {
                    *map = stage.iter().fold(map.clone(), |map, block| block.forward(map, &mut Pass::silent()));
                    Some(map.clone())
                })
                .collect();
            assert_eq!((maps[0].dims(), maps[1].dims()), ([1, outputs / 2, 7, 6], [1, outputs, 4, 3]));
            assert_eq!(body(block).outputs(), outputs);
        }
    }

    #[test]
    fn the_middle_convolution_of_a_bottleneck_strides() {
        let block = body(ResidualBlock::Bottleneck).stages(&device::cpu()).remove(1).remove(0);
        assert_eq!((block.conv1.stride, block.conv2.stride), ([1, 1], [2, 2]));
    }

    #[test]
    fn a_stride_in_the_first_convolution_gives_the_same_size() {
        let body = ResidualBody { stride: BottleneckStride::First, ..body(ResidualBlock::Bottleneck) };
        let block = body.stages(&device::cpu()).remove(1).remove(0);
        assert_eq!((block.conv1.stride, block.conv2.stride, block.stride()), ([2, 2], [1, 1], 2));
        assert_eq!(block.forward(random([1, 8, 7, 6], 1), &mut Pass::silent()).dims(), [1, 16, 4, 3]);
    }

    #[test]
    fn a_dilated_last_stage_keeps_the_map_and_has_the_same_parameters() {
        for (last_stage, dilations) in [(LastStage::Dilated, [1, 2]), (LastStage::DilatedThroughout, [2, 2])] {
            let body = ResidualBody { last_stage, ..body(ResidualBlock::Bottleneck) };
            let blocks = body.stages(&device::cpu()).remove(1);
            let found: Vec<usize> = blocks.iter().map(|block| block.conv2.dilation[0]).collect();
            assert_eq!(found, dilations);
            let (map, mut pass) = (random([1, 8, 7, 6], 1), Pass::silent());
            let map = blocks.iter().fold(map, |map, block| block.forward(map, &mut pass));
            assert_eq!(map.dims(), [1, 16, 7, 6]);
            let mut ledger = Ledger::default();
            let shape = blocks.iter().fold(vec![8, 7, 6], |shape, block| block.cost(shape, &mut ledger));
            assert_eq!(shape, [16, 7, 6]);
        }
    }

    #[test]
    fn what_cannot_work_is_named() {
        let good = body(ResidualBlock::Basic);
        let refusal = |body: ResidualBody| body.validate().unwrap_err().to_string();
        assert!(good.validate().is_ok());
        assert_eq!(
            refusal(ResidualBody { layers: vec![1, 0], ..good.clone() }),
            "`layers`: every stage has 1 to 1000 blocks, got [1, 0]"
        );
        assert_eq!(
            refusal(ResidualBody { widths: vec![1], ..good.clone() }),
            "`widths`: each of 2 stages has a width from 1 to 65536, got [1]"
        );
        assert_eq!(refusal(ResidualBody { kernel: 4, ..good.clone() }), "`kernel`: must be odd and at most 31, got 4");
        assert_eq!(
            refusal(ResidualBody { last_stage: LastStage::Dilated, ..good.clone() }),
            "`last_stage`: dilation is for bottlenecks, the blocks are basic"
        );
        assert_eq!(
            refusal(ResidualBody { norm: NormKind::Frozen { epsilon: -1.0 }, ..good.clone() }),
            "`norm`: epsilon must be at least 0 and below 1, got -1"
        );
        assert_eq!(refusal(ResidualBody { stem_width: 0, ..good }), "`stem_width`: must be from 1 to 65536, got 0");
    }
}
