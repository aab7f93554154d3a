//! C2D and I3D, with or without non-local blocks: a ResNet over the frames of a clip, whose first convolution in a block spans
//! neighbouring frames in I3D and a single frame in C2D.
//! Wang et al. 2018, "Non-local Neural Networks", arXiv:1711.07971; Carreira and Zisserman 2017, "Quo Vadis, Action
//! Recognition?", arXiv:1705.07750.
//!
//! Structure and names are those of facebookresearch/SlowFast (`C2D_NLN`, `I3D_NLN`), whose difference to the paper are strides in
//! the 3x3 convolutions. Differences from it:
//! - layers in a non-local block have our names (`theta` for `conv_theta`, `output`, `norm`), which
//!   [`weights`](crate::weights) translates;
//! - dropout before the classifier happens only in a pass that has dropout;
//! - the small stem is ours.

mod blocks;
mod presets;

use burn::module::{Initializer, Module};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::attention::Affinity;
use crate::convolution3d::ClipPool;
use crate::cost::{Costed, Ledger};
use crate::data::Clips;
use crate::layers::{GlobalAverage, Linear, NonLocal, NonLocalConfig, PoolOrder, ResidualStem, check_size};
use crate::models::limits::check_image;
use crate::{Error, Pass};

pub use blocks::{Bottleneck3d, BottleneckBranch, I3dStage, I3dStem, I3dStemLayers};
pub use presets::{FIVE_NON_LOCAL, ONE_NON_LOCAL, PRESETS, TEN_NON_LOCAL, preset};

/// A C2D or an I3D.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct I3dConfig {
    pub kind: I3dKind,
    /// Frames of a clip, even, `T`. Other numbers work too, except in a fully convolutional test.
    pub frames: usize,
    /// Rows and columns of a frame; the same holds.
    pub image: [usize; 2],
    pub channels: usize,
    pub classes: usize,
    pub stem: ResidualStem,
    /// Width of the stem and of the first stage; every stage doubles it.
    pub width: usize,
    /// Blocks of the four stages, which are called s2 to s5.
    pub layers: [usize; 4],
    /// Stage (from 2) and block (from 0) that each non-local block follows.
    pub non_local: Vec<[usize; 2]>,
    /// How two positions of a non-local block are compared.
    pub affinity: Affinity,
    /// Whether its keys and values are max-pooled by 2 in space.
    pub sub_sample: bool,
}

/// Which convolutions span several frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum I3dKind {
    /// None: only pools and non-local blocks connect frames.
    C2d,
    /// The stem's over five frames; of s2 all blocks over three, of s3 and s4 every second one from the first, of s5 from the
    /// second.
    I3d,
}

impl I3dKind {
    const fn stem_frames(self) -> usize {
        match self {
            Self::C2d => 1,
            Self::I3d => 5,
        }
    }

    /// Frames that the first convolution of a block spans.
    const fn frames(self, stage: usize, block: usize) -> usize {
        let looks = match stage {
            2 => true,
            5 => block % 2 == 1,
            _ => block.is_multiple_of(2),
        };
        if looks && matches!(self, Self::I3d) { 3 } else { 1 }
    }
}

/// Output channels of a bottleneck, as a multiple of its stage's width.
const EXPANSION: usize = 4;

impl I3dConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        for (field, size) in [("channels", self.channels), ("classes", self.classes), ("width", self.width)] {
            check_size(field, size)?;
        }
        if self.frames < 2 || self.frames > 65536 {
            return Err(Error::config("frames", format!("must be from 2 to 65536, got {}", self.frames)));
        }
        if self.width > 4096 {
            return Err(Error::config("width", format!("must be at most 4096, got {}", self.width)));
        }
        if !self.layers.iter().all(|blocks| (1..=1000).contains(blocks)) {
            return Err(Error::config("layers", format!("every stage has 1 to 1000 blocks, got {:?}", self.layers)));
        }
        for (index, place @ [stage, block]) in self.non_local.iter().enumerate() {
            let exists = (2..=5).contains(stage) && *block < self.layers[stage - 2];
            if !exists || self.non_local[..index].contains(place) {
                let reason = format!(
                    "each place is a stage from 2 to 5 and one of its blocks {:?}, and once only, got {:?}",
                    self.layers, self.non_local
                );
                return Err(Error::config("non_local", reason));
            }
        }
        Ok(())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<I3d, Error> {
        self.validate()?;
        let stage = |stage: usize| -> Result<I3dStage, Error> {
            let width = self.width << (stage - 2);
            let inputs = if stage == 2 { self.width } else { width / 2 * EXPANSION };
            let stride = if stage == 2 { 1 } else { 2 };
            let blocks = 0..self.layers[stage - 2];
            let residual = |block: usize| {
                let (inputs, stride) = if block == 0 { (inputs, stride) } else { (width * EXPANSION, 1) };
                Bottleneck3d::new([inputs, width], self.kind.frames(stage, block), stride, device)
            };
            let non_local = |block: usize| -> Result<Option<NonLocal>, Error> {
                let is_here = self.non_local.contains(&[stage, block]);
                is_here.then(|| self.non_local_block(width * EXPANSION).init(device)).transpose()
            };
            Ok(I3dStage {
                pathway0_res__: blocks.clone().map(residual).collect(),
                pathway0_nonlocal__: blocks.map(non_local).collect::<Result<_, _>>()?,
            })
        };
        let outputs = (self.width << 3) * EXPANSION;
        let normal = Initializer::Normal { mean: 0.0, std: 0.01 };
        let projection = Linear {
            weight: normal.init([self.classes, outputs], device),
            bias: Some(Initializer::Zeros.init([self.classes], device)),
        };
        Ok(I3d {
            s1: I3dStem::new(self.stem, [self.channels, self.width], self.kind.stem_frames(), device),
            s2: stage(2)?,
            s3: stage(3)?,
            s4: stage(4)?,
            s5: stage(5)?,
            head: I3dHead { projection },
            config: self.clone(),
        })
    }

    fn non_local_block(&self, channels: usize) -> NonLocalConfig {
        NonLocalConfig {
            affinity: self.affinity,
            sub_sample: self.sub_sample,
            pool_order: if self.sub_sample { PoolOrder::BeforeConv } else { PoolOrder::AfterConv },
            scale: self.affinity.sums_to_one(),
            ..NonLocalConfig::new(channels, 3)
        }
    }
}

