//! From features to the hidden layer of gamma: relation, norm, ReLU, linear, on tiles of sixteen pixels.

use rayon::prelude::*;

use crate::elementwise::{concat, written};
use crate::gamma::{Moments, MomentsAccumulator, Norm, NormGrads, Statistics, valid};
use crate::product::{Matrix, Size, multiply, transpose_into};
use crate::size;
use crate::tile::{self, Groups, TILE, WindowOrigin};
use crate::window::{Border, Window, interleave, separate};

/// How a patch becomes the input of gamma.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// The product of the centre with every neighbour: `k^2`.
    Star,
    /// The products of all ordered pairs of the patch: `k^4`.
    Clique,
    /// The centre, then every channel of every neighbour.
    Concatenation,
    /// Every channel of every neighbour; the centre is one of them.
    Patch,
}

/// `linear(relu(norm(relation)))` of every pixel: `phi, psi [B, R, H, W] -> [B, hidden, H, W]`. Parameters in
/// one piece: norm weight and bias `[d]`, linear `[hidden, d]`. phi is empty for [`Relation::Patch`].
#[derive(Clone, Copy, Debug)]
pub struct PatchRelate {
    pub batch: usize,
    pub features: usize,
    pub hidden: usize,
    pub window: Window,
    pub relation: Relation,
    pub epsilon: f32,
}

/// phi, psi, parameters.
type RelateInputs<'a> = [&'a [f32]; 3];

/// Row, column and number of pixels of a tile.
type At = (usize, usize, usize);

impl PatchRelate {
    /// Length of a relation.
    #[must_use]
    pub fn delta(&self) -> usize {
        let offsets = self.window.offsets();
        match self.relation {
            Relation::Star => offsets,
            Relation::Clique => offsets.checked_mul(offsets).expect("patchwise attention: a window too large"),
            Relation::Concatenation => {
                self.features.checked_mul(offsets + 1).expect("patchwise attention: too many features")
            }
            Relation::Patch => self.features.checked_mul(offsets).expect("patchwise attention: too many features"),
        }
    }

    /// The moments of the norm over all pixels of the batch.
    #[must_use]
    pub fn moments(&self, inputs: RelateInputs) -> Moments {
        self.check(inputs);
        let Some(beside) = self.side_by_side() else { return self.sweep_moments(inputs) };
        let [phi, psi] = [inputs[0], inputs[1]].map(|images| interleave(images, self.batch));
        beside.sweep_moments([&phi, &psi, inputs[2]])
    }

    /// The same on narrow images laid side by side.
    fn side_by_side(&self) -> Option<Self> {
        let window = self.window.side_by_side(self.batch)?;
        Some(Self { batch: self.batch / TILE, window, ..*self })
    }

    pub(super) fn sweep_moments(&self, inputs: RelateInputs) -> Moments {
        let mut whole = MomentsAccumulator::new(self.delta());
        let images: Vec<_> = (0..self.batch)
            .into_par_iter()
            .map(|index| {
                let image = RelateImage::new(self, index, inputs);
                self.window.bands(|band| {
                    let mut collector = MomentsAccumulator::new(self.delta());
                    let mut scratch = RelateScratch::new(self);
                    for row in band {
                        for (column, count) in self.window.tiles() {
                            image.relate((row, column, count), &mut scratch);
                            collector.add_tile(&scratch.delta, &valid(count));
                        }
                    }
                    collector
                })
            })
            .collect();
        images.iter().flatten().for_each(|(_, collector)| whole.add(collector));
        whole.moments()
    }

    /// The hidden layer `[B, hidden, H, W]`.
    #[must_use]
    pub fn forward(&self, inputs: RelateInputs, moments: &Moments) -> Vec<f32> {
        self.check(inputs);
        let Some(beside) = self.side_by_side() else { return self.relate(inputs, moments) };
        let [phi, psi] = [inputs[0], inputs[1]].map(|images| interleave(images, self.batch));
        separate(&beside.relate([&phi, &psi, inputs[2]], moments), self.batch)
    }

