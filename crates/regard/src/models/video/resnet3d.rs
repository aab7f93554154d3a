//! 3-D residual networks: convolutions over space and time in all stages, in the first only, or factored into space and time.
//! Tran et al. 2018, "A Closer Look at Spatiotemporal Convolutions for Action Recognition", arXiv:1711.11248.
//!
//! Names are those of torchvision.models.video. `r3d-nano` is ours.

use burn::module::{Initializer, Module};
use burn::nn::Relu;
use burn::nn::conv::Conv3d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::ClipPreset;
use crate::convolution3d::Convolve3d;
use crate::cost::{Costed, Ledger, Work};
use crate::data::clip::FrameSampling;
use crate::data::{Clips, Filter, Preprocess, Resize};
use crate::layers::{BatchNorm, GlobalAverage, Linear, check_size, clip_convolution};
use crate::models::config;
use crate::models::limits::check_image;
use crate::{Error, Pass};

/// A 3-D residual network of basic blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNet3dConfig {
    /// Nominal frames of a clip; other numbers work too.
    pub frames: usize,
    /// Nominal rows and columns of a frame; other sizes work too.
    pub image: [usize; 2],
    pub channels: usize,
    pub classes: usize,
    /// Which convolutions span several frames.
    pub kind: ResNet3dKind,
    pub stem_width: usize,
    /// Blocks of each stage; each stage but the first halves the map.
    pub layers: Vec<usize>,
    /// Width of each stage.
    pub widths: Vec<usize>,
}

/// Which convolutions span several frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResNet3dKind {
    /// All: 3x3x3.
    R3d,
    /// Those of stem and first stage; the others are 1x3x3 and keep all frames.
    Mc3,
    /// All, in two steps: 1x3x3, norm and `ReLU`, 3x1x1, with about as many parameters as 3x3x3.
    R2plus1d,
}

impl ResNet3dConfig {
    /// 18 layers for Kinetics-400: 16 frames of 112 x 112.
    #[must_use]
    pub fn layers18(kind: ResNet3dKind) -> Self {
        Self {
            frames: 16,
            image: [112; 2],
            channels: 3,
            classes: 400,
            kind,
            stem_width: 64,
            layers: vec![2; 4],
            widths: vec![64, 128, 256, 512],
        }
    }

