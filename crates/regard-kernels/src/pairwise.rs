//! Pairwise self-attention of SAN: weights from a small network on every pair of a pixel and a neighbour.
//!
//! `out_i = sum_j softmax_j(gamma(delta(phi_i, psi_j) ++ position)) * beta_j`, weights shared by channel
//! groups. The network runs on tiles of sixteen pixels and all their neighbours, and is run again in the
//! backward pass, so that nothing of size k*k times the image is stored. With batch statistics the forward
//! pass sweeps the image once per norm before the last sweep; the backward pass likewise.

use rayon::prelude::*;

use crate::elementwise::add_all;
use crate::gamma::{Collector, Moments, Norm, NormGrads, Statistics, add_row_sums, valid};
use crate::product::{Matrix, Size, add_row_products, multiply};
use crate::tile::{self, Groups, Place, TILE};
use crate::window::{Border, Window};

/// How a pair of feature vectors becomes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    Summation,
    Subtraction,
    Hadamard,
    Concatenation,
    Dot,
}

/// What a pair knows of where it is.
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

/// phi, psi, beta, position, gamma.
type Inputs<'a> = [&'a [f32]; 5];

impl Pairwise {
    /// Length of a relation: the inputs of gamma.
    #[must_use]
    pub fn delta(&self) -> usize {
        let relation = match self.relation {
            Relation::Dot => 1,
            Relation::Concatenation => 2 * self.features,
            _ => self.features,
        };
        relation + if self.position == Position::None { 0 } else { 2 }
    }

    /// Number of gamma's parameters.
    #[must_use]
    pub fn gamma(&self) -> usize {
        self.gamma_parts().iter().sum()
    }

    fn gamma_parts(&self) -> [usize; 7] {
        let (d, hidden, weights) = (self.delta(), self.hidden, self.weights);
        [d, d, hidden * d, hidden, hidden, weights * hidden, weights]
    }

    /// The moments of both norms over all pairs of the batch.
    #[must_use]
    pub fn moments(&self, inputs: Inputs) -> [Moments; 2] {
        self.check(inputs);
        let first = self.sweep_moments(inputs, None);
        let second = self.sweep_moments(inputs, Some(&first));
        [first, second]
    }

