//! The parts of an image transformer: patch embedding and pre-norm encoder blocks.
//! Dosovitskiy et al. 2020, arXiv:2010.11929; `LayerScale` from Touvron et al. 2021, arXiv:2103.17239.
//!
//! Fields have timm's names, so that its checkpoints load unchanged. Differences from timm:
//! - weights are initialised normal with deviation 0.02, not truncated at a hundred deviations;
//! - no dropout: the papers report their numbers without it.

use burn::module::{Initializer, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{LayerNorm, Linear};
use crate::attention::{AttentionPlan, self_attention};
use crate::convolution::Convolve;
use crate::cost::{Costed, Ledger, Work, size};
use crate::{Error, Pass, function, fused};

/// Cuts an image into square patches, each a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PatchEmbedConfig {
    /// Rows and columns of the image.
    pub image: [usize; 2],
    /// Side of a patch.
    pub patch: usize,
    pub channels: usize,
    /// Width of a token.
    pub dim: usize,
}

impl PatchEmbedConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        let [rows, columns] = self.image;
        for (field, value) in
            [("image", rows), ("image", columns), ("patch", self.patch), ("channels", self.channels), ("dim", self.dim)]
        {
            check_size(field, value)?;
        }
        if !(rows.is_multiple_of(self.patch) && columns.is_multiple_of(self.patch)) {
            return Err(Error::config(
                "patch",
                format!("must divide the image of {rows} x {columns}, got {0}", self.patch),
            ));
        }
        let [rows, columns] = self.grid();
        if rows * columns > MOST_TOKENS {
            let reason = format!("a grid of {rows} x {columns} has more than {MOST_TOKENS} tokens");
            return Err(Error::config("patch", reason));
        }
        Ok(())
    }

    /// Rows and columns of patches.
    #[must_use]
    pub const fn grid(&self) -> [usize; 2] {
        // `validate` refuses a patch of 0; before that, there are no patches
        let side = if self.patch == 0 { usize::MAX } else { self.patch };
        [self.image[0] / side, self.image[1] / side]
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<PatchEmbed, Error> {
        self.validate()?;
        let side = [self.patch; 2];
        let proj = Conv2dConfig::new([self.channels, self.dim], side).with_stride(side).init(device);
        Ok(PatchEmbed { proj, image: self.image })
    }
}

/// The same linear map for every patch.
#[derive(Module, Debug)]
pub struct PatchEmbed {
    pub proj: Conv2d,
    image: [usize; 2],
}

impl PatchEmbed {
    /// `[B, C, H, W] -> [B, N, D]`, row by row.
    ///
    /// # Panics
    /// When the image does not have the model's size and channels.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<3> {
        let [_, channels, rows, columns] = images.dims();
        self.check(channels, [rows, columns]);
        self.proj.convolve(images).flatten::<3>(2, 3).swap_dims(1, 2)
    }

    /// Rows and columns of patches.
    #[must_use]
    pub fn grid(&self) -> [usize; 2] {
        let [.., rows, columns] = self.proj.weight.lazy_shape().dims::<4>();
        [self.image[0] / rows, self.image[1] / columns]
    }

    /// Rows and columns of the input images.
    #[must_use]
    pub const fn image(&self) -> [usize; 2] {
        self.image
    }

    fn check(&self, channels: usize, image: [usize; 2]) {
        let own = self.proj.weight.lazy_shape().dims::<4>()[1];
        assert!(channels == own, "patch_embed: image has channels {channels}, weight has channels {own}");
        assert!(
            image == self.image,
            "patch_embed: image is {} x {}, positions are learned for {} x {}; build the model for the other size and \
             resample `pos_embed` with the weights module",
            image[0],
            image[1],
            self.image[0],
            self.image[1]
        );
    }
}

impl Costed for PatchEmbed {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        self.check(shape[0], [shape[1], shape[2]]);
        let map = ledger.part("proj", &self.proj, shape);
        vec![map[1] * map[2], map[0]]
    }
}

/// One block of an encoder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EncoderBlockConfig {
    /// Width of a token.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the MLP.
    pub mlp_dim: usize,
    /// Added to the variance in norms: 1e-6 in timm, 1e-12 in Hugging Face.
    pub epsilon: f64,
    /// Initial value of `LayerScale`; none without it.
    #[serde(default)]
    pub layer_scale: Option<f64>,
}

