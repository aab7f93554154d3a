//! Non-local means: a pixel becomes the mean of pixels with similar surroundings.
//! Buades, Coll and Morel 2005, DOI 10.1109/CVPR.2005.38.
//!
//! One search offset at a time: squared differences of the image with itself moved by the offset, a
//! Gaussian over the patch (separable: first along the row, then down the rows), an exponential, and the
//! moved image added with that weight. Every step is a loop over one row, which the compiler vectorises.
//! Scratch memory is a few rows per thread; nothing of size patches x pixels exists.

use rayon::prelude::*;

use crate::size;

/// Output rows that one task computes. A constant, so that results cannot depend on the threads.
const BAND: usize = 16;

/// A candidate counts nothing once the distance of the patch rows above the last exceeds this.
pub const CUTOFF: f32 = 5.0;

/// What to denoise, and how.
#[derive(Clone, Copy, Debug)]
pub struct NlMeans<'a> {
    /// `[C, H, W]`, finite.
    pub image: &'a [f32],
    /// C, H, W.
    pub shape: [usize; 3],
    /// Side of the compared patches, odd, at most H and W.
    pub patch: usize,
    /// Side of the window of candidates, odd.
    pub search: usize,
    /// Standard deviation of the noise: twice its square is expected between equal patches.
    pub sigma: f32,
    /// Distance at which a weight falls to 1/e, over zero.
    pub h: f32,
}

impl NlMeans<'_> {
    /// Writes the denoised image into `out` `[C, H, W]` and, when asked, the weights `[H, W, s, s]` with
    /// s the side of the search window. `done` is called after every few finished rows.
    ///
    /// # Panics
    /// When a slice does not have the stated size, or patch or search window are even.
    pub fn run(&self, out: &mut [f32], weights: Option<&mut [f32]>, done: &(dyn Fn(usize) + Sync)) {
        let [channels, rows, columns] = self.shape;
        let pixels = size::product("non-local means", &self.shape);
        assert!(pixels > 0 && self.image.len() == pixels, "non-local means: the image has the wrong size");
        assert_eq!(out.len(), pixels, "non-local means: the output has the wrong size");
        assert!(self.patch % 2 == 1 && self.search % 2 == 1, "non-local means: patch and search window are odd");
        assert!(self.patch <= rows && self.patch <= columns, "non-local means: the patch fits into the image");
        let window = size::product("non-local means", &[self.search, self.search]);
        size::product("non-local means", &[rows, columns, window]);
        // rows and columns that a candidate may be away
        size::sum("non-local means", &[rows, columns, self.patch, self.search]);
        let job = Job { options: self, padded: Padded::new(self), gauss: gauss(self.patch) };

        // a band holds rows of every channel, so bands are computed apart and copied together
        let bands: Vec<Vec<f32>> = match weights {
            None => (0..rows.div_ceil(BAND))
                .into_par_iter()
                .map(|band| {
                    let result = job.band(band * BAND, (band * BAND + BAND).min(rows), None);
                    done(result.len() / (channels * columns));
                    result
                })
                .collect(),
            Some(weights) => {
                assert_eq!(weights.len(), rows * columns * window, "non-local means: the weights have the wrong size");
                weights
                    .par_chunks_mut(BAND * columns * window)
                    .enumerate()
                    .map(|(band, weights)| {
                        let result = job.band(band * BAND, (band * BAND + BAND).min(rows), Some(weights));
                        done(result.len() / (channels * columns));
                        result
                    })
                    .collect()
            }
        };
        for (band, values) in bands.iter().enumerate() {
            let size = values.len() / channels;
            for (channel, values) in values.chunks_exact(size).enumerate() {
                let start = (channel * rows + band * BAND) * columns;
                out[start..start + size].copy_from_slice(values);
            }
        }
    }
}

struct Job<'a> {
    options: &'a NlMeans<'a>,
    padded: Padded,
    gauss: Vec<f32>,
}

