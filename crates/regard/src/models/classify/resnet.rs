//! ResNet: a block adds to its input what it has learned, so that depth does no harm.
//! He et al. 2015, "Deep Residual Learning for Image Recognition", arXiv:1512.03385.
//!
//! The convolutional baseline of the attention papers. Differences from the paper:
//! - bottlenecks stride in their middle convolution (v1.5) unless told otherwise, as in torchvision, whose key names
//!   these are;
//! - ResNet-26 and -38, with 5x5 and 7x7 bottlenecks, are the baselines of SAN (arXiv:2004.13621) and SASA
//!   (arXiv:1906.05909), `width` is the factor of SASA's figure 5;
//! - `resnet-nano` is ours, for small pictures.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::tensor::{Device, Tensor};
use regard_kernels::residual;
use serde::{Deserialize, Serialize};

use super::backbone::head;
use super::{Backbone, FamilyConfig, FeatureMap, Inspect, Packing, Preset, StagedBackbone};
use crate::convolution::{After, Convolve};
use crate::cost::{Costed, Ledger, Work};
use crate::data::Preprocess;
use crate::layers::packed::{PackedForm, folded, linear};
use crate::layers::{
    BottleneckStride, GlobalAverage, LastStage, Linear, Norm, NormKind, Residual, ResidualBlock, ResidualBody,
    ResidualStem, check_size, max_pool,
};
use crate::models::limits::check_image;
use crate::{Error, Pass, device};

/// A residual network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResNetConfig {
    /// Nominal rows and columns of the pictures; other sizes work too.
    pub image: [usize; 2],
    /// Channels of a picture.
    pub channels: usize,
    pub classes: usize,
    pub block: ResidualBlock,
    pub stem: ResidualStem,
    pub stem_width: usize,
    /// Blocks of each stage.
    pub layers: Vec<usize>,
    /// Width of each stage.
    pub widths: Vec<usize>,
    /// Factor of all widths, the stem's included.
    #[serde(default = "one")]
    pub width: f64,
    /// Side of the convolutions in a block that are not 1x1.
    #[serde(default = "three")]
    pub kernel: usize,
    /// Which convolution of a bottleneck halves the map.
    #[serde(default)]
    pub stride: BottleneckStride,
}

fn one() -> f64 {
    1.0
}

fn three() -> usize {
    3
}

impl ResNetConfig {
    /// A network for ImageNet: widths 64 to 512, pictures of 224 x 224.
    #[must_use]
    pub fn imagenet(block: ResidualBlock, layers: [usize; 4]) -> Self {
        Self {
            image: [224, 224],
            channels: 3,
            classes: 1000,
            block,
            stem: ResidualStem::Large,
            stem_width: 64,
            layers: layers.to_vec(),
            widths: vec![64, 128, 256, 512],
            width: 1.0,
            kernel: 3,
            stride: BottleneckStride::Middle,
        }
    }

    /// A small network for pictures of 28 to 64 pixels.
    #[must_use]
    pub fn nano() -> Self {
        Self {
            image: [32, 32],
            classes: 10,
            stem: ResidualStem::Small,
            stem_width: 16,
            widths: vec![16, 32, 64, 128],
            ..Self::imagenet(ResidualBlock::Basic, [2, 2, 2, 3])
        }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        check_size("classes", self.classes)?;
        if !(self.width > 0.0 && self.width <= 64.0) {
            return Err(Error::config("width", format!("must be over 0 and at most 64, got {}", self.width)));
        }
        self.body().validate()
    }

