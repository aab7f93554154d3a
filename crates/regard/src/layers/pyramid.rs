//! Feature pyramid: what is seen far up, where the map is coarse, is added to finer maps on the way down.
//! Lin et al. 2017, "Feature Pyramid Networks for Object Detection", arXiv:1612.03144.
//!
//! Named and wired as torchvision's `FeaturePyramidNetwork`: 1x1 laterals, the coarser map stretched to the lateral's size by
//! its nearest pixels, 3x3 convolutions of the sums. Coarser levels than the last map are pooled (Faster R-CNN) or convolved
//! (RetinaNet, arXiv:1708.02002, with a rectifier between the two).

use burn::module::{Initializer, Module};
use burn::nn::conv::Conv2d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::convolution::{biased, square};
use super::positive;
use crate::batch_norm::{BatchNorm, ChannelNorm};
use crate::convolution::{After, Convolve};
use crate::cost::{Ledger, Work};
use crate::{Error, Pass};

/// A pyramid over maps of given widths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PyramidConfig {
    /// Channels of each map, the finest first.
    pub inputs: Vec<usize>,
    /// Channels of each level.
    pub width: usize,
    /// Whether every convolution has a norm in place of its bias, as in torchvision's second versions.
    pub norm: bool,
    pub extra: ExtraLevels,
}

/// Levels above the last map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ExtraLevels {
    None,
    /// One: every second pixel of the last level.
    Pool,
    /// Two: convolutions of stride 2, the first one of the last level (P5).
    OfLastLevel,
    /// Two: convolutions of stride 2, the first one of the last map (C5).
    OfLastMap,
}

impl ExtraLevels {
    /// How many there are.
    #[must_use]
    pub const fn count(self) -> usize {
        match self {
            Self::None => 0,
            Self::Pool => 1,
            Self::OfLastLevel | Self::OfLastMap => 2,
        }
    }
}

impl PyramidConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Pyramid, Error> {
        positive("pyramid_width", self.width)?;
        let Some(last) = self.inputs.last() else {
            return Err(Error::config("stages", "a pyramid needs at least one map"));
        };
        let block = |inputs: usize, kernel: usize| {
            if self.norm {
                let convolution = square([inputs, self.width], kernel).with_initializer(initializer()).init(device);
                (convolution, Some(BatchNorm::new(self.width, device)))
            } else {
                (biased([inputs, self.width], kernel, 1, initializer(), device), None)
            }
        };
        let extra = |inputs: usize| ExtraBlocks {
            p6: biased([inputs, self.width], 3, 2, initializer(), device),
            p7: biased([self.width, self.width], 3, 2, initializer(), device),
        };
        Ok(Pyramid {
            inner_blocks: self.inputs.iter().map(|inputs| block(*inputs, 1)).collect(),
            layer_blocks: self.inputs.iter().map(|_| block(self.width, 3)).collect(),
            extra_blocks: match self.extra {
                ExtraLevels::None | ExtraLevels::Pool => None,
                ExtraLevels::OfLastLevel => Some(extra(self.width)),
                ExtraLevels::OfLastMap => Some(extra(*last)),
            },
            extra: self.extra,
        })
    }
}

/// `He`'s uniform start for a linear map, as in torchvision.
fn initializer() -> Initializer {
    Initializer::KaimingUniform { gain: 1.0, fan_out_only: false }
}

/// A convolution, and its norm.
type Block = (Conv2d, Option<BatchNorm>);

/// The pyramid; made by [`PyramidConfig::init`].
#[derive(Module, Debug)]
pub struct Pyramid {
    /// 1x1, one for each map.
    pub inner_blocks: Vec<Block>,
    /// 3x3, one for each map.
    pub layer_blocks: Vec<Block>,
    pub extra_blocks: Option<ExtraBlocks>,
    #[module(skip)]
    extra: ExtraLevels,
}

/// Two levels above the last map.
#[derive(Module, Debug)]
pub struct ExtraBlocks {
    pub p6: Conv2d,
    pub p7: Conv2d,
}

/// Of a block and what is added to it.
fn forward((convolution, norm): &Block, map: Tensor<4>, add: Option<Tensor<4>>) -> Tensor<4> {
    let norm = norm.as_ref().map(|norm| -> &dyn ChannelNorm { norm });
    convolution.convolve_then(map, After { norm, add, relu: false })
}

