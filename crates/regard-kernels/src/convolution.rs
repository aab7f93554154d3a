//! Convolution of images, and its gradients: that of clips of one frame. For inference it has ways of its own, which write
//! what follows it too ([`Convolution::infer`]).

mod direct;
mod pixel;
mod winograd;

use crate::convolution3d::Convolution3d;
use crate::epilogue::Epilogue;
use crate::linear::NeedsGrad;

/// `x [B, C, H, W]`, `weight [O, C, k, k]`, `bias [O]` or empty `-> [B, O, H', W']`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub inputs: usize,
    pub outputs: usize,
    /// Rows and columns of an image.
    pub image: [usize; 2],
    /// Side of the kernel.
    pub kernel: usize,
    pub stride: usize,
    /// Zeros on every side.
    pub padding: usize,
}

impl Convolution {
    /// Rows and columns of an output.
    #[must_use]
    pub fn output_size(&self) -> [usize; 2] {
        let [_, rows, columns] = self.of_clips().output_size();
        [rows, columns]
    }

    /// The output `[B, O, H', W']`.
    #[must_use]
    pub fn forward(&self, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
        self.of_clips().forward(x, weight, bias)
    }

    /// The output of inference, and what follows it: [`forward`](Self::forward) up to rounding, without what a backward pass
    /// needs.
    #[must_use]
    pub fn infer(&self, x: &[f32], weight: &[f32], after: Epilogue) -> Vec<f32> {
        let batch = self.of_clips().check(x, weight);
        let pixels = self.output_size().iter().product::<usize>();
        after.check(self.outputs, batch * self.outputs * pixels);
        if pixels < SMALL {
            let mut out = self.forward(x, weight, &[]);
            after.apply(&mut out, self.outputs, pixels);
            return out;
        }
        match (self.kernel, self.padding) {
            (1, 0) => pixel::infer(self, batch, x, weight, after),
            _ if winograd::pays(self) => winograd::infer(self, batch, x, weight, after),
            _ => direct::infer(self, batch, x, weight, after),
        }
    }

    /// Gradients of input, weight and bias; empty when not wanted.
    #[must_use]
    pub fn backward(&self, x: &[f32], weight: &[f32], grad: &[f32], wanted: NeedsGrad) -> [Vec<f32>; 3] {
        self.of_clips().backward(x, weight, grad, wanted)
    }

    const fn of_clips(&self) -> Convolution3d {
        let Self { inputs, outputs, image: [height, width], kernel, stride, padding } = *self;
        Convolution3d {
            inputs,
            outputs,
            clip: [1, height, width],
            kernel: [1, kernel, kernel],
            stride: [1, stride, stride],
            padding: [0, padding, padding],
        }
    }
}

/// Pixels of an output below which images are taken in groups, as in training.
const SMALL: usize = 64;

