//! Pairwise self-attention of SAN: weights from a small network on every pair of a pixel and a neighbour.
//!
//! `out_i = sum_j softmax_j(gamma(delta(phi_i, psi_j) ++ position)) * beta_j`, weights shared by channel
//! groups. The network runs on tiles of sixteen pixels and their neighbours, some rows of the window at a time so that
//! these stay in the first cache, and is run again in the backward pass, so that nothing of size k*k times the image is
//! stored. With batch statistics the forward pass sweeps the image once per norm before the last sweep.

mod backward;

use rayon::prelude::*;
use std::ops::Range;

use crate::elementwise::written;
use crate::gamma::{Moments, MomentsAccumulator, Norm, valid};
use crate::parallel::with_scratch;
use crate::product::{Matrix, Size, multiply};
use crate::size;
use crate::tile::{self, Groups, Span, TILE, WindowOrigin};
use crate::window::{Border, Window, interleave, separate};

/// How a pair of feature vectors becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Summation,
    Subtraction,
    Hadamard,
    Concatenation,
    Dot,
}

/// The position information of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    None,
    /// The difference of both coordinates.
    Relative,
    /// The coordinates of the neighbour.
    Absolute,
}

/// `phi, psi [B, R, H, W]`, `beta [B, C, H, W]`, `position [2, H, W]` or empty, and gamma's parameters in one
/// piece: norm weight and bias `[d]`, linear `[hidden, d]`, norm weight and bias `[hidden]`, linear
/// `[C_w, hidden]`, bias `[C_w]`.
#[derive(Clone, Copy, Debug)]
pub struct Pairwise {
    pub batch: usize,
    pub features: usize,
    pub values: usize,
    pub weights: usize,
    pub hidden: usize,
    pub window: Window,
    pub relation: Relation,
    pub position: Position,
    pub epsilon: f32,
}

/// Numbers of a layer that are made at once, about: a quarter of a first cache.
const PART: usize = 2048;

/// Some rows of a window.
#[derive(Clone, Copy)]
struct Part {
    row: usize,
    rows: usize,
    columns: usize,
}

impl Part {
    fn span(self) -> Span {
        [self.rows, self.columns]
    }

    /// Where its pairs are among all of a tile.
    fn range(self) -> Range<usize> {
        self.row * self.columns * TILE..(self.row + self.rows) * self.columns * TILE
    }

    fn pairs(self) -> usize {
        self.range().len()
    }

    /// Where its `[channels, pairs]` are: part by part, so that each lies in one piece.
    fn of(self, channels: usize) -> Range<usize> {
        self.range().start * channels..self.range().end * channels
    }
}

/// phi, psi, beta, position, gamma.
type Inputs<'a> = [&'a [f32]; 5];

impl Pairwise {
    /// Length of a relation: the inputs of gamma.
    #[must_use]
    pub fn delta(&self) -> usize {
        let relation = match self.relation {
            Relation::Dot => 1,
            Relation::Concatenation => self.features.checked_mul(2).expect("pairwise attention: too many features"),
            _ => self.features,
        };
        relation.checked_add(self.places()).expect("pairwise attention: too many features")
    }

    /// Number of gamma's parameters.
    #[must_use]
    pub fn gamma(&self) -> usize {
        self.gamma_parts().iter().sum()
    }

    fn gamma_parts(&self) -> [usize; 7] {
        let (d, hidden, weights) = (self.delta(), self.hidden, self.weights);
        // the largest of them and their sum, so that nothing wraps
        let linear = [[hidden, d], [weights, hidden]].map(|sizes| size::product("pairwise attention", &sizes));
        size::sum("pairwise attention", &[d, d, linear[0], hidden, hidden, linear[1], weights]);
        [d, d, hidden * d, hidden, hidden, weights * hidden, weights]
    }

    /// The moments of both norms over all pairs of the batch.
    #[must_use]
    pub fn moments(&self, inputs: Inputs) -> [Moments; 2] {
        self.check(inputs);
        let inputs = without_values(inputs);
        let Some(beside) = self.side_by_side() else { return self.both_moments(inputs) };
        let images = self.interleaved(inputs);
        beside.both_moments(images.refer(inputs))
    }

    fn both_moments(&self, inputs: Inputs) -> [Moments; 2] {
        let first = self.sweep_moments(inputs, None);
        let second = self.sweep_moments(inputs, Some(&first));
        [first, second]
    }

