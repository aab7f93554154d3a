//! A whole vision transformer for inference alone: its weights are packed once, and a picture stays on one thread with
//! everything that becomes of it, from its pixels to its logits.
//!
//! Fewer pictures than threads are shared out instead: rows of tokens, then heads, and so on. A number is the same sum
//! in the same order in both cases.

use std::borrow::Cow;

use crate::gathered::{Gathered, Offsets, Panels, Start, multiply, multiply_rows, rows_together};
use crate::heads::Head;
use crate::integer::{self, Rounded};
use crate::product::Matrix;
use crate::size;
use crate::team::Leader;
use crate::within::{Alone, Within, answered, with_scratch};
use crate::{gelu, layer_norm};

/// Parameters of a linear map: weight `[out, in]` and bias `[out]`.
pub type Map<'a> = (&'a [f32], &'a [f32]);

/// Parameters of a layer norm: weight and bias.
pub type Norm<'a> = (&'a [f32], &'a [f32]);

/// Parameters of a block of the encoder, as [`crate::encoder::Encoder`] has them.
#[derive(Clone, Copy, Debug)]
pub struct BlockParameters<'a> {
    pub norm1: Norm<'a>,
    pub qkv: Map<'a>,
    pub proj: Map<'a>,
    pub norm2: Norm<'a>,
    pub fc1: Map<'a>,
    pub fc2: Map<'a>,
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
    pub embed: Map<'a>,
    /// `[.., D]`: tokens before the patches, with their positions.
    pub prefix: Vec<f32>,
    /// `[N, D]`: positions of the patches.
    pub positions: &'a [f32],
    pub blocks: Vec<BlockParameters<'a>>,
    pub readout: Readout,
    pub norm: Norm<'a>,
    /// One for each of the tokens that are read; their mean is the answer.
    pub answers: Vec<Map<'a>>,
}

/// What the answer is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readout {
    /// The first tokens, one for each answer, after the norm.
    Tokens,
    /// The mean of all tokens, before the norm.
    Mean,
}

/// What the maps of the blocks are computed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    Float,
    /// Eight bits; the embedding, attention and the answers stay floats.
    Int8,
}

/// A transformer that is ready to run.
pub struct Transformer {
    channels: usize,
    image: [usize; 2],
    heads: usize,
    dim: usize,
    epsilon: f32,
    embed: Packed,
    prefix: Vec<f32>,
    positions: Vec<f32>,
    blocks: Vec<Block>,
    readout: Readout,
    norm: OwnNorm,
    answers: Vec<Packed>,
    /// Where the pixels of each patch begin, and where they lie from there.
    corners: Offsets,
    pixels: Offsets,
}

impl std::fmt::Debug for Transformer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transformer").field("image", &self.image).field("dim", &self.dim).finish_non_exhaustive()
    }
}

/// What a picture is on its way through the blocks.
struct State<'a> {
    /// `[N, D]`
    x: &'a mut [f32],
    /// `[N, 3D]`
    qkv: &'a mut [f32],
    /// What the heads saw, head by head.
    seen: &'a mut [f32],
}

impl State<'_> {
    fn tokens(&self, dim: usize) -> usize {
        self.x.len() / dim
    }
}

/// A linear map for rows, packed.
pub struct Packed {
    weight: Weight,
    bias: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

enum Weight {
    Float(Panels),
    Int8(integer::Panels),
}

/// Rows times their scales, if there are any.
fn scaled<'a>(x: &'a [f32], scale: Option<&[f32]>) -> Cow<'a, [f32]> {
    let Some(scale) = scale else { return Cow::Borrowed(x) };
    let rows = x.chunks_exact(x.len() / scale.len()).zip(scale);
    rows.flat_map(|(row, scale)| row.iter().map(move |x| x * scale)).collect()
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packed").field("inputs", &self.inputs).field("outputs", &self.outputs).finish_non_exhaustive()
    }
}

impl Packed {
    /// With the outputs scaled, if they are.
    #[must_use]
    pub fn new((weight, bias): Map, scale: Option<&[f32]>, precision: Precision) -> Self {
        assert!(!bias.is_empty(), "transformer: a linear map without outputs");
        let (outputs, inputs) = (bias.len(), weight.len() / bias.len());
        assert!(inputs > 0 && weight.len() == outputs * inputs, "transformer: length of a weight");
        assert!(scale.is_none_or(|scale| scale.len() == outputs), "transformer: length of a scale");
        let weight = match precision {
            Precision::Float => {
                let weight = scaled(weight, scale);
                Weight::Float(Panels::new(Matrix::transposed(&weight, inputs), inputs, outputs))
            }
            Precision::Int8 => Weight::Int8(integer::Panels::new(&Rounded::new(weight, inputs), scale)),
        };
        let bias = scaled(bias, scale).into_owned();
        Self { weight, bias, inputs, outputs }
    }

