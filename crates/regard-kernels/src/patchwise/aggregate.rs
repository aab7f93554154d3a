//! From the hidden layer of gamma to the output: weights of every pixel, and the sum of its patch under them.

use rayon::prelude::*;

use crate::elementwise::{add_all, concat, written};
use crate::gamma::add_row_sums;
use crate::product::{Matrix, Size, multiply, transpose_into};
use crate::size;
use crate::tile::{self, Groups, TILE, WindowOrigin};
use crate::window::{Border, Window, interleave, separate};

/// `hidden [B, hidden, H, W]`, `linear [C_w*k*k, hidden]`, `bias [C_w*k*k]`, `beta [B, C, H, W] -> [B, C, H, W]`:
/// the weights of every pixel, and the sum of its patch under them.
#[derive(Clone, Copy, Debug)]
pub struct PatchAggregate {
    pub batch: usize,
    pub hidden: usize,
    pub values: usize,
    pub weights: usize,
    pub window: Window,
}

/// hidden, linear, bias, beta.
type AggregateInputs<'a> = [&'a [f32]; 4];

impl PatchAggregate {
    /// The output `[B, C, H, W]`.
    #[must_use]
    pub fn forward(&self, inputs: AggregateInputs) -> Vec<f32> {
        self.check(inputs);
        let Some(beside) = self.side_by_side() else { return self.attend(inputs) };
        let [hidden, beta] = [inputs[0], inputs[3]].map(|images| interleave(images, self.batch));
        separate(&beside.attend([&hidden, inputs[1], inputs[2], &beta]), self.batch)
    }

    pub(super) fn attend(&self, inputs: AggregateInputs) -> Vec<f32> {
        let window = &self.window;
        let image = self.values * window.pixels();
        written(self.batch * image, image, |index, out| {
            let (hidden, beta) = self.image(index, inputs);
            let bands = window.bands(|rows| {
                let part = rows.len() * window.width;
                let mut band = vec![0.0; self.values * part];
                let (mut tile, mut weights) = (vec![0.0; self.hidden * TILE], vec![0.0; inputs[2].len() * TILE]);
                let mut sum = vec![0.0; self.values * TILE];
                for row in rows.clone() {
                    for (column, count) in window.tiles() {
                        tile::read(hidden, window, (row, column, count), &mut tile);
                        self.compute_weights(inputs, &tile, &mut weights);
                        let place = WindowOrigin::new(window, window.height, row, column);
                        tile::gather(&weights, &beta, place, self.groups(), window.span(), &mut sum);
                        tile::write(&sum, count, &mut band, part, (row - rows.start) * window.width + column);
                    }
                }
                band
            });
            window.join_bands(&bands, out);
        })
    }

    /// One gradient for each input.
    #[must_use]
    pub fn backward(&self, inputs: AggregateInputs, grad: &[f32]) -> [Vec<f32>; 4] {
        self.check(inputs);
        assert_eq!(grad.len(), inputs[3].len(), "patchwise attention: length of the gradient");
        let Some(beside) = self.side_by_side() else { return self.attend_backward(inputs, grad) };
        let [hidden, beta, grad] = [inputs[0], inputs[3], grad].map(|images| interleave(images, self.batch));
        let [hidden, linear, bias, beta] = beside.attend_backward([&hidden, inputs[1], inputs[2], &beta], &grad);
        [separate(&hidden, self.batch), linear, bias, separate(&beta, self.batch)]
    }

    /// The same on narrow images laid side by side.
    fn side_by_side(&self) -> Option<Self> {
        let window = self.window.side_by_side(self.batch)?;
        Some(Self { batch: self.batch / TILE, window, ..*self })
    }

    pub(super) fn attend_backward(&self, inputs: AggregateInputs, grad: &[f32]) -> [Vec<f32>; 4] {
        let images: Vec<[Vec<f32>; 4]> =
            (0..self.batch).into_par_iter().map(|index| self.backward_image(index, inputs, grad)).collect();
        let (mut sums, mut maps) = ([1, 2].map(|input| vec![0.0; inputs[input].len()]), [const { Vec::new() }; 2]);
        for [hidden, linear, bias, beta] in images {
            sums.iter_mut().zip([linear, bias]).for_each(|(sum, part): (&mut Vec<f32>, _)| add_all(sum, [part]));
            maps.iter_mut().zip([hidden, beta]).for_each(|(all, image)| all.push(image));
        }
        let ([linear, bias], [hidden, beta]) = (sums, maps.map(|images| concat(&images)));
        [hidden, linear, bias, beta]
    }

