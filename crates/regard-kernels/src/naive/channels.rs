//! Functions of channels by their definition.

/// Mean and biased variance of every channel of `[B, C, S]`.
#[must_use]
pub fn batch_moments(x: &[f64], channels: usize, pixels: usize) -> [Vec<f64>; 2] {
    let count = (x.len() / channels) as f64;
    let of = |channel: usize| x.iter().enumerate().filter(move |(i, _)| i / pixels % channels == channel);
    let mean: Vec<f64> = (0..channels).map(|channel| of(channel).map(|(_, x)| x).sum::<f64>() / count).collect();
    let variance = (0..channels)
        .map(|channel| of(channel).map(|(_, x)| (x - mean[channel]).powi(2)).sum::<f64>() / count)
        .collect();
    [mean, variance]
}

/// `weight * (x - mean) / sqrt(variance + epsilon) + bias` of every channel.
#[must_use]
pub fn batch_norm(
    x: &[f64],
    weight: &[f64],
    bias: &[f64],
    [mean, variance]: &[Vec<f64>; 2],
    epsilon: f64,
    pixels: usize,
) -> Vec<f64> {
    let normal = |(i, x): (usize, &f64)| {
        let channel = i / pixels % weight.len();
        weight[channel] * (x - mean[channel]) / (variance[channel] + epsilon).sqrt() + bias[channel]
    };
    x.iter().enumerate().map(normal).collect()
}