    /// Rows that lie one after the other.
    fn rows(&self, x: &[f32], start: impl Fn(&[f32]) -> Start, out: &mut [f32]) {
        match &self.weight {
            Weight::Float(weight) => multiply_rows(x, self.inputs, weight, start(&self.bias), out),
            Weight::Int8(weight) => integer::multiply_rows(x, weight, start(&self.bias), out),
        }
    }

    /// Rows from anywhere, added to what `out` holds; `copies` has room for them.
    fn add_gathered(&self, left: Gathered, copies: &mut [f32], out: &mut [f32]) {
        match &self.weight {
            Weight::Float(weight) => multiply(left, weight, Start::Out(&self.bias), (out, self.outputs)),
            Weight::Int8(_) => {
                left.copy_rows(copies);
                self.rows(copies, |bias| Start::Out(bias), out);
            }
        }
    }
}

/// A block that is ready to run.
struct Block {
    begin: Begin,
    end: End,
}

/// What a block does before its attention.
struct Begin {
    norm1: OwnNorm,
    qkv: Packed,
}

/// What a block does after its attention.
struct End {
    proj: Packed,
    norm2: OwnNorm,
    fc1: Packed,
    fc2: Packed,
}

/// Weight and bias of a norm, owned.
pub type OwnNorm = [Vec<f32>; 2];

/// A map that is packed when its turn comes.
pub type Later<E> = Box<dyn FnOnce() -> Result<Packed, E> + Send>;

/// A block whose maps are packed when their turn comes.
pub struct LaterBlock<E> {
    pub norm1: OwnNorm,
    pub qkv: Later<E>,
    pub proj: Later<E>,
    pub norm2: OwnNorm,
    pub fc1: Later<E>,
    pub fc2: Later<E>,
}

impl<E> std::fmt::Debug for LaterBlock<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaterBlock").field("dim", &self.norm1[0].len()).finish_non_exhaustive()
    }
}

/// The end of one block, unless it is the first step, and the begin of the next, unless it is the last: norms and maps.
struct LaterStep<E> {
    end: Option<(OwnNorm, [Later<E>; 3])>,
    begin: Option<(OwnNorm, Later<E>)>,
}

impl<E: Send> LaterStep<E> {
    fn through(blocks: Vec<LaterBlock<E>>) -> Vec<Self> {
        let (mut steps, mut end) = (Vec::new(), None);
        for LaterBlock { norm1, qkv, proj, norm2, fc1, fc2 } in blocks {
            let before = end.replace((norm2, [fc1, fc2, proj]));
            steps.push(Self { end: before, begin: Some((norm1, qkv)) });
        }
        steps.push(Self { end, begin: None });
        steps
    }