    fn backward_image(&self, index: usize, inputs: AggregateInputs, grad: &[f32]) -> [Vec<f32>; 4] {
        let window = &self.window;
        let (hidden, beta) = self.image(index, inputs);
        let grad = &grad[index * self.values * window.pixels()..][..self.values * window.pixels()];
        let outputs = inputs[2].len();
        let bands = window.bands(|rows| {
            let part = rows.len() * window.width;
            let mut band = [
                vec![0.0; self.hidden * part],
                vec![0.0; inputs[1].len()],
                vec![0.0; outputs],
                vec![0.0; self.values * window.plane(rows.len())],
            ];
            let (mut tile, mut weights) = (vec![0.0; self.hidden * TILE], vec![0.0; outputs * TILE]);
            let (mut out_grad, mut weight_grads) = (vec![0.0; self.values * TILE], vec![0.0; outputs * TILE]);
            let (mut hidden_grad, mut tile_t) = (vec![0.0; self.hidden * TILE], vec![0.0; self.hidden * TILE]);
            for row in rows.clone() {
                for (column, count) in window.tiles() {
                    let at = (row, column, count);
                    let (place, local) = (
                        WindowOrigin::new(window, window.height, row, column),
                        WindowOrigin::new(window, rows.len(), row - rows.start, column),
                    );
                    tile::read(hidden, window, at, &mut tile);
                    tile::read(grad, window, at, &mut out_grad);
                    self.compute_weights(inputs, &tile, &mut weights);
                    tile::scatter(&weights, &out_grad, &mut band[3], local, self.groups(), window.span());
                    tile::dots(&out_grad, &beta, place, self.groups(), window.span(), &mut weight_grads);
                    add_row_sums(&weight_grads, &mut band[2]);
                    let size = Size { m: outputs, inner: TILE, n: self.hidden };
                    transpose_into(&tile, TILE, self.hidden, &mut tile_t);
                    multiply(
                        size,
                        Matrix::rows(&weight_grads, TILE),
                        (&tile_t, self.hidden),
                        (&mut band[1], self.hidden),
                        true,
                    );
                    let size = Size { m: self.hidden, inner: outputs, n: TILE };
                    let linear_t = Matrix::transposed(inputs[1], self.hidden);
                    multiply(size, linear_t, (&weight_grads, TILE), (&mut hidden_grad, TILE), false);
                    tile::write(&hidden_grad, count, &mut band[0], part, (row - rows.start) * window.width + column);
                }
            }
            band
        });
        let mut hidden_grad = vec![0.0; self.hidden * window.pixels()];
        let (mut linear, mut bias) = (vec![0.0; inputs[1].len()], vec![0.0; outputs]);
        let mut padded = vec![0.0; self.values * window.plane(window.height)];
        for (rows, [hidden_part, linear_part, bias_part, beta_part]) in bands {
            window.put_band(&mut hidden_grad, &rows, &hidden_part);
            add_all(&mut linear, [linear_part]);
            add_all(&mut bias, [bias_part]);
            window.add_band(&mut padded, &rows, &beta_part);
        }
        [hidden_grad, linear, bias, window.fold(&padded, Border::Reflect)]
    }

    /// `weights = linear hidden + bias`
    fn compute_weights(&self, inputs: AggregateInputs, hidden: &[f32], weights: &mut [f32]) {
        for (row, bias) in weights.chunks_exact_mut(TILE).zip(inputs[2]) {
            row.fill(*bias);
        }
        let size = Size { m: inputs[2].len(), inner: self.hidden, n: TILE };
        multiply(size, Matrix::rows(inputs[1], self.hidden), (hidden, TILE), (weights, TILE), true);
    }

    fn image<'a>(&self, index: usize, inputs: AggregateInputs<'a>) -> (&'a [f32], Vec<f32>) {
        let part = |x: &'a [f32], channels: usize| {
            &x[index * channels * self.window.pixels()..][..channels * self.window.pixels()]
        };
        (part(inputs[0], self.hidden), self.window.pad(part(inputs[3], self.values), Border::Reflect))
    }

    fn groups(&self) -> Groups {
        Groups::interleaved(self.weights, self.values / self.weights)
    }

    fn check(&self, [hidden, linear, bias, beta]: AggregateInputs) {
        self.window.check(Border::Reflect);
        let sizes = [self.hidden, self.values, self.weights];
        assert!(!sizes.contains(&0), "patchwise attention: a size of zero in {self:?}");
        let len = |channels: usize| size::product("patchwise attention", &[self.batch, self.window.pixels(), channels]);
        let outputs = size::product("patchwise attention", &[self.weights, self.window.offsets()]);
        let linears = size::product("patchwise attention", &[outputs, self.hidden]);
        assert_eq!(hidden.len(), len(self.hidden), "patchwise attention: length of the hidden layer");
        assert_eq!(linear.len(), linears, "patchwise attention: length of the linear map");
        assert_eq!(bias.len(), outputs, "patchwise attention: length of the bias");
        assert_eq!(beta.len(), len(self.values), "patchwise attention: length of beta");
        assert!(
            self.values.is_multiple_of(self.weights),
            "patchwise attention: {} weights do not divide {} values",
            self.weights,
            self.values
        );
    }
}
