//! Stand-alone local attention: every pixel attends to the k x k window around it.
//!
//! A task takes eight rows and goes through them sixteen pixels at a time: scores of all offsets, softmax,
//! values. The backward pass recomputes the weights. No window is ever copied out of its plane.

use rayon::prelude::*;

use crate::elementwise::{add_all, written};
use crate::product::{Matrix, Size, add_row_products, multiply};
use crate::size;
use crate::tile::{self, Groups, TILE, WindowOrigin};
use crate::uninit::UninitWriter;
use crate::window::{Border, Window, interleave, separate};

/// `query, key [B, A*K, H, W]`, `value [B, A*V, H, W]`, heads outermost in the channels; scores are plain products.
#[derive(Clone, Copy, Debug)]
pub struct Local {
    pub batch: usize,
    pub heads: usize,
    pub width: usize,
    pub value_width: usize,
    pub window: Window,
    /// Whether rows and columns `[A, K/2, k]` are embedded.
    pub relative: bool,
}

/// The five inputs: query, key, value, row and column embeddings (empty without positions).
type Inputs<'a> = [&'a [f32]; 5];

impl Local {
    /// The output `[B, A*V, H, W]`.
    pub fn forward(&self, inputs: Inputs) -> Vec<f32> {
        self.check(inputs);
        let Some(beside) = self.side_by_side() else { return self.attend(inputs) };
        let [query, key, value] = [0, 1, 2].map(|which: usize| interleave(inputs[which], self.batch));
        separate(&beside.attend([&query, &key, &value, inputs[3], inputs[4]]), self.batch)
    }

    fn attend(&self, inputs: Inputs) -> Vec<f32> {
        written(inputs[2].len(), self.value_width * self.window.pixels(), |index, out| {
            let (head, inputs) = self.head(index, inputs);
            head.attend_head(inputs, out);
        })
    }

