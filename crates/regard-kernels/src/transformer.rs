//! A whole vision transformer for inference only: its weights are packed once, and one thread takes a picture from its
//! pixels to its logits.
//!
//! When there are fewer pictures than threads, the threads share the tokens and heads of each picture instead. Every
//! number is the same sum in the same order in both cases.

use std::borrow::Cow;

use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, multiply_rows, rows_together};
use crate::heads::Head;
use crate::integer::{self, QuantizedWeights};
use crate::parallel::{Helpers, Parallel, for_each_picture, with_scratch};
use crate::product::Matrix;
use crate::size;
use crate::team::Leader;
use crate::uninit::UninitWriter;
use crate::{gelu, layer_norm};

/// Parameters of a linear map: weight `[out, in]` and bias `[out]`.
pub type LinearParams<'a> = (&'a [f32], &'a [f32]);

/// Parameters of a layer norm: weight and bias.
pub type Norm<'a> = (&'a [f32], &'a [f32]);

/// Parameters of a block of the encoder, as [`crate::encoder::Encoder`] has them.
#[derive(Clone, Copy, Debug)]
pub struct BlockParameters<'a> {
    pub norm1: Norm<'a>,
    pub qkv: LinearParams<'a>,
    pub proj: LinearParams<'a>,
    pub norm2: Norm<'a>,
    pub fc1: LinearParams<'a>,
    pub fc2: LinearParams<'a>,
    /// Factors of the channels of both branches.
    pub scales: Option<[&'a [f32]; 2]>,
}

/// Parameters of a transformer.
#[derive(Debug)]
pub struct Parameters<'a> {
    pub channels: usize,
    /// Rows and columns of an image.
    pub image: [usize; 2],
    /// Side of a patch.
    pub patch: usize,
    pub heads: usize,
    pub epsilon: f32,
    /// Weight `[D, C, P, P]` and bias.
    pub embed: LinearParams<'a>,
    /// `[.., D]`: tokens before the patches, with their positions.
    pub prefix: Vec<f32>,
    /// `[N, D]`: positions of the patches.
    pub positions: &'a [f32],
    pub blocks: Vec<BlockParameters<'a>>,
    pub readout: Readout,
    pub norm: Norm<'a>,
    /// One for each of the tokens that are read; the logits are their mean.
    pub classifiers: Vec<LinearParams<'a>>,
}

/// What the classifier reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readout {
    /// The first tokens, one for each classifier, after the norm.
    Tokens,
    /// The mean of all tokens, before the norm.
    Mean,
}

/// The number format of the linear layers of the blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Float,
    /// Eight bits; the embedding, attention and the classifiers stay floats.
    Int8,
}

/// A transformer that is ready to run.
pub struct Transformer {
    channels: usize,
    image: [usize; 2],
    heads: usize,
    dim: usize,
    epsilon: f32,
    embed: PackedLinear,
    prefix: Vec<f32>,
    positions: Vec<f32>,
    blocks: Vec<Block>,
    readout: Readout,
    norm: OwnedNorm,
    classifiers: Vec<PackedLinear>,
    /// Where the pixels of each patch begin, and their offsets from there.
    corners: Offsets,
    pixels: Offsets,
}

impl std::fmt::Debug for Transformer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transformer").field("image", &self.image).field("dim", &self.dim).finish_non_exhaustive()
    }
}

/// The activations of a picture on its way through the blocks.
struct State<'a> {
    /// `[N, D]`
    x: &'a mut [f32],
    /// `[N, 3D]`
    qkv: &'a mut [f32],
    /// The output of the heads, head by head.
    attended: &'a mut [f32],
}

impl State<'_> {
    fn tokens(&self, dim: usize) -> usize {
        self.x.len() / dim
    }
}

/// A linear map for rows, packed.
pub struct PackedLinear {
    weight: Weight,
    bias: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

enum Weight {
    Float(Panels),
    Int8(integer::Int8Panels),
}

/// Rows times their scales, if there are any.
fn scaled<'a>(x: &'a [f32], scale: Option<&[f32]>) -> Cow<'a, [f32]> {
    let Some(scale) = scale else { return Cow::Borrowed(x) };
    let rows = x.chunks_exact(x.len() / scale.len()).zip(scale);
    rows.flat_map(|(row, scale)| row.iter().map(move |x| x * scale)).collect()
}

impl std::fmt::Debug for PackedLinear {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedLinear")
            .field("inputs", &self.inputs)
            .field("outputs", &self.outputs)
            .finish_non_exhaustive()
    }
}