    /// Initialises the network.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<ResNet, Error> {
        self.validate()?;
        let body = self.body();
        let fc = Linear::new(body.outputs(), self.classes, device);
        Ok(ResNet { fc: Some(fc), ..Self::headless(&body, device) })
    }

    /// The network without its head, for a detector; `classes` and `image` have no meaning.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn trunk(&self, norm: NormKind, last_stage: LastStage, device: &Device) -> Result<ResNet, Error> {
        Self { classes: 1, ..self.clone() }.validate()?;
        let body = ResidualBody { last_stage, norm, ..self.body() };
        body.validate()?;
        Ok(Self::headless(&body, device))
    }

    fn headless(body: &ResidualBody, device: &Device) -> ResNet {
        let (conv1, bn1, maxpool) = body.stem(device);
        ResNet { conv1, bn1, maxpool, layer_: body.stages(device), fc: None }
    }

    fn body(&self) -> ResidualBody {
        let scaled = |width: &usize| (*width as f64 * self.width).round() as usize;
        ResidualBody {
            channels: self.channels,
            block: self.block,
            stem: self.stem,
            stem_width: scaled(&self.stem_width),
            layers: self.layers.clone(),
            widths: self.widths.iter().map(scaled).collect(),
            kernel: self.kernel,
            stride: self.stride,
            last_stage: LastStage::Strided,
            norm: NormKind::Batch,
        }
    }
}

/// The network; made by [`ResNetConfig::init`].
#[derive(Module, Debug)]
pub struct ResNet {
    pub conv1: Conv2d,
    pub bn1: Norm,
    pub maxpool: Option<MaxPool2d>,
    /// The stages: `layer1`, `layer2`, ..
    pub layer_: Vec<Vec<Residual>>,
    /// None in a trunk.
    pub fc: Option<Linear>,
}

impl ResNet {
    /// `[B, C, H, W] -> [B, classes]`; records the maps that blocks (`layer1.0`) and stages (`layer1`) give.
    ///
    /// # Panics
    /// When pictures have other channels, or the network is a trunk.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let features = GlobalAverage.forward(self.through_stages(images, pass, |_, _| ()));
        head(self.fc.as_ref()).forward(features)
    }

    /// `[B, C, H, W] -> [B, C', H', W']`: the map of the last stage; `after` sees the map of every stage, from 0.
    fn through_stages(
        &self,
        images: Tensor<4>,
        pass: &mut Pass,
        mut after: impl FnMut(usize, &Tensor<4>),
    ) -> Tensor<4> {
        let ([_, channels, ..], [_, wanted, ..]) = (images.dims(), self.conv1.weight.lazy_shape().dims::<4>());
        assert!(channels == wanted, "resnet: images have channels {channels}, the model has channels {wanted}");
        let mut map = self.conv1.convolve_then(images, After::norm_relu(&self.bn1));
        if let Some(pool) = &self.maxpool {
            map = max_pool(pool, map);
        }
        pass.begin_blocks(self.layer_.iter().map(Vec::len).sum());
        for (stage, blocks) in (1..).zip(&self.layer_) {
            for (index, block) in blocks.iter().enumerate() {
                pass.next_block();
                map = block.forward(map, pass);
                map = pass.watch(&format!("layer{stage}.{index}"), map);
            }
            map = pass.watch(&format!("layer{stage}"), map);
            after(stage - 1, &map);
        }
        map
    }
}

impl Backbone for ResNet {
    fn features(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<FeatureMap> {
        let mut stride = if self.maxpool.is_some() { 4 } else { 1 };
        let mut features = Vec::new();
        self.through_stages(images, pass, |stage, map| {
            stride *= self.layer_[stage].iter().map(Residual::stride).product::<usize>();
            features.push(FeatureMap { name: format!("layer{}", stage + 1), stride, map: map.clone() });
        });
        features
    }
}

impl StagedBackbone for ResNet {
    fn stage_costs(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<Vec<usize>> {
        let mut shape = ledger.part("conv1", &self.conv1, shape);
        shape = ledger.part("bn1", &self.bn1, shape);
        ledger.each("relu", &shape, |elements| Work::Activation { elements });
        if let Some(pool) = &self.maxpool {
            shape = ledger.part("maxpool", pool, shape);
        }
        let mut shapes = Vec::new();
        for (stage, blocks) in (1..).zip(&self.layer_) {
            for (index, block) in blocks.iter().enumerate() {
                shape = ledger.part(format!("layer{stage}.{index}"), block, shape);
            }
            shapes.push(shape.clone());
        }
        shapes
    }
}

impl Inspect for ResNet {
    fn blocks(&self) -> &'static str {
        "*.*"
    }