    /// A head of an image, and what belongs to it: heads do not see each other, and one fits the cache.
    fn head<'a>(&self, index: usize, inputs: Inputs<'a>) -> (Self, Inputs<'a>) {
        let pixels = self.window.pixels();
        let image = |which: usize, width: usize| &inputs[which][index * width * pixels..][..width * pixels];
        let embedding = |which: usize| {
            let len = inputs[which].len() / self.heads;
            &inputs[which][index % self.heads * len..][..len]
        };
        let parts =
            [image(0, self.width), image(1, self.width), image(2, self.value_width), embedding(3), embedding(4)];
        (Self { batch: 1, heads: 1, ..*self }, parts)
    }

    fn attend_head(&self, inputs: Inputs, out: &mut UninitWriter) {
        let window = &self.window;
        let image = Image::new(self, inputs);
        let bands = window.bands(|rows| {
            let part = rows.len() * window.width;
            let mut band = vec![0.0; self.value_width * part];
            let mut scratch = Scratch::new(self);
            for row in rows.clone() {
                for (column, count) in window.tiles() {
                    image.attention_weights((row, column, count), &mut scratch);
                    let place = WindowOrigin::new(window, window.height, row, column);
                    let values = self.value_groups();
                    tile::gather(&scratch.weights, &image.value, place, values, window.span(), &mut scratch.out);
                    tile::write(&scratch.out, count, &mut band, part, (row - rows.start) * window.width + column);
                }
            }
            band
        });
        window.join_bands(&bands, out);
    }

    /// One gradient for each input.
    pub fn backward(&self, inputs: Inputs, grad: &[f32]) -> [Vec<f32>; 5] {
        self.check(inputs);
        assert_eq!(grad.len(), inputs[2].len(), "local attention: length of the gradient");
        let Some(beside) = self.side_by_side() else { return self.attend_backward(inputs, grad) };
        let [query, key, value, grad] =
            [inputs[0], inputs[1], inputs[2], grad].map(|images| interleave(images, self.batch));
        let [query, key, value, rows, columns] =
            beside.attend_backward([&query, &key, &value, inputs[3], inputs[4]], &grad);
        let [query, key, value] = [query, key, value].map(|images| separate(&images, self.batch));
        [query, key, value, rows, columns]
    }

    /// The same on narrow images laid side by side.
    fn side_by_side(&self) -> Option<Self> {
        let window = self.window.side_by_side(self.batch)?;
        Some(Self { batch: self.batch / TILE, window, ..*self })
    }

    fn attend_backward(&self, inputs: Inputs, grad: &[f32]) -> [Vec<f32>; 5] {
        let part = self.value_width * self.window.pixels();
        let heads: Vec<[Vec<f32>; 5]> = grad
            .par_chunks(part)
            .enumerate()
            .map(|(index, grad)| {
                let (head, inputs) = self.head(index, inputs);
                head.backward_head(inputs, grad)
            })
            .collect();
        let mut grads = inputs.map(|input| Vec::with_capacity(input.len()));
        grads[3..].iter_mut().zip(&inputs[3..]).for_each(|(whole, input)| whole.resize(input.len(), 0.0));
        for (index, [query, key, value, rows, columns]) in heads.into_iter().enumerate() {
            for (whole, part) in grads.iter_mut().zip([query, key, value]) {
                whole.extend(part);
            }
            // embeddings are shared by the images
            for (whole, part) in grads[3..].iter_mut().zip([rows, columns]) {
                add_all(&mut whole[index % self.heads * part.len()..], [part]);
            }
        }
        grads
    }

    fn backward_head(&self, inputs: Inputs, grad: &[f32]) -> [Vec<f32>; 5] {
        let window = &self.window;
        let image = Image::new(self, inputs);
        let channels = [self.width, self.value_width];
        let bands = window.bands(|rows| {
            let part = rows.len() * window.width;
            let mut query = vec![0.0; channels[0] * part];
            let mut padded = channels.map(|channels| vec![0.0; channels * window.plane(rows.len())]);
            let mut embeddings = [vec![0.0; inputs[3].len()], vec![0.0; inputs[4].len()]];
            let mut scratch = Scratch::new(self);
            let mut score_grads = vec![0.0; scratch.weights.len()];
            let mut out_grad = vec![0.0; channels[1] * TILE];
            let mut query_grad = vec![0.0; channels[0] * TILE];
            for row in rows.clone() {
                for (column, count) in window.tiles() {
                    let (place, local) = (
                        WindowOrigin::new(window, window.height, row, column),
                        WindowOrigin::new(window, rows.len(), row - rows.start, column),
                    );
                    let (keys, values, span) = (self.key_groups(), self.value_groups(), window.span());
                    image.attention_weights((row, column, count), &mut scratch);
                    tile::read(grad, window, (row, column, count), &mut out_grad);
                    tile::dots(&out_grad, &image.value, place, values, span, &mut score_grads);
                    tile::softmax_backward(&scratch.weights, &mut score_grads, window.offsets());
                    tile::scatter(&scratch.weights, &out_grad, &mut padded[1], local, values, span);
                    tile::scatter(&score_grads, &scratch.query, &mut padded[0], local, keys, span);
                    tile::gather(&score_grads, &image.key, place, keys, span, &mut query_grad);
                    if self.relative {
                        self.relative_backward(inputs, &mut scratch, &score_grads, &mut query_grad, &mut embeddings);
                    }
                    tile::write(&query_grad, count, &mut query, part, (row - rows.start) * window.width + column);
                }
            }
            (query, padded, embeddings)
        });
        let mut query_grad = vec![0.0; channels[0] * window.pixels()];
        let mut padded = channels.map(|channels| vec![0.0; channels * window.plane(window.height)]);
        let mut embeddings = [vec![0.0; inputs[3].len()], vec![0.0; inputs[4].len()]];
        for (rows, (query, band, parts)) in bands {
            window.put_band(&mut query_grad, &rows, &query);
            for (whole, part) in padded.iter_mut().zip(band) {
                window.add_band(whole, &rows, &part);
            }
            for (whole, part) in embeddings.iter_mut().zip(parts) {
                add_all(whole, [part]);
            }
        }
        let [key_grad, value_grad] = padded.map(|padded| window.fold(&padded, Border::Zero));
        let [row_grad, column_grad] = embeddings;
        [query_grad, key_grad, value_grad, row_grad, column_grad]
    }

    /// Adds `q . row + q . column` to the scores of every head.
    fn add_relative(&self, inputs: Inputs, query: &[f32], sums: &mut [f32], scores: &mut [f32]) {
        let (size, half) = (self.window.size, self.width / 2);
        let (by_row, by_column) = sums.split_at_mut(size * TILE);
        for (head, scores) in scores.chunks_exact_mut(self.window.offsets() * TILE).enumerate() {
            let product = Size { m: size, inner: half, n: TILE };
            for (which, sums) in [&mut *by_row, &mut *by_column].into_iter().enumerate() {
                let embedding = Matrix::transposed(&inputs[3 + which][head * half * size..], size);
                let query = &query[(head * self.width + which * half) * TILE..];
                multiply(product, embedding, (query, TILE), (sums, TILE), false);
            }
            for (offset, scores) in scores.chunks_exact_mut(TILE).enumerate() {
                let (row, column) = (&by_row[offset / size * TILE..], &by_column[offset % size * TILE..]);
                for ((score, row), column) in scores.iter_mut().zip(row).zip(column) {
                    *score += row + column;
                }
            }
        }
    }

    /// Slopes of a head summed over the columns, then over the rows, of the window.
    fn sum_score_grads(&self, score_grads: &[f32], sums: &mut [f32]) {
        let size = self.window.size;
        sums.fill(0.0);
        let (by_row, by_column) = sums.split_at_mut(size * TILE);
        for (offset, score_grads) in score_grads.chunks_exact(TILE).enumerate() {
            for lane in 0..TILE {
                by_row[offset / size * TILE + lane] += score_grads[lane];
                by_column[offset % size * TILE + lane] += score_grads[lane];
            }
        }
    }

    /// Adds the gradients that reach the query and the embeddings through the relative scores.
    fn relative_backward(
        &self,
        inputs: Inputs,
        scratch: &mut Scratch,
        score_grads: &[f32],
        query_grad: &mut [f32],
        grads: &mut [Vec<f32>; 2],
    ) {
        let (size, half) = (self.window.size, self.width / 2);
        for (head, score_grads) in score_grads.chunks_exact(self.window.offsets() * TILE).enumerate() {
            self.sum_score_grads(score_grads, &mut scratch.sums);
            for (which, sums) in scratch.sums.chunks_exact(size * TILE).enumerate() {
                let (channel, part) = ((head * self.width + which * half) * TILE, head * half * size);
                let grad = &mut grads[which][part..][..half * size];
                let query = (&scratch.query[channel..], TILE);
                add_row_products(Size { m: half, inner: TILE, n: size }, query, (sums, TILE), grad);
                let embedding = Matrix::rows(&inputs[3 + which][part..], size);
                let to = (&mut query_grad[channel..], TILE);
                multiply(Size { m: half, inner: size, n: TILE }, embedding, (sums, TILE), to, true);
            }
        }
    }

    fn key_groups(&self) -> Groups {
        Groups::blocked(self.heads, self.width)
    }

    fn value_groups(&self) -> Groups {
        Groups::blocked(self.heads, self.value_width)
    }

    fn check(&self, [query, key, value, rows, columns]: Inputs) {
        self.window.check(Border::Zero);
        let Self { batch, heads, width, value_width, .. } = *self;
        assert!(heads > 0 && width > 0 && value_width > 0, "local attention: a size of zero in {self:?}");
        let len = |width: usize| size::product("local attention", &[batch, heads, self.window.pixels(), width]);
        assert_eq!(query.len(), len(width), "local attention: length of the query");
        assert_eq!(key.len(), len(width), "local attention: length of the key");
        assert_eq!(value.len(), len(value_width), "local attention: length of the value");
        if self.relative {
            assert!(self.width.is_multiple_of(2), "local attention: relative positions halve the width {}", self.width);
            let len = size::product("local attention", &[heads, width / 2, self.window.size]);
            assert_eq!([rows.len(), columns.len()], [len; 2], "local attention: lengths of the embeddings");
        }
    }
}