impl PackedLinear {
    /// With the outputs scaled, if they are.
    #[must_use]
    pub fn new((weight, bias): LinearParams, scale: Option<&[f32]>, precision: Precision) -> Self {
        assert!(!bias.is_empty(), "transformer: a linear map without outputs");
        let (outputs, inputs) = (bias.len(), weight.len() / bias.len());
        assert!(inputs > 0 && weight.len() == outputs * inputs, "transformer: length of a weight");
        assert!(scale.is_none_or(|scale| scale.len() == outputs), "transformer: length of a scale");
        let weight = match precision {
            Precision::Float => {
                let weight = scaled(weight, scale);
                Weight::Float(Panels::new(Matrix::transposed(&weight, inputs), inputs, outputs))
            }
            Precision::Int8 => Weight::Int8(integer::Int8Panels::new(&QuantizedWeights::new(weight, inputs), scale)),
        };
        let bias = scaled(bias, scale).into_owned();
        Self { weight, bias, inputs, outputs }
    }

    /// Rows that lie one after the other.
    fn rows(&self, x: &[f32], start: impl Fn(&[f32]) -> Init, out: &mut [f32]) {
        match &self.weight {
            Weight::Float(weight) => multiply_rows(x, self.inputs, weight, start(&self.bias), out),
            Weight::Int8(weight) => integer::multiply_rows(x, weight, start(&self.bias), out),
        }
    }

    /// Rows from anywhere, added to what `out` holds; `copies` has room for them.
    fn add_gathered(&self, left: Gathered, copies: &mut [f32], out: &mut [f32]) {
        match &self.weight {
            Weight::Float(weight) => multiply(left, weight, Init::OutPlusColumnBias(&self.bias), (out, self.outputs)),
            Weight::Int8(_) => {
                left.copy_rows(copies);
                self.rows(copies, |bias| Init::OutPlusColumnBias(bias), out);
            }
        }
    }
}

/// A block that is ready to run.
struct Block {
    pre: PreAttention,
    post: PostAttention,
}

/// What comes before the attention of a block.
struct PreAttention {
    norm1: OwnedNorm,
    qkv: PackedLinear,
}

/// What comes after the attention of a block.
struct PostAttention {
    proj: PackedLinear,
    norm2: OwnedNorm,
    fc1: PackedLinear,
    fc2: PackedLinear,
}

/// Weight and bias of a norm, owned.
pub type OwnedNorm = [Vec<f32>; 2];

/// A linear layer that is packed just before it is used.
pub type LazyLinear<E> = Box<dyn FnOnce() -> Result<PackedLinear, E> + Send>;

/// A block whose linear layers are packed just before they are used.
pub struct LazyBlock<E> {
    pub norm1: OwnedNorm,
    pub qkv: LazyLinear<E>,
    pub proj: LazyLinear<E>,
    pub norm2: OwnedNorm,
    pub fc1: LazyLinear<E>,
    pub fc2: LazyLinear<E>,
}

impl<E> std::fmt::Debug for LazyBlock<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LazyBlock").field("dim", &self.norm1[0].len()).finish_non_exhaustive()
    }
}

/// What follows the attention of one block and precedes that of the next; the first and the last step have one of both.
struct LazyStep<E> {
    post: Option<(OwnedNorm, [LazyLinear<E>; 3])>,
    pre: Option<(OwnedNorm, LazyLinear<E>)>,
}

impl<E: Send> LazyStep<E> {
    fn through(blocks: Vec<LazyBlock<E>>) -> Vec<Self> {
        let (mut steps, mut post) = (Vec::new(), None);
        for LazyBlock { norm1, qkv, proj, norm2, fc1, fc2 } in blocks {
            let before = post.replace((norm2, [fc1, fc2, proj]));
            steps.push(Self { post: before, pre: Some((norm1, qkv)) });
        }
        steps.push(Self { post, pre: None });
        steps
    }

