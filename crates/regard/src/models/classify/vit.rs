//! Vision Transformer: an image as a sentence of patches.
//! Dosovitskiy et al. 2020, "An Image is Worth 16x16 Words", arXiv:2010.11929.
//!
//! Field names are timm's. Differences from google-research/vision_transformer:
//! - no hidden layer in the head, which the paper has during large-scale pre-training only;
//! - no dropout;
//! - weights are initialised normal with deviation 0.02, as in DeiT, including the head, which is zero in the source.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use regard_kernels::transformer::Readout;
use serde::{Deserialize, Serialize};

use super::{Backbone, FamilyConfig, FeatureMap, Heads, ImageTransformer, Preset};
use crate::cost::{Costed, Ledger, Work, size};
use crate::data::Preprocess;
use crate::layers::packed::{TablePositions, TransformerParts};
use crate::layers::{
    EncoderBlock, EncoderBlockConfig, LayerNorm, Linear, PatchEmbed, PatchEmbedConfig, check_depth, check_size,
    cost_of_patches, normal_table, prepend,
};
use crate::models::limits::check_image;
use crate::{Error, Pass};

/// A Vision Transformer in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VitConfig {
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
    pub pool: Pool,
    /// Epsilon of norms: 1e-6 in timm and torchvision, 1e-12 in Hugging Face.
    pub epsilon: f64,
}

/// What the head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pool {
    /// A class token before the patches.
    ClassToken,
    /// The mean of the patches, normalised after pooling.
    Average,
}

