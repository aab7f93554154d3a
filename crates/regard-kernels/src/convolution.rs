//! Convolution of images, and its gradients: that of clips of one frame.

use crate::convolution3d::Convolution3d;
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

#[cfg(test)]
mod tests {
    use super::*;
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
}