    /// Ours, for clips of 8 frames of 32 x 32 pixels: a few hundred thousand parameters, trained without a GPU.
    #[must_use]
    pub fn nano() -> Self {
        Self {
            frames: 8,
            image: [32; 2],
            classes: 10,
            stem_width: 16,
            layers: vec![1; 4],
            widths: vec![16, 24, 32, 64],
            ..Self::layers18(ResNet3dKind::R3d)
        }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        for (field, size) in [
            ("frames", self.frames),
            ("channels", self.channels),
            ("classes", self.classes),
            ("stem_width", self.stem_width),
        ] {
            check_size(field, size)?;
        }
        check_stages(&self.layers, &self.widths)
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<ResNet3d, Error> {
        self.validate()?;
        let mut inputs = self.stem_width;
        let stages = self.layers.iter().zip(&self.widths).enumerate().map(|(stage, (&blocks, &width))| {
            let block = |index: usize| {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let block = self.block([inputs, width], stage, stride, device);
                inputs = width;
                block
            };
            (0..blocks).map(block).collect()
        });
        let layer_: Vec<Vec<Residual3d>> = stages.collect();
        let normal = Initializer::Normal { mean: 0.0, std: 0.01 };
        let fc = Linear {
            weight: normal.init([self.classes, inputs], device),
            bias: Some(Initializer::Zeros.init([self.classes], device)),
        };
        Ok(ResNet3d { stem: self.stem(device), layer_, fc })
    }

    fn stem(&self, device: &Device) -> ResNet3dStem {
        let (channels, width, stride) = (self.channels, self.stem_width, [1, 2, 2]);
        if self.kind != ResNet3dKind::R2plus1d {
            let convolution = clip_convolution([channels, width], [3, 7, 7], stride, device);
            return ResNet3dStem::Whole((convolution, BatchNorm::new(width, device)));
        }
        // 45 of 64, as in torchvision
        let middle = (width * 45).div_ceil(64);
        ResNet3dStem::Factored((
            clip_convolution([channels, middle], [1, 7, 7], stride, device),
            BatchNorm::new(middle, device),
            Relu::new(),
            clip_convolution([middle, width], [3, 1, 1], [1; 3], device),
            BatchNorm::new(width, device),
        ))
    }

    fn block(&self, [inputs, width]: [usize; 2], stage: usize, stride: usize, device: &Device) -> Residual3d {
        let in_space = self.kind == ResNet3dKind::Mc3 && stage > 0;
        let convolution = |channels: [usize; 2], stride: usize| {
            if in_space {
                return ClipConvolution::Whole(clip_convolution(channels, [1, 3, 3], [1, stride, stride], device));
            }
            if self.kind != ResNet3dKind::R2plus1d {
                return ClipConvolution::Whole(clip_convolution(channels, [3; 3], [stride; 3], device));
            }
            // that of the block's first convolution for both
            let middle = 27 * inputs * width / (9 * inputs + 3 * width);
            ClipConvolution::Factored((
                clip_convolution([channels[0], middle], [1, 3, 3], [1, stride, stride], device),
                BatchNorm::new(middle, device),
                Relu::new(),
                clip_convolution([middle, channels[1]], [3, 1, 1], [stride, 1, 1], device),
            ))
        };
        let norm = || BatchNorm::new(width, device);
        let shortcut = [if in_space { 1 } else { stride }, stride, stride];
        Residual3d {
            conv1: (convolution([inputs, width], stride), norm()),
            conv2: (convolution([width, width], 1), norm()),
            downsample: (stride != 1 || inputs != width)
                .then(|| (clip_convolution([inputs, width], [1; 3], shortcut, device), norm())),
        }
    }
}

/// Refuses stages without blocks, without widths, or with too many.
fn check_stages(layers: &[usize], widths: &[usize]) -> Result<(), Error> {
    if layers.is_empty() || !layers.iter().all(|blocks| (1..=1000).contains(blocks)) {
        return Err(Error::config("layers", format!("every stage has 1 to 1000 blocks, got {layers:?}")));
    }
    if widths.len() != layers.len() || !widths.iter().all(|width| (1..=65536).contains(width)) {
        let reason = format!("each of {} stages has a width from 1 to 65536, got {widths:?}", layers.len());
        return Err(Error::config("widths", reason));
    }
    Ok(())
}

/// The network; made by [`ResNet3dConfig::init`].
#[derive(Module, Debug)]
pub struct ResNet3d {
    pub stem: ResNet3dStem,
    /// The stages: `layer1`, `layer2`, ..
    pub layer_: Vec<Vec<Residual3d>>,
    pub fc: Linear,
}

/// The first convolution, or the two that it consists of, each with its norm.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a network has one
pub enum ResNet3dStem {
    Whole((Conv3d, BatchNorm)),
    /// In space, then in time.
    Factored((Conv3d, BatchNorm, Relu, Conv3d, BatchNorm)),
}

/// A convolution in space and time.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a network has a few dozen
pub enum ClipConvolution {
    Whole(Conv3d),
    /// In space, then in time.
    Factored((Conv3d, BatchNorm, Relu, Conv3d)),
}

/// Two convolutions and a shortcut.
#[derive(Module, Debug)]
pub struct Residual3d {
    pub conv1: (ClipConvolution, BatchNorm),
    pub conv2: (ClipConvolution, BatchNorm),
    /// The shortcut's projection, if the shape changes.
    pub downsample: Option<(Conv3d, BatchNorm)>,
}

impl ResNet3d {
    /// `[B, C, T, H, W] -> [B, classes]`; records the maps that blocks (`layer1.0`) and stages (`layer1`) give.
    ///
    /// # Panics
    /// When clips have other channels.
    pub fn forward(&self, clips: &Clips, pass: &mut Pass) -> Tensor<2> {
        let mut map = self.stem.forward(clips.pixels.clone());
        pass.begin_blocks(self.layer_.iter().map(Vec::len).sum());
        for (stage, blocks) in (1..).zip(&self.layer_) {
            for (index, block) in blocks.iter().enumerate() {
                pass.next_block();
                map = block.forward(map, pass);
                map = pass.watch(&format!("layer{stage}.{index}"), map);
            }
            map = pass.watch(&format!("layer{stage}"), map);
        }
        self.fc.forward(GlobalAverage.forward(map))
    }
}

impl ResNet3dStem {
    fn forward(&self, clip: Tensor<5>) -> Tensor<5> {
        match self {
            Self::Whole((convolution, norm)) => norm.forward_relu(convolution.convolve(clip)),
            Self::Factored((space, norm1, _, time, norm2)) => {
                norm2.forward_relu(time.convolve(norm1.forward_relu(space.convolve(clip))))
            }
        }
    }
}

impl ClipConvolution {
    fn forward(&self, clip: Tensor<5>) -> Tensor<5> {
        match self {
            Self::Whole(convolution) => convolution.convolve(clip),
            Self::Factored((space, norm, _, time)) => time.convolve(norm.forward_relu(space.convolve(clip))),
        }
    }
}

impl Residual3d {
    /// `[B, C, T, H, W] -> [B, C', T', H', W']`
    fn forward(&self, map: Tensor<5>, pass: &mut Pass) -> Tensor<5> {
        let shortcut = match &self.downsample {
            Some((convolution, norm)) => norm.forward(convolution.convolve(map.clone())),
            None => map.clone(),
        };
        let ((conv1, norm1), (conv2, norm2)) = (&self.conv1, &self.conv2);
        let out = norm2.forward(conv2.forward(norm1.forward_relu(conv1.forward(map))));
        relu(pass.branch(out) + shortcut)
    }
}

impl Costed for ResNet3d {
    /// `[C, T, H, W] -> [classes]`
    fn cost(&self, clip: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("stem", &self.stem, clip);
        for (stage, blocks) in (1..).zip(&self.layer_) {
            for (index, block) in blocks.iter().enumerate() {
                shape = ledger.part(format!("layer{stage}.{index}"), block, shape);
            }
        }
        ledger.part("avgpool", &GlobalAverage, shape);
        ledger.within("fc", |ledger| self.fc.cost_as_head(ledger))
    }
}

/// A convolution, its norm and its `ReLU`, by their numbers in a sequence.
fn normed(numbers: [usize; 3], layers: (&Conv3d, &BatchNorm), shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
    let shape = ledger.part(numbers[0], layers.0, shape);
    let shape = ledger.part(numbers[1], layers.1, shape);
    ledger.each(&numbers[2].to_string(), &shape, |elements| Work::Activation { elements });
    shape
}

impl Costed for ResNet3dStem {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        match self {
            Self::Whole((convolution, norm)) => normed([0, 1, 2], (convolution, norm), shape, ledger),
            Self::Factored((space, norm1, _, time, norm2)) => {
                let shape = normed([0, 1, 2], (space, norm1), shape, ledger);
                normed([3, 4, 5], (time, norm2), shape, ledger)
            }
        }
    }
}