    fn sweep_moments(&self, inputs: Inputs, first: Option<&Moments>) -> Moments {
        let parts = self.split_gamma(inputs[4]);
        let norm = first.map(|moments| Norm::new(parts[0], parts[1], moments, self.epsilon));
        let rows = if norm.is_some() { self.hidden } else { self.delta() };
        let images: Vec<MomentsAccumulator> = (0..self.batch)
            .into_par_iter()
            .map(|index| {
                let image = Image::new(self, index, inputs);
                let bands = self.window.bands(|band| {
                    Scratch::with(self, |scratch| {
                        let mut collector = MomentsAccumulator::new(rows);
                        for row in band {
                            for (column, count) in self.window.tiles() {
                                let at = (row, column, count);
                                image.read(at, scratch);
                                for part in self.parts() {
                                    image.relate(at, part, scratch);
                                    let x = match &norm {
                                        None => &scratch.delta[part.of(self.delta())],
                                        Some(norm) => {
                                            self.hidden_layer(norm, parts[2], part, scratch);
                                            &scratch.hidden[part.of(self.hidden)]
                                        }
                                    };
                                    collector.add_tile(x, &valid(count));
                                }
                            }
                        }
                        collector
                    })
                });
                merge(rows, bands.iter().map(|(_, collector)| collector))
            })
            .collect();
        merge(rows, &images).moments()
    }

    /// The output `[B, C, H, W]`.
    #[must_use]
    pub fn forward(&self, inputs: Inputs, moments: &[Moments; 2]) -> Vec<f32> {
        self.check(inputs);
        let Some(beside) = self.side_by_side() else { return self.attend(inputs, moments) };
        let images = self.interleaved(inputs);
        separate(&beside.attend(images.refer(inputs), moments), self.batch)
    }

    /// The same on narrow images laid side by side.
    fn side_by_side(&self) -> Option<Self> {
        let window = self.window.side_by_side(self.batch)?;
        Some(Self { batch: self.batch / TILE, window, ..*self })
    }

    fn interleaved(&self, [phi, psi, beta, position, _]: Inputs) -> Interleaved {
        let [phi, psi, beta] = [phi, psi, beta].map(|images| interleave(images, self.batch));
        // sixteen images share their coordinates
        let position = position.iter().flat_map(|place| [*place; TILE]).collect();
        Interleaved([phi, psi, beta, position])
    }

    fn attend(&self, inputs: Inputs, moments: &[Moments; 2]) -> Vec<f32> {
        let window = &self.window;
        let gamma = Gamma::new(self, inputs[4], moments);
        let image = self.values * window.pixels();
        written(self.batch * image, image, |index, out| {
            let image = Image::new(self, index, inputs);
            let bands = window.bands(|rows| {
                let part = rows.len() * window.width;
                let mut band = vec![0.0; self.values * part];
                Scratch::with(self, |scratch| {
                    for row in rows.clone() {
                        for (column, count) in window.tiles() {
                            image.attention_weights(&gamma, (row, column, count), scratch);
                            let place = WindowOrigin::new(window, window.height, row, column);
                            let (groups, span) = (self.groups(), window.span());
                            tile::gather(scratch.weights, &image.beta, place, groups, span, scratch.out);
                            let start = (row - rows.start) * window.width + column;
                            tile::write(scratch.out, count, &mut band, part, start);
                        }
                    }
                });
                band
            });
            window.join_bands(&bands, out);
        })
    }

    /// From a part's relations to its hidden layer before the second norm.
    fn hidden_layer(&self, norm1: &Norm, linear1: &[f32], part: Part, scratch: &mut Scratch) {
        let d = self.delta();
        let relu = &mut scratch.relu1[part.of(d)];
        norm1.relu(&scratch.delta[part.of(d)], relu);
        let (size, pairs) = (Size { m: self.hidden, inner: d, n: part.pairs() }, part.pairs());
        let hidden = &mut scratch.hidden[part.of(self.hidden)];
        multiply(size, Matrix::rows(linear1, d), (relu, pairs), (hidden, pairs), false);
    }

