//! Attention in space and time: which tokens of a clip look at which.
//! Bertasius, Wang and Torresani 2021, "Is Space-Time Attention All You Need for Video Understanding?", arXiv:2102.05095.
//!
//! A clip is `1 + T*H*W` tokens: the class token, then the patches, frame after frame, row after row.
//! A [`SpaceTime`] scheme is one to three [`SpaceTimeStep`]s, each with its own projections. A step groups
//! the tokens into sequences, attends within each and merges the results ([`AttentionPlan`]).
//!
//! | step | a patch looks at | the class token |
//! |---|---|---|
//! | space | its frame | has a copy in every frame; the copies' outputs are averaged |
//! | joint | everything | is a token like the others |
//! | time | its position in every frame | looks only at itself |
//! | local | a window of `⌈H/2⌉`×`⌈W/2⌉` around it in every frame | looks at everything, is seen by all |
//! | global | every second patch, from itself, along all three axes | looks at everything, is seen by all |
//! | width | its row of its frame | has a copy in every row; averaged |
//! | height | its column of its frame | has a copy in every column; averaged |
//!
//! Differences from facebookresearch/TimeSformer:
//! - frames come slowest in the order of tokens; there they come fastest;
//! - it has no local, global, width and height steps, and the paper leaves open what their class token does and
//!   what happens at borders. Here a window moves inwards at the border, so that every patch looks at equally
//!   many, and the class token does what the table says;
//! - time excludes the class token as the code does; the paper's equations include it.

use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use std::iter::once;

use super::dot_product::dot_product_with_geometry;
use super::{Attended, DotProduct, check, dot_product, merge_heads, self_attention, split_heads};
use crate::Pass;
use crate::pass::{Axes, Geometry};

const NAME: &str = "space_time";

/// Which tokens a token may look at, in space and in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpaceTime {
    /// Within each frame. The paper's model keeps frames apart until the last norm: see [`SpaceTime::keeps_frames_apart`].
    Space,
    /// All tokens of the clip at once.
    Joint,
    /// Time, then space: "T+S".
    Divided,
    /// A neighbourhood, then a sparse grid over the clip: "L+G".
    SparseLocalGlobal,
    /// Time, then width, then height: "T+W+H".
    Axial,
}

impl SpaceTime {
    /// The attention steps of one block in order, each with its own projections.
    #[must_use]
    pub fn steps(self) -> &'static [SpaceTimeStep] {
        match self {
            Self::Space => &[SpaceTimeStep::Space],
            Self::Joint => &[SpaceTimeStep::Joint],
            Self::Divided => &[SpaceTimeStep::Time, SpaceTimeStep::Space],
            Self::SparseLocalGlobal => &[SpaceTimeStep::Local, SpaceTimeStep::Global],
            Self::Axial => &[SpaceTimeStep::Time, SpaceTimeStep::Width, SpaceTimeStep::Height],
        }
    }

    /// Whether the model runs every frame as a clip of one frame, each with its own class token, and averages the
    /// tokens over frames before the last norm. The other schemes have one class token for the clip.
    #[must_use]
    pub fn keeps_frames_apart(self) -> bool {
        self == Self::Space
    }

    /// The plan of every step on this grid.
    ///
    /// # Panics
    /// When an axis of the grid is empty.
    #[must_use]
    pub fn plans(self, grid: ClipGrid) -> Vec<AttentionPlan> {
        self.steps().iter().map(|step| step.plan(grid)).collect()
    }
}

/// Attention within groups of tokens; the table in the module's header lists the groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum SpaceTimeStep {
    Space,
    Joint,
    Time,
    Local,
    Global,
    Width,
    Height,
}

impl SpaceTimeStep {
    /// Whether the class token attends to patches in this step. If not, its output is its own value, and the model
    /// excludes it from the residual: only `patches += step`.
    #[must_use]
    pub fn class_takes_part(self) -> bool {
        self != Self::Time
    }

    /// `[B, A, 1+T*H*W, K], [B, A, 1+T*H*W, K], [B, A, 1+T*H*W, V] -> [B, A, 1+T*H*W, V]`,
    /// weights `[B, A, 1+T*H*W, 1+T*H*W]`, zero where a token does not look: `out = weights * value`.
    ///
    /// # Panics
    /// When the shapes do not fit together or do not fit the grid.
    pub fn attend(
        self,
        grid: ClipGrid,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        pass: &mut Pass,
    ) -> Attended<4> {
        self.plan(grid).attend(query, key, value, pass)
    }