/// The network; made by [`I3dConfig::init`].
#[derive(Module, Debug)]
pub struct I3d {
    pub s1: I3dStem,
    pub s2: I3dStage,
    pub s3: I3dStage,
    pub s4: I3dStage,
    pub s5: I3dStage,
    pub head: I3dHead,
    #[module(skip)]
    config: I3dConfig,
}

/// The classifier.
#[derive(Module, Debug)]
pub struct I3dHead {
    pub projection: Linear,
}

/// Between the first and the second stage, pairs of frames become one.
const PAIRS_OF_FRAMES: ClipPool = ClipPool { kernel: [2, 1, 1], stride: [2, 1, 1], padding: [0; 3] };

impl I3d {
    /// `[B, C, T, H, W] -> [B, classes]`
    ///
    /// Records the weights of every non-local block (`s4.pathway0_nonlocal1.weights`, `[B, N, M]`), and the maps that residual
    /// blocks (`s4.pathway0_res1`, before a non-local block) and stages (`s4`) return.
    ///
    /// # Panics
    /// When clips have other channels, or fewer than two frames.
    pub fn forward(&self, clips: &Clips, pass: &mut Pass) -> Tensor<2> {
        let features = GlobalAverage.forward(self.features(clips, pass));
        self.head.projection.forward(pass.dropout(features, 0.5))
    }

    /// The fully convolutional test on larger clips: probabilities `[B, classes]`, the mean over all places that a clip of the
    /// config's size can have.
    ///
    /// # Panics
    /// When clips have other channels or are smaller than those of the config.
    pub fn probabilities(&self, clips: &Clips, pass: &mut Pass) -> Tensor<2> {
        let map = self.features(clips, pass);
        let I3dConfig { frames, image: [height, width], channels, .. } = self.config;
        let mut ledger = Ledger::default();
        let kernel = self.cost_of_features(vec![channels, frames, height, width], &mut ledger);
        let window = ClipPool { kernel: [kernel[1], kernel[2], kernel[3]], stride: [1; 3], padding: [0; 3] };
        let means: Tensor<3> = window.average(map).flatten(2, 4);
        let logits = self.head.projection.forward(means.swap_dims(1, 2));
        softmax(logits, 2).mean_dim(1).squeeze_dim(1)
    }

    /// `[B, C, T, H, W] -> [B, C', T', H', W']`: the map after the last stage.
    fn features(&self, clips: &Clips, pass: &mut Pass) -> Tensor<5> {
        let mut map = self.s1.forward(clips.pixels.clone());
        pass.begin_blocks(self.config.layers.iter().sum());
        for (number, stage) in self.stages() {
            let name = format!("s{number}");
            map = pass.within(&name, |pass| stage.forward(map, pass));
            map = pass.watch(&name, map);
            if number == 2 {
                map = PAIRS_OF_FRAMES.max(map);
            }
        }
        map
    }

    fn stages(&self) -> impl Iterator<Item = (usize, &I3dStage)> {
        (2..).zip([&self.s2, &self.s3, &self.s4, &self.s5])
    }

    fn cost_of_features(&self, clip: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("s1", &self.s1, clip);
        for (number, stage) in self.stages() {
            shape = ledger.part(format!("s{number}"), stage, shape);
            if number == 2 {
                shape = ledger.part("pathway0_pool", &PAIRS_OF_FRAMES, shape);
            }
        }
        shape
    }
}

impl Costed for I3d {
    /// `[C, T, H, W] -> [classes]`
    fn cost(&self, clip: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = self.cost_of_features(clip, ledger);
        ledger.part("head.avgpool", &GlobalAverage, shape);
        ledger.within("head.projection", |ledger| self.head.projection.cost_as_head(ledger))
    }
}

#[cfg(test)]
mod tests;
