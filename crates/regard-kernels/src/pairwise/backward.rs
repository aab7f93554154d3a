//! The backward pass of pairwise attention: tiles are run again, then backwards.
//!
//! With given moments one sweep over the image is enough. With the batch's own, the gradient of a norm's input needs
//! the means of gradients over all pairs, so there is a sweep for each norm and one for the inputs.

use rayon::prelude::*;
use std::ops::Range;

use super::{At, Gamma, Image, Inputs, Pairwise, Position, Relation, Scratch};
use crate::elementwise::add_all;
use crate::gamma::{Moments, NormGrads, Statistics, add_row_sums, valid};
use crate::product::{Matrix, Size, add_row_products, multiply};
use crate::tile::{self, Groups, Place, TILE};
use crate::window::{Border, interleave, separate};

impl Pairwise {
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
        let Some(beside) = self.side_by_side() else {
            return self.attend_backward(inputs, moments, statistics, grad);
        };
        let images = self.interleaved(inputs);
        let grad = interleave(grad, self.batch);
        let [phi, psi, beta, position, gamma] =
            beside.attend_backward(images.refer(inputs), moments, statistics, &grad);
        let [phi, psi, beta] = [phi, psi, beta].map(|images| separate(&images, self.batch));
        let position = position.chunks_exact(TILE).map(|place| place.iter().sum()).collect();
        [phi, psi, beta, position, gamma]
    }

    pub(super) fn attend_backward(
        &self,
        inputs: Inputs,
        moments: &[Moments; 2],
        statistics: Statistics,
        grad: &[f32],
    ) -> [Vec<f32>; 5] {
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
    rows: Range<usize>,
    phi: Vec<f32>,
    centre: Vec<f32>,
    psi: Vec<f32>,
    beta: Vec<f32>,
    position: Vec<f32>,
    sums: Sums,
}

impl Band {
    fn new(case: &Pairwise, rows: Range<usize>) -> Self {
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

impl Image<'_> {
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
        let (relation, position) = scratch.delta_grad.split_at((case.delta() - case.places()) * pairs);
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