impl Pyramid {
    /// Maps `[B, C_i, H_i, W_i]`, the finest first, to levels `[B, width, H_i, W_i]` and those above; watches every level
    /// (`layer_blocks.0`, `extra_blocks.p6`).
    ///
    /// # Panics
    /// When there are other maps than the pyramid was built for.
    pub fn forward(&self, maps: &[Tensor<4>], pass: &mut Pass) -> Vec<Tensor<4>> {
        let count = self.inner_blocks.len();
        assert!(maps.len() == count, "pyramid: {} maps, built for {count}", maps.len());
        let mut levels = Vec::with_capacity(count + self.extra.count());
        let mut above: Option<Tensor<4>> = None;
        for (index, map) in maps.iter().enumerate().rev() {
            let [_, _, height, width] = map.dims();
            let above_it = above.map(|above| stretched(above, [height, width]));
            let sum = forward(&self.inner_blocks[index], map.clone(), above_it);
            above = Some(sum.clone());
            let level = forward(&self.layer_blocks[index], sum, None);
            levels.push(pass.watch(&format!("layer_blocks.{index}"), level));
        }
        levels.reverse();
        let last = |levels: &[Tensor<4>]| levels[count - 1].clone();
        match (self.extra, &self.extra_blocks) {
            (ExtraLevels::Pool, _) => {
                let pooled = halves(last(&levels));
                levels.push(pass.watch("pool", pooled));
            }
            (extra, Some(blocks)) => {
                let from = if extra == ExtraLevels::OfLastMap { maps[count - 1].clone() } else { last(&levels) };
                let p6 = pass.watch("extra_blocks.p6", blocks.p6.convolve(from));
                let p7 = pass.watch("extra_blocks.p7", blocks.p7.convolve(relu(p6.clone())));
                levels.extend([p6, p7]);
            }
            (_, None) => {}
        }
        levels
    }

    /// The names under which levels are watched, the finest first.
    #[must_use]
    pub fn level_names(&self) -> Vec<String> {
        let above: &[&str] = match self.extra {
            ExtraLevels::None => &[],
            ExtraLevels::Pool => &["pool"],
            ExtraLevels::OfLastLevel | ExtraLevels::OfLastMap => &["extra_blocks.p6", "extra_blocks.p7"],
        };
        let own = (0..self.layer_blocks.len()).map(|index| format!("layer_blocks.{index}"));
        own.chain(above.iter().map(ToString::to_string)).collect()
    }

    /// Adds the costs for maps of these shapes `[C, H, W]`; returns the shapes of the levels.
    pub fn cost(&self, maps: &[Vec<usize>], ledger: &mut Ledger) -> Vec<Vec<usize>> {
        let mut levels = Vec::new();
        for (index, map) in maps.iter().enumerate().rev() {
            let lateral =
                ledger.within(format!("inner_blocks.{index}"), |ledger| cost(&self.inner_blocks[index], map, ledger));
            if index + 1 < maps.len() {
                ledger.each("add", &lateral, |elements| Work::Add { elements });
            }
            let block = &self.layer_blocks[index];
            levels.push(ledger.within(format!("layer_blocks.{index}"), |ledger| cost(block, &lateral, ledger)));
        }
        levels.reverse();
        let last = levels[levels.len() - 1].clone();
        match (self.extra, &self.extra_blocks) {
            (ExtraLevels::Pool, _) => {
                levels.push(ledger.pool("pool", &last, [last[1].div_ceil(2), last[2].div_ceil(2)], 1));
            }
            (extra, Some(blocks)) => {
                let from = if extra == ExtraLevels::OfLastMap { maps[maps.len() - 1].clone() } else { last };
                let p6 = ledger.part("extra_blocks.p6", &blocks.p6, from);
                ledger.each("relu", &p6, |elements| Work::Activation { elements });
                let p7 = ledger.part("extra_blocks.p7", &blocks.p7, p6.clone());
                levels.extend([p6, p7]);
            }
            (_, None) => {}
        }
        levels
    }
}

fn cost(block: &Block, shape: &[usize], ledger: &mut Ledger) -> Vec<usize> {
    let shape = ledger.part("0", &block.0, shape.to_vec());
    match &block.1 {
        Some(norm) => ledger.part("1", norm, shape),
        None => shape,
    }
}

/// `[B, C, h, w] -> [B, C, H, W]` by the nearest pixels: `floor(i h / H)`.
fn stretched(map: Tensor<4>, [height, width]: [usize; 2]) -> Tensor<4> {
    let [_, _, rows, columns] = map.dims();
    let device = map.device();
    let nearest = |from: usize, to: usize| {
        let places: Vec<i64> = (0..to).map(|place| (place * from / to) as i64).collect();
        Tensor::<1, Int>::from_data(TensorData::new(places, [to]), &device)
    };
    map.select(2, nearest(rows, height)).select(3, nearest(columns, width))
}

