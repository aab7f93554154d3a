//! The windows of local operators.
//!
//! A window of side `k` around a pixel covers the offsets `-(k-1)/2 ..= k/2` on both axes, so an even
//! window reaches one further down and right. Its `k*k` offsets are numbered row by row:
//! offset `o = kh*k + kw` is the pixel `kh - (k-1)/2` rows below and `kw - (k-1)/2` columns right.

use burn::tensor::ops::PadMode;
use burn::tensor::{Bool, Device, Tensor, TensorData};

/// What a window contains beyond the edge of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// Zeros.
    Zero,
    /// The image mirrored at its edge pixel, which is not repeated: `-a` is `a`, `n-1+a` is `n-1-a`.
    Reflect,
}

/// How far a window reaches before and after its pixel.
pub(crate) fn reach(window: usize) -> (usize, usize) {
    ((window - 1) / 2, window / 2)
}

/// `[B, C, H, W] -> [B, C, k*k, H*W]`: the window of every pixel, as `F.unfold` in PyTorch.
///
/// # Panics
/// When the window is empty, or its reflection is larger than the image.
#[must_use]
pub fn unfold(image: Tensor<4>, window: usize, border: Border) -> Tensor<4> {
    let [batch, channels, height, width] = image.dims();
    check_window("unfold", window, border, (height, width));
    if window == 1 {
        return image.reshape([batch, channels, 1, height * width]);
    }
    let mode = match border {
        Border::Zero => PadMode::Constant(0.0),
        Border::Reflect => PadMode::Reflect,
    };
    let padded = image.pad([reach(window), reach(window)], mode);
    let padded_height = height + window - 1;

    // columns first, rows second: 2*k slices do the work of k*k
    let columns = (0..window)
        .map(|kw| padded.clone().narrow(3, kw, width).reshape([batch, channels, 1, padded_height, width]))
        .collect();
    let columns = Tensor::<5>::cat(columns, 2);
    let rows = (0..window)
        .map(|kh| columns.clone().narrow(3, kh, height).reshape([batch, channels, window, height * width]))
        .collect();
    Tensor::cat(rows, 2)
}

/// `[k*k, H*W]`, true where an offset falls outside the image.
pub(crate) fn outside(window: usize, (height, width): (usize, usize), device: &Device) -> Tensor<2, Bool> {
    let (before, _) = reach(window);
    let inside = |pixel: usize, offset: usize, size: usize| (before..before + size).contains(&(pixel + offset));
    let mut mask = Vec::with_capacity(window * window * height * width);
    for kh in 0..window {
        for kw in 0..window {
            for row in 0..height {
                let row_inside = inside(row, kh, height);
                mask.extend((0..width).map(|column| !(row_inside && inside(column, kw, width))));
            }
        }
    }
    Tensor::from_data(TensorData::new(mask, [window * window, height * width]), device)
}

/// `[B, Cw, k*k, H*W], [B, C, H, W] -> [B, C, H, W]`: the weighted sum over the reflected window.
/// Channel `c` uses the weights of channel `c mod Cw`.
pub(crate) fn aggregate(weights: Tensor<4>, values: Tensor<4>, window: usize) -> Tensor<4> {
    let [batch, channels, height, width] = values.dims();
    let [_, shared, offsets, pixels] = weights.dims();
    let values = unfold(values, window, Border::Reflect).reshape([batch, channels / shared, shared, offsets, pixels]);
    let weighted = values * weights.reshape([batch, 1, shared, offsets, pixels]);
    weighted.sum_dim(3).reshape([batch, channels, height, width])
}

/// Panics when the window is empty, or its reflection is larger than the image.
#[track_caller]
pub(crate) fn check_window(operator: &str, window: usize, border: Border, (height, width): (usize, usize)) {
    assert!(window > 0, "{operator}: window is 0, needs at least 1");
    if border == Border::Reflect {
        let (_, after) = reach(window);
        for (axis, size) in [("height", height), ("width", width)] {
            assert!(
                after < size,
                "{operator}: window {window} reflects {after} beyond the edge, image has {axis} {size}, needs at least {}",
                after + 1
            );
        }
    }
}

