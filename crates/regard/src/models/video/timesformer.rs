//! TimeSformer: a Vision Transformer over the patches of all frames, which attend in space and time by one of five schemes.
//! Bertasius, Wang and Torresani 2021, "Is Space-Time Attention All You Need for Video Understanding?", arXiv:2102.05095.
//!
//! Field names are those of facebookresearch/TimeSformer. Differences from it:
//! - it has no sparse local-global and no axial scheme; the names of their layers are formed like `temporal_attn`;
//! - frames come slowest in the order of tokens; there they come fastest. No parameter depends on it;
//! - a model is built for its frames and its image; [`weights`](crate::weights) resamples positions and times, where upstream
//!   does it in every forward pass;
//! - stochastic depth of divided attention drops a branch of the whole clip, where upstream draws anew for every place in time
//!   attention and for every frame in space attention.

mod block;
mod cost;
mod presets;

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

use crate::attention::{AttentionPlan, ClipGrid, SpaceTime};
use crate::data::Clips;
use crate::layers::{
    EncoderBlockConfig, LayerNorm, Linear, MOST_TOKENS, PatchEmbed, PatchEmbedConfig, Start, check_depth, check_size,
    normal_table,
};
use crate::models::limits::check_image;
use crate::{Error, Pass};

pub use block::TimesformerBlock;
pub use presets::{PRESETS, preset};

/// A TimeSformer in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimesformerConfig {
    /// The attention scheme in space and time.
    pub scheme: SpaceTime,
    /// Frames of a clip, `T`.
    pub frames: usize,
    /// Rows and columns of a frame.
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
    /// Epsilon of norms.
    pub epsilon: f64,
    /// What it holds before training; a narrow one has a class token, positions and times as large as what is seen, too.
    #[serde(default)]
    pub start: Start,
}

impl TimesformerConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        self.patches().validate()?;
        self.block().validate()?;
        check_depth(self.depth)?;
        check_size("frames", self.frames)?;
        check_size("classes", self.classes)?;
        let ClipGrid { frames, height, width } = self.grid();
        if frames * height * width > MOST_TOKENS {
            let reason = format!("{frames} frames of {height} x {width} patches are more than {MOST_TOKENS} tokens");
            return Err(Error::config("frames", reason));
        }
        Ok(())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Timesformer, Error> {
        self.validate()?;
        let ClipGrid { frames, height, width } = self.grid();
        let has_time = !self.scheme.keeps_frames_apart();
        let block = |_| TimesformerBlock::new(self.scheme, &self.block(), device);
        let model = Timesformer {
            cls_token: normal_table(1, self.dim, device),
            pos_embed: normal_table(1 + height * width, self.dim, device),
            time_embed: has_time.then(|| Initializer::Zeros.init([1, frames, self.dim], device)),
            patch_embed: self.patches().init(device)?,
            blocks: (0..self.depth).map(block).collect::<Result<_, _>>()?,
            norm: LayerNorm::new(self.dim, self.epsilon, device),
            head: Linear::normal(self.dim, self.classes, device),
            scheme: self.scheme,
            grid: self.grid(),
        };
        Ok(match self.start {
            Start::Paper => model,
            Start::Narrow => model.start_narrow(),
        })
    }

    /// Frames, and rows and columns of patches.
    #[must_use]
    pub const fn grid(&self) -> ClipGrid {
        let [height, width] = self.patches().grid();
        ClipGrid { frames: self.frames, height, width }
    }

    const fn patches(&self) -> PatchEmbedConfig {
        PatchEmbedConfig { image: self.image, patch: self.patch, channels: self.channels, dim: self.dim }
    }

    const fn block(&self) -> EncoderBlockConfig {
        let Self { dim, heads, mlp_dim, epsilon, .. } = *self;
        EncoderBlockConfig { dim, heads, mlp_dim, epsilon, layer_scale: None }
    }
}

/// The model; made by [`TimesformerConfig::init`].
#[derive(Module, Debug)]
pub struct Timesformer {
    /// `[1, 1, D]`
    pub cls_token: Param<Tensor<3>>,
    /// `[1, 1 + H*W, D]`, the same for every frame.
    pub pos_embed: Param<Tensor<3>>,
    /// `[1, T, D]`, the same for every patch of a frame; `None` if frames are separate.
    pub time_embed: Option<Param<Tensor<3>>>,
    pub patch_embed: PatchEmbed,
    pub blocks: Vec<TimesformerBlock>,
    pub norm: LayerNorm,
    pub head: Linear,
    #[module(skip)]
    scheme: SpaceTime,
    #[module(skip)]
    grid: ClipGrid,
}