impl EncoderBlockConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_size("dim", self.dim)?;
        check_size("heads", self.heads)?;
        check_size("mlp_dim", self.mlp_dim)?;
        if !self.dim.is_multiple_of(self.heads) {
            return Err(Error::config("heads", format!("must divide dim {}, got {}", self.dim, self.heads)));
        }
        if !(self.epsilon > 0.0 && self.epsilon < 1.0) {
            return Err(Error::config("epsilon", format!("must be between 0 and 1, got {}", self.epsilon)));
        }
        match self.layer_scale {
            Some(start) if !start.is_finite() => {
                Err(Error::config("layer_scale", format!("must be a finite number, got {start}")))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<EncoderBlock, Error> {
        self.validate()?;
        let norm = || LayerNorm::new(self.dim, self.epsilon, device);
        let scale = || self.layer_scale.map(|start| LayerScale::new(self.dim, start, device));
        Ok(EncoderBlock {
            norm1: norm(),
            attn: SelfAttention::new(self.dim, self.heads, device),
            ls1: scale(),
            norm2: norm(),
            mlp: Mlp::new(self.dim, self.mlp_dim, device),
            ls2: scale(),
        })
    }
}

/// `x = x + Attention(Norm(x))`, then `x = x + MLP(Norm(x))`; with `LayerScale`, both branches are scaled.
#[derive(Module, Debug)]
pub struct EncoderBlock {
    pub norm1: LayerNorm,
    pub attn: SelfAttention,
    pub ls1: Option<LayerScale>,
    pub norm2: LayerNorm,
    pub mlp: Mlp,
    pub ls2: Option<LayerScale>,
}

impl EncoderBlock {
    /// `[B, N, D] -> [B, N, D]`
    ///
    /// # Panics
    /// When the tokens do not have width `dim`.
    pub fn forward(&self, x: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        if pass.is_plain()
            && let Some(out) = self.forward_fused(&x)
        {
            return out;
        }
        let attended = pass.within("attn", |pass| self.attn.forward(self.norm1.forward(x.clone()), pass));
        let x = x + pass.branch(scaled(self.ls1.as_ref(), attended));
        let changed = self.mlp.forward(self.norm2.forward(x.clone()));
        x + pass.branch(scaled(self.ls2.as_ref(), changed))
    }
}

impl EncoderBlock {
    /// The block as one fused kernel; none unless on the CPU, without `LayerScale`, with all biases.
    fn forward_fused(&self, x: &Tensor<3>) -> Option<Tensor<3>> {
        let usual = self.ls1.is_none() && self.ls2.is_none() && x.dims()[2] == size(&self.norm1.weight);
        if !usual || !fused::runs_on(x) || self.norm1.epsilon != self.norm2.epsilon {
            return None;
        }
        let maps = [&self.attn.qkv, &self.attn.proj, &self.mlp.fc1, &self.mlp.fc2];
        let [Some(qkv), Some(proj), Some(fc1), Some(fc2)] =
            maps.map(|map| map.bias.as_ref().map(|bias| (&map.weight, bias)))
        else {
            return None;
        };
        let norms = [&self.norm1.weight, &self.norm1.bias, &self.norm2.weight, &self.norm2.bias];
        Some(function::encoder_block(x.clone(), self.attn.heads, self.norm1.epsilon, norms, [qkv, proj, fc1, fc2]))
    }
}

fn scaled(scale: Option<&LayerScale>, x: Tensor<3>) -> Tensor<3> {
    match scale {
        Some(scale) => scale.forward(x),
        None => x,
    }
}

impl Costed for EncoderBlock {
    fn cost(&self, mut shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        shape = ledger.part("norm1", &self.norm1, shape);
        shape = ledger.part("attn", &self.attn, shape);
        if let Some(scale) = &self.ls1 {
            shape = ledger.part("ls1", scale, shape);
        }
        ledger.each("residual1", &shape, |elements| Work::Add { elements });
        shape = ledger.part("norm2", &self.norm2, shape);
        shape = ledger.part("mlp", &self.mlp, shape);
        if let Some(scale) = &self.ls2 {
            shape = ledger.part("ls2", scale, shape);
        }
        ledger.each("residual2", &shape, |elements| Work::Add { elements });
        shape
    }
}

/// Multi-head self-attention.
#[derive(Module, Debug)]
pub struct SelfAttention {
    /// Projections to queries, keys and values, in this order: `[3D, D]`.
    pub qkv: Linear,
    pub proj: Linear,
    heads: usize,
}

impl SelfAttention {
    /// # Panics
    /// The first forward pass panics when the heads do not divide the width.
    pub fn new(dim: usize, heads: usize, device: &Device) -> Self {
        Self { qkv: Linear::normal(dim, 3 * dim, device), proj: Linear::normal(dim, dim, device), heads }
    }

    #[must_use]
    pub const fn heads(&self) -> usize {
        self.heads
    }

    /// `[B, N, D] -> [B, N, D]`, weights `[B, A, N, N]`.
    pub fn forward(&self, x: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        self.proj.forward(self_attention(self.qkv.forward(x), self.heads, pass))
    }

    /// The same for the tokens of a clip, by a plan of space-time attention.
    ///
    /// # Panics
    /// When the tokens do not fit the plan's grid.
    pub fn forward_clip(&self, x: Tensor<3>, plan: &AttentionPlan, pass: &mut Pass) -> Tensor<3> {
        self.proj.forward(plan.self_attention(self.qkv.forward(x), self.heads, pass))
    }

    /// Adds the cost for tokens `[N, D]` of which so many pairs attend to each other; returns the output's shape.
    pub(crate) fn cost_of_pairs(&self, shape: Vec<usize>, pairs: usize, ledger: &mut Ledger) -> Vec<usize> {
        let (tokens, dim) = (shape[0], shape[1]);
        ledger.part("qkv", &self.qkv, shape);
        let work = Work::Product { macs: (pairs * dim) as u64 };
        ledger.within("scores", |ledger| ledger.line(0, work, self.heads * pairs));
        ledger.each("weights", &[self.heads, pairs], |elements| Work::Softmax { elements });
        ledger.within("values", |ledger| ledger.line(0, work, tokens * dim));
        ledger.part("proj", &self.proj, vec![tokens, dim])
    }
}

impl Costed for SelfAttention {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let tokens = shape[0];
        self.cost_of_pairs(shape, tokens * tokens, ledger)
    }
}