    fn first_filters(&self) -> Option<Tensor<4>> {
        Some(self.conv1.weight.val())
    }
}

impl FamilyConfig for ResNetConfig {}

impl Packing for ResNet {
    fn packed_form(&self) -> PackedForm<'_> {
        self.kernel().map_or(PackedForm::None, |kernel| PackedForm::Residual(Box::new(kernel)))
    }
}

impl ResNet {
    /// The whole network with its norms folded in; none on other devices.
    fn kernel(&self) -> Option<residual::Residual> {
        let weight = self.conv1.weight.val();
        if weight.device() != device::cpu() {
            return None;
        }
        let block = |block: &Residual| {
            let Residual { conv1, bn1, conv2, bn2, conv3, bn3, downsample } = block;
            let mut branch = vec![folded(conv1, bn1)?, folded(conv2, bn2)?];
            if let (Some(convolution), Some(norm)) = (conv3, bn3) {
                branch.push(folded(convolution, norm)?);
            }
            let shortcut = match downsample {
                Some((convolution, norm)) => Some(folded(convolution, norm)?),
                None => None,
            };
            Some(residual::BlockParameters { branch, shortcut })
        };
        Some(residual::Residual::new(&residual::Parameters {
            channels: weight.dims()[1],
            stem: folded(&self.conv1, &self.bn1)?,
            pool: self.maxpool.is_some(),
            blocks: self.layer_.iter().flatten().map(block).collect::<Option<_>>()?,
            classifier: linear(self.fc.as_ref()?)?.map(|numbers| numbers.to_vec()),
        }))
    }
}

impl Costed for ResNet {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = self.last_cost(shape, ledger);
        let Some(fc) = &self.fc else { return shape };
        ledger.part("avgpool", &GlobalAverage, shape);
        ledger.within("fc", |ledger| fc.cost_as_head(ledger))
    }
}

const HE: &str = "arXiv:1512.03385";
const SAN: &str = "arXiv:2004.13621";

const fn preset(name: &'static str, paper: &'static str, config: fn() -> ResNetConfig) -> Preset<ResNetConfig> {
    Preset { name, paper, preprocess: Preprocess::TORCHVISION, config }
}

fn basic(layers: [usize; 4]) -> ResNetConfig {
    ResNetConfig::imagenet(ResidualBlock::Basic, layers)
}

fn bottleneck(layers: [usize; 4]) -> ResNetConfig {
    ResNetConfig::imagenet(ResidualBlock::Bottleneck, layers)
}

/// The networks of the papers, and a small one.
pub const PRESETS: &[Preset<ResNetConfig>] = &[
    preset("resnet-nano", HE, ResNetConfig::nano),
    preset("resnet-18", HE, || basic([2, 2, 2, 2])),
    preset("resnet-34", HE, || basic([3, 4, 6, 3])),
    preset("resnet-26", SAN, || bottleneck([1, 2, 4, 1])),
    preset("resnet-38", SAN, || bottleneck([2, 3, 5, 2])),
    preset("resnet-50", HE, || bottleneck([3, 4, 6, 3])),
    preset("resnet-101", HE, || bottleneck([3, 4, 23, 3])),
    preset("resnet-152", HE, || bottleneck([3, 8, 36, 3])),
    preset("resnet-26-5x5", SAN, || ResNetConfig { kernel: 5, ..bottleneck([1, 2, 4, 1]) }),
    preset("resnet-26-7x7", SAN, || ResNetConfig { kernel: 7, ..bottleneck([1, 2, 4, 1]) }),
];

#[cfg(test)]
mod tests;
