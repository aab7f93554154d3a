//! Pools of clips by their definition.

use crate::pool3d::{AveragePool3d, MaxPool3d};

/// The largest value of every window of planes `[P, T, H, W]`.
#[must_use]
pub fn max_pool3d(case: &MaxPool3d, x: &[f64]) -> Vec<f64> {
    pooled(case.clip, case.output_size(), (case.kernel, case.stride, case.padding), x, |values| {
        values.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    })
}

/// The mean of every window.
#[must_use]
pub fn average_pool3d(case: &AveragePool3d, x: &[f64]) -> Vec<f64> {
    pooled(case.clip, case.output_size(), (case.kernel, case.stride, [0; 3]), x, |values| {
        values.iter().sum::<f64>() / values.len() as f64
    })
}

fn pooled(
    [frames, height, width]: [usize; 3],
    [depth, rows, columns]: [usize; 3],
    (kernel, stride, padding): ([usize; 3], [usize; 3], [usize; 3]),
    x: &[f64],
    of: impl Fn(&[f64]) -> f64,
) -> Vec<f64> {
    let mut out = Vec::new();
    for plane in x.chunks(frames * height * width) {
        for place in 0..depth * rows * columns {
            let place = [place / (rows * columns), place / columns % rows, place % columns];
            let along = |axis: usize, size: usize| {
                let taps = (0..kernel[axis])
                    .filter_map(move |tap| (place[axis] * stride[axis] + tap).checked_sub(padding[axis]));
                taps.filter(move |at| *at < size).collect::<Vec<_>>()
            };
            let mut values = Vec::new();
            for frame in along(0, frames) {
                for row in along(1, height) {
                    values.extend(along(2, width).iter().map(|column| plane[(frame * height + row) * width + column]));
                }
            }
            out.push(of(&values));
        }
    }
    out
}