/// Two linear maps with the exact GELU between them.
#[derive(Module, Debug)]
pub struct Mlp {
    pub fc1: Linear,
    pub fc2: Linear,
}

impl Mlp {
    pub fn new(dim: usize, inner: usize, device: &Device) -> Self {
        Self { fc1: Linear::normal(dim, inner, device), fc2: Linear::normal(inner, dim, device) }
    }

    /// `[.., D] -> [.., D]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let inner = self.fc1.product(x);
        self.fc2.forward(match &self.fc1.bias {
            Some(bias) => function::bias_gelu(inner, bias.val()),
            None => function::gelu(inner),
        })
    }
}

impl Costed for Mlp {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let inner = ledger.part("fc1", &self.fc1, shape);
        ledger.each("gelu", &inner, |elements| Work::Activation { elements });
        ledger.part("fc2", &self.fc2, inner)
    }
}

/// A learned factor for every channel of a residual branch.
#[derive(Module, Debug)]
pub struct LayerScale {
    /// `[D]`
    pub gamma: Param<Tensor<1>>,
}

impl LayerScale {
    pub fn new(dim: usize, start: f64, device: &Device) -> Self {
        Self { gamma: Initializer::Constant { value: start }.init([dim], device) }
    }

    /// `[B, N, D] -> [B, N, D]`
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        x * self.gamma.val().unsqueeze()
    }
}

impl Costed for LayerScale {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let elements = shape.iter().product::<usize>();
        // element-wise, so not a multiply-add
        ledger.line(size(&self.gamma), Work::Activation { elements: elements as u64 }, elements);
        shape
    }
}

/// The cost of embedding and blocks for the patches only: no class token, no final norm, no head.
///
/// Published comparisons of ViT and DeiT count this way: 4.6, 17.5, 55.4 and 190.7 G multiply-adds.
#[must_use]
pub fn cost_of_patches(patch_embed: &PatchEmbed, blocks: &[EncoderBlock]) -> Ledger {
    let mut ledger = Ledger::default();
    let [rows, columns] = patch_embed.image;
    let channels = patch_embed.proj.weight.lazy_shape().dims::<4>()[1];
    let mut shape = ledger.part("patch_embed", patch_embed, vec![channels, rows, columns]);
    for (i, block) in blocks.iter().enumerate() {
        shape = ledger.part(format!("blocks.{i}"), block, shape);
    }
    ledger
}

/// `[B, N, D] -> [B, N, D]` through all blocks; records the tokens after each under `blocks.i`.
pub(crate) fn forward_blocks(blocks: &[EncoderBlock], mut x: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
    pass.begin_blocks(blocks.len());
    for (i, block) in blocks.iter().enumerate() {
        let name = format!("blocks.{i}");
        pass.next_block();
        x = pass.within(&name, |pass| block.forward(x, pass));
        x = pass.watch(&name, x);
    }
    x
}

/// Limits within which cost counts cannot overflow.
pub(crate) const MOST_TOKENS: usize = 1 << 16;
const LARGEST: usize = 1 << 16;
const DEEPEST: usize = 1 << 10;

/// An error that names the field, unless the size is within 1 and the limit.
pub(crate) fn check_size(field: &'static str, value: usize) -> Result<(), Error> {
    check_range(field, value, LARGEST)
}

/// The same check for the number of blocks.
pub(crate) fn check_depth(depth: usize) -> Result<(), Error> {
    check_range("depth", depth, DEEPEST)
}

fn check_range(field: &'static str, value: usize, most: usize) -> Result<(), Error> {
    if (1..=most).contains(&value) {
        Ok(())
    } else {
        Err(Error::config(field, format!("must be from 1 to {most}, got {value}")))
    }
}

/// A learned table `[1, N, D]` of tokens or positions, initialised normal with deviation 0.02.
pub(crate) fn normal_table(tokens: usize, dim: usize, device: &Device) -> Param<Tensor<3>> {
    Initializer::Normal { mean: 0.0, std: 0.02 }.init([1, tokens, dim], device)
}

/// Prepends a learned token `[1, 1, D]`: `[B, N, D] -> [B, 1 + N, D]`.
pub(crate) fn prepend(token: &Param<Tensor<3>>, tokens: Tensor<3>) -> Tensor<3> {
    let [batch, _, dim] = tokens.dims();
    Tensor::cat(vec![token.val().expand([batch, 1, dim]), tokens], 1)
}

#[cfg(test)]
mod tests;