/// Writes rows of an image from `first` on, seen from the first row of its border, with zeros where the border is.
fn pad_rows((x, width): (&[f32], usize), first: usize, border: usize, (out, wide): (&mut [f32], usize)) {
    for (row, out) in (first..).zip(out.chunks_exact_mut(wide)) {
        let inside = row.checked_sub(border).and_then(|row| x.get(row * width..(row + 1) * width));
        match inside {
            Some(x) => {
                out[..border].fill(0.0);
                out[border..border + width].copy_from_slice(x);
                out[border + width..].fill(0.0);
            }
            None => out.fill(0.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_norm::Activation;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const ALL: NeedsGrad = NeedsGrad { input: true, parameters: true };

    fn case(image: [usize; 2], [kernel, stride, padding]: [usize; 3]) -> Convolution {
        Convolution { inputs: 3, outputs: 5, image, kernel, stride, padding }
    }

    fn inputs(case: &Convolution, batch: usize) -> [Vec<f32>; 3] {
        [
            noise(batch * case.inputs * case.of_clips().pixels(), 1),
            noise(case.outputs * case.of_clips().depth(), 2),
            noise(case.outputs, 3),
        ]
    }

    #[test]
    fn every_geometry_and_path_equals_the_definition_and_its_differences() {
        let geometries =
            [[1, 1, 0], [3, 1, 1], [3, 2, 1], [1, 2, 0], [2, 2, 0], [3, 1, 0], [7, 2, 3], [4, 3, 2], [2, 3, 1]];
        for geometry in geometries {
            for image in [[5, 6], [4, 4], [7, 9]] {
                if geometry[0] > image[0] + 2 * geometry[2] {
                    continue;
                }
                let case = case(image, geometry);
                let inputs = inputs(&case, 3);
                let slices = inputs.each_ref().map(Vec::as_slice);
                for &path in Path::available() {
                    with_path(path, || {
                        let out = case.forward(slices[0], slices[1], slices[2]);
                        assert_close(&out, &naive::convolution(&case, &slices.map(wide)), 1e-5);
                        let grad = noise(out.len(), 4);
                        let grads = case.backward(slices[0], slices[1], &grad, ALL);
                        assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &grad, |p| {
                            naive::convolution(&case, p)
                        });
                    });
                }
            }
        }
    }

    #[test]
    fn a_batch_is_its_images_one_by_one() {
        // small images are taken in groups, and the last group may be smaller
        for geometry in [[3, 1, 1], [1, 1, 0]] {
            let case = case([3, 4], geometry);
            let [x, weight, bias] = inputs(&case, 25);
            let out = case.forward(&x, &weight, &bias);
            let single = |x: &[f32]| case.forward(x, &weight, &bias);
            assert_eq!(out, x.chunks(case.inputs * case.of_clips().pixels()).flat_map(single).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        for (image, geometry) in
            [([17, 20], [3, 2, 1]), ([4, 4], [3, 2, 1]), ([17, 20], [1, 1, 0]), ([4, 4], [1, 1, 0])]
        {
            let case = case(image, geometry);
            let [x, weight, bias] = inputs(&case, 50);
            assert_same_on_threads(|| {
                let out = case.forward(&x, &weight, &bias);
                let grads = case.backward(&x, &weight, &out, ALL);
                [vec![out], grads.to_vec()].concat()
            });
        }
    }

    /// Convolutions that take each of the ways of inference, among them parts of tiles, of bands and of panels.
    fn ways() -> Vec<Convolution> {
        let of = |[inputs, outputs]: [usize; 2], image, [kernel, stride, padding]: [usize; 3]| Convolution {
            inputs,
            outputs,
            image,
            kernel,
            stride,
            padding,
        };
        vec![
            of([3, 5], [4, 5], [3, 1, 1]), // small
            of([7, 40], [11, 13], [1, 1, 0]),
            of([5, 33], [21, 23], [1, 2, 0]),
            of([600, 20], [9, 30], [1, 1, 0]),
            of([3, 8], [40, 37], [7, 2, 3]),
            of([17, 70], [19, 18], [3, 2, 1]),
            of([4, 9], [9, 12], [2, 1, 1]),
            of([16, 20], [16, 17], [3, 1, 1]),
            of([18, 40], [31, 50], [3, 1, 1]),
            of([16, 16], [20, 24], [3, 1, 0]),
            of([16, 33], [17, 19], [3, 1, 2]),
            of([2000, 16], [16, 17], [3, 1, 1]),
        ]
    }

    #[test]
    fn inference_on_every_way_and_path_equals_the_definition() {
        for case in ways() {
            let scaled = |of: Vec<f32>| of.into_iter().map(|x| x / (case.of_clips().depth() as f32).sqrt()).collect();
            let [x, weight, bias] = inputs(&case, 2);
            let weight: Vec<f32> = scaled(weight);
            let expected = naive::convolution(&case, &[wide(&x), wide(&weight), wide(&bias)]);
            for &path in Path::available() {
                let out = with_path(path, || case.infer(&x, &weight, Epilogue::bias(&bias)));
                assert_close(&out, &expected, 1e-5);
            }
        }
    }

    #[test]
    fn what_follows_a_convolution_is_what_follows_it() {
        for case in ways() {
            let [x, weight, shift] = inputs(&case, 2);
            let sums = case.infer(&x, &weight, Epilogue::IDENTITY);
            let (scale, shortcut) = (noise(case.outputs, 5), noise(sums.len(), 6));
            let after = Epilogue { scale: &scale, shift: &shift, shortcut: &shortcut, activation: Activation::Relu };
            let mut expected = sums;
            after.apply(&mut expected, case.outputs, case.output_size().iter().product());
            assert_eq!(case.infer(&x, &weight, after), expected, "{case:?}");
        }
    }

    #[test]
    fn inference_of_a_batch_is_that_of_its_images_on_any_threads() {
        for case in ways() {
            let [x, weight, bias] = inputs(&case, 3);
            let infer = |x: &[f32]| case.infer(x, &weight, Epilogue::bias(&bias));
            assert_same_on_threads(|| vec![infer(&x)]);
            let single: Vec<f32> = x.chunks(x.len() / 3).flat_map(infer).collect();
            assert!(infer(&x) == single, "{case:?}");
        }
    }

    #[test]
    fn an_image_that_is_not_finite_leaves_the_others_alone() {
        for case in ways() {
            let [mut x, weight, bias] = inputs(&case, 2);
            let infer = |x: &[f32]| case.infer(x, &weight, Epilogue::bias(&bias));
            let clean = infer(&x);
            let image = x.len() / 2;
            x[..image].fill(f32::NAN);
            let out = infer(&x);
            assert!(out[..out.len() / 2].iter().all(|x| x.is_nan()));
            assert!(out[out.len() / 2..] == clean[out.len() / 2..], "{case:?}");
        }
    }
}
