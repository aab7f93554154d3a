//! Linear maps and convolutions by their definition.

use crate::convolution::Convolution;
use crate::convolution3d::Convolution3d;

/// `x W^T + b`, the weight `[out, in]`.
#[must_use]
pub fn linear(x: &[f64], weight: &[f64], bias: &[f64]) -> Vec<f64> {
    let inputs = weight.len() / bias.len();
    let dot = |x: &[f64], weight: &[f64]| x.iter().zip(weight).map(|(x, w)| x * w).sum::<f64>();
    x.chunks(inputs)
        .flat_map(|x| weight.chunks(inputs).zip(bias).map(move |(weight, bias)| dot(x, weight) + bias))
        .collect()
}

/// Image, weight and bias.
#[must_use]
pub fn convolution(case: &Convolution, inputs: &[Vec<f64>]) -> Vec<f64> {
    let ([height, width], [rows, columns]) = (case.image, case.output_size());
    let (channels, kernel) = (case.inputs, case.kernel);
    let mut out = Vec::new();
    for image in inputs[0].chunks(channels * height * width) {
        for (weight, bias) in inputs[1].chunks(channels * kernel * kernel).zip(&inputs[2]) {
            for place in 0..rows * columns {
                let mut sum = *bias;
                for (tap, weight) in weight.iter().enumerate() {
                    let (channel, tap) = (tap / (kernel * kernel), tap % (kernel * kernel));
                    let row = (place / columns * case.stride + tap / kernel).checked_sub(case.padding);
                    let column = (place % columns * case.stride + tap % kernel).checked_sub(case.padding);
                    let inside = row.zip(column).filter(|(row, column)| *row < height && *column < width);
                    sum +=
                        inside.map_or(0.0, |(row, column)| weight * image[(channel * height + row) * width + column]);
                }
                out.push(sum);
            }
        }
    }
    out
}

/// Clip, weight and bias.
#[must_use]
pub fn convolution3d(case: &Convolution3d, inputs: &[Vec<f64>]) -> Vec<f64> {
    let ([frames, height, width], [depth, rows, columns]) = (case.clip, case.output_size());
    let [kt, kh, kw] = case.kernel;
    let mut out = Vec::new();
    for clip in inputs[0].chunks(case.inputs * frames * height * width) {
        for (weight, bias) in inputs[1].chunks(case.inputs * kt * kh * kw).zip(&inputs[2]) {
            for place in 0..depth * rows * columns {
                let place = [place / (rows * columns), place / columns % rows, place % columns];
                let mut sum = *bias;
                for (tap, weight) in weight.iter().enumerate() {
                    let (channel, tap) = (tap / (kt * kh * kw), [tap / (kh * kw) % kt, tap / kw % kh, tap % kw]);
                    let at = |axis: usize| {
                        let at = (place[axis] * case.stride[axis] + tap[axis]).checked_sub(case.padding[axis]);
                        at.filter(|at| *at < case.clip[axis])
                    };
                    if let (Some(frame), Some(row), Some(column)) = (at(0), at(1), at(2)) {
                        sum += weight * clip[((channel * frames + frame) * height + row) * width + column];
                    }
                }
                out.push(sum);
            }
        }
    }
    out
}