impl Timesformer {
    /// `[B, C, T, H, W] -> [B, classes]`
    ///
    /// Records the weights of every attention step, `blocks.i.attn.weights` and such as `blocks.i.temporal_attn.weights`,
    /// `[B, A, N, N]` for `N = 1 + T*H*W` tokens; the tokens after each block `blocks.i`, and `norm` `[B, N, D]`.
    /// If frames are separate, weights and blocks have `B*T` clips of one frame each.
    ///
    /// # Panics
    /// When the clips do not have the config's frames, size and channels.
    pub fn forward(&self, clips: &Clips, pass: &mut Pass) -> Tensor<2> {
        let mut x = self.embed(clips);
        let plans = Arc::new(self.plans());
        pass.begin_blocks(self.blocks.len());
        for (i, block) in self.blocks.iter().enumerate() {
            let name = format!("blocks.{i}");
            pass.next_block();
            let plans = plans.clone();
            x = pass.within(&name, |pass| pass.block(block, x, move |block, x, pass| block.forward(x, &plans, pass)));
            x = pass.watch(&name, x);
        }
        self.read_out(x, pass)
    }

    /// `[B, C, T, H, W] -> [B, 1 + T*H*W, D]`, or `[B*T, 1 + H*W, D]` where frames are kept apart.
    fn embed(&self, clips: &Clips) -> Tensor<3> {
        let (frames, own) = (clips.frames(), self.grid.frames);
        assert!(
            frames == own,
            "timesformer: the clip has {frames} frames, times are learned for {own}; build the model for the other \
             number and resample `time_embed` with the weights module"
        );
        let patches = self.patch_embed.forward(clips.images());
        let [images, count, dim] = patches.dims();
        let positions = self.pos_embed.val();
        let class = self.cls_token.val() + positions.clone().narrow(1, 0, 1);
        let patches = patches + positions.narrow(1, 1, count);
        let Some(times) = &self.time_embed else {
            return Tensor::cat(vec![class.expand([images, 1, dim]), patches], 1);
        };
        let batch = images / frames;
        let patches = patches.reshape([batch, frames, count, dim]) + times.val().reshape([1, frames, 1, dim]);
        Tensor::cat(vec![class.expand([batch, 1, dim]), patches.reshape([batch, frames * count, dim])], 1)
    }

    /// The logits from the tokens after the last block, or after any other.
    pub fn read_out(&self, mut x: Tensor<3>, pass: &mut Pass) -> Tensor<2> {
        if self.scheme.keeps_frames_apart() {
            let ([images, tokens, dim], frames) = (x.dims(), self.grid.frames);
            x = x.reshape([images / frames, frames, tokens, dim]).mean_dim(1).squeeze_dim(1);
        }
        x = self.norm.forward(x);
        pass.record("norm", &x);
        self.head.forward(x.narrow(1, 0, 1).squeeze_dim(1))
    }

    /// The paper's class token, positions and times are so small that a narrow model does not see the order of frames for long.
    fn start_narrow(mut self) -> Self {
        let table = |table: Param<Tensor<3>>| {
            let [one, tokens, dim] = table.lazy_shape().dims();
            Initializer::Normal { mean: 0.0, std: 0.3 }.init([one, tokens, dim], &table.lazy_device())
        };
        self.cls_token = table(self.cls_token);
        self.pos_embed = table(self.pos_embed);
        self.time_embed = self.time_embed.map(table);
        self.blocks = Start::Narrow.apply(self.blocks);
        for block in &mut self.blocks {
            let [dim, inner] = block.mlp.fc2.weight.lazy_shape().dims();
            // attention finds the order of frames sooner while no MLP changes what it sees
            block.mlp.fc2 = Linear::zeros(inner, dim, &block.mlp.fc2.weight.lazy_device());
        }
        self
    }

    /// Which tokens attend to which, the same in every block.
    fn plans(&self) -> Vec<AttentionPlan> {
        let frames = if self.scheme.keeps_frames_apart() { 1 } else { self.grid.frames };
        self.scheme.plans(ClipGrid { frames, ..self.grid })
    }
}

#[cfg(test)]
mod tests;
