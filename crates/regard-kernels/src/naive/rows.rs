//! Row-wise functions by their definition.

use super::wide;

#[must_use]
pub fn softmax(x: &[f32], width: usize) -> Vec<f64> {
    log_softmax(x, width).into_iter().map(f64::exp).collect()
}

#[must_use]
pub fn log_softmax(x: &[f32], width: usize) -> Vec<f64> {
    wide(x)
        .chunks(width)
        .flat_map(|row| {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
            row.iter().map(move |x| x - largest - sum.ln()).collect::<Vec<_>>()
        })
        .collect()
}

/// `J^T g` with the Jacobian of the softmax written out.
#[must_use]
pub fn softmax_backward(x: &[f32], grad: &[f32], width: usize) -> Vec<f64> {
    let (out, grad) = (softmax(x, width), wide(grad));
    let mut result = vec![0.0; x.len()];
    for row in 0..x.len() / width {
        for j in 0..width {
            for i in 0..width {
                let (i, j) = (row * width + i, row * width + j);
                result[j] += grad[i] * out[i] * (f64::from(u8::from(i == j)) - out[j]);
            }
        }
    }
    result
}

#[must_use]
pub fn log_softmax_backward(x: &[f32], grad: &[f32], width: usize) -> Vec<f64> {
    let (out, grad) = (softmax(x, width), wide(grad));
    (0..x.len()).map(|j| grad[j] - out[j] * grad[j / width * width..][..width].iter().sum::<f64>()).collect()
}

#[must_use]
pub fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], epsilon: f64) -> Vec<f64> {
    let width = weight.len();
    x.chunks(width)
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let scale = 1.0 / (variance + epsilon).sqrt();
            (0..width).map(|i| (row[i] - mean) * scale * weight[i] + bias[i]).collect::<Vec<_>>()
        })
        .collect()
}

#[must_use]
pub fn gelu(x: &[f64]) -> Vec<f64> {
    x.iter().map(|x| 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))).collect()
}

#[must_use]
pub fn bias_gelu(x: &[f64], bias: &[f64]) -> Vec<f64> {
    gelu(&x.iter().enumerate().map(|(i, x)| x + bias[i % bias.len()]).collect::<Vec<_>>())
}

/// The error function by its Maclaurin series, and its continued fraction where that converges faster.
fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    let value = if magnitude < 3.0 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..200 {
            term *= -magnitude * magnitude / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let mut fraction = magnitude;
        for n in (1..60).rev() {
            fraction = magnitude + f64::from(n) / 2.0 / fraction;
        }
        1.0 - (-magnitude * magnitude).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 2.0
    };
    value.copysign(x)
}