impl VitConfig {
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
    pub fn init(&self, device: &Device) -> Result<Vit, Error> {
        self.validate()?;
        let class_token = self.pool == Pool::ClassToken;
        let norm = || LayerNorm::new(self.dim, self.epsilon, device);
        let [rows, columns] = self.grid();
        Ok(Vit {
            cls_token: class_token.then(|| normal_table(1, self.dim, device)),
            pos_embed: normal_table(self.prefix() + rows * columns, self.dim, device),
            patch_embed: self.patches().init(device)?,
            blocks: (0..self.depth).map(|_| self.block().init(device)).collect::<Result<_, _>>()?,
            norm: class_token.then(norm),
            fc_norm: (!class_token).then(norm),
            head: Linear::normal(self.dim, self.classes, device),
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
        match self.pool {
            Pool::ClassToken => 1,
            Pool::Average => 0,
        }
    }

    const fn patches(&self) -> PatchEmbedConfig {
        PatchEmbedConfig { image: self.image, patch: self.patch, channels: self.channels, dim: self.dim }
    }

    const fn block(&self) -> EncoderBlockConfig {
        let Self { dim, heads, mlp_dim, epsilon, .. } = *self;
        EncoderBlockConfig { dim, heads, mlp_dim, epsilon, layer_scale: None }
    }
}

/// The model; made by [`VitConfig::init`].
#[derive(Module, Debug)]
pub struct Vit {
    /// `[1, 1, D]`
    pub cls_token: Option<Param<Tensor<3>>>,
    /// `[1, prefix + N, D]`
    pub pos_embed: Param<Tensor<3>>,
    pub patch_embed: PatchEmbed,
    pub blocks: Vec<EncoderBlock>,
    /// Norm of every token, with a class token.
    pub norm: Option<LayerNorm>,
    /// Norm of the mean, without a class token.
    pub fc_norm: Option<LayerNorm>,
    pub head: Linear,
}

impl Vit {
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
    pub fn read_out(&self, mut x: Tensor<3>, pass: &mut Pass) -> Tensor<2> {
        if let Some(norm) = &self.norm {
            x = norm.forward(x);
            pass.record("norm", &x);
        }
        let mut pooled = match &self.cls_token {
            Some(_) => x.narrow(1, 0, 1).squeeze_dim::<2>(1),
            None => x.mean_dim(1).squeeze_dim(1),
        };
        if let Some(norm) = &self.fc_norm {
            pooled = norm.forward(pooled);
        }
        self.head.forward(pooled)
    }

    /// Costs as comparison tables count them: only patches, no class token and no head.
    #[must_use]
    pub fn cost_of_patches(&self) -> Ledger {
        cost_of_patches(&self.patch_embed, &self.blocks)
    }
}

impl Backbone for Vit {
    /// One map: the patches after the last block.
    fn features(&self, images: Tensor<4>, pass: &mut Pass) -> Vec<FeatureMap> {
        let tokens = self.through(images, pass);
        let [batch, count, dim] = tokens.dims();
        let ([rows, columns], prefix) = (self.patch_embed.grid(), self.prefix());
        let patches = tokens.narrow(1, prefix, count - prefix).swap_dims(1, 2).reshape([batch, dim, rows, columns]);
        let name = format!("blocks.{}", self.blocks.len() - 1);
        vec![FeatureMap { name, stride: self.patch_embed.image()[0] / rows, map: patches }]
    }
}

impl ImageTransformer for Vit {
    fn parts(&self) -> TransformerParts<'_> {
        let norms = [(Readout::Tokens, &self.norm), (Readout::Mean, &self.fc_norm)];
        let norm = norms.into_iter().find_map(|(readout, norm)| Some((readout, norm.as_ref()?)));
        let (readout, norm) = norm.expect("either every token or their mean is normalised");
        let (tokens, positions) = (self.cls_token.iter().collect(), TablePositions::All(&self.pos_embed));
        let (embed, blocks, heads) = (&self.patch_embed, &self.blocks[..], vec![&self.head]);
        TransformerParts { embed, tokens, positions, blocks, norm, readout, heads }
    }

    fn embed(&self, images: Tensor<4>) -> Tensor<3> {
        let mut x = self.patch_embed.forward(images);
        if let Some(token) = &self.cls_token {
            x = prepend(token, x);
        }
        x + self.pos_embed.val()
    }

    fn read_out_heads(&self, tokens: Tensor<3>, pass: &mut Pass) -> Heads {
        Heads::single(self.read_out(tokens, pass))
    }

    fn encoder_blocks_mut(&mut self) -> &mut Vec<EncoderBlock> {
        &mut self.blocks
    }
}

impl FamilyConfig for VitConfig {
    fn position_grid(&self) -> Option<[usize; 2]> {
        Some(self.grid())
    }
}

impl Costed for Vit {
    fn cost(&self, picture: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let mut shape = ledger.part("patch_embed", &self.patch_embed, picture);
        if let Some(token) = &self.cls_token {
            ledger.within("cls_token", |ledger| ledger.line(size(token), Work::Table, 0));
            shape[0] += 1;
        }
        let elements = shape.iter().product();
        let add = Work::Add { elements: elements as u64 };
        ledger.within("pos_embed", |ledger| ledger.line(size(&self.pos_embed), add, elements));
        for (i, block) in self.blocks.iter().enumerate() {
            shape = ledger.part(format!("blocks.{i}"), block, shape);
        }
        if let Some(norm) = &self.norm {
            shape = ledger.part("norm", norm, shape);
        }
        if let Some(norm) = &self.fc_norm {
            let [tokens, dim] = [shape[0], shape[1]];
            let work = Work::Pool { inputs: (tokens * dim) as u64, outputs: dim as u64, window: tokens as u64 };
            ledger.within("pool", |ledger| ledger.line(0, work, dim));
            ledger.part("fc_norm", norm, vec![dim]);
        }
        ledger.within("head", |ledger| self.head.cost_as_head(ledger))
    }
}

/// | | depth | D | MLP | heads | source |
/// |---|---|---|---|---|---|
/// | Ti | 12 | 192 | 768 | 3 | Steiner et al. 2021, arXiv:2106.10270 |
/// | S | 12 | 384 | 1536 | 6 | same |
/// | B | 12 | 768 | 3072 | 12 | Dosovitskiy et al. 2020, Table 1: 86 M parameters |
/// | L | 24 | 1024 | 4096 | 16 | same: 307 M, which is L/32 |
/// | H | 32 | 1280 | 5120 | 16 | same: 632 M |
impl VitConfig {
    const fn new(image: usize, patch: usize, [depth, dim, mlp_dim, heads]: [usize; 4]) -> Self {
        let (image, pool) = ([image; 2], Pool::ClassToken);
        Self { image, patch, channels: 3, classes: 1000, dim, depth, heads, mlp_dim, pool, epsilon: 1e-6 }
    }