    pub(super) fn relate(&self, inputs: RelateInputs, moments: &Moments) -> Vec<f32> {
        let window = &self.window;
        let (norm, linear) = self.gamma(inputs[2], moments);
        let image = self.hidden * window.pixels();
        written(self.batch * image, image, |index, out| {
            let image = RelateImage::new(self, index, inputs);
            let bands = window.bands(|rows| {
                let part = rows.len() * window.width;
                let mut band = vec![0.0; self.hidden * part];
                let mut scratch = RelateScratch::new(self);
                let mut hidden = vec![0.0; self.hidden * TILE];
                for row in rows.clone() {
                    for (column, count) in window.tiles() {
                        image.relate((row, column, count), &mut scratch);
                        norm.relu(&scratch.delta, &mut scratch.relu);
                        let size = Size { m: self.hidden, inner: self.delta(), n: TILE };
                        let linear = Matrix::rows(linear, self.delta());
                        multiply(size, linear, (&scratch.relu, TILE), (&mut hidden, TILE), false);
                        tile::write(&hidden, count, &mut band, part, (row - rows.start) * window.width + column);
                    }
                }
                band
            });
            window.join_bands(&bands, out);
        })
    }

    /// One gradient for each input. `statistics` says whether the moments were the batch's own.
    #[must_use]
    pub fn backward(
        &self,
        inputs: RelateInputs,
        moments: &Moments,
        statistics: Statistics,
        grad: &[f32],
    ) -> [Vec<f32>; 3] {
        self.check(inputs);
        let outputs = size::product("patchwise attention", &[self.batch, self.window.pixels(), self.hidden]);
        assert_eq!(grad.len(), outputs, "patchwise attention: length of the gradient");
        let Some(beside) = self.side_by_side() else {
            return self.relate_backward(inputs, moments, statistics, grad);
        };
        let [phi, psi, grad] = [inputs[0], inputs[1], grad].map(|images| interleave(images, self.batch));
        let [phi, psi, gamma] = beside.relate_backward([&phi, &psi, inputs[2]], moments, statistics, &grad);
        [separate(&phi, self.batch), separate(&psi, self.batch), gamma]
    }

    pub(super) fn relate_backward(
        &self,
        inputs: RelateInputs,
        moments: &Moments,
        statistics: Statistics,
        grad: &[f32],
    ) -> [Vec<f32>; 3] {
        let sweep = |sweep: Sweep| self.sweep(inputs, moments, grad, sweep);
        let grads = match statistics {
            Statistics::Given => sweep(Sweep { parameters: true, inputs: true, means: None }),
            Statistics::Batch => {
                let first = sweep(Sweep { parameters: true, inputs: false, means: None });
                let means = first.norm.mean(moments.count);
                let second = sweep(Sweep { parameters: false, inputs: true, means: Some(&means) });
                RelateGrads { phi: second.phi, psi: second.psi, ..first }
            }
        };
        [grads.phi, grads.psi, [grads.norm.weight, grads.norm.bias, grads.linear].concat()]
    }

    /// One sweep of the backward pass over the batch.
    fn sweep(&self, inputs: RelateInputs, moments: &Moments, grad: &[f32], sweep: Sweep) -> RelateGrads {
        let images: Vec<RelateGrads> = (0..self.batch)
            .into_par_iter()
            .map(|index| {
                let part = self.hidden * self.window.pixels();
                self.sweep_image(
                    &RelateImage::new(self, index, inputs),
                    inputs[2],
                    moments,
                    &grad[index * part..][..part],
                    sweep,
                )
            })
            .collect();
        let (mut whole, mut maps) = (RelateGrads::new(self, [0, 0]), [const { Vec::new() }; 2]);
        for image in images {
            whole.add_parameters(&image);
            maps.iter_mut().zip([image.phi, image.psi]).for_each(|(all, image)| all.push(image));
        }
        let [phi, psi] = maps.map(|images| concat(&images));
        RelateGrads { phi, psi, ..whole }
    }

