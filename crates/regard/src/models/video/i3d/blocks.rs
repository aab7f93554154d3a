//! Stem, bottlenecks and stages of C2D and I3D.

use burn::module::{Initializer, Module};
use burn::nn::conv::Conv3d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};

use super::EXPANSION;
use crate::Pass;
use crate::convolution3d::{ClipPool, Convolve3d};
use crate::cost::{Costed, Ledger, Work};
use crate::layers::{BatchNorm, NonLocal, ResidualStem, clip_convolution};

/// The stem, from frames to the first map.
#[derive(Module, Debug)]
pub struct I3dStem {
    pub pathway0_stem: I3dStemLayers,
    #[module(skip)]
    pool: Option<ClipPool>,
}

#[derive(Module, Debug)]
pub struct I3dStemLayers {
    pub conv: Conv3d,
    pub bn: BatchNorm,
}

impl I3dStem {
    pub(super) fn new(stem: ResidualStem, channels: [usize; 2], frames: usize, device: &Device) -> Self {
        let (kernel, stride, pool) = match stem {
            ResidualStem::Large => (7, 2, Some(ClipPool { kernel: [1, 3, 3], stride: [1, 2, 2], padding: [0, 1, 1] })),
            ResidualStem::Small => (3, 1, None),
        };
        let conv = clip_convolution(channels, [frames, kernel, kernel], [1, stride, stride], device);
        Self { pathway0_stem: I3dStemLayers { conv, bn: BatchNorm::new(channels[1], device) }, pool }
    }

    /// `[B, C, T, H, W] -> [B, C', T, H', W']`
    pub(super) fn forward(&self, clips: Tensor<5>) -> Tensor<5> {
        let I3dStemLayers { conv, bn } = &self.pathway0_stem;
        let map = bn.forward_relu(conv.convolve(clips));
        match self.pool {
            Some(pool) => pool.max(map),
            None => map,
        }
    }
}

impl Costed for I3dStem {
    fn cost(&self, clip: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("pathway0_stem.conv", &self.pathway0_stem.conv, clip);
        shape = ledger.part("pathway0_stem.bn", &self.pathway0_stem.bn, shape);
        ledger.each("pathway0_stem.relu", &shape, |elements| Work::Activation { elements });
        match &self.pool {
            Some(pool) => ledger.part("pathway0_stem.pool_layer", pool, shape),
            None => shape,
        }
    }
}

/// Residual blocks, and the non-local blocks that follow some of them.
#[derive(Module, Debug)]
pub struct I3dStage {
    pub pathway0_res__: Vec<Bottleneck3d>,
    /// One for each of them.
    pub pathway0_nonlocal__: Vec<Option<NonLocal>>,
}

impl I3dStage {
    /// `[B, C, T, H, W] -> [B, C', T, H', W']`
    pub(super) fn forward(&self, mut map: Tensor<5>, pass: &mut Pass) -> Tensor<5> {
        for (index, (block, non_local)) in self.pathway0_res__.iter().zip(&self.pathway0_nonlocal__).enumerate() {
            pass.next_block();
            map = block.forward(map, pass);
            map = pass.watch(&format!("pathway0_res{index}"), map);
            if let Some(non_local) = non_local {
                map = pass.within(format!("pathway0_nonlocal{index}"), |pass| non_local.forward(map, pass).out);
            }
        }
        map
    }
}

impl Costed for I3dStage {
    fn cost(&self, mut shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        for (index, (block, non_local)) in self.pathway0_res__.iter().zip(&self.pathway0_nonlocal__).enumerate() {
            shape = ledger.part(format!("pathway0_res{index}"), block, shape);
            if let Some(non_local) = non_local {
                shape = ledger.part(format!("pathway0_nonlocal{index}"), non_local, shape);
            }
        }
        shape
    }
}

/// A bottleneck and its shortcut, which is projected if the shape changes.
#[derive(Module, Debug)]
pub struct Bottleneck3d {
    pub branch1: Option<Conv3d>,
    pub branch1_bn: Option<BatchNorm>,
    pub branch2: BottleneckBranch,
}

/// Down to the stage's width, over neighbouring frames or none; 3x3 in space; up to four times the width.
#[derive(Module, Debug)]
pub struct BottleneckBranch {
    pub a: Conv3d,
    pub a_bn: BatchNorm,
    pub b: Conv3d,
    pub b_bn: BatchNorm,
    pub c: Conv3d,
    /// Its weight is initially zero, so that a block initially equals its shortcut.
    pub c_bn: BatchNorm,
}

impl Bottleneck3d {
    pub(super) fn new([inputs, width]: [usize; 2], frames: usize, stride: usize, device: &Device) -> Self {
        let (outputs, strides) = (width * EXPANSION, [1, stride, stride]);
        let projects = stride != 1 || inputs != outputs;
        let mut c_bn = BatchNorm::new(outputs, device);
        c_bn.gamma = Initializer::Zeros.init([outputs], device);
        Self {
            branch1: projects.then(|| clip_convolution([inputs, outputs], [1; 3], strides, device)),
            branch1_bn: projects.then(|| BatchNorm::new(outputs, device)),
            branch2: BottleneckBranch {
                a: clip_convolution([inputs, width], [frames, 1, 1], [1; 3], device),
                a_bn: BatchNorm::new(width, device),
                b: clip_convolution([width; 2], [1, 3, 3], strides, device),
                b_bn: BatchNorm::new(width, device),
                c: clip_convolution([width, outputs], [1; 3], [1; 3], device),
                c_bn,
            },
        }
    }

    fn forward(&self, map: Tensor<5>, pass: &mut Pass) -> Tensor<5> {
        let shortcut = match (&self.branch1, &self.branch1_bn) {
            (Some(convolution), Some(norm)) => norm.forward(convolution.convolve(map.clone())),
            _ => map.clone(),
        };
        let BottleneckBranch { a, a_bn, b, b_bn, c, c_bn } = &self.branch2;
        let out = b_bn.forward_relu(b.convolve(a_bn.forward_relu(a.convolve(map))));
        relu(pass.branch(c_bn.forward(c.convolve(out))) + shortcut)
    }
}

impl Costed for Bottleneck3d {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let activation = |elements| Work::Activation { elements };
        let BottleneckBranch { a, a_bn, b, b_bn, c, c_bn } = &self.branch2;
        if let (Some(convolution), Some(norm)) = (&self.branch1, &self.branch1_bn) {
            let shortcut = ledger.part("branch1", convolution, shape.clone());
            ledger.part("branch1_bn", norm, shortcut);
        }
        let mut out = ledger.part("branch2.a", a, shape);
        out = ledger.part("branch2.a_bn", a_bn, out);
        ledger.each("branch2.a_relu", &out, activation);
        out = ledger.part("branch2.b", b, out);
        out = ledger.part("branch2.b_bn", b_bn, out);
        ledger.each("branch2.b_relu", &out, activation);
        out = ledger.part("branch2.c", c, out);
        out = ledger.part("branch2.c_bn", c_bn, out);
        ledger.each("add", &out, |elements| Work::Add { elements });
        ledger.each("relu", &out, activation);
        out
    }
}