    /// Packs the linear layers, and runs other tasks meanwhile.
    fn packed<T: FnOnce() + Send>(
        self,
        beside: impl Iterator<Item = T>,
        leader: &mut Leader,
    ) -> Result<(Option<PostAttention>, Option<PreAttention>), E> {
        let (mut first, mut maps) = (None, [const { None }; 3]);
        let mut tasks: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
        // the longest tasks first
        let norm2 = self.post.map(|(norm, lazy)| {
            for (lazy, map) in lazy.into_iter().zip(&mut maps) {
                tasks.push(Box::new(move || *map = Some(lazy())));
            }
            norm
        });
        let norm1 = self.pre.map(|(norm, lazy)| {
            tasks.push(Box::new(|| first = Some(lazy())));
            norm
        });
        tasks.extend(beside.map(|task| Box::new(task) as Box<dyn FnOnce() + Send + '_>));
        leader.each(tasks.into_iter(), |task| task());
        let post = match (norm2, maps) {
            (Some(norm2), [Some(fc1), Some(fc2), Some(proj)]) => {
                Some(PostAttention { proj: proj?, norm2, fc1: fc1?, fc2: fc2? })
            }
            _ => None,
        };
        let pre = match (norm1, first) {
            (Some(norm1), Some(qkv)) => Some(PreAttention { norm1, qkv: qkv? }),
            _ => None,
        };
        Ok((post, pre))
    }
}

fn owned((weight, bias): Norm) -> OwnedNorm {
    [weight.to_vec(), bias.to_vec()]
}

impl Block {
    fn new(block: &BlockParameters, precision: Precision) -> Self {
        let [scale1, scale2] = block.scales.map_or([None, None], |scales| scales.map(Some));
        let packed = |map, scale| PackedLinear::new(map, scale, precision);
        let pre = PreAttention { norm1: owned(block.norm1), qkv: packed(block.qkv, None) };
        let (proj, norm2) = (packed(block.proj, scale1), owned(block.norm2));
        Self { pre, post: PostAttention { proj, norm2, fc1: packed(block.fc1, None), fc2: packed(block.fc2, scale2) } }
    }
}

impl Transformer {
    /// Packs the parameters.
    ///
    /// # Panics
    /// When their lengths do not fit together.
    #[must_use]
    pub fn new(parameters: &Parameters, precision: Precision) -> Self {
        let Parameters { channels, image, patch, heads, epsilon, readout, .. } = *parameters;
        let dim = parameters.norm.0.len();
        let [rows, columns] = image;
        assert!(![dim, heads, channels, patch].contains(&0), "transformer: a size of zero");
        assert!(dim.is_multiple_of(heads), "transformer: {heads} heads do not divide {dim}");
        let fits = rows.is_multiple_of(patch) && columns.is_multiple_of(patch) && rows > 0 && columns > 0;
        assert!(fits, "transformer: patches of {patch} do not fill {image:?}");
        let embed = size::product("transformer", &[dim, channels, patch, patch]);
        assert_eq!(parameters.embed.0.len(), embed, "transformer: length of the embedding");
        assert_eq!(parameters.embed.1.len(), dim, "transformer: length of the embedding's bias");
        let positions = size::product("transformer", &[rows / patch, columns / patch, dim]);
        assert_eq!(parameters.positions.len(), positions, "transformer: positions");
        size::product("transformer", &[channels, rows, columns]);
        assert!(parameters.prefix.len().is_multiple_of(dim), "transformer: length of the prefix");
        let read = parameters.classifiers.len();
        assert!(
            read > 0 && (readout == Readout::Mean || read * dim <= parameters.prefix.len()),
            "transformer: classifiers"
        );
        let grid = (0..rows / patch).flat_map(|y| (0..columns / patch).map(move |x| (y, x)));
        let places = (0..channels * patch * patch).map(|i| (i / (patch * patch), i / patch % patch, i % patch));
        Self {
            channels,
            image,
            heads,
            dim,
            epsilon,
            embed: PackedLinear::new(parameters.embed, None, Precision::Float),
            prefix: parameters.prefix.clone(),
            positions: parameters.positions.to_vec(),
            blocks: parameters.blocks.iter().map(|block| Block::new(block, precision)).collect(),
            readout,
            norm: owned(parameters.norm),
            classifiers: parameters
                .classifiers
                .iter()
                .map(|classifier| PackedLinear::new(*classifier, None, Precision::Float))
                .collect(),
            corners: grid.map(|(y, x)| patch * (y * columns + x)).collect(),
            pixels: places.map(|(channel, y, x)| (channel * rows + y) * columns + x).collect(),
        }
    }

    /// Packs one more block, so that what it is made of need not be there together with that of the others.
    ///
    /// # Panics
    /// When the lengths do not fit together.
    pub fn push(&mut self, block: &BlockParameters, precision: Precision) {
        self.blocks.push(Block::new(block, precision));
    }

    /// Whether images have this form.
    #[must_use]
    pub fn accepts(&self, channels: usize, image: [usize; 2]) -> bool {
        (channels, image) == (self.channels, self.image)
    }

    /// Numbers of one image.
    #[must_use]
    pub const fn image_len(&self) -> usize {
        self.channels * self.image[0] * self.image[1]
    }

    /// Number of logits.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.classifiers[0].outputs
    }

    /// `[B, C, H, W] -> [B, classes]`
    ///
    /// # Panics
    /// When the images do not divide the length.
    #[must_use]
    pub fn forward(&self, images: &[f32]) -> Vec<f32> {
        assert!(images.len().is_multiple_of(self.image_len()), "transformer: images of another size");
        for_each_picture(images, self.image_len(), self.classes(), 1, Helpers::Team, |image, logits, parallel| {
            self.forward_picture(image, logits, parallel);
        })
    }

    /// The logits of one image, through maps that are packed when their turn comes and given up after it: memory of one
    /// serves the next, where packing all of them for a single image would touch new memory for each.
    ///
    /// # Errors
    /// That of a map.
    ///
    /// # Panics
    /// When the image has another size.
    pub fn forward_lazy<E: Send>(&self, image: &[f32], blocks: Vec<LazyBlock<E>>) -> Result<Vec<f32>, E> {
        assert_eq!(image.len(), self.image_len(), "transformer: an image of another size");
        let (mut logits, last) = (vec![0.0; self.classes()], blocks.len());
        let run = |leader: &mut Leader, state: &mut State| {
            self.embed_patches(image, state, &mut Parallel::Team(leader));
            for (index, step) in LazyStep::through(blocks).into_iter().enumerate() {
                // there are few heads: the other threads pack meanwhile
                let queries = if index == last { self.readout_tokens(state) } else { state.tokens(self.dim) };
                let heads = if index == 0 { 0 } else { self.heads };
                let (post, pre) = step.packed(self.heads(state, queries).take(heads), leader)?;
                self.mlp_then_qkv(post.as_ref(), pre.as_ref(), state, &mut Parallel::Team(leader));
            }
            self.classify(state, &mut logits);
            Ok(())
        };
        Leader::with_pool(|leader| self.with_state(|state| run(leader, state)))?;
        Ok(logits)
    }

    fn forward_picture(&self, image: &[f32], logits: &mut [f32], parallel: &mut Parallel) {
        self.with_state(|state| {
            self.embed_patches(image, state, parallel);
            for index in 0..=self.blocks.len() {
                let before = index.checked_sub(1).map(|index| &self.blocks[index].post);
                let after = self.blocks.get(index).map(|block| &block.pre);
                self.mlp_then_qkv(before, after, state, parallel);
                if after.is_some() {
                    // the last block computes only the tokens that the classifier reads
                    let last = index + 1 == self.blocks.len();
                    let queries = if last { self.readout_tokens(state) } else { state.tokens(self.dim) };
                    parallel.each(self.heads(state, queries), |head| head());
                }
            }
            self.classify(state, logits);
        });
    }

    fn with_state<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        let (d, tokens) = (self.dim, self.corners.len() + self.prefix.len() / self.dim);
        with_scratch(tokens * 5 * d, |scratch| {
            let (x, scratch) = scratch.split_at_mut(tokens * d);
            let (qkv, attended) = scratch.split_at_mut(tokens * 3 * d);
            run(&mut State { x, qkv, attended })
        })
    }