/// Panics unless the window is odd.
#[track_caller]
pub(crate) fn check_odd(operator: &str, window: usize) {
    assert!(!window.is_multiple_of(2), "{operator}: window must be odd, got {window}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::naive;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, values};

    fn naive_unfold(image: &[f32], planes: usize, size: (usize, usize), window: usize, border: Border) -> Vec<f32> {
        let mut out = Vec::new();
        for plane in image.chunks(size.0 * size.1).take(planes) {
            for offset in 0..window * window {
                for pixel in 0..size.0 * size.1 {
                    let seen = match border {
                        Border::Zero => naive::neighbour(pixel, offset, window, size),
                        Border::Reflect => Some(naive::reflected_neighbour(pixel, offset, window, size)),
                    };
                    out.push(seen.map_or(0.0, |seen| plane[seen]));
                }
            }
        }
        out
    }

    #[test]
    fn every_window_sees_what_its_definition_says() {
        for border in [Border::Zero, Border::Reflect] {
            for window in 1..=11 {
                let image = random([2, 3, 7, 6], window as u64);
                let seen = unfold(image.clone(), window, border);
                assert_eq!(seen.dims(), [2, 3, window * window, 42]);
                let expected = naive_unfold(&values(&image), 6, (7, 6), window, border);
                assert_eq!(values(&seen), expected, "window {window}, {border:?}");
            }
        }
    }

    #[test]
    fn a_zero_border_may_be_wider_than_the_image() {
        let image = random([1, 1, 2, 1], 5);
        assert_eq!(
            values(&unfold(image.clone(), 11, Border::Zero)),
            naive_unfold(&values(&image), 1, (2, 1), 11, Border::Zero)
        );
    }

    #[test]
    fn the_mask_is_true_exactly_where_nothing_is() {
        for window in 1..=11 {
            let size = (5, 4);
            let mask = outside(window, size, &crate::device::cpu()).into_data();
            let expected: Vec<bool> = (0..window * window)
                .flat_map(|offset| (0..20).map(move |pixel| naive::neighbour(pixel, offset, window, size).is_none()))
                .collect();
            assert_eq!(mask.iter::<bool>().collect::<Vec<_>>(), expected, "window {window}");
        }
    }

    #[test]
    fn gradients_are_differences() {
        for (window, border) in [(3, Border::Zero), (4, Border::Zero), (4, Border::Reflect), (5, Border::Reflect)] {
            assert_gradients_are_differences(&[("image", noise(2 * 4 * 5, 3))], |inputs| {
                unfold(inputs[0].clone().reshape([1, 2, 4, 5]), window, border)
            });
        }
    }

    #[test]
    fn a_channel_uses_the_weights_of_its_number_modulo_the_shared_channels() {
        let mut weights = vec![0.0; 2 * 9 * 12];
        for pixel in 0..12 {
            weights[4 * 12 + pixel] = 1.0; // channel 0: its own pixel
            weights[9 * 12 + 4 * 12 + pixel] = 10.0; // channel 1: ten times its own pixel
        }
        let weights = Tensor::from_data(TensorData::new(weights, [1, 2, 9, 12]), &crate::device::cpu());
        let image = random([1, 4, 3, 4], 8);
        let out = aggregate(weights, image.clone(), 3);
        for (channel, factor) in [(0, 1.0), (1, 10.0), (2, 1.0), (3, 10.0)] {
            assert_close(
                &out.clone().narrow(1, channel, 1),
                &image.clone().narrow(1, channel, 1).mul_scalar(factor),
                0.0,
            );
        }
    }

    #[test]
    #[should_panic(expected = "unfold: window 7 reflects 3 beyond the edge, image has width 3, needs at least 4")]
    fn a_reflection_wider_than_the_image_is_named() {
        let _ = unfold(random([1, 1, 4, 3], 1), 7, Border::Reflect);
    }

    #[test]
    #[should_panic(expected = "unfold: window is 0, needs at least 1")]
    fn an_empty_window_is_refused() {
        let _ = unfold(random([1, 1, 4, 3], 1), 0, Border::Zero);
    }
}