    /// The rows of a window in parts, by shapes alone.
    fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let size = self.window.size;
        let rows = (PART / (self.delta().max(self.hidden) * size * TILE)).clamp(1, size);
        (0..size).step_by(rows).map(move |row| Part { row, rows: rows.min(size - row), columns: size })
    }

    fn split_gamma<'a>(&self, mut gamma: &'a [f32]) -> [&'a [f32]; 7] {
        self.gamma_parts().map(|len| {
            let (part, rest) = gamma.split_at(len);
            gamma = rest;
            part
        })
    }

    /// Planes of coordinates.
    fn places(&self) -> usize {
        if self.position == Position::None { 0 } else { 2 }
    }

    /// Pairs of a tile.
    fn pairs(&self) -> usize {
        self.window.offsets() * TILE
    }

    fn groups(&self) -> Groups {
        Groups::interleaved(self.weights, self.values / self.weights)
    }

    fn check(&self, [phi, psi, beta, position, gamma]: Inputs) {
        self.window.check(Border::Reflect);
        let sizes = [self.features, self.values, self.weights, self.hidden];
        assert!(!sizes.contains(&0), "pairwise attention: a size of zero in {self:?}");
        let len = |channels: usize| size::product("pairwise attention", &[self.batch, self.window.pixels(), channels]);
        assert_eq!(phi.len(), len(self.features), "pairwise attention: length of phi");
        assert_eq!(psi.len(), len(self.features), "pairwise attention: length of psi");
        assert_eq!(beta.len(), len(self.values), "pairwise attention: length of beta");
        assert_eq!(position.len(), self.places() * self.window.pixels(), "pairwise attention: length of the position");
        assert_eq!(gamma.len(), self.gamma(), "pairwise attention: number of gamma's parameters");
        assert!(
            self.values.is_multiple_of(self.weights),
            "pairwise attention: {} weights do not divide {} values",
            self.weights,
            self.values
        );
    }
}

/// For sweeps that look at relations alone: beta is most of what would be padded for them.
fn without_values([phi, psi, _, position, gamma]: Inputs) -> Inputs {
    [phi, psi, &[], position, gamma]
}

/// phi, psi, beta and position of images that lie side by side.
struct Interleaved([Vec<f32>; 4]);

impl Interleaved {
    /// The same inputs, but for the images.
    fn refer<'a>(&'a self, inputs: Inputs<'a>) -> Inputs<'a> {
        let [phi, psi, beta, position] = &self.0;
        [phi, psi, beta, position, inputs[4]]
    }
}

fn merge<'a>(rows: usize, parts: impl IntoIterator<Item = &'a MomentsAccumulator>) -> MomentsAccumulator {
    let mut whole = MomentsAccumulator::new(rows);
    parts.into_iter().for_each(|part| whole.add(part));
    whole
}

/// Gamma made ready for a sweep.
struct Gamma<'a> {
    norm1: Norm,
    linear1: &'a [f32],
    norm2: Norm,
    linear2: &'a [f32],
    bias: &'a [f32],
}

impl<'a> Gamma<'a> {
    fn new(case: &Pairwise, gamma: &'a [f32], moments: &[Moments; 2]) -> Self {
        let [weight1, bias1, linear1, weight2, bias2, linear2, bias] = case.split_gamma(gamma);
        let norm1 = Norm::new(weight1, bias1, &moments[0], case.epsilon);
        let norm2 = Norm::new(weight2, bias2, &moments[1], case.epsilon);
        Self { norm1, linear1, norm2, linear2, bias }
    }
}

struct Scratch<'a> {
    phi: &'a mut [f32],
    centre: &'a mut [f32],
    delta: &'a mut [f32],
    relu1: &'a mut [f32],
    hidden: &'a mut [f32],
    relu2: &'a mut [f32],
    weights: &'a mut [f32],
    score_grads: &'a mut [f32],
    hidden_grad: &'a mut [f32],
    delta_grad: &'a mut [f32],
    out: &'a mut [f32],
    /// Gradients of the tile's own features and place.
    tile: &'a mut [f32],
    seen: &'a mut [f32],
}

impl Scratch<'_> {
    /// Runs with a scratch, whatever is in it: memory that serves again is not cleared.
    fn with<T>(case: &Pairwise, run: impl FnOnce(&mut Scratch) -> T) -> T {
        let pairs = case.pairs();
        let lengths = [
            case.features * TILE,
            case.places() * TILE,
            case.delta() * pairs,
            case.delta() * pairs,
            case.hidden * pairs,
            case.hidden * pairs,
            case.weights * pairs,
            case.weights * pairs,
            case.hidden * pairs,
            case.delta() * pairs,
            case.values * TILE,
            (case.features + case.places()) * TILE,
            case.features * TILE,
        ];
        with_scratch(lengths.iter().sum(), |mut memory| {
            let [
                phi,
                centre,
                delta,
                relu1,
                hidden,
                relu2,
                weights,
                score_grads,
                hidden_grad,
                delta_grad,
                out,
                tile,
                seen,
            ] = lengths.map(|len| {
                let (part, rest) = std::mem::take(&mut memory).split_at_mut(len);
                memory = rest;
                part
            });
            run(&mut Scratch {
                phi,
                centre,
                delta,
                relu1,
                hidden,
                relu2,
                weights,
                score_grads,
                hidden_grad,
                delta_grad,
                out,
                tile,
                seen,
            })
        })
    }
}