    fn sweep_moments(&self, inputs: Inputs, first: Option<&Moments>) -> Moments {
        let parts = self.split_gamma(inputs[4]);
        let norm = first.map(|moments| Norm::new(parts[0], parts[1], moments, self.epsilon));
        let rows = if norm.is_some() { self.hidden } else { self.delta() };
        let images: Vec<Collector> = (0..self.batch)
            .into_par_iter()
            .map(|index| {
                let image = Image::new(self, index, inputs);
                let bands = self.window.bands(|band| {
                    let mut collector = Collector::new(rows);
                    let mut scratch = Scratch::new(self);
                    for row in band {
                        for (column, count) in self.window.tiles() {
                            image.relate((row, column, count), &mut scratch);
                            let x = match &norm {
                                None => &scratch.delta,
                                Some(norm) => {
                                    norm.relu(&scratch.delta, &mut scratch.relu1);
                                    self.linear1(parts[2], &scratch.relu1, &mut scratch.hidden);
                                    &scratch.hidden
                                }
                            };
                            collector.add_tile(x, &valid(count));
                        }
                    }
                    collector
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
        let window = &self.window;
        let gamma = Gamma::new(self, inputs[4], moments);
        let image = self.values * window.pixels();
        let mut out = vec![0.0; self.batch * image];
        out.par_chunks_mut(image).enumerate().for_each(|(index, out)| {
            let image = Image::new(self, index, inputs);
            let bands = window.bands(|rows| {
                let part = rows.len() * window.width;
                let mut band = vec![0.0; self.values * part];
                let mut scratch = Scratch::new(self);
                for row in rows.clone() {
                    for (column, count) in window.tiles() {
                        image.weigh(&gamma, (row, column, count), &mut scratch);
                        let place = Place::new(window, window.height, row, column);
                        tile::gather(
                            &scratch.weights,
                            &image.beta,
                            place,
                            self.groups(),
                            window.size,
                            &mut scratch.out,
                        );
                        tile::write(&scratch.out, count, &mut band, part, (row - rows.start) * window.width + column);
                    }
                }
                band
            });
            bands.iter().for_each(|(rows, band)| window.put_band(out, rows, band));
        });
        out
    }

    /// One gradient for each input. `statistics` says whether the moments were the batch's own.
    #[must_use]
    pub fn backward(
        &self,
        inputs: Inputs,
        moments: &[Moments; 2],
        statistics: Statistics,
        grad: &[f32],
    ) -> [Vec<f32>; 5] {
        self.check(inputs);
        let gamma = Gamma::new(self, inputs[4], moments);
        let sweep =
            |wanted: Wanted, means: [Option<&NormGrads>; 2]| self.sweep_grads(inputs, &gamma, grad, wanted, means);
        let Grads { images, sums } = match statistics {
            Statistics::Given => sweep(Wanted { second: true, first: true, inputs: true }, [None, None]),
            Statistics::Batch => {
                let mut all = sweep(Wanted { second: true, ..Wanted::default() }, [None, None]);
                let second = all.sums.norm2.mean(moments[1].count);
                let middle = sweep(Wanted { first: true, ..Wanted::default() }, [None, Some(&second)]);
                let first = middle.sums.norm1.mean(moments[0].count);
                let last = sweep(Wanted { inputs: true, ..Wanted::default() }, [Some(&first), Some(&second)]);
                all.sums.add(&middle.sums);
                for (image, last) in all.images.iter_mut().zip(last.images) {
                    (image.phi, image.psi, image.position) = (last.phi, last.psi, last.position);
                }
                all
            }
        };
        let mut grads: [Vec<f32>; 5] = inputs.map(|input| Vec::with_capacity(input.len()));
        grads[3].resize(inputs[3].len(), 0.0);
        for image in images {
            grads[0].extend(image.phi);
            grads[1].extend(image.psi);
            grads[2].extend(image.beta);
            add_all(&mut grads[3], [image.position]);
        }
        let Sums { norm1, linear1, norm2, linear2, bias } = sums;
        for part in [norm1.weight, norm1.bias, linear1, norm2.weight, norm2.bias, linear2, bias] {
            grads[4].extend(part);
        }
        grads
    }

    /// One sweep of the backward pass over the batch.
    fn sweep_grads(
        &self,
        inputs: Inputs,
        gamma: &Gamma,
        grad: &[f32],
        wanted: Wanted,
        means: [Option<&NormGrads>; 2],
    ) -> Grads {
        let window = &self.window;
        let images: Vec<(ImageGrads, Sums)> = (0..self.batch)
            .into_par_iter()
            .map(|index| {
                let image = Image::new(self, index, inputs);
                let grad = &grad[index * self.values * window.pixels()..][..self.values * window.pixels()];
                let bands = window.bands(|rows| {
                    let mut band = Band::new(self, rows.clone());
                    let mut scratch = Scratch::new(self);
                    for row in rows {
                        for (column, count) in window.tiles() {
                            image.backward(gamma, grad, (row, column, count), wanted, means, &mut scratch, &mut band);
                        }
                    }
                    band
                });
                Self::join(self, bands.into_iter().map(|(_, band)| band))
            })
            .collect();
        let mut sums = Sums::new(self);
        images.iter().for_each(|(_, part)| sums.add(part));
        Grads { images: images.into_iter().map(|(image, _)| image).collect(), sums }
    }

    /// Joins the bands of one image in their order.
    fn join(&self, bands: impl Iterator<Item = Band>) -> (ImageGrads, Sums) {
        let window = &self.window;
        let mut sums = Sums::new(self);
        let mut phi = vec![0.0; self.features * window.pixels()];
        let mut centre = vec![0.0; self.places() * window.pixels()];
        let mut padded =
            [self.features, self.values, self.places()].map(|n| vec![0.0; n * window.plane(window.height)]);
        for band in bands {
            sums.add(&band.sums);
            window.put_band(&mut phi, &band.rows, &band.phi);
            window.put_band(&mut centre, &band.rows, &band.centre);
            for (whole, part) in padded.iter_mut().zip([&band.psi, &band.beta, &band.position]) {
                window.add_band(whole, &band.rows, part);
            }
        }
        let [psi, beta, mut position] = padded.map(|padded| window.fold(&padded, Border::Reflect));
        add_all(&mut position, [centre]);
        (ImageGrads { phi, psi, beta, position }, sums)
    }

    fn linear1(&self, weights: &[f32], relu: &[f32], hidden: &mut [f32]) {
        let (d, pairs) = (self.delta(), self.pairs());
        multiply(
            Size { m: self.hidden, inner: d, n: pairs },
            Matrix::rows(weights, d),
            (relu, pairs),
            (hidden, pairs),
            false,
        );
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
        let pixels = self.batch * self.window.pixels();
        assert_eq!(phi.len(), pixels * self.features, "pairwise attention: length of phi");
        assert_eq!(psi.len(), pixels * self.features, "pairwise attention: length of psi");
        assert_eq!(beta.len(), pixels * self.values, "pairwise attention: length of beta");
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

fn merge<'a>(rows: usize, parts: impl IntoIterator<Item = &'a Collector>) -> Collector {
    let mut whole = Collector::new(rows);
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

/// What a sweep of the backward pass is for; later things need the means that earlier ones give.
#[derive(Clone, Copy, Default)]
struct Wanted {
    second: bool,
    first: bool,
    inputs: bool,
}

struct Grads {
    images: Vec<ImageGrads>,
    sums: Sums,
}

struct ImageGrads {
    phi: Vec<f32>,
    psi: Vec<f32>,
    beta: Vec<f32>,
    position: Vec<f32>,
}

/// Gradients of gamma's parameters.
struct Sums {
    norm1: NormGrads,
    linear1: Vec<f32>,
    norm2: NormGrads,
    linear2: Vec<f32>,
    bias: Vec<f32>,
}

impl Sums {
    fn new(case: &Pairwise) -> Self {
        let (d, hidden, weights) = (case.delta(), case.hidden, case.weights);
        Self {
            norm1: NormGrads::new(d),
            linear1: vec![0.0; hidden * d],
            norm2: NormGrads::new(hidden),
            linear2: vec![0.0; weights * hidden],
            bias: vec![0.0; weights],
        }
    }

    fn add(&mut self, other: &Self) {
        self.norm1.add(&other.norm1);
        self.norm2.add(&other.norm2);
        for (sums, parts) in
            [(&mut self.linear1, &other.linear1), (&mut self.linear2, &other.linear2), (&mut self.bias, &other.bias)]
        {
            sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
        }
    }
}

/// Gradients of a band: of its own pixels, and padded where neighbours are reached.
struct Band {
    rows: std::ops::Range<usize>,
    phi: Vec<f32>,
    centre: Vec<f32>,
    psi: Vec<f32>,
    beta: Vec<f32>,
    position: Vec<f32>,
    sums: Sums,
}

impl Band {
    fn new(case: &Pairwise, rows: std::ops::Range<usize>) -> Self {
        let (own, padded) = (rows.len() * case.window.width, case.window.plane(rows.len()));
        Self {
            phi: vec![0.0; case.features * own],
            centre: vec![0.0; case.places() * own],
            psi: vec![0.0; case.features * padded],
            beta: vec![0.0; case.values * padded],
            position: vec![0.0; case.places() * padded],
            sums: Sums::new(case),
            rows,
        }
    }
}

struct Scratch {
    phi: Vec<f32>,
    centre: Vec<f32>,
    delta: Vec<f32>,
    relu1: Vec<f32>,
    hidden: Vec<f32>,
    relu2: Vec<f32>,
    weights: Vec<f32>,
    slopes: Vec<f32>,
    hidden_grad: Vec<f32>,
    delta_grad: Vec<f32>,
    out: Vec<f32>,
    tile: Vec<f32>,
}

impl Scratch {
    fn new(case: &Pairwise) -> Self {
        let zeros = |rows: usize, len: usize| vec![0.0; rows * len];
        let pairs = case.pairs();
        Self {
            phi: zeros(case.features, TILE),
            centre: zeros(case.places(), TILE),
            delta: zeros(case.delta(), pairs),
            relu1: zeros(case.delta(), pairs),
            hidden: zeros(case.hidden, pairs),
            relu2: zeros(case.hidden, pairs),
            weights: zeros(case.weights, pairs),
            slopes: zeros(case.weights, pairs),
            hidden_grad: zeros(case.hidden, pairs),
            delta_grad: zeros(case.delta(), pairs),
            out: zeros(case.values, TILE),
            tile: zeros(case.features.max(case.values).max(2), TILE),
        }
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
            beta: window.pad(part(inputs[2], case.values), Border::Reflect),
            places: window.pad(inputs[3], Border::Reflect),
        }
    }

    /// Fills `delta` with the relations of a tile and all its neighbours.
    fn relate(&self, at: At, scratch: &mut Scratch) {
        let (case, window) = (self.case, &self.case.window);
        let (size, features) = (window.size, case.features);
        let place = Place::new(window, window.height, at.0, at.1);
        tile::read(self.phi, window, at, &mut scratch.phi);
        let (relation, position) = scratch.delta.split_at_mut((case.delta() - case.places()) * case.pairs());
        let pairing = match case.relation {
            Relation::Summation => Some(tile::Pairing::Add),
            Relation::Subtraction => Some(tile::Pairing::Subtract),
            Relation::Hadamard => Some(tile::Pairing::Multiply),
            Relation::Concatenation => {
                let (own, other) = relation.split_at_mut(features * case.pairs());
                tile::pair(tile::Pairing::First, &scratch.phi, &self.psi, place, size, own);
                tile::pair(tile::Pairing::Second, &scratch.phi, &self.psi, place, size, other);
                None
            }
            Relation::Dot => {
                tile::dots(&scratch.phi, &self.psi, place, Groups::blocked(1, features), size, relation);
                None
            }
        };
        if let Some(pairing) = pairing {
            tile::pair(pairing, &scratch.phi, &self.psi, place, size, relation);
        }
        if case.position != Position::None {
            tile::read(self.position, window, at, &mut scratch.centre);
            let pairing =
                if case.position == Position::Relative { tile::Pairing::Subtract } else { tile::Pairing::Second };
            tile::pair(pairing, &scratch.centre, &self.places, place, size, position);
        }
    }

    /// Leaves the weights of a tile in the scratch.
    fn weigh(&self, gamma: &Gamma, at: At, scratch: &mut Scratch) {
        let (case, pairs) = (self.case, self.case.pairs());
        self.relate(at, scratch);
        gamma.norm1.relu(&scratch.delta, &mut scratch.relu1);
        case.linear1(gamma.linear1, &scratch.relu1, &mut scratch.hidden);
        gamma.norm2.relu(&scratch.hidden, &mut scratch.relu2);
        for (row, bias) in scratch.weights.chunks_exact_mut(pairs).zip(gamma.bias) {
            row.fill(*bias);
        }
        let size = Size { m: case.weights, inner: case.hidden, n: pairs };
        multiply(
            size,
            Matrix::rows(gamma.linear2, case.hidden),
            (&scratch.relu2, pairs),
            (&mut scratch.weights, pairs),
            true,
        );
        tile::softmax(&mut scratch.weights, case.window.offsets(), &[]);
    }

    /// Runs a tile backwards as far as it is wanted.
    #[allow(clippy::too_many_arguments)]
    fn backward(
        &self,
        gamma: &Gamma,
        grad: &[f32],
        at: At,
        wanted: Wanted,
        means: [Option<&NormGrads>; 2],
        scratch: &mut Scratch,
        band: &mut Band,
    ) {
        let (case, window, pairs) = (self.case, &self.case.window, self.case.pairs());
        let (d, hidden, weights) = (case.delta(), case.hidden, case.weights);
        let place = Place::new(window, window.height, at.0, at.1);
        let local = Place::new(window, band.rows.len(), at.0 - band.rows.start, at.1);
        let valid = valid(at.2);
        self.weigh(gamma, at, scratch);
        tile::read(grad, window, at, &mut scratch.out);
        tile::dots(&scratch.out, &self.beta, place, case.groups(), window.size, &mut scratch.slopes);
        tile::softmax_backward(&scratch.weights, &mut scratch.slopes, window.offsets());
        let size = Size { m: hidden, inner: weights, n: pairs };
        let across = Matrix::transposed(gamma.linear2, hidden);
        multiply(size, across, (&scratch.slopes, pairs), (&mut scratch.hidden_grad, pairs), false);
        let mut ignored = NormGrads::new(hidden);
        let sums = if wanted.second { &mut band.sums.norm2 } else { &mut ignored };
        gamma.norm2.relu_backward(&scratch.hidden, &scratch.relu2, &mut scratch.hidden_grad, sums);
        if wanted.second {
            tile::scatter(&scratch.weights, &scratch.out, &mut band.beta, local, case.groups(), window.size);
            add_row_sums(&scratch.slopes, &mut band.sums.bias);
            let size = Size { m: weights, inner: pairs, n: hidden };
            add_row_products(size, (&scratch.slopes, pairs), (&scratch.relu2, pairs), &mut band.sums.linear2);
        }
        if !(wanted.first || wanted.inputs) {
            return;
        }

        gamma.norm2.backward(&scratch.hidden, &valid, means[1], &mut scratch.hidden_grad);
        let size = Size { m: d, inner: hidden, n: pairs };
        let across = Matrix::transposed(gamma.linear1, d);
        multiply(size, across, (&scratch.hidden_grad, pairs), (&mut scratch.delta_grad, pairs), false);
        let mut ignored = NormGrads::new(d);
        let sums = if wanted.first { &mut band.sums.norm1 } else { &mut ignored };
        gamma.norm1.relu_backward(&scratch.delta, &scratch.relu1, &mut scratch.delta_grad, sums);
        if wanted.first {
            let size = Size { m: hidden, inner: pairs, n: d };
            add_row_products(size, (&scratch.hidden_grad, pairs), (&scratch.relu1, pairs), &mut band.sums.linear1);
        }
        if wanted.inputs {
            gamma.norm1.backward(&scratch.delta, &valid, means[0], &mut scratch.delta_grad);
            self.relate_backward(at, place, local, scratch, band);
        }
    }

    /// From the gradients of the relations to those of phi, psi and the position.
    fn relate_backward(&self, at: At, place: Place, local: Place, scratch: &mut Scratch, band: &mut Band) {
        let (case, window) = (self.case, &self.case.window);
        let (size, features, pairs) = (window.size, case.features, case.pairs());
        let part = band.rows.len() * window.width;
        let start = (at.0 - band.rows.start) * window.width + at.1;
        let (relation, position) = scratch.delta_grad.split_at((d_relation(case)) * pairs);
        let each = Groups::blocked(features, 1);
        let phi_grad = &mut scratch.tile[..features * TILE];
        phi_grad.fill(0.0);
        match case.relation {
            Relation::Summation | Relation::Subtraction => {
                tile::sum_offsets(relation, window.offsets(), phi_grad);
                let sign = if case.relation == Relation::Summation { 1.0 } else { -1.0 };
                tile::scatter(relation, &vec![sign; features * TILE], &mut band.psi, local, each, size);
            }
            Relation::Hadamard => {
                tile::gather(relation, &self.psi, place, each, size, phi_grad);
                tile::scatter(relation, &scratch.phi, &mut band.psi, local, each, size);
            }
            Relation::Concatenation => {
                let (own, other) = relation.split_at(features * pairs);
                tile::sum_offsets(own, window.offsets(), phi_grad);
                tile::scatter(other, &vec![1.0; features * TILE], &mut band.psi, local, each, size);
            }
            Relation::Dot => {
                let all = Groups::blocked(1, features);
                tile::gather(relation, &self.psi, place, all, size, phi_grad);
                tile::scatter(relation, &scratch.phi, &mut band.psi, local, all, size);
            }
        }
        tile::write(phi_grad, at.2, &mut band.phi, part, start);
        if case.position != Position::None {
            let sign = if case.position == Position::Relative { -1.0 } else { 1.0 };
            tile::scatter(position, &[sign; 2 * TILE], &mut band.position, local, Groups::blocked(2, 1), size);
            if case.position == Position::Relative {
                let centre = &mut scratch.tile[..2 * TILE];
                tile::sum_offsets(position, window.offsets(), centre);
                tile::write(centre, at.2, &mut band.centre, part, start);
            }
        }
    }
}

/// Rows of delta that come from the relation.
fn d_relation(case: &Pairwise) -> usize {
    case.delta() - case.places()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, noise, wide};
    use crate::simd::{Path, with_path};

    const RELATIONS: [Relation; 5] =
        [Relation::Summation, Relation::Subtraction, Relation::Hadamard, Relation::Concatenation, Relation::Dot];

    fn case(relation: Relation, position: Position, size: usize) -> Pairwise {
        let window = Window { height: 6, width: 7, size };
        Pairwise { batch: 2, features: 3, values: 6, weights: 2, hidden: 5, window, relation, position, epsilon: 1e-3 }
    }

    fn inputs(case: &Pairwise) -> [Vec<f32>; 5] {
        let pixels = case.batch * case.window.pixels();
        [
            noise(pixels * case.features, 1),
            noise(pixels * case.features, 2),
            noise(pixels * case.values, 3),
            noise(case.places() * case.window.pixels(), 4),
            noise(case.gamma(), 5),
        ]
    }

    fn given(case: &Pairwise) -> [Moments; 2] {
        [case.delta(), case.hidden].map(|rows| Moments {
            mean: noise(rows, 6),
            variance: noise(rows, 7).iter().map(|v| v + 1.5).collect(),
            count: 1,
        })
    }

    fn assert_equals_its_definition(case: &Pairwise, statistics: Statistics) {
        let inputs = inputs(case);
        let slices = inputs.each_ref().map(Vec::as_slice);
        let batch = statistics == Statistics::Batch;
        for &path in Path::available() {
            with_path(path, || {
                let moments = if batch { case.moments(slices) } else { given(case) };
                let fixed = (!batch).then_some(&moments);
                let out = case.forward(slices, &moments);
                assert_close(&out, &naive::pairwise(case, &slices.map(wide), fixed), 5e-6);
                let seed = noise(out.len(), 8);
                let grads = case.backward(slices, &moments, statistics, &seed);
                assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &seed, |p| {
                    naive::pairwise(case, p, fixed)
                });
            });
        }
    }

    #[test]
    fn every_relation_and_position_equals_the_definition_in_evaluation() {
        for relation in RELATIONS {
            for position in [Position::None, Position::Relative, Position::Absolute] {
                let case = case(relation, position, 3);
                assert_equals_its_definition(&case, Statistics::Given);
            }
        }
    }

    #[test]
    fn every_relation_equals_the_definition_in_training() {
        for relation in RELATIONS {
            assert_equals_its_definition(&case(relation, Position::Relative, 3), Statistics::Batch);
        }
    }

    #[test]
    fn large_footprints_equal_the_definition() {
        for size in [5, 7, 9, 11] {
            assert_equals_its_definition(&case(Relation::Subtraction, Position::Relative, size), Statistics::Batch);
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = Pairwise {
            window: Window { height: 19, width: 18, size: 5 },
            ..case(Relation::Hadamard, Position::Relative, 5)
        };
        let inputs = inputs(&case);
        let slices = inputs.each_ref().map(Vec::as_slice);
        let run = |threads| {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
                let moments = case.moments(slices);
                let out = case.forward(slices, &moments);
                let grads = case.backward(slices, &moments, Statistics::Batch, &out);
                (out, grads)
            })
        };
        assert_eq!(run(1), run(2));
    }
}