    #[must_use]
    pub const fn tiny(image: usize, patch: usize) -> Self {
        Self::new(image, patch, [12, 192, 768, 3])
    }

    #[must_use]
    pub const fn small(image: usize, patch: usize) -> Self {
        Self::new(image, patch, [12, 384, 1536, 6])
    }

    #[must_use]
    pub const fn base(image: usize, patch: usize) -> Self {
        Self::new(image, patch, [12, 768, 3072, 12])
    }

    #[must_use]
    pub const fn large(image: usize, patch: usize) -> Self {
        Self::new(image, patch, [24, 1024, 4096, 16])
    }

    #[must_use]
    pub const fn huge(image: usize, patch: usize) -> Self {
        Self::new(image, patch, [32, 1280, 5120, 16])
    }

    /// Ours, for pictures of 28 to 64 pixels: a million parameters, trained in minutes without a GPU.
    #[must_use]
    pub const fn nano() -> Self {
        Self { classes: 10, ..Self::new(32, 4, [5, 128, 512, 4]) }
    }

    /// The same without a class token.
    #[must_use]
    pub const fn averaged(self) -> Self {
        Self { pool: Pool::Average, ..self }
    }
}

const VIT: &str = "arXiv:2010.11929";
const AUGREG: &str = "arXiv:2106.10270";
/// Fine-tuned at 384, and small pictures: no crop.
const WHOLE: Preprocess = Preprocess { crop: 1.0, ..Preprocess::VIT };

const fn preset(
    name: &'static str,
    paper: &'static str,
    preprocess: Preprocess,
    config: fn() -> VitConfig,
) -> Preset<VitConfig> {
    Preset { name, paper, preprocess, config }
}

/// Parameters and multiply-adds of each, counted from the model, are in the tests, next to those of the papers.
pub const PRESETS: &[Preset<VitConfig>] = &[
    preset("vit-nano", "ours", WHOLE, VitConfig::nano),
    preset("vit-tiny-patch16-224", AUGREG, Preprocess::VIT, || VitConfig::tiny(224, 16)),
    preset("vit-small-patch16-224", AUGREG, Preprocess::VIT, || VitConfig::small(224, 16)),
    preset("vit-base-patch32-224", VIT, Preprocess::VIT, || VitConfig::base(224, 32)),
    preset("vit-base-patch16-224", VIT, Preprocess::VIT, || VitConfig::base(224, 16)),
    preset("vit-base-patch16-384", VIT, WHOLE, || VitConfig::base(384, 16)),
    preset("vit-large-patch32-224", VIT, Preprocess::VIT, || VitConfig::large(224, 32)),
    preset("vit-large-patch32-384", VIT, WHOLE, || VitConfig::large(384, 32)),
    preset("vit-large-patch16-224", VIT, Preprocess::VIT, || VitConfig::large(224, 16)),
    preset("vit-large-patch16-384", VIT, WHOLE, || VitConfig::large(384, 16)),
    preset("vit-huge-patch14-224", VIT, Preprocess::VIT, || VitConfig::huge(224, 14)),
    preset("vit-tiny-patch16-gap-224", VIT, Preprocess::VIT, || VitConfig::tiny(224, 16).averaged()),
    preset("vit-small-patch16-gap-224", VIT, Preprocess::VIT, || VitConfig::small(224, 16).averaged()),
    preset("vit-base-patch16-gap-224", VIT, Preprocess::VIT, || VitConfig::base(224, 16).averaged()),
];

#[cfg(test)]
mod tests;