    /// Packs the maps, with other tasks beside them.
    fn packed<T: FnOnce() + Send>(
        self,
        beside: impl Iterator<Item = T>,
        leader: &mut Leader,
    ) -> Result<(Option<End>, Option<Begin>), E> {
        let (mut first, mut maps) = (None, [const { None }; 3]);
        let mut tasks: Vec<Box<dyn FnOnce() + Send + '_>> = Vec::new();
        // what takes long comes first
        let norm2 = self.end.map(|(norm, later)| {
            for (later, map) in later.into_iter().zip(&mut maps) {
                tasks.push(Box::new(move || *map = Some(later())));
            }
            norm
        });
        let norm1 = self.begin.map(|(norm, later)| {
            tasks.push(Box::new(|| first = Some(later())));
            norm
        });
        tasks.extend(beside.map(|task| Box::new(task) as Box<dyn FnOnce() + Send + '_>));
        leader.each(tasks.into_iter(), |task| task());
        let end = match (norm2, maps) {
            (Some(norm2), [Some(fc1), Some(fc2), Some(proj)]) => Some(End { proj: proj?, norm2, fc1: fc1?, fc2: fc2? }),
            _ => None,
        };
        let begin = match (norm1, first) {
            (Some(norm1), Some(qkv)) => Some(Begin { norm1, qkv: qkv? }),
            _ => None,
        };
        Ok((end, begin))
    }
}

fn owned((weight, bias): Norm) -> OwnNorm {
    [weight.to_vec(), bias.to_vec()]
}

impl Block {
    fn new(block: &BlockParameters, precision: Precision) -> Self {
        let [scale1, scale2] = block.scales.map_or([None, None], |scales| scales.map(Some));
        let packed = |map, scale| Packed::new(map, scale, precision);
        let begin = Begin { norm1: owned(block.norm1), qkv: packed(block.qkv, None) };
        let (proj, norm2) = (packed(block.proj, scale1), owned(block.norm2));
        Self { begin, end: End { proj, norm2, fc1: packed(block.fc1, None), fc2: packed(block.fc2, scale2) } }
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
        let read = parameters.answers.len();
        assert!(
            read > 0 && (readout == Readout::Mean || read * dim <= parameters.prefix.len()),
            "transformer: answers"
        );
        let grid = (0..rows / patch).flat_map(|y| (0..columns / patch).map(move |x| (y, x)));
        let places = (0..channels * patch * patch).map(|i| (i / (patch * patch), i / patch % patch, i % patch));
        Self {
            channels,
            image,
            heads,
            dim,
            epsilon,
            embed: Packed::new(parameters.embed, None, Precision::Float),
            prefix: parameters.prefix.clone(),
            positions: parameters.positions.to_vec(),
            blocks: parameters.blocks.iter().map(|block| Block::new(block, precision)).collect(),
            readout,
            norm: owned(parameters.norm),
            answers: parameters.answers.iter().map(|answer| Packed::new(*answer, None, Precision::Float)).collect(),
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
    pub fn takes(&self, channels: usize, image: [usize; 2]) -> bool {
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
        self.answers[0].outputs
    }

    /// `[B, C, H, W] -> [B, classes]`
    ///
    /// # Panics
    /// When the images do not divide the length.
    #[must_use]
    pub fn forward(&self, images: &[f32]) -> Vec<f32> {
        assert!(images.len().is_multiple_of(self.image_len()), "transformer: images of another size");
        answered(images, self.image_len(), self.classes(), 1, Alone::Team, |image, logits, within| {
            self.picture(image, logits, within);
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
    pub fn once<E: Send>(&self, image: &[f32], blocks: Vec<LaterBlock<E>>) -> Result<Vec<f32>, E> {
        assert_eq!(image.len(), self.image_len(), "transformer: an image of another size");
        let (mut logits, last) = (vec![0.0; self.classes()], blocks.len());
        let run = |leader: &mut Leader, state: &mut State| {
            self.embedded(image, state, &mut Within::Threads(leader));
            for (index, step) in LaterStep::through(blocks).into_iter().enumerate() {
                // heads are few, so that threads have time beside them
                let queries = if index == last { self.read(state) } else { state.tokens(self.dim) };
                let heads = if index == 0 { 0 } else { self.heads };
                let (end, begin) = step.packed(self.heads(state, queries).take(heads), leader)?;
                self.between(end.as_ref(), begin.as_ref(), state, &mut Within::Threads(leader));
            }
            self.answer(state, &mut logits);
            Ok(())
        };
        Leader::with_pool(|leader| self.with_state(|state| run(leader, state)))?;
        Ok(logits)
    }

    fn picture(&self, image: &[f32], logits: &mut [f32], within: &mut Within) {
        self.with_state(|state| {
            self.embedded(image, state, within);
            for index in 0..=self.blocks.len() {
                let before = index.checked_sub(1).map(|index| &self.blocks[index].end);
                let after = self.blocks.get(index).map(|block| &block.begin);
                self.between(before, after, state, within);
                if after.is_some() {
                    // what an answer is read from is all that the last block has to make
                    let last = index + 1 == self.blocks.len();
                    let queries = if last { self.read(state) } else { state.tokens(self.dim) };
                    within.each(self.heads(state, queries), |head| head());
                }
            }
            self.answer(state, logits);
        });
    }

    fn with_state<T>(&self, run: impl FnOnce(&mut State) -> T) -> T {
        let (d, tokens) = (self.dim, self.corners.len() + self.prefix.len() / self.dim);
        with_scratch(tokens * 5 * d, |scratch| {
            let (x, scratch) = scratch.split_at_mut(tokens * d);
            let (qkv, seen) = scratch.split_at_mut(tokens * 3 * d);
            run(&mut State { x, qkv, seen })
        })
    }

    /// Patches become tokens.
    fn embedded(&self, image: &[f32], state: &mut State, within: &mut Within) {
        let d = self.dim;
        let (prefix, patches) = state.x.split_at_mut(self.prefix.len());
        prefix.copy_from_slice(&self.prefix);
        patches.copy_from_slice(&self.positions);
        let task = within.rows(self.corners.len(), 1);
        within.each(patches.chunks_mut(task * d).enumerate(), |(index, out)| {
            let range = (index * task, index * task + out.len() / d);
            let left = Gathered { data: image, rows: &self.corners, range, inner: &self.pixels };
            self.embed.add_gathered(left, &mut [], out);
        });
    }

    /// How many tokens an answer is read from.
    fn read(&self, state: &State) -> usize {
        if self.readout == Readout::Tokens { self.answers.len() } else { state.tokens(self.dim) }
    }

    /// The end of one block and the begin of the next, row by row.
    fn between(&self, before: Option<&End>, after: Option<&Begin>, state: &mut State, within: &mut Within) {
        let (d, width, tokens) = (self.dim, self.dim / self.heads, state.tokens(self.dim));
        let inner = before.map_or(0, |end| end.fc1.outputs);
        let rows = if after.is_some() { tokens } else { self.read(state) };
        let State { x, qkv, seen } = state;
        let (x, seen) = (&mut x[..rows * d], &**seen);
        let task = within.rows(rows, 1);
        // what the heads saw lies head by head
        let starts = Offsets::strided(tokens, width);
        let places: Offsets = (0..d).map(|i| i / width * tokens * width + i % width).collect();
        within.each(x.chunks_mut(task * d).zip(qkv.chunks_mut(task * 3 * d)).enumerate(), |(index, (x, qkv))| {
            let together = rows_together(x.len() / d);
            with_scratch(together * (d + 2 + inner), |scratch| {
                let (normed, scratch) = scratch.split_at_mut(together * d);
                let (statistics, inner) = scratch.split_at_mut(together * 2);
                for (block, (x, qkv)) in x.chunks_mut(together * d).zip(qkv.chunks_mut(together * 3 * d)).enumerate() {
                    let rows = x.len() / d;
                    let (normed, statistics) = (&mut normed[..rows * d], &mut statistics[..rows * 2]);
                    if let Some(before) = before {
                        let first = index * task + block * together;
                        let left = Gathered { data: seen, rows: &starts, range: (first, first + rows), inner: &places };
                        before.proj.add_gathered(left, normed, x);
                        let [weight, bias] = &before.norm2;
                        layer_norm::forward_rows(x, weight, bias, self.epsilon, normed, statistics);
                        let inner = &mut inner[..rows * before.fc1.outputs];
                        before.fc1.rows(normed, |bias| Start::Columns(bias), inner);
                        gelu::in_place(inner);
                        before.fc2.rows(inner, |bias| Start::Out(bias), x);
                    }
                    if let Some(after) = after {
                        let [weight, bias] = &after.norm1;
                        layer_norm::forward_rows(x, weight, bias, self.epsilon, normed, statistics);
                        after.qkv.rows(normed, |bias| Start::Columns(bias), qkv);
                    }
                }
            });
        });
    }

    /// Every head, `[N, 3D] -> [A, N, K]`, for the first queries.
    fn heads<'a>(&'a self, state: &'a mut State, queries: usize) -> impl Iterator<Item = impl FnOnce() + Send + 'a> {
        let (tokens, width, qkv) = (state.tokens(self.dim), self.dim / self.heads, &*state.qkv);
        state.seen.chunks_mut(tokens * width).enumerate().map(move |(index, seen)| {
            move || {
                let head = Head { tokens, dim: self.dim, heads: self.heads, index };
                let [across, scores] = head.scratch();
                with_scratch(across + scores, |scratch| {
                    let (across, scores) = scratch.split_at_mut(across);
                    head.attend(qkv, queries, [across, scores], (seen, width), |_, _| ());
                });
            }
        })
    }

    fn answer(&self, state: &mut State, logits: &mut [f32]) {
        let d = self.dim;
        let read = self.read(state);
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
        layer_norm::forward_rows(read, weight, bias, self.epsilon, &mut normed, &mut statistics);
        let mut own = vec![0.0; logits.len()];
        logits.fill(0.0);
        for (answer, token) in self.answers.iter().zip(normed.chunks_exact(d)) {
            answer.rows(token, |bias| Start::Columns(bias), &mut own);
            logits.iter_mut().zip(&own).for_each(|(sum, own)| *sum += own);
        }
        let count = self.answers.len() as f32;
        logits.iter_mut().for_each(|sum| *sum /= count);
    }
}

#[cfg(test)]
mod tests;