/// One head of an image with its padded planes.
struct Image<'a> {
    local: &'a Local,
    inputs: Inputs<'a>,
    query: &'a [f32],
    key: Vec<f32>,
    value: Vec<f32>,
    inside: Vec<f32>,
}

impl<'a> Image<'a> {
    fn new(local: &'a Local, inputs: Inputs<'a>) -> Self {
        let window = &local.window;
        Self {
            local,
            inputs,
            query: inputs[0],
            key: window.pad(inputs[1], Border::Zero),
            value: window.pad(inputs[2], Border::Zero),
            inside: window.inside(),
        }
    }

    /// Leaves the weights of a tile in the scratch.
    fn attention_weights(&self, (row, column, count): (usize, usize, usize), scratch: &mut Scratch) {
        let (local, window) = (self.local, &self.local.window);
        let place = WindowOrigin::new(window, window.height, row, column);
        tile::read(self.query, window, (row, column, count), &mut scratch.query);
        tile::dots(&scratch.query, &self.key, place, local.key_groups(), window.span(), &mut scratch.weights);
        if local.relative {
            local.add_relative(self.inputs, &scratch.query, &mut scratch.sums, &mut scratch.weights);
        }
        tile::pair(tile::Pairing::Second, &[0.0; TILE], &self.inside, place, window.span(), &mut scratch.mask);
        tile::softmax(&mut scratch.weights, window.offsets(), &scratch.mask);
    }
}

