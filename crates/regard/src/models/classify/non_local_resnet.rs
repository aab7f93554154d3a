//! Non-local ResNet: a residual network in which, at some depths, every position attends to every other.
//! Wang et al. 2018, "Non-local Neural Networks", arXiv:1711.07971.
//!
//! The paper's networks are for video; this is their image form. Non-local blocks start as the identity and are
//! inserted between residual blocks, whose names stay torchvision's, so that a trained ResNet loads.
//! Differences from facebookresearch/video-nonlocal-net: the last norm of a residual block starts at one, not zero;
//! no dropout before the classifier.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::nn::pool::MaxPool2d;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{FamilyConfig, Inspect, Packing, Preset};
use crate::attention::Affinity;
use crate::convolution::{After, Convolve};
use crate::cost::{Costed, Ledger, Work};
use crate::data::Preprocess;
use crate::layers::{
    BottleneckStride, GlobalAverage, LastStage, Linear, NonLocal, NonLocalConfig, Norm, NormKind, PoolOrder, Residual,
    ResidualBlock, ResidualBody, ResidualStem, check_size, max_pool,
};
use crate::models::limits::check_image;
use crate::{Error, Pass};

/// A residual network with non-local blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NonLocalResNetConfig {
    /// Nominal rows and columns of the pictures; other sizes work too.
    pub image: [usize; 2],
    /// Channels of a picture.
    pub channels: usize,
    pub classes: usize,
    pub block: ResidualBlock,
    pub stem: ResidualStem,
    pub stem_width: usize,
    /// Blocks of each stage; the second and the third (the paper's res3 and res4) can have non-local blocks.
    pub layers: Vec<usize>,
    /// Width of each stage.
    pub widths: Vec<usize>,
    /// Where the non-local blocks are.
    pub placement: NonLocalPlacement,
    /// How two positions are compared.
    pub affinity: Affinity,
    /// Whether keys and values are max-pooled by 2.
    pub sub_sample: bool,
    /// Where that happens.
    #[serde(default)]
    pub pool_order: PoolOrder,
    /// Whether dot products are divided by the root of their width, as in the released code of the paper.
    #[serde(default)]
    pub scale: bool,
}

/// Where the non-local blocks are, with their number in ResNet-50.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonLocalPlacement {
    /// Right before the last block of the third stage: 1.
    BeforeLast,
    /// After every second block of the second and third stage: 5.
    EverySecond,
    /// After every block of the second and third stage: 10.
    Every,
}

impl NonLocalResNetConfig {
    /// ResNet-50 for ImageNet, sub-sampled and scaled as in the released code.
    #[must_use]
    pub fn resnet50(placement: NonLocalPlacement, affinity: Affinity) -> Self {
        Self {
            image: [224, 224],
            channels: 3,
            classes: 1000,
            block: ResidualBlock::Bottleneck,
            stem: ResidualStem::Large,
            stem_width: 64,
            layers: vec![3, 4, 6, 3],
            widths: vec![64, 128, 256, 512],
            placement,
            affinity,
            sub_sample: true,
            pool_order: PoolOrder::BeforeConv,
            scale: affinity != Affinity::Concatenation,
        }
    }

    /// A small network for pictures of 28 to 64 pixels.
    #[must_use]
    pub fn nano() -> Self {
        Self {
            image: [32, 32],
            classes: 10,
            block: ResidualBlock::Basic,
            stem: ResidualStem::Small,
            stem_width: 16,
            layers: vec![2, 2, 2, 3],
            widths: vec![16, 32, 64, 128],
            ..Self::resnet50(NonLocalPlacement::EverySecond, Affinity::EmbeddedGaussian)
        }
    }

    /// Stage and block that each non-local block follows, both from zero.
    #[must_use]
    pub fn places(&self) -> Vec<[usize; 2]> {
        let all = (1..3).flat_map(|stage| (0..self.layers.get(stage).copied().unwrap_or(0)).map(move |b| [stage, b]));
        match self.placement {
            NonLocalPlacement::Every => all.collect(),
            NonLocalPlacement::EverySecond => all.filter(|[_, block]| block % 2 == 1).collect(),
            NonLocalPlacement::BeforeLast => match self.layers.get(2) {
                Some(&blocks) if blocks > 1 => vec![[2, blocks - 2]],
                _ => Vec::new(),
            },
        }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        check_size("classes", self.classes)?;
        if self.places().is_empty() {
            let reason = format!("finds no place in the second and third stage of layers {:?}", self.layers);
            return Err(Error::config("placement", reason));
        }
        self.body().validate()
    }

    /// Initialises the network.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<NonLocalResNet, Error> {
        self.validate()?;
        let body = self.body();
        let (conv1, bn1, maxpool) = body.stem(device);
        let places = self.places();
        let blocks = places.iter().map(|[stage, _]| self.non_local(self.widths[*stage]).init(device));
        Ok(NonLocalResNet {
            conv1,
            bn1,
            maxpool,
            layer_: body.stages(device),
            non_local: blocks.collect::<Result<_, _>>()?,
            fc: Linear::new(body.outputs(), self.classes, device),
            places,
        })
    }

    fn non_local(&self, width: usize) -> NonLocalConfig {
        NonLocalConfig {
            affinity: self.affinity,
            sub_sample: self.sub_sample,
            pool_order: self.pool_order,
            scale: self.scale,
            ..NonLocalConfig::new(width * self.block.expansion(), 2)
        }
    }

    fn body(&self) -> ResidualBody {
        ResidualBody {
            channels: self.channels,
            block: self.block,
            stem: self.stem,
            stem_width: self.stem_width,
            layers: self.layers.clone(),
            widths: self.widths.clone(),
            kernel: 3,
            stride: BottleneckStride::Middle,
            last_stage: LastStage::Strided,
            norm: NormKind::Batch,
        }
    }
}

