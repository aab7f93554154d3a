//! Attention in space and time: which tokens of a clip look at which.
//! Bertasius, Wang and Torresani 2021, "Is Space-Time Attention All You Need for Video Understanding?", arXiv:2102.05095.
//!
//! A clip is `1 + T*H*W` tokens: the class token, then the patches, frame after frame, row after row.
//! A [`SpaceTime`] scheme is one to three [`Step`]s, each with projections of its own; a step regroups
//! the tokens into sequences, attends within each and puts every token back ([`Plan`]).
//!
//! | step | a patch looks at | the class token |
//! |---|---|---|
//! | space | its frame | has a copy in every frame; the copies' outputs are averaged |
//! | joint | everything | is a token like the others |
//! | time | its place in every frame | takes no part: looks at itself alone |
//! | local | a window of `⌈H/2⌉`×`⌈W/2⌉` around it in every frame | looks at everything, is seen by all |
//! | global | every second patch, from itself, along all three axes | looks at everything, is seen by all |
//! | width | its row of its frame | has a copy in every row; averaged |
//! | height | its column of its frame | has a copy in every column; averaged |
//!
//! Differences from facebookresearch/TimeSformer:
//! - frames come slowest in the order of tokens; there they come fastest;
//! - the code there has no local, global, width and height steps, and the paper leaves open what their class
//!   token does and what happens at borders: a window moves inwards at the border, so that every patch sees
//!   equally many, and the class token does what the table says;
//! - time excludes the class token as the code does; the paper's equations include it.

use burn::tensor::{Bool, Device, IndexingUpdateOp, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use std::iter::once;

use super::{Attended, DotProduct, check, dot_product};
use crate::Pass;

const NAME: &str = "space_time";

/// Which tokens a token may look at, in space and in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SpaceTime {
    /// Each frame by itself. The paper's model keeps frames apart until the logits: see [`SpaceTime::keeps_frames_apart`].
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
    /// The attentions of one block, in turn, each with its own projections.
    #[must_use]
    pub fn steps(self) -> &'static [Step] {
        match self {
            Self::Space => &[Step::Space],
            Self::Joint => &[Step::Joint],
            Self::Divided => &[Step::Time, Step::Space],
            Self::SparseLocalGlobal => &[Step::Local, Step::Global],
            Self::Axial => &[Step::Time, Step::Width, Step::Height],
        }
    }

    /// Whether the model runs every frame as a clip of one, with a class token of its own from the first block to
    /// the last, and averages over frames at the end. The others have one class token for the clip.
    #[must_use]
    pub fn keeps_frames_apart(self) -> bool {
        self == Self::Space
    }
}

/// One attention over a regrouping of the tokens; the table in the module's header says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)]
pub enum Step {
    Space,
    Joint,
    Time,
    Local,
    Global,
    Width,
    Height,
}

impl Step {
    /// Whether the class token exchanges anything in this step. Where it does not, its output is its own value,
    /// and the model leaves it out of the residual: `class` stays, `patches += step`.
    #[must_use]
    pub fn class_takes_part(self) -> bool {
        self != Self::Time
    }

    /// `[B, A, 1+T*H*W, K], [B, A, 1+T*H*W, K], [B, A, 1+T*H*W, V] -> [B, A, 1+T*H*W, V]`,
    /// weights `[B, A, 1+T*H*W, 1+T*H*W]`, zero where a token does not look: `out = weights * value`.
    ///
    /// # Panics
    /// When the shapes do not fit together or the grid.
    pub fn attend(
        self,
        grid: Grid,
        query: Tensor<4>,
        key: Tensor<4>,
        value: Tensor<4>,
        pass: &mut Pass,
    ) -> Attended<4> {
        self.plan(grid).attend(query, key, value, pass)
    }

    /// Who attends with whom on this grid; a model may keep it over blocks and batches.
    ///
    /// # Panics
    /// When an axis of the grid is empty.
    #[must_use]
    pub fn plan(self, grid: Grid) -> Plan {
        check::not_empty(NAME, "grid", &[("frames", grid.frames), ("height", grid.height), ("width", grid.width)]);
        let Grid { frames, height, width } = grid;
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
        Plan { tokens: grid.tokens(), whole: self == Self::Joint, groups }
    }
}