    fn sweep_image(
        &self,
        image: &RelateImage,
        gamma: &[f32],
        moments: &Moments,
        grad: &[f32],
        sweep: Sweep,
    ) -> RelateGrads {
        let window = &self.window;
        let (norm, linear) = self.gamma(gamma, moments);
        let (d, hidden) = (self.delta(), self.hidden);
        // a sweep for the parameters alone leaves the inputs' gradients empty
        let planes = |rows: usize| if sweep.inputs { [self.phi_plane(rows), window.plane(rows)] } else { [0, 0] };
        let bands = window.bands(|rows| {
            let mut band = RelateGrads::new(self, planes(rows.len()));
            let mut scratch = RelateScratch::new(self);
            let (mut out_grad, mut delta_grad) = (vec![0.0; hidden * TILE], vec![0.0; d * TILE]);
            let mut relu_t = vec![0.0; TILE * d];
            for row in rows.clone() {
                for (column, count) in window.tiles() {
                    let at = (row, column, count);
                    image.relate(at, &mut scratch);
                    norm.relu(&scratch.delta, &mut scratch.relu);
                    tile::read(grad, window, at, &mut out_grad);
                    let size = Size { m: d, inner: hidden, n: TILE };
                    multiply(size, Matrix::transposed(linear, d), (&out_grad, TILE), (&mut delta_grad, TILE), false);
                    // sums of a later sweep are not looked at
                    norm.backward(&scratch.delta, &valid(count), sweep.means, &mut delta_grad, &mut band.norm);
                    if sweep.parameters {
                        // sixteen pixels are too few to sum along: transposed, the sum is over rows
                        transpose_into(&scratch.relu, TILE, d, &mut relu_t);
                        let size = Size { m: hidden, inner: TILE, n: d };
                        multiply(size, Matrix::rows(&out_grad, TILE), (&relu_t, d), (&mut band.linear, d), true);
                    }
                    if sweep.inputs {
                        let local = WindowOrigin::new(window, rows.len(), row - rows.start, column);
                        image.relate_backward(at, local, &delta_grad, &mut scratch, &mut band);
                    }
                }
            }
            band
        });
        let mut whole = RelateGrads::new(self, planes(window.height));
        for (rows, band) in bands {
            whole.add_parameters(&band);
            window.add_band(&mut whole.psi, &rows, &band.psi);
            match self.relation {
                Relation::Clique => window.add_band(&mut whole.phi, &rows, &band.phi),
                _ => window.put_band(&mut whole.phi, &rows, &band.phi),
            }
        }
        whole.psi = window.fold(&whole.psi, Border::Reflect);
        if self.relation == Relation::Clique {
            whole.phi = window.fold(&whole.phi, Border::Reflect);
        }
        whole
    }

    /// Elements of a plane of phi's gradient for `rows`: padded where phi is seen through windows.
    fn phi_plane(&self, rows: usize) -> usize {
        match self.relation {
            Relation::Clique => self.window.plane(rows),
            _ => rows * self.window.width,
        }
    }

    fn gamma<'a>(&self, gamma: &'a [f32], moments: &Moments) -> (Norm, &'a [f32]) {
        let d = self.delta();
        (Norm::new(&gamma[..d], &gamma[d..2 * d], moments, self.epsilon), &gamma[2 * d..])
    }

    pub(super) fn centre(&self) -> usize {
        if self.relation == Relation::Patch { 0 } else { self.features }
    }

    fn check(&self, [phi, psi, gamma]: RelateInputs) {
        self.window.check(Border::Reflect);
        assert!(self.features > 0 && self.hidden > 0, "patchwise attention: a size of zero in {self:?}");
        let len = |channels: usize| size::product("patchwise attention", &[self.batch, self.window.pixels(), channels]);
        assert_eq!(phi.len(), len(self.centre()), "patchwise attention: length of phi");
        assert_eq!(psi.len(), len(self.features), "patchwise attention: length of psi");
        let rows = size::sum("patchwise attention", &[2, self.hidden]);
        let parameters = size::product("patchwise attention", &[self.delta(), rows]);
        assert_eq!(gamma.len(), parameters, "patchwise attention: number of gamma's parameters");
        len(self.hidden);
    }
}

/// What a sweep of the backward pass is for, and the means that the batch's moments take off.
#[derive(Clone, Copy)]
struct Sweep<'a> {
    parameters: bool,
    inputs: bool,
    means: Option<&'a NormGrads>,
}

struct RelateGrads {
    phi: Vec<f32>,
    psi: Vec<f32>,
    norm: NormGrads,
    linear: Vec<f32>,
}

impl RelateGrads {
    fn new(case: &PatchRelate, [phi_plane, psi_plane]: [usize; 2]) -> Self {
        Self {
            phi: vec![0.0; case.centre() * phi_plane],
            psi: vec![0.0; case.features * psi_plane],
            norm: NormGrads::new(case.delta()),
            linear: vec![0.0; case.hidden * case.delta()],
        }
    }

    fn add_parameters(&mut self, other: &Self) {
        self.norm.add(&other.norm);
        self.linear.iter_mut().zip(&other.linear).for_each(|(sum, part)| *sum += part);
    }
}

struct RelateScratch {
    phi: Vec<f32>,
    delta: Vec<f32>,
    relu: Vec<f32>,
    tile: Vec<f32>,
}