    /// Patches become tokens.
    fn embed_patches(&self, image: &[f32], state: &mut State, parallel: &mut Parallel) {
        let d = self.dim;
        let (prefix, patches) = state.x.split_at_mut(self.prefix.len());
        prefix.copy_from_slice(&self.prefix);
        patches.copy_from_slice(&self.positions);
        let task = parallel.rows(self.corners.len(), 1);
        parallel.each(patches.chunks_mut(task * d).enumerate(), |(index, out)| {
            let range = (index * task, index * task + out.len() / d);
            let left = Gathered { data: image, rows: &self.corners, range, inner: &self.pixels };
            self.embed.add_gathered(left, &mut [], out);
        });
    }

    /// How many tokens the classifiers read.
    fn readout_tokens(&self, state: &State) -> usize {
        if self.readout == Readout::Tokens { self.classifiers.len() } else { state.tokens(self.dim) }
    }

    /// Projection and MLP of one block, then norm and QKV of the next, row by row.
    fn mlp_then_qkv(
        &self,
        before: Option<&PostAttention>,
        after: Option<&PreAttention>,
        state: &mut State,
        parallel: &mut Parallel,
    ) {
        let (d, width, tokens) = (self.dim, self.dim / self.heads, state.tokens(self.dim));
        let inner = before.map_or(0, |post| post.fc1.outputs);
        let rows = if after.is_some() { tokens } else { self.readout_tokens(state) };
        let State { x, qkv, attended } = state;
        let (x, attended) = (&mut x[..rows * d], &**attended);
        let task = parallel.rows(rows, 1);
        // the output of the heads lies head by head
        let starts = Offsets::strided(tokens, width);
        let places: Offsets = (0..d).map(|i| i / width * tokens * width + i % width).collect();
        parallel.each(x.chunks_mut(task * d).zip(qkv.chunks_mut(task * 3 * d)).enumerate(), |(index, (x, qkv))| {
            let together = rows_together(x.len() / d);
            with_scratch(together * (d + 2 + inner), |scratch| {
                let (normed, scratch) = scratch.split_at_mut(together * d);
                let (statistics, inner) = scratch.split_at_mut(together * 2);
                for (block, (x, qkv)) in x.chunks_mut(together * d).zip(qkv.chunks_mut(together * 3 * d)).enumerate() {
                    let rows = x.len() / d;
                    let (normed, statistics) = (&mut normed[..rows * d], &mut statistics[..rows * 2]);
                    if let Some(before) = before {
                        let first = index * task + block * together;
                        let left =
                            Gathered { data: attended, rows: &starts, range: (first, first + rows), inner: &places };
                        before.proj.add_gathered(left, normed, x);
                        let [weight, bias] = &before.norm2;
                        layer_norm::forward_rows(
                            x,
                            weight,
                            bias,
                            self.epsilon,
                            &mut UninitWriter::overwrite(normed),
                            statistics,
                        );
                        let inner = &mut inner[..rows * before.fc1.outputs];
                        before.fc1.rows(normed, |bias| Init::ColumnBias(bias), inner);
                        gelu::in_place(inner);
                        before.fc2.rows(inner, |bias| Init::OutPlusColumnBias(bias), x);
                    }
                    if let Some(after) = after {
                        let [weight, bias] = &after.norm1;
                        layer_norm::forward_rows(
                            x,
                            weight,
                            bias,
                            self.epsilon,
                            &mut UninitWriter::overwrite(normed),
                            statistics,
                        );
                        after.qkv.rows(normed, |bias| Init::ColumnBias(bias), qkv);
                    }
                }
            });
        });
    }

