//! DeiT III: the plain Vision Transformer with a better recipe, scaled residuals and positions only for patches.
//! Touvron et al. 2022, "DeiT III: Revenge of the ViT", arXiv:2204.07118.
//!
//! Against ViT: a `LayerScale` on every residual branch, and a class token that is added after the positions, so
//! that it has none.
//!
//! Differences from facebookresearch/deit (`models_v2.py`): scales are named `ls1.gamma` and `ls2.gamma` as in timm, not
//! `gamma_1` and `gamma_2`; stochastic depth is part of training.

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

/// A DeiT III in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deit3Config {
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
    /// Initial value of `LayerScale`.
    pub layer_scale: f64,
    /// Epsilon of norms.
    pub epsilon: f64,
}

impl Deit3Config {
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
    pub fn init(&self, device: &Device) -> Result<Deit3, Error> {
        self.validate()?;
        let [rows, columns] = self.grid();
        Ok(Deit3 {
            cls_token: normal_table(1, self.dim, device),
            pos_embed: normal_table(rows * columns, self.dim, device),
            patch_embed: self.patches().init(device)?,
            blocks: (0..self.depth).map(|_| self.block().init(device)).collect::<Result<_, _>>()?,
            norm: LayerNorm::new(self.dim, self.epsilon, device),
            head: Linear::normal(self.dim, self.classes, device),
        })
    }

    /// Rows and columns of patches.
    #[must_use]
    pub const fn grid(&self) -> [usize; 2] {
        self.patches().grid()
    }

    /// Tokens before the patches, in the sequence; the table of positions has none of them.
    #[must_use]
    pub const fn prefix(&self) -> usize {
        1
    }

    const fn patches(&self) -> PatchEmbedConfig {
        PatchEmbedConfig { image: self.image, patch: self.patch, channels: self.channels, dim: self.dim }
    }

    const fn block(&self) -> EncoderBlockConfig {
        let Self { dim, heads, mlp_dim, epsilon, layer_scale, .. } = *self;
        EncoderBlockConfig { dim, heads, mlp_dim, epsilon, layer_scale: Some(layer_scale) }
    }
}

/// The model; made by [`Deit3Config::init`].
#[derive(Module, Debug)]
pub struct Deit3 {
    /// `[1, 1, D]`
    pub cls_token: Param<Tensor<3>>,
    /// `[1, N, D]`, only for patches.
    pub pos_embed: Param<Tensor<3>>,
    pub patch_embed: PatchEmbed,
    pub blocks: Vec<EncoderBlock>,
    pub norm: LayerNorm,
    pub head: Linear,
}

impl Deit3 {
    /// `[B, C, H, W] -> [B, classes]`
    ///
    /// Records `blocks.i.attn.weights` `[B, A, N, N]`, the tokens after each block `blocks.i`, and `norm` `[B, N, D]`.
    ///
    /// # Panics
    /// When the images do not have the config's size and channels.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<2> {
        self.forward_heads(images, pass).mean()
    }

    /// `[B, N, D] -> [B, classes]`: the logits from the tokens after the last block, or after any other.
    pub fn read_out(&self, x: Tensor<3>, pass: &mut Pass) -> Tensor<2> {
        let x = self.norm.forward(x);
        pass.record("norm", &x);
        self.head.forward(x.narrow(1, 0, 1).squeeze_dim::<2>(1))
    }

    /// Costs as comparison tables count them: only patches, no class token and no head.
    #[must_use]
    pub fn cost_of_patches(&self) -> Ledger {
        cost_of_patches(&self.patch_embed, &self.blocks)
    }
}

impl ImageTransformer for Deit3 {
    fn parts(&self) -> TransformerParts<'_> {
        let (tokens, heads) = (vec![&self.cls_token], vec![&self.head]);
        let (positions, readout) = (TablePositions::Patches(&self.pos_embed), Readout::Tokens);
        let (embed, blocks, norm) = (&self.patch_embed, &self.blocks[..], &self.norm);
        TransformerParts { embed, tokens, positions, blocks, norm, readout, heads }
    }

    fn embed(&self, images: Tensor<4>) -> Tensor<3> {
        prepend(&self.cls_token, self.patch_embed.forward(images) + self.pos_embed.val())
    }

    fn read_out_heads(&self, tokens: Tensor<3>, pass: &mut Pass) -> Heads {
        Heads::single(self.read_out(tokens, pass))
    }

    fn encoder_blocks_mut(&mut self) -> &mut Vec<EncoderBlock> {
        &mut self.blocks
    }
}

impl FamilyConfig for Deit3Config {
    fn position_grid(&self) -> Option<[usize; 2]> {
        Some(self.grid())
    }
}

impl Costed for Deit3 {
    fn cost(&self, picture: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("patch_embed", &self.patch_embed, picture);
        let elements = shape.iter().product();
        let add = Work::Add { elements: elements as u64 };
        ledger.within("pos_embed", |ledger| ledger.line(size(&self.pos_embed), add, elements));
        ledger.within("cls_token", |ledger| ledger.line(size(&self.cls_token), Work::Table, 0));
        shape[0] += 1;
        for (i, block) in self.blocks.iter().enumerate() {
            shape = ledger.part(format!("blocks.{i}"), block, shape);
        }
        ledger.part("norm", &self.norm, shape);
        ledger.within("head", |ledger| self.head.cost_as_head(ledger))
    }
}

/// | | patch | depth | D | heads | parameters (counted) |
/// |---|---|---|---|---|---|
/// | S | 16 | 12 | 384 | 6 | 22.06 M |
/// | B | 16 | 12 | 768 | 12 | 86.59 M |
/// | L | 16 | 24 | 1024 | 16 | 304.37 M |
/// | H | 14 | 32 | 1280 | 16 | 632.13 M |
impl Deit3Config {
    const fn new(image: usize, [patch, depth, dim, heads]: [usize; 4]) -> Self {
        let (image, mlp_dim) = ([image; 2], 4 * dim);
        let (layer_scale, epsilon) = (1e-4, 1e-6);
        Self { image, patch, channels: 3, classes: 1000, dim, depth, heads, mlp_dim, layer_scale, epsilon }
    }

    #[must_use]
    pub const fn small(image: usize) -> Self {
        Self::new(image, [16, 12, 384, 6])
    }

    #[must_use]
    pub const fn base(image: usize) -> Self {
        Self::new(image, [16, 12, 768, 12])
    }

    #[must_use]
    pub const fn large(image: usize) -> Self {
        Self::new(image, [16, 24, 1024, 16])
    }

    #[must_use]
    pub const fn huge(image: usize) -> Self {
        Self::new(image, [14, 32, 1280, 16])
    }
}

const fn preset(name: &'static str, config: fn() -> Deit3Config) -> Preset<Deit3Config> {
    Preset { name, paper: "arXiv:2204.07118", preprocess: Preprocess::WHOLE, config }
}

/// Parameters and multiply-adds of each, counted from the model, are in the tests.
pub const PRESETS: &[Preset<Deit3Config>] = &[
    preset("deit3-small", || Deit3Config::small(224)),
    preset("deit3-base", || Deit3Config::base(224)),
    preset("deit3-large", || Deit3Config::large(224)),
    preset("deit3-huge", || Deit3Config::huge(224)),
];

#[cfg(test)]
mod tests;
