//! Gaussian blur: the exact one, where PIL's is an approximation by three box blurs, off by up to a few levels.

use crate::data::Picture;

/// A Gaussian blur of this deviation in pixels; border pixels are repeated.
pub(super) fn blur(picture: &mut Picture, radius: f64) {
    let weights = weights(radius);
    let (rows, columns) = (picture.rows, picture.columns);
    let reach = weights.len() - 1;
    let width = 3 * columns;
    let mut sums = vec![0.0f32; width];
    let mut wide = vec![0.0f32; 3 * (columns + 2 * reach)];
    let mut blurred = Vec::with_capacity(picture.pixels.len());
    for row in 0..rows {
        // vertically first: whole rows are added
        sums.fill(0.0);
        for (away, weight) in weights.iter().enumerate() {
            let rows = [row.saturating_sub(away), (row + away).min(rows - 1)];
            for row in &rows[usize::from(away == 0)..] {
                let line = &picture.pixels[width * row..width * (row + 1)];
                sums.iter_mut().zip(line).for_each(|(sum, level)| *sum += weight * f32::from(*level));
            }
        }
        let (first, last) = ([sums[0], sums[1], sums[2]], [sums[width - 3], sums[width - 2], sums[width - 1]]);
        let (before, rest) = wide.split_at_mut(3 * reach);
        let (line, after) = rest.split_at_mut(width);
        before.as_chunks_mut::<3>().0.fill(first);
        line.copy_from_slice(&sums);
        after.as_chunks_mut::<3>().0.fill(last);
        for at in 3 * reach..3 * reach + width {
            let sides: f32 = (1..=reach).map(|away| weights[away] * (wide[at - 3 * away] + wide[at + 3 * away])).sum();
            blurred.push((weights[0] * wide[at] + sides).round() as u8);
        }
    }
    picture.pixels = blurred;
}

/// Weights by distance 0, 1, 2 .., which sum to one over both sides; cut off at four deviations.
fn weights(radius: f64) -> Vec<f32> {
    let reach = (4.0 * radius).ceil() as usize;
    let weight = |away: usize| (-0.5 * (away as f64 / radius).powi(2)).exp();
    let total = weight(0) + 2.0 * (1..=reach).map(weight).sum::<f64>();
    (0..=reach).map(|away| (weight(away) / total) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise_picture;

    /// The definition, with every pixel of an infinite picture.
    fn naive(picture: &Picture, radius: f64) -> Vec<f64> {
        let [rows, columns] = picture.size().map(|side| side as isize);
        let reach = (9.0 * radius).ceil() as isize;
        let mut blurred = Vec::new();
        for row in 0..rows {
            for column in 0..columns {
                let mut sums = [0.0; 4];
                for down in -reach..=reach {
                    for right in -reach..=reach {
                        let weight = (-((down * down + right * right) as f64) / (2.0 * radius * radius)).exp();
                        let (row, column) = ((row + down).clamp(0, rows - 1), (column + right).clamp(0, columns - 1));
                        let at = 3 * (row * columns + column) as usize;
                        (0..3).for_each(|c| sums[c] += weight * f64::from(picture.pixels[at + c]));
                        sums[3] += weight;
                    }
                }
                blurred.extend([0, 1, 2].map(|channel| sums[channel] / sums[3]));
            }
        }
        blurred
    }

    #[test]
    fn it_is_a_gaussian_to_the_rounding() {
        for (size, radius) in [([7, 9], 0.1), ([7, 9], 0.7), ([6, 11], 2.0), ([1, 1], 1.0), ([1, 5], 1.5)] {
            let picture = noise_picture(size, 5);
            let mut blurred = picture.clone();
            blur(&mut blurred, radius);
            for (level, exact) in blurred.pixels().iter().zip(naive(&picture, radius)) {
                let difference = (f64::from(*level) - exact).abs();
                // half a level of rounding, and the cut at four deviations
                assert!(difference < 0.51, "{size:?}, radius {radius}: {level} for {exact}");
            }
        }
    }
}