impl Job<'_> {
    /// The denoised rows `[C, to - from, W]`.
    fn band(&self, from: usize, to: usize, mut weights: Option<&mut [f32]>) -> Vec<f32> {
        let [channels, rows, columns] = self.options.shape;
        let (patch, search) = (self.options.patch, self.options.search);
        let (margin, reach) = (patch / 2, search / 2);
        let height = to - from;
        let mut sums = vec![0.0; channels * height * columns];
        let mut totals = vec![0.0; height * columns];
        let mut filtered = vec![0.0; (height + 2 * margin) * columns];
        let mut scratch = Scratch::new(columns, margin);

        for down in 0..search {
            // rows of this band whose candidate `down - reach` rows away lies inside the image
            let first = from.max(reach.saturating_sub(down));
            let last = to.min((rows + reach).saturating_sub(down));
            if first >= last {
                continue;
            }
            for right in 0..search {
                let left_edge = reach.saturating_sub(right).min(columns);
                let right_edge = (columns + reach).saturating_sub(right).min(columns);
                if left_edge >= right_edge {
                    continue;
                }
                let width = right_edge - left_edge;
                for (row, filtered) in (first..last + 2 * margin).zip(filtered.chunks_exact_mut(columns)) {
                    let moved = (row + down - reach, left_edge + right - reach);
                    self.filter_row((row, left_edge), moved, &mut scratch, &mut filtered[..width]);
                }
                for row in first..last {
                    let weight = &mut scratch.weight[..width];
                    self.row_weights(&filtered[(row - first) * columns..], columns, &mut scratch.distance, weight);
                    let at = (row - from) * columns + left_edge;
                    for (total, weight) in totals[at..at + width].iter_mut().zip(weight.iter()) {
                        *total += weight;
                    }
                    for channel in 0..channels {
                        let start = (row + down + margin - reach, left_edge + right + margin - reach);
                        let moved = self.padded.row(channel, start, width);
                        let at = channel * height * columns + at;
                        for ((sum, weight), value) in sums[at..at + width].iter_mut().zip(weight.iter()).zip(moved) {
                            *sum += weight * value;
                        }
                    }
                    if let Some(weights) = &mut weights {
                        for (column, weight) in weight.iter().enumerate() {
                            weights[((at + column) * search + down) * search + right] = *weight;
                        }
                    }
                }
            }
        }

        for sums in sums.chunks_exact_mut(height * columns) {
            for (sum, total) in sums.iter_mut().zip(&totals) {
                *sum /= total;
            }
        }
        if let Some(weights) = weights {
            for (weights, total) in weights.chunks_exact_mut(search * search).zip(&totals) {
                for weight in weights {
                    *weight /= total;
                }
            }
        }
        sums
    }

    /// Squared differences of a padded row and a moved one, mean over channels, smoothed along the row.
    fn filter_row(&self, at: (usize, usize), moved: (usize, usize), scratch: &mut Scratch, out: &mut [f32]) {
        let channels = self.options.shape[0];
        let squares = &mut scratch.squares[..out.len() + self.options.patch - 1];
        squares.fill(0.0);
        for channel in 0..channels {
            let here = self.padded.row(channel, at, squares.len());
            let there = self.padded.row(channel, moved, squares.len());
            for ((square, here), there) in squares.iter_mut().zip(here).zip(there) {
                let difference = here - there;
                *square += difference * difference;
            }
        }
        out.fill(0.0);
        for (shift, gauss) in self.gauss.iter().enumerate() {
            let factor = gauss / channels as f32;
            for (out, square) in out.iter_mut().zip(&squares[shift..]) {
                *out += factor * square;
            }
        }
    }

    /// Weights of one row of candidates from the filtered rows of their patches.
    fn row_weights(&self, filtered: &[f32], stride: usize, distance: &mut [f32], weight: &mut [f32]) {
        let inverse = 1.0 / (self.options.h * self.options.h);
        let expected = 2.0 * self.options.sigma * self.options.sigma;
        let distance = &mut distance[..weight.len()];
        distance.fill(0.0);
        // `weight` holds the largest partial sum until it holds the weight
        weight.fill(0.0);
        for (row, gauss) in self.gauss.iter().enumerate() {
            let factor = gauss * inverse;
            let filtered = &filtered[row * stride..];
            for ((distance, largest), filtered) in distance.iter_mut().zip(weight.iter_mut()).zip(filtered) {
                *largest = if *distance > *largest { *distance } else { *largest };
                *distance += factor * (filtered - expected);
            }
        }
        for (weight, distance) in weight.iter_mut().zip(distance.iter()) {
            let distance = if *distance > 0.0 { *distance } else { 0.0 };
            *weight = if *weight > CUTOFF { 0.0 } else { exp_of_negative(distance) };
        }
    }
}