    /// Every head, `[N, 3D] -> [A, N, K]`, for the first queries.
    fn heads<'a>(&'a self, state: &'a mut State, queries: usize) -> impl Iterator<Item = impl FnOnce() + Send + 'a> {
        let (tokens, width, qkv) = (state.tokens(self.dim), self.dim / self.heads, &*state.qkv);
        state.attended.chunks_mut(tokens * width).enumerate().map(move |(index, attended)| {
            move || {
                let head = Head { tokens, dim: self.dim, heads: self.heads, index };
                let [keys_t, scores] = head.scratch();
                with_scratch(keys_t + scores, |scratch| {
                    let (keys_t, scores) = scratch.split_at_mut(keys_t);
                    head.attend(qkv, queries, [keys_t, scores], (attended, width), |_, _| ());
                });
            }
        })
    }

    fn classify(&self, state: &mut State, logits: &mut [f32]) {
        let d = self.dim;
        let read = self.readout_tokens(state);
        let x = &mut state.x[..read * d];
        let read = match self.readout {
            Readout::Tokens => x,
            Readout::Mean => {
                let count = (x.len() / d) as f32;
                let (mean, rest) = x.split_at_mut(d);
                for row in rest.chunks_exact(d) {
                    mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
                }
                mean.iter_mut().for_each(|sum| *sum /= count);
                mean
            }
        };
        let [weight, bias] = &self.norm;
        let (mut normed, mut statistics) = (vec![0.0; read.len()], vec![0.0; read.len() / d * 2]);
        layer_norm::forward_rows(
            read,
            weight,
            bias,
            self.epsilon,
            &mut UninitWriter::overwrite(&mut normed),
            &mut statistics,
        );
        let mut own = vec![0.0; logits.len()];
        logits.fill(0.0);
        for (classifier, token) in self.classifiers.iter().zip(normed.chunks_exact(d)) {
            classifier.rows(token, |bias| Init::ColumnBias(bias), &mut own);
            logits.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
        }
        let count = self.classifiers.len() as f32;
        logits.iter_mut().for_each(|sum| *sum /= count);
    }
}

#[cfg(test)]
mod tests;