/// One image with its padded planes.
struct Image<'a> {
    case: &'a Pairwise,
    phi: &'a [f32],
    position: &'a [f32],
    psi: Vec<f32>,
    beta: Vec<f32>,
    places: Vec<f32>,
}

/// Row, column and number of pixels of a tile.
type At = (usize, usize, usize);

impl<'a> Image<'a> {
    fn new(case: &'a Pairwise, index: usize, inputs: Inputs<'a>) -> Self {
        let window = &case.window;
        let part =
            |x: &'a [f32], channels: usize| &x[index * channels * window.pixels()..][..channels * window.pixels()];
        Self {
            case,
            phi: part(inputs[0], case.features),
            position: inputs[3],
            psi: window.pad(part(inputs[1], case.features), Border::Reflect),
            beta: if inputs[2].is_empty() {
                Vec::new()
            } else {
                window.pad(part(inputs[2], case.values), Border::Reflect)
            },
            places: window.pad(inputs[3], Border::Reflect),
        }
    }

    /// Reads what a tile itself has.
    fn read(&self, at: At, scratch: &mut Scratch) {
        tile::read(self.phi, &self.case.window, at, scratch.phi);
        tile::read(self.position, &self.case.window, at, scratch.centre);
    }

    /// Fills a part of `delta` with the relations of a tile and these neighbours.
    fn relate(&self, at: At, part: Part, scratch: &mut Scratch) {
        let (case, span) = (self.case, part.span());
        let features = case.features;
        let place = WindowOrigin::new(&case.window, case.window.height, at.0, at.1).shifted(part.row, 0);
        let delta = &mut scratch.delta[part.of(case.delta())];
        let (relation, position) = delta.split_at_mut((case.delta() - case.places()) * part.pairs());
        let pairing = match case.relation {
            Relation::Summation => Some(tile::Pairing::Add),
            Relation::Subtraction => Some(tile::Pairing::Subtract),
            Relation::Hadamard => Some(tile::Pairing::Multiply),
            Relation::Concatenation => {
                let (own, other) = relation.split_at_mut(features * part.pairs());
                tile::pair(tile::Pairing::First, scratch.phi, &self.psi, place, span, own);
                tile::pair(tile::Pairing::Second, scratch.phi, &self.psi, place, span, other);
                None
            }
            Relation::Dot => {
                tile::dots(scratch.phi, &self.psi, place, Groups::blocked(1, features), span, relation);
                None
            }
        };
        if let Some(pairing) = pairing {
            tile::pair(pairing, scratch.phi, &self.psi, place, span, relation);
        }
        if case.position != Position::None {
            let pairing =
                if case.position == Position::Relative { tile::Pairing::Subtract } else { tile::Pairing::Second };
            tile::pair(pairing, scratch.centre, &self.places, place, span, position);
        }
    }

    /// Leaves the weights of a tile in the scratch.
    fn attention_weights(&self, gamma: &Gamma, at: At, scratch: &mut Scratch) {
        let (case, pairs) = (self.case, self.case.pairs());
        for (row, bias) in scratch.weights.chunks_exact_mut(pairs).zip(gamma.bias) {
            row.fill(*bias);
        }
        self.read(at, scratch);
        for part in case.parts() {
            self.relate(at, part, scratch);
            case.hidden_layer(&gamma.norm1, gamma.linear1, part, scratch);
            let relu = &mut scratch.relu2[part.of(case.hidden)];
            gamma.norm2.relu(&scratch.hidden[part.of(case.hidden)], relu);
            let size = Size { m: case.weights, inner: case.hidden, n: part.pairs() };
            let weights = &mut scratch.weights[part.range().start..];
            let linear = Matrix::rows(gamma.linear2, case.hidden);
            multiply(size, linear, (relu, part.pairs()), (weights, pairs), true);
        }
        tile::softmax(scratch.weights, case.window.offsets(), &[]);
    }
}

#[cfg(test)]
mod tests;