struct Scratch {
    squares: Vec<f32>,
    distance: Vec<f32>,
    weight: Vec<f32>,
}

impl Scratch {
    fn new(columns: usize, margin: usize) -> Self {
        Self { squares: vec![0.0; columns + 2 * margin], distance: vec![0.0; columns], weight: vec![0.0; columns] }
    }
}

/// The image with its border mirrored (the outermost pixel is not repeated).
struct Padded {
    values: Vec<f32>,
    rows: usize,
    columns: usize,
}

impl Padded {
    fn new(options: &NlMeans) -> Self {
        let [channels, rows, columns] = options.shape;
        let margin = options.patch / 2;
        let mut values = Vec::with_capacity(channels * (rows + 2 * margin) * (columns + 2 * margin));
        for plane in options.image.chunks_exact(rows * columns) {
            for row in 0..rows + 2 * margin {
                let row = &plane[mirror(row, margin, rows) * columns..][..columns];
                values.extend((0..columns + 2 * margin).map(|column| row[mirror(column, margin, columns)]));
            }
        }
        Self { values, rows: rows + 2 * margin, columns: columns + 2 * margin }
    }

    fn row(&self, channel: usize, (row, column): (usize, usize), width: usize) -> &[f32] {
        &self.values[(channel * self.rows + row) * self.columns + column..][..width]
    }
}

/// The pixel that stands at padded position `at`, for a margin below `size`.
fn mirror(at: usize, margin: usize, size: usize) -> usize {
    let inside = at.abs_diff(margin);
    if inside < size { inside } else { 2 * (size - 1) - inside }
}

/// One-dimensional Gaussian of standard deviation (patch - 1)/4, sum one; its outer square weighs a patch.
fn gauss(patch: usize) -> Vec<f32> {
    if patch == 1 {
        return vec![1.0];
    }
    let deviation = (patch - 1) as f64 / 4.0;
    let bell = |at: usize| {
        let from_centre = at as f64 - (patch / 2) as f64;
        (-from_centre * from_centre / (2.0 * deviation * deviation)).exp()
    };
    let total: f64 = (0..patch).map(bell).sum();
    (0..patch).map(|at| (bell(at) / total) as f32).collect()
}

/// `exp(-x)` for x >= 0 to 2e-7 relative, without a call or a branch, so that loops over it vectorise.
#[inline]
fn exp_of_negative(x: f32) -> f32 {
    // adding 1.5 * 2^23 rounds to an integer and leaves that integer in the low bits
    const ROUND: f32 = 12_582_912.0;
    // ln 2 as a short and a small part: the first product is then exact
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = if x < 87.0 { -x } else { -87.0 };
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let power = rounded - ROUND;
    let rest = x - power * LN_2_HIGH - power * LN_2_LOW;
    // Taylor: |rest| <= ln(2)/2, the next term is below 2e-7
    let mut series = 1.0 / 720.0;
    for factor in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        series = series * rest + factor;
    }
    series * f32::from_bits((rounded.to_bits() << 23).wrapping_add(127 << 23))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_exact_to_a_few_units_in_the_last_place() {
        for step in 0..87_000 {
            let x = step as f32 * 1e-3;
            let (ours, exact) = (f64::from(exp_of_negative(x)), (-f64::from(x)).exp());
            assert!((ours - exact).abs() <= 3e-7 * exact, "exp(-{x}): {ours}, exactly {exact}");
        }
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert!(exp_of_negative(f32::INFINITY) < 1e-37);
        assert!(exp_of_negative(f32::NAN).is_finite());
    }

    #[test]
    fn the_border_is_mirrored_without_repeating_it() {
        let options = NlMeans { image: &[1., 2., 3.], shape: [1, 1, 3], patch: 1, search: 1, sigma: 0.0, h: 1.0 };
        assert_eq!(Padded::new(&options).values, [1., 2., 3.]);
        assert_eq!((0..7).map(|at| mirror(at, 2, 3)).collect::<Vec<_>>(), [2, 1, 0, 1, 2, 1, 0]);
    }

    #[test]
    fn a_patch_weighs_one() {
        for patch in [1, 3, 5, 7] {
            assert!((gauss(patch).iter().sum::<f32>() - 1.0).abs() < 1e-6);
        }
    }
}