    /// The groups of tokens on this grid; a model may reuse it in all blocks and batches.
    ///
    /// # Panics
    /// When an axis of the grid is empty.
    #[must_use]
    pub fn plan(self, grid: ClipGrid) -> AttentionPlan {
        check::not_empty(NAME, "grid", &[("frames", grid.frames), ("height", grid.height), ("width", grid.width)]);
        let ClipGrid { frames, height, width } = grid;
        let everything: Vec<usize> = (0..grid.tokens()).collect();
        let alone = |keys: &[usize]| Sequences::new(vec![CLASS], keys.to_vec(), 1);
        let groups = match self {
            Self::Joint => vec![Sequences::new(everything.clone(), everything, 1)],
            Self::Space => vec![with_class(frames, |t| grid.patches(once(t), 0..height, 0..width))],
            Self::Width => {
                vec![with_class(frames * height, |i| grid.patches(once(i / height), once(i % height), 0..width))]
            }
            Self::Height => {
                vec![with_class(frames * width, |i| grid.patches(once(i / width), 0..height, once(i % width)))]
            }
            Self::Time => {
                let places: Vec<usize> = (0..height * width)
                    .flat_map(|i| grid.patches(0..frames, once(i / width), once(i % width)))
                    .collect();
                vec![Sequences::new(places.clone(), places, height * width), alone(&[CLASS])]
            }
            Self::Global => {
                let mut groups = vec![alone(&everything)];
                for corner in 0..8 {
                    let (t, h, w) = (corner / 4, corner / 2 % 2, corner % 2);
                    let queries = grid.patches((t..frames).step_by(2), (h..height).step_by(2), (w..width).step_by(2));
                    if !queries.is_empty() {
                        let keys = [&[CLASS], &queries[..]].concat();
                        groups.push(Sequences::new(queries, keys, 1));
                    }
                }
                groups
            }
            Self::Local => {
                let mut groups = vec![alone(&everything)];
                groups.extend(bands(grid));
                groups
            }
        };
        let whole = self == Self::Joint || (self == Self::Space && frames == 1);
        AttentionPlan { step: self, grid, tokens: grid.tokens(), whole, groups }
    }
}

/// The patches of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipGrid {
    /// `T`
    pub frames: usize,
    /// `H`, patches from top to bottom.
    pub height: usize,
    /// `W`, patches from left to right.
    pub width: usize,
}

/// Index of the class token.
const CLASS: usize = 0;

impl ClipGrid {
    /// The class token and all patches.
    #[must_use]
    pub fn tokens(self) -> usize {
        1 + self.frames * self.height * self.width
    }

    /// The layout of the tokens.
    #[must_use]
    pub const fn axes(self) -> Axes {
        Axes::Clip { prefix: 1, frames: self.frames, size: [self.height, self.width] }
    }

    /// The token of one patch.
    #[must_use]
    pub fn token(self, frame: usize, row: usize, column: usize) -> usize {
        1 + (frame * self.height + row) * self.width + column
    }

    fn patches(
        self,
        frames: impl Iterator<Item = usize>,
        rows: impl Iterator<Item = usize> + Clone,
        columns: impl Iterator<Item = usize> + Clone,
    ) -> Vec<usize> {
        frames
            .flat_map(|t| rows.clone().map(move |h| (t, h)))
            .flat_map(|(t, h)| columns.clone().map(move |w| self.token(t, h, w)))
            .collect()
    }
}

/// Sequences of equal length, each starting with a copy of the class token.
fn with_class(count: usize, patches: impl Fn(usize) -> Vec<usize>) -> Sequences {
    let tokens: Vec<usize> = (0..count).flat_map(|i| [vec![CLASS], patches(i)].concat()).collect();
    Sequences::new(tokens.clone(), tokens, count)
}

/// First row of the window of `size` around `centre`, moved inwards at the border.
fn window_start(centre: usize, size: usize, length: usize) -> usize {
    centre.saturating_sub(size / 2).min(length - size)
}

/// Local windows as bands: queries whose windows cover the same rows share these rows as keys, and a mask hides
/// the columns outside each window. Keys for every single window would be sixteen copies of the clip on a grid
/// of 14×14, one mask over everything four times the work; bands are four copies and twice the work.
fn bands(grid: ClipGrid) -> Vec<Sequences> {
    let (high, wide) = (grid.height.div_ceil(2), grid.width.div_ceil(2));
    let starts = 0..=grid.height - high;
    starts
        .map(|start| {
            let rows: Vec<usize> =
                (0..grid.height).filter(|row| window_start(*row, high, grid.height) == start).collect();
            let queries = grid.patches(0..grid.frames, rows.into_iter(), 0..grid.width);
            let patches = grid.patches(0..grid.frames, start..start + high, 0..grid.width);
            let keys = [&[CLASS], &patches[..]].concat();
            let column = |token: usize| (token - 1) % grid.width;
            let hides = |query: usize, key: usize| {
                let first = window_start(column(query), wide, grid.width);
                key != CLASS && !(first..first + wide).contains(&column(key))
            };
            let hidden = queries.iter().flat_map(|q| keys.iter().map(|k| hides(*q, *k))).collect();
            Sequences { hidden: Some(hidden), ..Sequences::new(queries, keys, 1) }
        })
        .collect()
}