struct Scratch {
    query: Vec<f32>,
    weights: Vec<f32>,
    mask: Vec<f32>,
    sums: Vec<f32>,
    out: Vec<f32>,
}

impl Scratch {
    fn new(local: &Local) -> Self {
        let offsets = local.window.offsets();
        Self {
            query: vec![0.0; local.heads * local.width * TILE],
            weights: vec![0.0; local.heads * offsets * TILE],
            mask: vec![0.0; offsets * TILE],
            sums: vec![0.0; 2 * local.window.size * TILE],
            out: vec![0.0; local.heads * local.value_width * TILE],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    fn inputs(case: &Local) -> [Vec<f32>; 5] {
        let pixels = case.batch * case.heads * case.window.pixels();
        let embedding = if case.relative { case.heads * case.width / 2 * case.window.size } else { 0 };
        [
            noise(pixels * case.width, 1),
            noise(pixels * case.width, 2),
            noise(pixels * case.value_width, 3),
            noise(embedding, 4),
            noise(embedding, 5),
        ]
    }

    #[test]
    fn every_window_and_path_equals_the_definition_and_its_differences() {
        for size in 1..=11 {
            let window = Window::new(5, if size == 7 { 19 } else { 6 }, size);
            let case = Local { batch: 2, heads: 2, width: 4, value_width: 3, window, relative: size % 3 != 0 };
            let inputs = inputs(&case);
            let slices = inputs.each_ref().map(Vec::as_slice);
            for &path in Path::available() {
                with_path(path, || {
                    let out = case.forward(slices);
                    assert_close(&out, &naive::local(&case, &slices.map(wide)), 3e-6);
                    let seed = noise(out.len(), 6);
                    let grads = case.backward(slices, &seed);
                    assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &seed, |p| {
                        naive::local(&case, p)
                    });
                });
            }
        }
    }

    #[test]
    fn narrow_images_in_large_batches_equal_each_by_itself() {
        let case =
            Local { batch: 32, heads: 2, width: 4, value_width: 3, window: Window::new(5, 7, 3), relative: true };
        let inputs = inputs(&case);
        let slices = inputs.each_ref().map(Vec::as_slice);
        assert_close(&case.forward(slices), &wide(&case.attend(slices)), 1e-6);
        let seed = noise(inputs[2].len(), 6);
        for (grad, expected) in case.backward(slices, &seed).iter().zip(case.attend_backward(slices, &seed)) {
            assert_close(grad, &wide(&expected), 1e-4);
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let window = Window::new(21, 18, 5);
        let case = Local { batch: 2, heads: 3, width: 4, value_width: 4, window, relative: true };
        let inputs = inputs(&case);
        let slices = inputs.each_ref().map(Vec::as_slice);
        assert_same_on_threads(|| {
            let out = case.forward(slices);
            let grads = case.backward(slices, &out);
            [vec![out], grads.to_vec()].concat()
        });
    }
}
