//! Resizing as PIL does it, to the bit: `Resample.c` of Pillow 12 for 8 bits a channel.
//!
//! Every new pixel is a weighted mean of the old ones around its place, the filter widened when a picture shrinks;
//! first along rows, then along columns, in integers of 22 fractional bits, rounded to 8 bits after each.
//! The order matters where a sum is clipped; Pillow 13 exchanges it for some changes of the aspect, which
//! preparing a picture for a test does not make.

use std::ops::Range;

use super::Filter;

const BITS: u32 = 22;

/// The old pixels that make new ones, and their weights.
struct Coefficients {
    /// For each new pixel the old ones, and where their weights begin.
    bounds: Vec<(Range<usize>, usize)>,
    weights: Vec<i32>,
}

impl Coefficients {
    /// The first of the old pixels for each new one, and their weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        self.bounds.iter().map(|(old, start)| (old.start, &self.weights[*start..start + old.len()]))
    }

    /// The old pixels that are needed at all.
    fn needed(&self) -> Range<usize> {
        let first = self.bounds.iter().map(|(old, _)| old.start).min().unwrap_or(0);
        first..self.bounds.iter().map(|(old, _)| old.end).max().unwrap_or(0)
    }
}

/// New pixels `part`, of `to` that replace `from` old ones.
fn coefficients(from: usize, to: usize, part: Range<usize>, filter: Filter) -> Coefficients {
    let scale = from as f64 / to as f64;
    let filter_scale = scale.max(1.0);
    let (support, weight): (f64, fn(f64) -> f64) = match filter {
        Filter::Bilinear => (filter_scale, linear),
        Filter::Bicubic => (2.0 * filter_scale, cubic),
    };
    let mut coefficients = Coefficients { bounds: Vec::with_capacity(part.len()), weights: Vec::new() };
    // one buffer for all of them: small pictures would spend their time on memory
    let mut weights: Vec<f64> = Vec::new();
    for pixel in part {
        let centre = (pixel as f64 + 0.5) * scale;
        // casts saturate negative numbers at 0
        let first = (centre - support + 0.5) as usize;
        let end = ((centre + support + 0.5) as usize).min(from);
        weights.clear();
        weights.extend((first..end).map(|old| weight((old as f64 - centre + 0.5) * (1.0 / filter_scale))));
        let total: f64 = weights.iter().sum();
        coefficients.bounds.push((first..end, coefficients.weights.len()));
        coefficients
            .weights
            .extend(weights.iter().map(|weight| (weight / total * f64::from(1 << BITS)).round() as i32));
    }
    coefficients
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
        let mut part = Vec::with_capacity(3 * rows.len() * columns.len());
        let lines = pixels.chunks_exact(3 * from[1]).take(rows.end).skip(rows.start);
        lines.for_each(|line| part.extend_from_slice(&line[3 * columns.start..3 * columns.end]));
        return part;
    }
    let (rows, columns) = (coefficients(from[0], to[0], rows, filter), coefficients(from[1], to[1], columns, filter));
    let needed = rows.needed();

    let width = columns.bounds.len() * 3;
    let mut narrow = Vec::with_capacity(needed.len() * width);
    for row in pixels.chunks_exact(3 * from[1]).take(needed.end).skip(needed.start) {
        for (first, weights) in columns.iter() {
            let mut sums = [HALF; 3];
            for (pixel, weight) in row[3 * first..].as_chunks::<3>().0.iter().zip(weights) {
                sums.iter_mut().zip(pixel).for_each(|(sum, level)| *sum += i32::from(*level) * weight);
            }
            narrow.extend(sums.map(rounded));
        }
    }

    let mut resized = Vec::with_capacity(rows.bounds.len() * width);
    let mut sums = vec![HALF; width];
    for (first, weights) in rows.iter() {
        sums.fill(HALF);
        for (row, weight) in narrow.chunks_exact(width).skip(first - needed.start).zip(weights) {
            sums.iter_mut().zip(row).for_each(|(sum, level)| *sum += i32::from(*level) * weight);
        }
        resized.extend(sums.iter().map(|sum| rounded(*sum)));
    }
    resized
}