/// The network; made by [`NonLocalResNetConfig::init`].
#[derive(Module, Debug)]
pub struct NonLocalResNet {
    pub conv1: Conv2d,
    pub bn1: Norm,
    pub maxpool: Option<MaxPool2d>,
    /// The stages: `layer1`, `layer2`, ..
    pub layer_: Vec<Vec<Residual>>,
    /// In the order of [`NonLocalResNetConfig::places`].
    pub non_local: Vec<NonLocal>,
    pub fc: Linear,
    #[module(skip)]
    places: Vec<[usize; 2]>,
}

impl NonLocalResNet {
    /// `[B, C, H, W] -> [B, classes]`; records the weights of every non-local block (`non_local.0.weights`), and
    /// the maps that blocks (`layer1.0`, before a non-local block) and stages (`layer1`, after it) give.
    ///
    /// # Panics
    /// When the pictures do not have the config's channels.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        let ([_, channels, ..], [_, wanted, ..]) = (images.dims(), self.conv1.weight.lazy_shape().dims::<4>());
        assert!(
            channels == wanted,
            "non-local resnet: images have channels {channels}, the model has channels {wanted}"
        );
        let mut map = self.conv1.convolve_then(images, After::norm_relu(&self.bn1));
        if let Some(pool) = &self.maxpool {
            map = max_pool(pool, map);
        }
        pass.begin_blocks(self.layer_.iter().map(Vec::len).sum());
        for (stage, blocks) in self.layer_.iter().enumerate() {
            for (index, block) in blocks.iter().enumerate() {
                pass.next_block();
                map = block.forward(map, pass);
                map = pass.watch(&format!("layer{}.{index}", stage + 1), map);
                if let Some((number, non_local)) = self.after([stage, index]) {
                    map = pass.within(format!("non_local.{number}"), |pass| non_local.forward(map, pass).out);
                }
            }
            map = pass.watch(&format!("layer{}", stage + 1), map);
        }
        self.fc.forward(GlobalAverage.forward(map))
    }

    /// The non-local block that follows a residual block, with its number.
    fn after(&self, place: [usize; 2]) -> Option<(usize, &NonLocal)> {
        let number = self.places.iter().position(|known| *known == place)?;
        Some((number, &self.non_local[number]))
    }
}

/// Has no packed form: it runs layer by layer.
impl Packing for NonLocalResNet {}

impl Inspect for NonLocalResNet {
    fn blocks(&self) -> &'static str {
        "*.*"
    }

    fn first_filters(&self) -> Option<Tensor<4>> {
        Some(self.conv1.weight.val())
    }
}

impl FamilyConfig for NonLocalResNetConfig {}

impl Costed for NonLocalResNet {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("conv1", &self.conv1, shape);
        shape = ledger.part("bn1", &self.bn1, shape);
        ledger.each("relu", &shape, |elements| Work::Activation { elements });
        if let Some(pool) = &self.maxpool {
            shape = ledger.part("maxpool", pool, shape);
        }
        for (stage, blocks) in self.layer_.iter().enumerate() {
            for (index, block) in blocks.iter().enumerate() {
                shape = ledger.part(format!("layer{}.{index}", stage + 1), block, shape);
                if let Some((number, non_local)) = self.after([stage, index]) {
                    shape = ledger.part(format!("non_local.{number}"), non_local, shape);
                }
            }
        }
        ledger.part("avgpool", &GlobalAverage, shape);
        ledger.within("fc", |ledger| self.fc.cost_as_head(ledger))
    }
}

const fn preset(name: &'static str, config: fn() -> NonLocalResNetConfig) -> Preset<NonLocalResNetConfig> {
    Preset { name, paper: "arXiv:1711.07971", preprocess: Preprocess::TORCHVISION, config }
}

fn resnet50(placement: NonLocalPlacement, affinity: Affinity) -> NonLocalResNetConfig {
    NonLocalResNetConfig::resnet50(placement, affinity)
}

/// The paper's tables 2a (how positions are compared) and 2c (how many blocks), and a small network.
pub const PRESETS: &[Preset<NonLocalResNetConfig>] = &[
    preset("non-local-resnet-nano", NonLocalResNetConfig::nano),
    preset("non-local-resnet-50-1", || resnet50(NonLocalPlacement::BeforeLast, Affinity::EmbeddedGaussian)),
    preset("non-local-resnet-50-5", || resnet50(NonLocalPlacement::EverySecond, Affinity::EmbeddedGaussian)),
    preset("non-local-resnet-50-10", || resnet50(NonLocalPlacement::Every, Affinity::EmbeddedGaussian)),
    preset("non-local-resnet-50-1-gaussian", || resnet50(NonLocalPlacement::BeforeLast, Affinity::Gaussian)),
    preset("non-local-resnet-50-1-dot-product", || resnet50(NonLocalPlacement::BeforeLast, Affinity::DotProduct)),
    preset("non-local-resnet-50-1-concatenation", || resnet50(NonLocalPlacement::BeforeLast, Affinity::Concatenation)),
];

#[cfg(test)]
mod tests;
