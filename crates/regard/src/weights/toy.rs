//! A vision transformer of parameters alone, for tests: the names and shapes of one, and nothing to run.

use burn::module::{Initializer, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{Device, Tensor};

use crate::layers::{LayerNorm, Linear};

#[derive(Module, Debug)]
pub struct Toy {
    cls_token: Option<Param<Tensor<3>>>,
    dist_token: Option<Param<Tensor<3>>>,
    pos_embed: Param<Tensor<3>>,
    patch_embed: Patches,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
    head_dist: Option<Linear>,
}

#[derive(Module, Debug)]
struct Patches {
    proj: Conv2d,
}

#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    attn: Attention,
    norm2: LayerNorm,
    mlp: Mlp,
}

#[derive(Module, Debug)]
struct Attention {
    qkv: Linear,
    proj: Linear,
}

#[derive(Module, Debug)]
struct Mlp {
    fc1: Linear,
    fc2: Linear,
}

/// What a [`Toy`] is made of.
#[derive(Clone, Copy)]
pub struct ToySize {
    pub tokens: usize,
    pub positions: usize,
    pub depth: usize,
    pub hidden: usize,
    pub classes: usize,
}

/// The fixtures `hf_vit` and `torchvision_vit`.
pub const SMALL: ToySize = ToySize { tokens: 1, positions: 17, depth: 2, hidden: 96, classes: 7 };
/// The fixture `timm_vit`.
pub const TIMM: ToySize = ToySize { depth: 3, hidden: 192, classes: 10, ..SMALL };

impl Toy {
    pub fn new(shape: ToySize, device: &Device) -> Self {
        const WIDTH: usize = 48;
        let table = |rows: usize| Initializer::Zeros.init([1, rows, WIDTH], device);
        let norm = || LayerNorm::new(WIDTH, 1e-6, device);
        let linear = |inputs, outputs| Linear::new(inputs, outputs, device);
        let block = |_| Block {
            norm1: norm(),
            attn: Attention { qkv: linear(WIDTH, 3 * WIDTH), proj: linear(WIDTH, WIDTH) },
            norm2: norm(),
            mlp: Mlp { fc1: linear(WIDTH, shape.hidden), fc2: linear(shape.hidden, WIDTH) },
        };
        Self {
            cls_token: (shape.tokens > 0).then(|| table(1)),
            dist_token: (shape.tokens > 1).then(|| table(1)),
            pos_embed: table(shape.positions),
            patch_embed: Patches { proj: Conv2dConfig::new([3, WIDTH], [8, 8]).with_stride([8, 8]).init(device) },
            blocks: (0..shape.depth).map(block).collect(),
            norm: norm(),
            head: linear(WIDTH, shape.classes),
            head_dist: (shape.tokens > 1).then(|| linear(WIDTH, shape.classes)),
        }
    }
}