/// The patches of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grid {
    /// `T`
    pub frames: usize,
    /// `H`, patches from top to bottom.
    pub height: usize,
    /// `W`, patches from left to right.
    pub width: usize,
}

/// The place of the class token.
const CLASS: usize = 0;

impl Grid {
    /// The class token and all patches.
    #[must_use]
    pub fn tokens(self) -> usize {
        1 + self.frames * self.height * self.width
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

/// Sequences of equal length, each led by a copy of the class token.
fn with_class(count: usize, patches: impl Fn(usize) -> Vec<usize>) -> Sequences {
    let tokens: Vec<usize> = (0..count).flat_map(|i| [vec![CLASS], patches(i)].concat()).collect();
    Sequences::new(tokens.clone(), tokens, count)
}

/// First row of the window of `size` around `centre`, moved inwards at the border.
fn window_start(centre: usize, size: usize, length: usize) -> usize {
    centre.saturating_sub(size / 2).min(length - size)
}

/// Local windows as bands: queries whose windows cover the same rows share these rows as keys, and a mask hides
/// the columns outside of each window. Keys for every single window would be sixteen copies of the clip on a grid
/// of 14×14, one mask over everything four times the work; bands are four copies and twice the work.
fn bands(grid: Grid) -> Vec<Sequences> {
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

/// Who attends with whom, as indices of tokens.
///
/// A token's output is the mean over all places where it is a query; only the class token has several.
#[derive(Clone, Debug)]
pub struct Plan {
    tokens: usize,
    /// One sequence of all tokens in order: nothing to regroup.
    whole: bool,
    groups: Vec<Sequences>,
}

/// Sequences of equal sizes that attend side by side.
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

    /// Added to the scores: so low that a hidden key has no weight, yet finite, since a whole block of a row may be hidden.
    fn bias(&self, device: &Device) -> Option<Tensor<4>> {
        let hidden = self.hidden.clone()?;
        let shape = [1, 1, self.queries.len() / self.count, self.keys.len() / self.count];
        let hidden = Tensor::<4, Bool>::from_data(TensorData::new(hidden, shape), device);
        Some(Tensor::zeros(shape, device).mask_fill(hidden, -1e30))
    }
}

impl Plan {
    /// As [`Step::attend`].
    ///
    /// # Panics
    /// When the shapes do not fit together or the grid.
    pub fn attend(&self, query: Tensor<4>, key: Tensor<4>, value: Tensor<4>, pass: &mut Pass) -> Attended<4> {
        self.check_shapes(&query, &key, &value);
        if self.whole {
            return dot_product(query, key, value, &DotProduct::default(), pass);
        }
        let [batch, heads, _, _] = query.dims();
        let [_, _, _, width] = value.dims();
        let device = query.device();
        let rows = |tensor: Tensor<4>| {
            let [_, _, tokens, width] = tensor.dims();
            tensor.reshape([batch * heads * tokens, width])
        };
        let (query, key, value) = (rows(query), rows(key), rows(value));

        let listens = pass.listens("weights");
        let (mut outs, mut weights) = (Vec::new(), Vec::new());
        for group in &self.groups {
            let gather = |rows: &Tensor<2>, tokens: &[usize]| self.gather(rows, tokens, [batch, heads, group.count]);
            // a pass of its own: what is recorded is the weights of the whole step, once
            let mut inner = if listens { Pass::recording() } else { Pass::silent() };
            let options = DotProduct { bias: group.bias(&device), ..DotProduct::default() };
            let (q, k, v) = (gather(&query, &group.queries), gather(&key, &group.keys), gather(&value, &group.keys));
            let attended = dot_product(q, k, v, &options, &mut inner);
            let slots = batch * heads * group.queries.len();
            outs.push(attended.out.reshape([slots, width]));
            if let Some(formed) = attended.weights {
                weights.push(self.spread(formed, group, batch));
            }
        }
        let place = |slots: Vec<Tensor<2>>| {
            let slots = Tensor::cat(slots, 0);
            let width = slots.dims()[1];
            self.put_back(slots, batch, heads).reshape([batch, heads, self.tokens, width])
        };
        let weights = listens.then(|| place(weights));
        if let Some(weights) = &weights {
            pass.record("weights", weights);
        }
        Attended { out: place(outs), weights }
    }

    /// `[B*A*tokens, K] -> [B*count, A, n, K]` for `count` sequences of n tokens.
    ///
    /// As rows of a matrix, since Flex copies these whole and walks any other selection element by element.
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

    /// `[B*count, A, n, m] -> [B*count*A*n, tokens]`: every weight in the column of its key.
    fn spread(&self, weights: Tensor<4>, group: &Sequences, batch: usize) -> Tensor<2> {
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

    /// The rows of all groups one after the other to `[B*A*tokens, ..]`, averaging the copies of the class token.
    fn put_back(&self, slots: Tensor<2>, batch: usize, heads: usize) -> Tensor<2> {
        let mut place = vec![0; batch * heads * self.tokens];
        let mut copies_of_class: Vec<Vec<i64>> = vec![Vec::new(); batch * heads];
        let mut next = 0;
        for group in &self.groups {
            let length = group.queries.len() / group.count;
            for b in 0..batch {
                for sequence in group.queries.chunks(length) {
                    for head in b * heads..(b + 1) * heads {
                        for token in sequence {
                            place[head * self.tokens + token] = next;
                            if *token == CLASS {
                                copies_of_class[head].push(next);
                            }
                            next += 1;
                        }
                    }
                }
            }
        }
        let rows = select(&slots, place);
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
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_gradients_are_differences, distance, random, values};

    const SCHEMES: [SpaceTime; 5] =
        [SpaceTime::Space, SpaceTime::Joint, SpaceTime::Divided, SpaceTime::SparseLocalGlobal, SpaceTime::Axial];
    const STEPS: [Step; 7] =
        [Step::Space, Step::Joint, Step::Time, Step::Local, Step::Global, Step::Width, Step::Height];

    fn grid(frames: usize, height: usize, width: usize) -> Grid {
        Grid { frames, height, width }
    }

    /// Even, odd, one frame, one row, one column, one patch.
    fn grids() -> Vec<Grid> {
        vec![grid(2, 4, 4), grid(3, 5, 3), grid(1, 4, 3), grid(4, 1, 3), grid(2, 3, 1), grid(1, 1, 1)]
    }

    fn inputs(batch: usize, grid: Grid, seed: u64) -> [Tensor<4>; 3] {
        let tokens = grid.tokens();
        [
            random([batch, 2, tokens, 3], seed).mul_scalar(2.0),
            random([batch, 2, tokens, 3], seed + 1).mul_scalar(2.0),
            random([batch, 2, tokens, 4], seed + 2),
        ]
    }

    fn run(step: Step, grid: Grid, [query, key, value]: [Tensor<4>; 3]) -> Attended<4> {
        step.attend(grid, query, key, value, &mut Pass::recording())
    }

    /// Whether the window of half of `length` around `centre` holds `place`.
    fn near(centre: usize, place: usize, length: usize) -> bool {
        let size = length.div_ceil(2) as i64;
        let mut first = centre as i64 - size / 2;
        while first < 0 {
            first += 1;
        }
        while first + size > length as i64 {
            first -= 1;
        }
        (first..first + size).contains(&(place as i64))
    }

    /// The sets of keys that a token looks at: its output is the mean of one attention for each.
    fn looks_at(step: Step, grid: Grid, query: usize) -> Vec<Vec<usize>> {
        let Grid { frames, height, width } = grid;
        let mut patches = Vec::new();
        for t in 0..frames {
            for h in 0..height {
                for w in 0..width {
                    patches.push((t, h, w));
                }
            }
        }
        let those = |keep: &dyn Fn(usize, usize, usize) -> bool| {
            let mut keys = if step == Step::Time { vec![] } else { vec![0] };
            keys.extend(
                (0..patches.len()).filter(|i| keep(patches[*i].0, patches[*i].1, patches[*i].2)).map(|i| i + 1),
            );
            keys
        };
        if query == 0 {
            return match step {
                Step::Joint | Step::Local | Step::Global => vec![those(&|_, _, _| true)],
                Step::Time => vec![vec![0]],
                Step::Space => (0..frames).map(|f| those(&|t, _, _| t == f)).collect(),
                Step::Width => {
                    (0..frames * height).map(|i| those(&|t, h, _| (t, h) == (i / height, i % height))).collect()
                }
                Step::Height => {
                    (0..frames * width).map(|i| those(&|t, _, w| (t, w) == (i / width, i % width))).collect()
                }
            };
        }
        let (t0, h0, w0) = patches[query - 1];
        vec![match step {
            Step::Joint => those(&|_, _, _| true),
            Step::Space => those(&|t, _, _| t == t0),
            Step::Time => those(&|_, h, w| (h, w) == (h0, w0)),
            Step::Width => those(&|t, h, _| (t, h) == (t0, h0)),
            Step::Height => those(&|t, _, w| (t, w) == (t0, w0)),
            Step::Local => those(&|_, h, w| near(h0, h, height) && near(w0, w, width)),
            Step::Global => {
                those(&|t, h, w| t.abs_diff(t0) % 2 == 0 && h.abs_diff(h0) % 2 == 0 && w.abs_diff(w0) % 2 == 0)
            }
        }]
    }

    /// A step by its definition: outputs and weights.
    fn naive(step: Step, grid: Grid, [query, key, value]: &[Tensor<4>; 3]) -> (Vec<f32>, Vec<f32>) {
        let [batch, heads, tokens, width] = query.dims();
        let out_width = value.dims()[3];
        let (query, key, value) = (values(query), values(key), values(value));
        let (mut out, mut weights) = (Vec::new(), Vec::new());
        for sequence in 0..batch * heads {
            for n in 0..tokens {
                let mut row = vec![0.0; tokens];
                let sets = looks_at(step, grid, n);
                for keys in &sets {
                    let score = |m: &usize| -> f32 {
                        (0..width)
                            .map(|i| {
                                query[(sequence * tokens + n) * width + i] * key[(sequence * tokens + m) * width + i]
                            })
                            .sum()
                    };
                    let scores: Vec<f32> = keys.iter().map(|m| (score(m) / (width as f32).sqrt()).exp()).collect();
                    let total: f32 = scores.iter().sum();
                    for (m, score) in keys.iter().zip(scores) {
                        row[*m] += score / total / sets.len() as f32;
                    }
                }
                for i in 0..out_width {
                    out.push((0..tokens).map(|m| row[m] * value[(sequence * tokens + m) * out_width + i]).sum());
                }
                weights.extend(row);
            }
        }
        (out, weights)
    }

    #[test]
    fn every_step_equals_its_definition() {
        for step in STEPS {
            for grid in grids() {
                let attended = run(step, grid, inputs(2, grid, 1));
                let (out, weights) = naive(step, grid, &inputs(2, grid, 1));
                assert!(distance(&values(&attended.out), &out) < 1e-5, "{step:?} on {grid:?}");
                assert!(distance(&values(&attended.weights.unwrap()), &weights) < 1e-5, "{step:?} on {grid:?}");
            }
        }
    }

    #[test]
    fn an_output_depends_on_exactly_the_tokens_of_the_plan() {
        for step in STEPS {
            for grid in [grid(3, 5, 4), grid(1, 4, 3)] {
                let [query, key, value] = inputs(1, grid, 7);
                let tokens = grid.tokens();
                let attend = |key: Tensor<4>, value: Tensor<4>| {
                    values(&step.attend(grid, query.clone(), key, value, &mut Pass::silent()).out)
                };
                let before = attend(key.clone(), value.clone());
                for moved in 0..tokens {
                    let push = |tensor: &Tensor<4>| {
                        let there = tensor.clone().slice([0..1, 0..2, moved..moved + 1]).add_scalar(1.5);
                        tensor.clone().slice_assign([0..1, 0..2, moved..moved + 1], there)
                    };
                    let after = attend(push(&key), push(&value));
                    for token in 0..tokens {
                        let sees = looks_at(step, grid, token).iter().any(|keys| keys.contains(&moved));
                        let row = token * 4..token * 4 + 4;
                        let change = distance(&after[row.clone()], &before[row]);
                        assert_eq!(change > 1e-6, sees, "{step:?}: {moved} moves {token} by {change:e} on {grid:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_paper_sizes_have_the_paper_neighbourhoods() {
        let clip = grid(8, 14, 14);
        let keys = |step, token| looks_at(step, clip, token)[0].len() - 1;
        for token in [1, 700, 1568] {
            assert_eq!(keys(Step::Local, token), 8 * 7 * 7);
            assert_eq!(keys(Step::Global, token), 4 * 7 * 7);
        }
        let local = Step::Local.plan(clip);
        let gathered: usize = local.groups.iter().map(|group| group.keys.len()).sum();
        assert!(gathered < 6 * clip.tokens(), "{gathered} keys would be gathered");
        for step in STEPS {
            let mut queries: Vec<usize> = step.plan(clip).groups.iter().flat_map(|g| g.queries.clone()).collect();
            queries.sort_unstable();
            queries.dedup();
            assert_eq!(queries, (0..clip.tokens()).collect::<Vec<_>>(), "{step:?}");
        }
    }

    #[test]
    fn a_clip_of_the_paper_size_fits_into_memory() {
        let clip = grid(8, 14, 14);
        for step in [Step::Local, Step::Global, Step::Time] {
            let tokens = random::<4>([1, 1, clip.tokens(), 8], 3);
            let out = step.attend(clip, tokens.clone(), tokens.clone(), tokens, &mut Pass::silent()).out;
            assert!(values(&out).iter().all(|x| x.is_finite()), "{step:?}");
        }
    }

    #[test]
    fn joint_attention_over_one_frame_is_space_attention() {
        let frame = grid(1, 3, 4);
        let joint = run(Step::Joint, frame, inputs(2, frame, 5));
        let space = run(Step::Space, frame, inputs(2, frame, 5));
        assert_close(&joint.out, &space.out, 1e-6);
        assert_close(&joint.weights.unwrap(), &space.weights.unwrap(), 1e-6);
    }

    #[test]
    fn divided_attention_over_one_frame_is_space_attention() {
        let frame = grid(1, 3, 4);
        let through = |scheme: SpaceTime| {
            let [query, key, mut value] = inputs(2, frame, 5);
            for step in scheme.steps() {
                value = run(*step, frame, [query.clone(), key.clone(), value]).out;
            }
            value
        };
        assert_close(&through(SpaceTime::Divided), &through(SpaceTime::Space), 1e-6);
    }

    #[test]
    fn frames_kept_apart_are_a_batch_of_clips_of_one_frame() {
        let (clip, frame) = (grid(3, 2, 2), grid(1, 2, 2));
        let patches = random([1, 2, 12, 3], 1);
        let class = random([1, 2, 1, 3], 2);
        let clip_tokens = Tensor::cat(vec![class.clone(), patches.clone()], 2);
        let together = run(Step::Space, clip, [clip_tokens.clone(), clip_tokens.clone(), clip_tokens]).out;
        let apart: Vec<Tensor<4>> = (0..3)
            .map(|t| {
                let one = patches.clone().slice([0..1, 0..2, 4 * t..4 * t + 4]);
                let one = Tensor::cat(vec![class.clone(), one], 2);
                run(Step::Space, frame, [one.clone(), one.clone(), one]).out
            })
            .collect();
        let averaged = (apart[0].clone() + apart[1].clone() + apart[2].clone()).div_scalar(3.0);
        let head = |tensor: Tensor<4>| tensor.slice([0..1, 0..2, 0..1]);
        assert_close(&head(together.clone()), &head(averaged), 1e-6);
        for (t, frame) in apart.into_iter().enumerate() {
            let there = together.clone().slice([0..1, 0..2, 1 + 4 * t..5 + 4 * t]);
            assert_close(&there, &frame.slice([0..1, 0..2, 1..5]), 1e-6);
        }
    }

    #[test]
    fn in_every_scheme_the_class_token_comes_to_depend_on_every_patch() {
        for scheme in SCHEMES {
            let clip = grid(3, 4, 4);
            // which tokens each token has heard of
            let mut heard: Vec<Vec<bool>> =
                (0..clip.tokens()).map(|n| (0..clip.tokens()).map(|m| n == m).collect()).collect();
            for step in scheme.steps() {
                heard = (0..clip.tokens())
                    .map(|n| {
                        let seen = looks_at(*step, clip, n).concat();
                        (0..clip.tokens()).map(|m| heard[n][m] || seen.iter().any(|s| heard[*s][m])).collect()
                    })
                    .collect();
            }
            assert!(heard[0].iter().all(|heard| *heard), "{scheme:?}");
        }
    }

    #[test]
    fn rows_of_weights_sum_to_one_and_give_the_output() {
        for step in STEPS {
            let clip = grid(2, 3, 4);
            let [query, key, value] = inputs(2, clip, 9);
            let attended = run(step, clip, [query, key, value.clone()]);
            let weights = attended.weights.unwrap();
            let sums = weights.clone().sum_dim(3);
            assert_close(&sums.clone(), &sums.ones_like(), 1e-5);
            assert_close(&weights.matmul(value), &attended.out, 1e-5);
        }
    }

    #[test]
    fn recorded_and_silent_passes_agree_and_record_once() {
        for step in STEPS {
            let clip = grid(3, 3, 4);
            let [query, key, value] = inputs(2, clip, 11);
            let silent = step.attend(clip, query, key, value, &mut Pass::silent());
            assert!(silent.weights.is_none(), "nobody listens");
            let mut pass = Pass::recording();
            let [query, key, value] = inputs(2, clip, 11);
            let recorded = pass.within("time", |pass| step.attend(clip, query, key, value, pass));
            assert_close(&silent.out, &recorded.out, 1e-5);
            let trace = pass.into_trace();
            assert_eq!(trace.names().collect::<Vec<_>>(), ["time.weights"], "{step:?}");
            assert_close(&trace.get::<4>("time.weights").unwrap(), &recorded.weights.unwrap(), 0.0);
        }
    }

    #[test]
    fn a_batch_of_two_equals_two_batches_of_one() {
        for step in STEPS {
            let clip = grid(2, 3, 4);
            let both = run(step, clip, inputs(2, clip, 13)).out;
            for b in 0..2 {
                let one = inputs(2, clip, 13).map(|tensor| tensor.slice_dim(0, b..=b));
                assert_close(&both.clone().slice_dim(0, b..=b), &run(step, clip, one).out, 1e-6);
            }
        }
    }

    #[test]
    fn gradients_are_finite_differences() {
        for step in STEPS {
            let clip = grid(2, 3, 2);
            let shapes = inputs(1, clip, 17);
            let named = [("query", values(&shapes[0])), ("key", values(&shapes[1])), ("value", values(&shapes[2]))];
            assert_gradients_are_differences(&named, |t| {
                let [query, key, value] = [0, 1, 2].map(|i| t[i].clone().reshape(shapes[i].shape()));
                step.attend(clip, query, key, value, &mut Pass::silent()).out
            });
        }
    }

    #[test]
    fn numbers_that_are_not_finite_neither_hang_nor_crash() {
        for step in STEPS {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let clip = grid(2, 2, 3);
                let [query, key, value] = inputs(1, clip, 1);
                let out = run(step, clip, [query.mul_scalar(bad), key, value]).out;
                assert_eq!(out.dims(), [1, 2, 13, 4]);
            }
        }
    }

    #[test]
    fn schemes_are_named_as_in_the_recipes() {
        let names: Vec<String> = SCHEMES.iter().map(|scheme| serde_json::to_string(scheme).unwrap()).collect();
        assert_eq!(names, ["\"space\"", "\"joint\"", "\"divided\"", "\"sparse-local-global\"", "\"axial\""]);
        assert_eq!(serde_json::from_str::<SpaceTime>("\"axial\"").unwrap(), SpaceTime::Axial);
    }

    #[test]
    #[should_panic(expected = "space_time: key has tokens 12, grid with class token has tokens 13")]
    fn a_missing_class_token_is_refused_by_name() {
        let clip = grid(2, 2, 3);
        let [query, _, value] = inputs(1, clip, 1);
        run(Step::Time, clip, [query, random([1, 2, 12, 3], 1), value]);
    }

    #[test]
    #[should_panic(expected = "space_time: grid has frames 0, needs at least 1")]
    fn an_empty_grid_is_refused_by_name() {
        let _ = Step::Time.plan(grid(0, 2, 3));
    }
}
