//! What a family provides besides its forward pass: everything that analyses, weights and packed models need.
//!
//! A family implements these traits in its own file; nothing outside it matches over families.

use burn::tensor::Tensor;

use super::{Heads, Packing};
use crate::Pass;
use crate::layers::packed::{PackedForm, TablePositions, TransformerParts};
use crate::layers::{EncoderBlock, PatchEmbed, forward_blocks};
use crate::pass::Axes;

/// A configuration of a family.
pub trait FamilyConfig {
    /// Rows and columns that positions are learned for; none for models without learned positions.
    fn position_grid(&self) -> Option<[usize; 2]> {
        None
    }
}

/// What analyses need of a model.
pub trait Inspect {
    /// The names under which a forward pass records the output of every block, tokens `[B, N, D]` or maps `[B, C, H, W]`;
    /// `*` stands for any one part of a name.
    fn blocks(&self) -> &'static str;

    /// The names of the maps `[B, C, H, W]` of which the last one is pooled for the head; none for models of tokens.
    fn pooled(&self) -> Option<&'static str> {
        Some(self.blocks())
    }

    /// The filters `[D, C, H, W]` of the first layer, where they cover more than one pixel.
    fn first_filters(&self) -> Option<Tensor<4>> {
        None
    }

    /// The model as a transformer over patches, if it is one.
    fn as_transformer(&self) -> Option<&dyn ImageTransformer> {
        None
    }

    /// The same, to be changed.
    fn as_transformer_mut(&mut self) -> Option<&mut dyn ImageTransformer> {
        None
    }
}

/// A transformer over patches: images become tokens, tokens go through blocks, a head reads them out.
///
/// Whoever is one is inspected and packed as one.
pub trait ImageTransformer {
    /// What it is made of.
    fn parts(&self) -> TransformerParts<'_>;

    /// `[B, C, H, W] -> [B, N, D]`: the tokens before the first block.
    ///
    /// # Panics
    /// When the images do not have the model's size and channels.
    fn embed(&self, images: Tensor<4>) -> Tensor<3>;

    /// The logits from the tokens `[B, N, D]` after the last block, or after any other.
    fn read_out_heads(&self, tokens: Tensor<3>, pass: &mut Pass) -> Heads;

    fn encoder_blocks_mut(&mut self) -> &mut Vec<EncoderBlock>;

    fn encoder_blocks(&self) -> &[EncoderBlock] {
        self.parts().blocks
    }

    fn patch_embed(&self) -> &PatchEmbed {
        self.parts().embed
    }

    /// Tokens before the patches: of the class, of distillation.
    fn prefix(&self) -> usize {
        self.parts().tokens.len()
    }

    /// The table of learned positions, `[1, N, D]`; tokens of the prefix may have none.
    fn positions(&self) -> Tensor<3> {
        let (TablePositions::All(table) | TablePositions::Patches(table)) = self.parts().positions;
        table.val()
    }

    /// How the tokens are laid out.
    fn axes(&self) -> Axes {
        Axes::Grid { prefix: self.prefix(), size: self.patch_embed().grid() }
    }

    /// `[B, C, H, W] -> [B, N, D]`: the tokens after the last block; records those after each under `blocks.i`.
    ///
    /// # Panics
    /// When the images do not have the model's size and channels.
    fn through(&self, images: Tensor<4>, pass: &mut Pass) -> Tensor<3> {
        let tokens = self.embed(images);
        pass.with_tokens(self.axes(), |pass| forward_blocks(self.encoder_blocks(), tokens, pass))
    }

    /// `[B, C, H, W]` to the logits of every head; records the tokens after each block under `blocks.i`.
    ///
    /// # Panics
    /// When the images do not have the model's size and channels.
    fn forward_heads(&self, images: Tensor<4>, pass: &mut Pass) -> Heads {
        let tokens = self.through(images, pass);
        self.read_out_heads(tokens, pass)
    }
}

impl<T: ImageTransformer> Inspect for T {
    fn blocks(&self) -> &'static str {
        "blocks.*"
    }

    fn pooled(&self) -> Option<&'static str> {
        None
    }

    fn first_filters(&self) -> Option<Tensor<4>> {
        Some(self.patch_embed().proj.weight.val())
    }

    fn as_transformer(&self) -> Option<&dyn ImageTransformer> {
        Some(self)
    }

    fn as_transformer_mut(&mut self) -> Option<&mut dyn ImageTransformer> {
        Some(self)
    }
}

impl<T: ImageTransformer> Packing for T {
    fn packed_form(&self) -> PackedForm<'_> {
        PackedForm::Transformer(self.parts())
    }
}