/// Which tokens attend to which, as token indices.
///
/// A token's output is the mean over all sequences in which it is a query; only the class token is in several.
#[derive(Clone, Debug)]
pub struct AttentionPlan {
    step: SpaceTimeStep,
    grid: ClipGrid,
    tokens: usize,
    /// Whether there is a single sequence of all tokens in order.
    whole: bool,
    groups: Vec<Sequences>,
}

/// Sequences of equal length, processed as one batch.
#[derive(Clone, Debug)]
struct Sequences {
    count: usize,
    /// `count` times n tokens.
    queries: Vec<usize>,
    /// `count` times m tokens.
    keys: Vec<usize>,
    /// `[n, m]`, true where a query may not look.
    hidden: Option<Vec<bool>>,
}

impl Sequences {
    fn new(queries: Vec<usize>, keys: Vec<usize>, count: usize) -> Self {
        Self { count, queries, keys, hidden: None }
    }

    /// Added to the scores: low enough that a hidden key has no weight, but finite, because all keys of a block may be hidden.
    fn bias(&self, device: &Device) -> Option<Tensor<4>> {
        let hidden = self.hidden.clone()?;
        let shape = [1, 1, self.queries.len() / self.count, self.keys.len() / self.count];
        let hidden = Tensor::<4, Bool>::from_data(TensorData::new(hidden, shape), device);
        Some(Tensor::zeros(shape, device).mask_fill(hidden, -1e30))
    }
}

impl AttentionPlan {
    /// The step that is planned.
    #[must_use]
    pub const fn step(&self) -> SpaceTimeStep {
        self.step
    }

    /// Number of pairs of a query and a key that it looks at, copies of the class token included.
    #[must_use]
    pub fn pairs(&self) -> usize {
        let pairs = |group: &Sequences| {
            let hidden = group.hidden.iter().flatten().filter(|hidden| **hidden).count();
            group.queries.len() * (group.keys.len() / group.count) - group.count * hidden
        };
        self.groups.iter().map(pairs).sum()
    }

    /// Tokens of a clip look at each other: `[B, N, 3*A*K] -> [B, N, A*K]`, rows of query, key and value, each of all heads.
    ///
    /// Records the weights, as [`attend`](Self::attend) does.
    ///
    /// # Panics
    /// When the tokens do not fit the grid, or three times the heads do not divide the width.
    pub fn self_attention(&self, qkv: Tensor<3>, heads: usize, pass: &mut Pass) -> Tensor<3> {
        let [_, tokens, width] = qkv.dims();
        check::agree(NAME, "tokens", ("qkv", tokens), ("grid with class token", self.tokens));
        check::divides(NAME, ("heads", 3 * heads), ("width", width));
        if self.whole {
            return pass.with_tokens(self.grid.axes(), |pass| self_attention(qkv, heads, pass));
        }
        let dim = width / 3;
        let [query, key, value] = [0, 1, 2].map(|part| split_heads(qkv.clone().narrow(2, part * dim, dim), heads));
        merge_heads(self.attend(query, key, value, pass).out)
    }

    /// As [`SpaceTimeStep::attend`].
    ///
    /// # Panics
    /// When the shapes do not fit together or do not fit the grid.
    pub fn attend(&self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, pass: &mut Pass) -> Attended<4> {
        self.check_shapes(&query, &key, &value);
        let geometry = |_: &Pass| Geometry::everywhere(self.grid.axes(), self.grid.axes());
        if self.whole {
            return dot_product_with_geometry(query, key, value, &DotProduct::default(), pass, geometry);
        }
        let [batch, heads, _, _] = query.dims();
        let [_, _, _, width] = value.dims();
        let device = query.device();
        let rows = |tensor: Tensor<4>| {
            let [_, _, tokens, width] = tensor.dims();
            tensor.reshape([batch * heads * tokens, width])
        };
        let values = value.clone();
        let (query, key, value) = (rows(query), rows(key), rows(value));

        let records = pass.wants_weights();
        let (mut outs, mut weights) = (Vec::new(), Vec::new());
        for group in &self.groups {
            let gather = |rows: &Tensor<2>, tokens: &[usize]| self.gather(rows, tokens, [batch, heads, group.count]);
            // an inner pass, because the weights of the whole step are watched at once, below
            let mut inner = if records { Pass::recording() } else { Pass::silent() };
            let options = DotProduct { bias: group.bias(&device), ..DotProduct::default() };
            let (q, k, v) = (gather(&query, &group.queries), gather(&key, &group.keys), gather(&value, &group.keys));
            let attended = dot_product(q, k, v, &options, &mut inner);
            match attended.weights {
                Some(formed) => weights.push(self.scatter_weights(formed, group, batch)),
                None => outs.push(attended.out.reshape([batch * heads * group.queries.len(), width])),
            }
        }
        let merge = |slots: Vec<Tensor<2>>| {
            let slots = Tensor::cat(slots, 0);
            let width = slots.dims()[1];
            self.merge_groups(slots, batch, heads).reshape([batch, heads, self.tokens, width])
        };
        if !records {
            return Attended { out: merge(outs), weights: None };
        }
        let weights = pass.watch_weights(merge(weights), geometry);
        Attended { out: weights.clone().matmul(values), weights: Some(weights) }
    }

