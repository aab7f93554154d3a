//! Resizing as PIL does it, to the bit: `Resample.c` of Pillow 12 for 8 bits a channel.
//!
//! Every new pixel is a weighted mean of the old ones around its place, the filter widened when a picture shrinks;
//! first along rows, then along columns, in integers of 22 fractional bits, rounded to 8 bits after each.
//! The order matters where a sum is clipped; Pillow 13 exchanges it for some changes of the aspect, which
//! preparing a picture for a test does not make.

use std::ops::Range;

use super::Filter;

const BITS: u32 = 22;

/// The old pixels that make a new one, and their weights.
struct Mean {
    first: usize,
    weights: Vec<i32>,
}

/// New pixels `part`, of `to` that replace `from` old ones.
fn means(from: usize, to: usize, part: Range<usize>, filter: Filter) -> Vec<Mean> {
    let scale = from as f64 / to as f64;
    let stretch = scale.max(1.0);
    let (reach, weight): (f64, fn(f64) -> f64) = match filter {
        Filter::Bilinear => (stretch, linear),
        Filter::Bicubic => (2.0 * stretch, cubic),
    };
    let mean = |place: usize| {
        let centre = (place as f64 + 0.5) * scale;
        // casts of negative numbers give 0
        let first = (centre - reach + 0.5) as usize;
        let end = ((centre + reach + 0.5) as usize).min(from);
        let weights = (first..end).map(|old| weight((old as f64 - centre + 0.5) * (1.0 / stretch)));
        let weights: Vec<f64> = weights.collect();
        let total: f64 = weights.iter().sum();
        let fixed = |weight: &f64| (weight / total * f64::from(1 << BITS)).round() as i32;
        Mean { first, weights: weights.iter().map(fixed).collect() }
    };
    part.map(mean).collect()
}

fn linear(x: f64) -> f64 {
    (1.0 - x.abs()).max(0.0)
}

/// Keys' cubic with a = -0.5.
fn cubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn rounded(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

/// The `part` (rows, columns) of RGB `pixels` of size `from` resized to `to`; only that part is computed.
pub(super) fn resample(
    pixels: &[u8],
    from: [usize; 2],
    to: [usize; 2],
    [rows, columns]: [Range<usize>; 2],
    filter: Filter,
) -> Vec<u8> {
    const HALF: i32 = 1 << (BITS - 1);
    if from == to {
        // the weights would be ones and zeros
        let lines = pixels.chunks_exact(3 * from[1]).take(rows.end).skip(rows.start);
        return lines.flat_map(|line| &line[3 * columns.start..3 * columns.end]).copied().collect();
    }
    let (rows, columns) = (means(from[0], to[0], rows, filter), means(from[1], to[1], columns, filter));
    let first = rows.iter().map(|mean| mean.first).min().unwrap_or(0);
    let end = rows.iter().map(|mean| mean.first + mean.weights.len()).max().unwrap_or(0);

    let mut narrow = Vec::with_capacity((end - first) * columns.len() * 3);
    for row in pixels.chunks_exact(3 * from[1]).take(end).skip(first) {
        for Mean { first, weights } in &columns {
            let mut sums = [HALF; 3];
            for (pixel, weight) in row[3 * first..].as_chunks::<3>().0.iter().zip(weights) {
                sums.iter_mut().zip(pixel).for_each(|(sum, level)| *sum += i32::from(*level) * weight);
            }
            narrow.extend(sums.map(rounded));
        }
    }

    let width = columns.len() * 3;
    let mut resized = Vec::with_capacity(rows.len() * width);
    let mut sums = vec![HALF; width];
    for mean in &rows {
        sums.fill(HALF);
        for (row, weight) in narrow.chunks_exact(width).skip(mean.first - first).zip(&mean.weights) {
            sums.iter_mut().zip(row).for_each(|(sum, level)| *sum += i32::from(*level) * weight);
        }
        resized.extend(sums.iter().map(|sum| rounded(*sum)));
    }
    resized
}