/// Every second pixel.
fn halves(map: Tensor<4>) -> Tensor<4> {
    let [_, _, rows, columns] = map.dims();
    let device = map.device();
    let second = |size: usize| {
        let places: Vec<i64> = (0..size as i64).step_by(2).collect();
        let count = places.len();
        Tensor::<1, Int>::from_data(TensorData::new(places, [count]), &device)
    };
    map.select(2, second(rows)).select(3, second(columns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Convention;
    use crate::device;
    use crate::testing::{Fixture, assert_close, assert_gradient_close, random, weights};

    const EXTRA: [(&str, ExtraLevels, &[&str]); 4] = [
        ("plain", ExtraLevels::None, &[]),
        ("max_pool", ExtraLevels::Pool, &["pool"]),
        ("p6_from_p5", ExtraLevels::OfLastLevel, &["p6", "p7"]),
        ("p6_from_c5", ExtraLevels::OfLastMap, &["p6", "p7"]),
    ];

    fn config(extra: ExtraLevels) -> PyramidConfig {
        PyramidConfig { inputs: vec![4, 6, 8], width: 5, norm: false, extra }
    }

    #[test]
    fn levels_and_gradients_are_those_of_torchvision() {
        let fixture = Fixture::load("fpn");
        let device = device::cpu().autodiff();
        for (case, extra, above) in EXTRA {
            let prefix = format!("{case}.");
            let checkpoint = fixture.checkpoint(|name| name.strip_prefix(&prefix).map(String::from));
            let pyramid = weights::fill(config(extra).init(&device).unwrap(), &checkpoint).unwrap();
            let maps: Vec<Tensor<4>> =
                (0..3).map(|i| fixture.tensor_on::<4>(&format!("io/in.{i}"), &device).require_grad()).collect();
            let levels = pyramid.forward(&maps, &mut Pass::silent());
            let names = ["0", "1", "2"].iter().chain(above);
            for (level, name) in levels.iter().zip(names) {
                assert_close(level, &fixture.tensor(&format!("io/{case}.out.{name}")), 1e-5);
            }
            assert_eq!(levels.len(), 3 + above.len());
            let squares = levels.into_iter().map(|level| (level.clone() * level).sum());
            let grads = squares.reduce(|a, b| a + b).unwrap().backward();
            for (index, map) in maps.iter().enumerate() {
                let expected = fixture.tensor(&format!("io/{case}.in_grad.{index}"));
                assert_gradient_close(case, &map.grad(&grads).unwrap(), &expected);
            }
        }
    }

    #[test]
    fn costs_have_the_shapes_of_the_pass_and_its_parameters() {
        for (_, extra, _) in EXTRA {
            for norm in [false, true] {
                let pyramid = PyramidConfig { norm, ..config(extra) }.init(&device::cpu()).unwrap();
                let maps = [[1, 4, 13, 9], [1, 6, 7, 5], [1, 8, 4, 3]].map(|shape| random(shape, 1));
                let shapes = maps.each_ref().map(|map| map.dims()[1..].to_vec());
                let mut ledger = Ledger::default();
                let levels = pyramid.cost(&shapes, &mut ledger);
                let given = pyramid.forward(&maps, &mut Pass::silent());
                assert_eq!(levels, given.iter().map(|level| level.dims()[1..].to_vec()).collect::<Vec<_>>());
                assert!(ledger.total(Convention::MultiplyAdds) > 0);
                let parameters: usize = crate::testing::shapes(&pyramid)
                    .iter()
                    .filter(|(name, _)| !name.contains("running"))
                    .map(|(_, shape)| shape.iter().product::<usize>())
                    .sum();
                assert_eq!(ledger.parameters(), parameters as u64);
            }
        }
    }

    #[test]
    fn every_level_is_watched_under_the_name_of_its_convolution() {
        let pyramid = config(ExtraLevels::OfLastLevel).init(&device::cpu()).unwrap();
        let maps = [[1, 4, 8, 8], [1, 6, 4, 4], [1, 8, 2, 2]].map(|shape| random(shape, 1));
        let mut pass = Pass::recording();
        pyramid.forward(&maps, &mut pass);
        let trace = pass.into_trace();
        let mut names: Vec<&str> = trace.names().collect();
        names.sort_unstable();
        assert_eq!(names, ["extra_blocks.p6", "extra_blocks.p7", "layer_blocks.0", "layer_blocks.1", "layer_blocks.2"]);
    }
}
