//! DeiT: a Vision Transformer trained only on ImageNet, distilled from a convolutional network through a distillation token.
//! Touvron et al. 2020, "Training data-efficient image transformers & distillation through attention", arXiv:2012.12877.
//!
//! The distilled model has two heads. Inference averages their logits; training compares each with its own target, so
//! [`ImageTransformer::forward_heads`] returns both.
//!
//! Differences from facebookresearch/deit: `forward` always averages, where the source returns a pair in training; the
//! normal initialisation is not truncated at a hundred deviations.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use regard_kernels::transformer::Readout;
use serde::{Deserialize, Serialize};

use super::{FamilyConfig, Heads, ImageTransformer, Preset};
use crate::cost::{Costed, Ledger, Work, size};
use crate::data::Preprocess;
use crate::layers::packed::{TablePositions, TransformerParts};
use crate::layers::{
    EncoderBlock, EncoderBlockConfig, LayerNorm, Linear, PatchEmbed, PatchEmbedConfig, check_depth, check_size,
    cost_of_patches, normal_table, prepend,
};
use crate::models::limits::check_image;
use crate::{Error, Pass};

/// A DeiT in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeitConfig {
    /// Rows and columns of the image.
    pub image: [usize; 2],
    /// Side of a patch.
    pub patch: usize,
    pub channels: usize,
    pub classes: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    /// Number of blocks.
    pub depth: usize,
    pub heads: usize,
    /// Hidden width of the MLP.
    pub mlp_dim: usize,
    /// Whether there is a distillation token with its own head.
    pub distilled: bool,
    /// Epsilon of norms: 1e-6 in the source, 1e-12 in Hugging Face.
    pub epsilon: f64,
}

impl DeitConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        self.patches().validate()?;
        self.block().validate()?;
        check_depth(self.depth)?;
        check_size("classes", self.classes)
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Deit, Error> {
        self.validate()?;
        let head = || Linear::normal(self.dim, self.classes, device);
        let [rows, columns] = self.grid();
        Ok(Deit {
            cls_token: normal_table(1, self.dim, device),
            dist_token: self.distilled.then(|| normal_table(1, self.dim, device)),
            pos_embed: normal_table(self.prefix() + rows * columns, self.dim, device),
            patch_embed: self.patches().init(device)?,
            blocks: (0..self.depth).map(|_| self.block().init(device)).collect::<Result<_, _>>()?,
            norm: LayerNorm::new(self.dim, self.epsilon, device),
            head: head(),
            head_dist: self.distilled.then(head),
        })
    }

    /// Rows and columns of patches.
    #[must_use]
    pub const fn grid(&self) -> [usize; 2] {
        self.patches().grid()
    }

    /// Tokens before the patches.
    #[must_use]
    pub const fn prefix(&self) -> usize {
        if self.distilled { 2 } else { 1 }
    }

    const fn patches(&self) -> PatchEmbedConfig {
        PatchEmbedConfig { image: self.image, patch: self.patch, channels: self.channels, dim: self.dim }
    }

    const fn block(&self) -> EncoderBlockConfig {
        let Self { dim, heads, mlp_dim, epsilon, .. } = *self;
        EncoderBlockConfig { dim, heads, mlp_dim, epsilon, layer_scale: None }
    }
}

/// The model; made by [`DeitConfig::init`].
#[derive(Module, Debug)]
pub struct Deit {
    /// `[1, 1, D]`
    pub cls_token: Param<Tensor<3>>,
    /// `[1, 1, D]`
    pub dist_token: Option<Param<Tensor<3>>>,
    /// `[1, prefix + N, D]`
    pub pos_embed: Param<Tensor<3>>,
    pub patch_embed: PatchEmbed,
    pub blocks: Vec<EncoderBlock>,
    pub norm: LayerNorm,
    pub head: Linear,
    pub head_dist: Option<Linear>,
}

impl Deit {
    /// `[B, C, H, W] -> [B, classes]`: the mean of both heads' logits.
    ///
    /// Records `blocks.i.attn.weights` `[B, A, N, N]`, the tokens after each block `blocks.i`, and `norm` `[B, N, D]`.
    ///
    /// # Panics
    /// When the images do not have the config's size and channels.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        self.forward_heads(images, pass).mean()
    }

    /// The logits from the tokens `[B, N, D]` after the last block, or after any other.
    pub fn read_out(&self, x: Tensor<3>, pass: &mut Pass) -> Heads {
        let x = self.norm.forward(x);
        pass.record("norm", &x);
        let token = |index: usize| x.clone().narrow(1, index, 1).squeeze_dim::<2>(1);
        Heads {
            class: self.head.forward(token(0)),
            distilled: self.head_dist.as_ref().map(|head| head.forward(token(1))),
        }
    }

    /// Costs as comparison tables count them: only patches, no other tokens and no head.
    #[must_use]
    pub fn cost_of_patches(&self) -> Ledger {
        cost_of_patches(&self.patch_embed, &self.blocks)
    }
}

