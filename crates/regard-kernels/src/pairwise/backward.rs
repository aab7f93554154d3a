//! The backward pass of pairwise attention: tiles are run again, then backwards.
//!
//! With given moments one sweep over the image is enough. With the batch's own, the gradient of a norm's input needs
//! the means of gradients over all pairs. Hence a sweep for the second norm and one for the first; what the means of the
//! first take off the inputs' gradients is linear in the relations, and a last sweep without gamma subtracts it.

use rayon::prelude::*;
use std::ops::Range;

use super::{At, Gamma, Image, Inputs, Pairwise, Part, Position, Relation, Scratch, without_values};
use crate::elementwise::{add_all, concat};
use crate::gamma::{Moments, NormGrads, Statistics, add_row_sums, valid};
use crate::product::{Matrix, Size, add_row_products, multiply};
use crate::tile::{self, Groups, TILE, WindowOrigin};
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
        assert_eq!(grad.len(), inputs[2].len(), "pairwise attention: length of the gradient");
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
        let sweep = |wanted: Wanted, second: Option<&NormGrads>| self.sweep_grads(inputs, &gamma, grad, wanted, second);
        let Grads { images, sums } = match statistics {
            Statistics::Given => sweep(Wanted { second: true, first: true, batch_means: None }, None),
            Statistics::Batch => {
                let mut all = sweep(Wanted { second: true, first: false, batch_means: None }, None);
                let second = all.sums.norm2.mean(moments[1].count);
                let middle = sweep(Wanted { second: false, first: true, batch_means: None }, Some(&second));
                all.sums.norm1 = middle.sums.norm1;
                all.sums.linear1 = middle.sums.linear1;
                let first = all.sums.norm1.mean(moments[0].count);
                let last = sweep(Wanted { second: false, first: false, batch_means: Some(&first) }, None);
                for ((image, middle), last) in all.images.iter_mut().zip(middle.images).zip(last.images) {
                    (image.phi, image.psi, image.position) = (middle.phi, middle.psi, middle.position);
                    add_all(&mut image.phi, [last.phi]);
                    add_all(&mut image.psi, [last.psi]);
                    add_all(&mut image.position, [last.position]);
                }
                all
            }
        };
        let (mut position, mut maps) = (vec![0.0; inputs[3].len()], [const { Vec::new() }; 3]);
        for image in images {
            add_all(&mut position, [image.position]);
            maps.iter_mut().zip([image.phi, image.psi, image.beta]).for_each(|(all, image)| all.push(image));
        }
        let [phi, psi, beta] = maps.map(|images| concat(&images));
        let Sums { norm1, linear1, norm2, linear2, bias } = sums;
        let gamma = [norm1.weight, norm1.bias, linear1, norm2.weight, norm2.bias, linear2, bias].concat();
        [phi, psi, beta, position, gamma]
    }

    /// One sweep of the backward pass over the batch.
    fn sweep_grads(
        &self,
        inputs: Inputs,
        gamma: &Gamma,
        grad: &[f32],
        wanted: Wanted,
        second: Option<&NormGrads>,
    ) -> Grads {
        let window = &self.window;
        let inputs = if wanted.batch_means.is_some() { without_values(inputs) } else { inputs };
        let images: Vec<(ImageGrads, Sums)> = (0..self.batch)
            .into_par_iter()
            .map(|index| {
                let image = Image::new(self, index, inputs);
                let grad = &grad[index * self.values * window.pixels()..][..self.values * window.pixels()];
                let bands = window.bands(|rows| {
                    let mut band = Band::new(self, rows.clone(), wanted);
                    Scratch::with(self, |scratch| {
                        for row in rows {
                            for (column, count) in window.tiles() {
                                let at = (row, column, count);
                                match wanted.batch_means {
                                    Some(first) => image.subtract_batch_means(gamma, at, first, scratch, &mut band),
                                    None => image.backward(gamma, grad, at, wanted, second, scratch, &mut band),
                                }
                            }
                        }
                    });
                    band
                });
                self.join(bands.into_iter().map(|(_, band)| band), wanted)
            })
            .collect();
        let mut sums = Sums::new(self);
        images.iter().for_each(|(_, part)| sums.add(part));
        Grads { images: images.into_iter().map(|(image, _)| image).collect(), sums }
    }

    /// Joins the bands of one image in their order.
    fn join(&self, bands: impl Iterator<Item = Band>, wanted: Wanted) -> (ImageGrads, Sums) {
        let window = &self.window;
        let mut sums = Sums::new(self);
        let [features, values, places] = wanted.planes(self);
        let mut phi = vec![0.0; features * window.pixels()];
        let mut centre = vec![0.0; places * window.pixels()];
        let mut padded = [features, values, places].map(|n| vec![0.0; n * window.plane(window.height)]);
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
#[derive(Clone, Copy)]
struct Wanted<'a> {
    /// Gradients of beta and of what comes behind the hidden layer.
    second: bool,
    /// Gradients of what comes before it, and of the other inputs.
    first: bool,
    /// Nothing but what these means of the first norm take off the gradients of the inputs.
    batch_means: Option<&'a NormGrads>,
}