impl Costed for ClipConvolution {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        match self {
            Self::Whole(convolution) => convolution.cost(shape, ledger),
            Self::Factored((space, norm, _, time)) => {
                let shape = normed([0, 1, 2], (space, norm), shape, ledger);
                ledger.part("3", time, shape)
            }
        }
    }
}

impl Costed for Residual3d {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut out = ledger.part("conv1.0", &self.conv1.0, shape.clone());
        out = ledger.part("conv1.1", &self.conv1.1, out);
        ledger.each("conv1.2", &out, |elements| Work::Activation { elements });
        out = ledger.part("conv2.0", &self.conv2.0, out);
        out = ledger.part("conv2.1", &self.conv2.1, out);
        if let Some((convolution, norm)) = &self.downsample {
            let shortcut = ledger.part("downsample.0", convolution, shape);
            ledger.part("downsample.1", norm, shortcut);
        }
        ledger.each("add", &out, |elements| Work::Add { elements });
        ledger.each("relu", &out, |elements| Work::Activation { elements });
        out
    }
}

/// Kinetics as torchvision prepares it; it squeezes frames to 128 x 171, where we keep their shape.
const KINETICS: Preprocess = Preprocess {
    mean: [0.432_16, 0.394_666, 0.376_45],
    std: [0.228_03, 0.221_45, 0.216_989],
    crop: 0.875,
    filter: Filter::Bilinear,
    resize: Resize::ShortSide,
};

const fn torchvision(name: &'static str, config: fn() -> ResNet3dConfig) -> ClipPreset<ResNet3dConfig> {
    ClipPreset {
        name,
        paper: "arXiv:1711.11248",
        preprocess: KINETICS,
        sampling: FrameSampling::Dense { rate: 2 },
        config,
    }
}

/// The networks of torchvision, and a small one.
pub const PRESETS: &[ClipPreset<ResNet3dConfig>] = &[
    ClipPreset {
        name: "r3d-nano",
        paper: "ours",
        preprocess: KINETICS,
        sampling: FrameSampling::Uniform,
        config: ResNet3dConfig::nano,
    },
    torchvision("r3d-18", || ResNet3dConfig::layers18(ResNet3dKind::R3d)),
    torchvision("mc3-18", || ResNet3dConfig::layers18(ResNet3dKind::Mc3)),
    torchvision("r2plus1d-18", || ResNet3dConfig::layers18(ResNet3dKind::R2plus1d)),
];

/// The configuration of this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<ResNet3dConfig, Error> {
    let preset = config::find(PRESETS.to_vec(), name, |preset| preset.name)?;
    Ok((preset.config)())
}

#[cfg(test)]
mod tests;