    /// `[B*A*tokens, K] -> [B*count, A, n, K]` for `count` sequences of n tokens.
    ///
    /// Selects rows of a matrix: Flex copies those whole, but selects along any other axis element by element.
    fn gather(&self, rows: &Tensor<2>, tokens: &[usize], [batch, heads, count]: [usize; 3]) -> Tensor<4> {
        let length = tokens.len() / count;
        let mut indices = Vec::with_capacity(batch * heads * tokens.len());
        for b in 0..batch {
            for sequence in tokens.chunks(length) {
                for a in 0..heads {
                    indices.extend(sequence.iter().map(|token| ((b * heads + a) * self.tokens + token) as i64));
                }
            }
        }
        let width = rows.dims()[1];
        select(rows, indices).reshape([batch * count, heads, length, width])
    }

    /// `[B*count, A, n, m] -> [B*count*A*n, tokens]`: every weight moves to the column of its key.
    fn scatter_weights(&self, weights: Tensor<4>, group: &Sequences, batch: usize) -> Tensor<2> {
        let [_, heads, queries, keys] = weights.dims();
        let slots = batch * group.count * heads * queries;
        let mut columns = Vec::with_capacity(slots * keys);
        for _ in 0..batch {
            for sequence in group.keys.chunks(keys) {
                for _ in 0..heads * queries {
                    columns.extend(sequence.iter().map(|key| *key as i64));
                }
            }
        }
        let device = weights.device();
        let columns = Tensor::<2, Int>::from_data(TensorData::new(columns, [slots, keys]), &device);
        let nothing = Tensor::zeros([slots, self.tokens], &device);
        nothing.scatter(1, columns, weights.reshape([slots, keys]), IndexingUpdateOp::Add)
    }

    /// Puts the rows of all groups into token order, `[B*A*tokens, ..]`, and averages the copies of the class token.
    fn merge_groups(&self, slots: Tensor<2>, batch: usize, heads: usize) -> Tensor<2> {
        let mut slot_of = vec![0; batch * heads * self.tokens];
        let mut copies_of_class: Vec<Vec<i64>> = vec![Vec::new(); batch * heads];
        let mut next = 0;
        for group in &self.groups {
            let length = group.queries.len() / group.count;
            for b in 0..batch {
                for sequence in group.queries.chunks(length) {
                    for head in b * heads..(b + 1) * heads {
                        for token in sequence {
                            slot_of[head * self.tokens + token] = next;
                            if *token == CLASS {
                                copies_of_class[head].push(next);
                            }
                            next += 1;
                        }
                    }
                }
            }
        }
        let rows = select(&slots, slot_of);
        let copies = copies_of_class[0].len();
        if copies == 1 {
            return rows;
        }
        let width = rows.dims()[1];
        let class = select(&slots, copies_of_class.concat()).reshape([batch * heads, copies, width]).mean_dim(1);
        let patches = rows.reshape([batch * heads, self.tokens, width]).slice([0..batch * heads, 1..self.tokens]);
        Tensor::cat(vec![class, patches], 1).reshape([batch * heads * self.tokens, width])
    }

    fn check_shapes(&self, query: &Tensor<4>, key: &Tensor<4>, value: &Tensor<4>) {
        for (name, tensor) in [("query", query), ("key", key), ("value", value)] {
            check::agree(NAME, "tokens", (name, tensor.dims()[2]), ("grid with class token", self.tokens));
            check::agree(NAME, "batch", (name, tensor.dims()[0]), ("query", query.dims()[0]));
            check::agree(NAME, "heads", (name, tensor.dims()[1]), ("query", query.dims()[1]));
        }
        check::not_empty(NAME, "query", &[("batch", query.dims()[0]), ("heads", query.dims()[1])]);
        check::not_empty(NAME, "value", &[("width", value.dims()[3])]);
        check::agree(NAME, "width", ("query", query.dims()[3]), ("key", key.dims()[3]));
    }
}

fn select(rows: &Tensor<2>, indices: Vec<i64>) -> Tensor<2> {
    let count = indices.len();
    let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [count]), &rows.device());
    rows.clone().select(0, indices)
}

#[cfg(test)]
mod tests;