impl Wanted<'_> {
    /// Planes of features, values and coordinates that have gradients; others are left empty.
    fn planes(&self, case: &Pairwise) -> [usize; 3] {
        let inputs = usize::from(self.first || self.batch_means.is_some());
        [inputs * case.features, usize::from(self.second) * case.values, inputs * case.places()]
    }
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
    fn new(case: &Pairwise, rows: Range<usize>, wanted: Wanted) -> Self {
        let (own, padded) = (rows.len() * case.window.width, case.window.plane(rows.len()));
        let [features, values, places] = wanted.planes(case);
        Self {
            phi: vec![0.0; features * own],
            centre: vec![0.0; places * own],
            psi: vec![0.0; features * padded],
            beta: vec![0.0; values * padded],
            position: vec![0.0; places * padded],
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
        second: Option<&NormGrads>,
        scratch: &mut Scratch,
        band: &mut Band,
    ) {
        let (case, window, all) = (self.case, &self.case.window, self.case.pairs());
        let (d, hidden, weights) = (case.delta(), case.hidden, case.weights);
        let place = WindowOrigin::new(window, window.height, at.0, at.1);
        let local = WindowOrigin::new(window, band.rows.len(), at.0 - band.rows.start, at.1);
        let valid = valid(at.2);
        self.attention_weights(gamma, at, scratch);
        tile::read(grad, window, at, scratch.out);
        tile::dots(scratch.out, &self.beta, place, case.groups(), window.span(), scratch.score_grads);
        tile::softmax_backward(scratch.weights, scratch.score_grads, window.offsets());
        if wanted.second {
            tile::scatter(scratch.weights, scratch.out, &mut band.beta, local, case.groups(), window.span());
            add_row_sums(scratch.score_grads, &mut band.sums.bias);
        }
        scratch.tile.fill(0.0);
        for part in case.parts() {
            let pairs = part.pairs();
            let score_grads = &scratch.score_grads[part.range().start..];
            let hidden_grad = &mut scratch.hidden_grad[..hidden * pairs];
            let size = Size { m: hidden, inner: weights, n: pairs };
            multiply(size, Matrix::transposed(gamma.linear2, hidden), (score_grads, all), (hidden_grad, pairs), false);
            gamma.norm2.backward(&scratch.hidden[part.of(hidden)], &valid, second, hidden_grad, &mut band.sums.norm2);
            if wanted.second {
                let relu = &scratch.relu2[part.of(hidden)];
                let size = Size { m: weights, inner: pairs, n: hidden };
                add_row_products(size, (score_grads, all), (relu, pairs), &mut band.sums.linear2);
            }
            if wanted.first {
                let relu = &scratch.relu1[part.of(d)];
                let size = Size { m: hidden, inner: pairs, n: d };
                add_row_products(size, (hidden_grad, pairs), (relu, pairs), &mut band.sums.linear1);
                let delta_grad = &mut scratch.delta_grad[..d * pairs];
                let size = Size { m: d, inner: hidden, n: pairs };
                multiply(size, Matrix::transposed(gamma.linear1, d), (hidden_grad, pairs), (delta_grad, pairs), false);
                gamma.norm1.backward(&scratch.delta[part.of(d)], &valid, None, delta_grad, &mut band.sums.norm1);
                self.relate_backward(at, part, scratch, band);
            }
        }
        if wanted.first {
            self.write_own(at, scratch, band);
        }
    }

    /// Takes the means of the first norm off the gradients of the inputs.
    fn subtract_batch_means(&self, gamma: &Gamma, at: At, first: &NormGrads, scratch: &mut Scratch, band: &mut Band) {
        let (case, valid) = (self.case, valid(at.2));
        self.read(at, scratch);
        scratch.tile.fill(0.0);
        for part in case.parts() {
            self.relate(at, part, scratch);
            let delta_grad = &mut scratch.delta_grad[..case.delta() * part.pairs()];
            gamma.norm1.subtract_batch_means(&scratch.delta[part.of(case.delta())], &valid, first, delta_grad);
            self.relate_backward(at, part, scratch, band);
        }
        self.write_own(at, scratch, band);
    }

    /// From the gradients of a part's relations to those of psi and the neighbours' positions, and to what they add to
    /// those of the tile itself.
    fn relate_backward(&self, at: At, part: Part, scratch: &mut Scratch, band: &mut Band) {
        let (case, window, span) = (self.case, &self.case.window, part.span());
        let (features, offsets) = (case.features, part.rows * part.columns);
        let place = WindowOrigin::new(window, window.height, at.0, at.1).shifted(part.row, 0);
        let local = WindowOrigin::new(window, band.rows.len(), at.0 - band.rows.start, at.1).shifted(part.row, 0);
        let (relation, position) =
            scratch.delta_grad[..case.delta() * part.pairs()].split_at((case.delta() - case.places()) * part.pairs());
        let each = Groups::blocked(features, 1);
        let (phi_grad, centre) = scratch.tile.split_at_mut(features * TILE);
        let seen = &mut *scratch.seen;
        match case.relation {
            Relation::Summation | Relation::Subtraction => {
                tile::add_offsets(relation, offsets, phi_grad);
                let sign = if case.relation == Relation::Summation { 1.0 } else { -1.0 };
                seen.fill(sign);
                tile::scatter(relation, seen, &mut band.psi, local, each, span);
            }
            Relation::Hadamard => {
                tile::gather(relation, &self.psi, place, each, span, seen);
                add(phi_grad, seen);
                tile::scatter(relation, scratch.phi, &mut band.psi, local, each, span);
            }
            Relation::Concatenation => {
                let (own, other) = relation.split_at(features * part.pairs());
                tile::add_offsets(own, offsets, phi_grad);
                seen.fill(1.0);
                tile::scatter(other, seen, &mut band.psi, local, each, span);
            }
            Relation::Dot => {
                let all = Groups::blocked(1, features);
                tile::gather(relation, &self.psi, place, all, span, seen);
                add(phi_grad, seen);
                tile::scatter(relation, scratch.phi, &mut band.psi, local, all, span);
            }
        }
        if case.position != Position::None {
            let sign = if case.position == Position::Relative { -1.0 } else { 1.0 };
            tile::scatter(position, &[sign; 2 * TILE], &mut band.position, local, Groups::blocked(2, 1), span);
            if case.position == Position::Relative {
                tile::add_offsets(position, offsets, centre);
            }
        }
    }

    /// The gradients of the tile itself, when all its neighbours have added to them.
    fn write_own(&self, at: At, scratch: &Scratch, band: &mut Band) {
        let window = &self.case.window;
        let part = band.rows.len() * window.width;
        let start = (at.0 - band.rows.start) * window.width + at.1;
        let (phi_grad, centre) = scratch.tile.split_at(self.case.features * TILE);
        tile::write(phi_grad, at.2, &mut band.phi, part, start);
        tile::write(centre, at.2, &mut band.centre, part, start);
    }
}

fn add(sums: &mut [f32], parts: &[f32]) {
    sums.iter_mut().zip(parts).for_each(|(sum, part)| *sum += part);
}