impl ImageTransformer for Deit {
    fn parts(&self) -> TransformerParts<'_> {
        let tokens = std::iter::once(&self.cls_token).chain(&self.dist_token).collect();
        let heads = std::iter::once(&self.head).chain(&self.head_dist).collect();
        let (positions, readout) = (TablePositions::All(&self.pos_embed), Readout::Tokens);
        let (embed, blocks, norm) = (&self.patch_embed, &self.blocks[..], &self.norm);
        TransformerParts { embed, tokens, positions, blocks, norm, readout, heads }
    }

    fn embed(&self, images: Tensor<4>) -> Tensor<3> {
        let mut x = self.patch_embed.forward(images);
        if let Some(token) = &self.dist_token {
            x = prepend(token, x);
        }
        prepend(&self.cls_token, x) + self.pos_embed.val()
    }

    fn read_out_heads(&self, tokens: Tensor<3>, pass: &mut Pass) -> Heads {
        self.read_out(tokens, pass)
    }

    fn encoder_blocks_mut(&mut self) -> &mut Vec<EncoderBlock> {
        &mut self.blocks
    }
}

impl FamilyConfig for DeitConfig {
    fn position_grid(&self) -> Option<[usize; 2]> {
        Some(self.grid())
    }
}

impl Costed for Deit {
    fn cost(&self, picture: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("patch_embed", &self.patch_embed, picture);
        for (name, token) in [("cls_token", Some(&self.cls_token)), ("dist_token", self.dist_token.as_ref())] {
            if let Some(token) = token {
                ledger.within(name, |ledger| ledger.line(size(token), Work::Table, 0));
                shape[0] += 1;
            }
        }
        let elements = shape.iter().product();
        let add = Work::Add { elements: elements as u64 };
        ledger.within("pos_embed", |ledger| ledger.line(size(&self.pos_embed), add, elements));
        for (i, block) in self.blocks.iter().enumerate() {
            shape = ledger.part(format!("blocks.{i}"), block, shape);
        }
        ledger.part("norm", &self.norm, shape);
        let logits = ledger.within("head", |ledger| self.head.cost_as_head(ledger));
        if let Some(head) = &self.head_dist {
            ledger.within("head_dist", |ledger| head.cost_as_head(ledger));
            ledger.each("mean", &logits, |elements| Work::Add { elements });
        }
        logits
    }
}

/// Table 1 of the paper; depth 12 and patches of 16 for all.
///
/// | | D | heads | parameters | with distillation (counted) |
/// |---|---|---|---|---|
/// | Ti | 192 | 3 | 5 M | 5.9 M |
/// | S | 384 | 6 | 22 M | 22.4 M |
/// | B | 768 | 12 | 86 M | 87.3 M |
impl DeitConfig {
    const fn new(image: usize, dim: usize, heads: usize) -> Self {
        let (image, mlp_dim, distilled) = ([image; 2], 4 * dim, false);
        Self { image, patch: 16, channels: 3, classes: 1000, dim, depth: 12, heads, mlp_dim, distilled, epsilon: 1e-6 }
    }

    #[must_use]
    pub const fn tiny(image: usize) -> Self {
        Self::new(image, 192, 3)
    }

    #[must_use]
    pub const fn small(image: usize) -> Self {
        Self::new(image, 384, 6)
    }

    #[must_use]
    pub const fn base(image: usize) -> Self {
        Self::new(image, 768, 12)
    }

    /// The same with a distillation token.
    #[must_use]
    pub const fn with_distillation(self) -> Self {
        Self { distilled: true, ..self }
    }
}

const fn preset(name: &'static str, preprocess: Preprocess, config: fn() -> DeitConfig) -> Preset<DeitConfig> {
    Preset { name, paper: "arXiv:2012.12877", preprocess, config }
}

/// Parameters and multiply-adds of each, counted from the model, are in the tests, next to those of the paper.
pub const PRESETS: &[Preset<DeitConfig>] = &[
    preset("deit-tiny", Preprocess::DEIT, || DeitConfig::tiny(224)),
    preset("deit-small", Preprocess::DEIT, || DeitConfig::small(224)),
    preset("deit-base", Preprocess::DEIT, || DeitConfig::base(224)),
    preset("deit-base-384", Preprocess::WHOLE, || DeitConfig::base(384)),
    preset("deit-tiny-distilled", Preprocess::DEIT, || DeitConfig::tiny(224).with_distillation()),
    preset("deit-small-distilled", Preprocess::DEIT, || DeitConfig::small(224).with_distillation()),
    preset("deit-base-distilled", Preprocess::DEIT, || DeitConfig::base(224).with_distillation()),
    preset("deit-base-distilled-384", Preprocess::WHOLE, || DeitConfig::base(384).with_distillation()),
];

#[cfg(test)]
mod tests;