impl RelateScratch {
    fn new(case: &PatchRelate) -> Self {
        let zeros = |rows: usize| vec![0.0; rows * TILE];
        Self {
            phi: zeros(case.features),
            delta: zeros(case.delta()),
            relu: zeros(case.delta()),
            tile: zeros(case.features),
        }
    }
}

/// One image with its padded planes.
struct RelateImage<'a> {
    case: &'a PatchRelate,
    phi: &'a [f32],
    psi: Vec<f32>,
    /// phi through windows, for cliques only.
    phi_padded: Vec<f32>,
}

impl<'a> RelateImage<'a> {
    fn new(case: &'a PatchRelate, index: usize, inputs: RelateInputs<'a>) -> Self {
        let window = &case.window;
        let part =
            |x: &'a [f32], channels: usize| &x[index * channels * window.pixels()..][..channels * window.pixels()];
        let phi = part(inputs[0], case.centre());
        let phi_padded = if case.relation == Relation::Clique { window.pad(phi, Border::Reflect) } else { Vec::new() };
        Self { case, phi, psi: window.pad(part(inputs[1], case.features), Border::Reflect), phi_padded }
    }

    /// Fills `delta` with the relations of a tile.
    fn relate(&self, at: At, scratch: &mut RelateScratch) {
        let (case, window) = (self.case, &self.case.window);
        let (size, span) = (window.size, window.span());
        let (features, offsets) = (case.features, window.offsets());
        let place = WindowOrigin::new(window, window.height, at.0, at.1);
        let all = Groups::blocked(1, features);
        match case.relation {
            Relation::Star => {
                tile::read(self.phi, window, at, &mut scratch.phi);
                tile::dots(&scratch.phi, &self.psi, place, all, span, &mut scratch.delta);
            }
            Relation::Clique => {
                for (offset, delta) in scratch.delta.chunks_exact_mut(offsets * TILE).enumerate() {
                    tile::read_padded(&self.phi_padded, place.shifted(offset / size, offset % size), &mut scratch.phi);
                    tile::dots(&scratch.phi, &self.psi, place, all, span, delta);
                }
            }
            Relation::Concatenation => {
                let (own, patch) = scratch.delta.split_at_mut(features * TILE);
                tile::read(self.phi, window, at, own);
                tile::pair(tile::Pairing::Second, own, &self.psi, place, span, patch);
            }
            Relation::Patch => {
                tile::pair(tile::Pairing::Second, &scratch.phi, &self.psi, place, span, &mut scratch.delta);
            }
        }
    }

    /// From the gradients of the relations to those of phi and psi.
    fn relate_backward(
        &self,
        at: At,
        local: WindowOrigin,
        grad: &[f32],
        scratch: &mut RelateScratch,
        band: &mut RelateGrads,
    ) {
        let (case, window) = (self.case, &self.case.window);
        let (size, span) = (window.size, window.span());
        let (features, offsets) = (case.features, window.offsets());
        let place = WindowOrigin::new(window, window.height, at.0, at.1);
        let (all, each) = (Groups::blocked(1, features), Groups::blocked(features, 1));
        let start = local.row * window.width + at.1;
        let plane = if band.phi.is_empty() { 1 } else { band.phi.len() / features };
        let ones = &vec![1.0; features * TILE];
        match case.relation {
            Relation::Star => {
                tile::gather(grad, &self.psi, place, all, span, &mut scratch.tile);
                tile::write(&scratch.tile, at.2, &mut band.phi, plane, start);
                tile::scatter(grad, &scratch.phi, &mut band.psi, local, all, span);
            }
            Relation::Clique => {
                for (offset, grad) in grad.chunks_exact(offsets * TILE).enumerate() {
                    let (row, column) = (offset / size, offset % size);
                    tile::read_padded(&self.phi_padded, place.shifted(row, column), &mut scratch.phi);
                    tile::gather(grad, &self.psi, place, all, span, &mut scratch.tile);
                    tile::add_padded(&scratch.tile, &mut band.phi, local.shifted(row, column));
                    tile::scatter(grad, &scratch.phi, &mut band.psi, local, all, span);
                }
            }
            Relation::Concatenation => {
                let (own, patch) = grad.split_at(features * TILE);
                tile::write(own, at.2, &mut band.phi, plane, start);
                tile::scatter(patch, ones, &mut band.psi, local, each, span);
            }
            Relation::Patch => tile::scatter(grad, ones, &mut band.psi, local, each, span),
        }
    }
}
