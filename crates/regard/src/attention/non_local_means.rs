//! Non-local means, a forerunner of attention: queries and keys are patches, values are pixels, and
//! nothing is learned.
//! Buades, Coll and Morel, "A non-local algorithm for image denoising", CVPR 2005.
//!
//! `out_i = sum_j w_ij v_j / sum_j w_ij`, `w_ij = exp(-max(0, |P_i - P_j|^2 - 2 sigma^2) / h^2)`, where
//! `|.|^2` is a mean over the channels and the pixels of a patch, weighted by a Gaussian of standard
//! deviation (patch - 1)/4. The sum runs over a search window, cut off at the border; patches see the
//! image mirrored there.
//!
//! The same as scikit-image's `denoise_nl_means(fast_mode=False)`, also in this: a candidate whose
//! distance already exceeds 5 h^2 before the last row of its patch counts nothing. One difference: its
//! exponential is Schraudolph's approximation (up to 4 % off), ours is exact; outputs differ by about 1e-3.

use burn::tensor::{Tensor, TensorData};
use regard_kernels::nl_means::NlMeans;

use super::Attended;
use crate::pass::{Geometry, Reach};
use crate::{Error, Pass};

/// Sizes and strength of the filter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NonLocalMeans {
    /// Side of the compared patches, odd.
    pub patch: usize,
    /// Side of the window in which a pixel looks for others, odd.
    pub search: usize,
    /// Standard deviation of the noise, for values in 0..1.
    pub sigma: f32,
    /// Distance between patches at which a weight falls to 1/e.
    pub h: f32,
}

impl NonLocalMeans {
    /// h as a multiple of sigma. Patch distances are means over the patch, so h is of the size of the noise;
    /// 0.8 is the usual factor for such distances and was the best of 0.4 to 1.0 at sigma 0.08 to 0.2.
    pub const STRENGTH: f32 = 0.8;

    /// The paper's sizes (patches of 7 x 7 in a window of 21 x 21) for a noise of standard deviation
    /// `sigma`, with `h = 0.8 sigma`.
    #[must_use]
    pub fn for_noise(sigma: f32) -> Self {
        Self { patch: 7, search: 21, sigma, h: Self::STRENGTH * sigma }
    }

    fn check(&self, rows: usize, columns: usize) -> Result<(), Error> {
        let number = |field, value: f32| match value {
            value if value.is_finite() && value >= 0.0 => Ok(()),
            value => Err(Error::config(field, format!("must be finite and at least 0, got {value}"))),
        };
        number("sigma", self.sigma)?;
        number("h", self.h)?;
        for (field, side) in [("patch", self.patch), ("search", self.search)] {
            if side % 2 == 0 {
                return Err(Error::config(field, format!("must be odd, got {side}")));
            }
        }
        for (axis, size) in [("rows", rows), ("columns", columns)] {
            if size < self.patch {
                let (patch, reason) = (self.patch, "the image is smaller than the patch");
                return Err(Error::config("image", format!("{reason}: {axis} {size}, patch {patch}")));
            }
        }
        Ok(())
    }
}

/// `[C, H, W] -> [C, H, W]`, weights `[H, W, s, s]` over the search window of every pixel, zero outside the image.
///
/// With h = 0 the image is unchanged. Always runs on the CPU.
///
/// # Errors
/// When an option is out of range, the image is smaller than the patch, or a value is not finite.
pub fn non_local_means(image: Tensor<3>, options: &NonLocalMeans, pass: &mut Pass) -> Result<Attended<3>, Error> {
    non_local_means_with_progress(image, options, pass, &|_| {})
}

/// [`non_local_means`] that calls `done` with the number of rows finished since the last call, for progress bars.
///
/// # Errors
/// Those of [`non_local_means`].
pub fn non_local_means_with_progress(
    image: Tensor<3>,
    options: &NonLocalMeans,
    pass: &mut Pass,
    done: &(dyn Fn(usize) + Sync),
) -> Result<Attended<3>, Error> {
    let [channels, rows, columns] = image.dims();
    options.check(rows, columns)?;
    if channels == 0 {
        return Err(Error::config("image", "has no channels"));
    }
    let device = image.device();
    let data = image.into_data().convert::<f32>();
    let values = data.as_slice::<f32>().expect("the data was converted to f32");
    if let Some(at) = values.iter().position(|value| !value.is_finite()) {
        let (channel, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
        let place = format!("channel {channel}, row {row}, column {column}");
        return Err(Error::config("image", format!("must be finite, got {} at {place}", values[at])));
    }

    let side = options.search;
    let mut weights = pass.wants_weights().then(|| vec![0.0; rows * columns * side * side]);
    let out = if options.h > 0.0 {
        let NonLocalMeans { patch, search, sigma, h } = *options;
        let mut out = vec![0.0; values.len()];
        NlMeans { image: values, shape: [channels, rows, columns], patch, search, sigma, h }.run(
            &mut out,
            weights.as_deref_mut(),
            done,
        );
        out
    } else {
        // the limit of small h: every pixel keeps its own value
        if let Some(weights) = &mut weights {
            weights.iter_mut().skip(side * side / 2).step_by(side * side).for_each(|own| *own = 1.0);
        }
        values.to_vec()
    };
    let weights: Option<Tensor<4>> =
        weights.map(|weights| Tensor::from_data(TensorData::new(weights, [rows, columns, side, side]), &device));
    if let Some(weights) = &weights {
        // recorded in the shape of all window operators, [1, 1, k*k, H*W]
        let windows = weights.clone().reshape([rows * columns, side * side]).transpose();
        let reach = Reach::Window { side, mirrored: false };
        pass.record_weights(&windows.reshape([1, 1, side * side, rows * columns]), |_| {
            Geometry::within_map([rows, columns], reach)
        });
    }
    Ok(Attended { out: Tensor::from_data(TensorData::new(out, [channels, rows, columns]), &device), weights })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fixture, distance, noise, random, values};

    /// Non-local means by its definition, in f64. Slow on purpose; `exp` is given so that the reference's
    /// approximation can take its place.
    fn naive(
        image: &[f32],
        [channels, rows, columns]: [usize; 3],
        options: &NonLocalMeans,
        exp: fn(f64) -> f64,
    ) -> Vec<f32> {
        let (margin, reach) = (options.patch as isize / 2, options.search as isize / 2);
        let mirror = |at: isize, size: usize| {
            let (at, last) = (at.unsigned_abs(), size - 1);
            if at > last { 2 * last - at } else { at }
        };
        let pixel = |channel: usize, row: isize, column: isize| {
            f64::from(image[(channel * rows + mirror(row, rows)) * columns + mirror(column, columns)])
        };
        let deviation = (options.patch as f64 - 1.0) / 4.0;
        let bell =
            |down: isize, right: isize| (-((down * down + right * right) as f64) / (2.0 * deviation * deviation)).exp();
        let sides = || -margin..=margin;
        let total: f64 = sides().map(|down| sides().map(|right| bell(down, right)).sum::<f64>()).sum();
        let (sigma, h) = (f64::from(options.sigma), f64::from(options.h));
        let weight = |row: isize, column: isize, other_row: isize, other_column: isize| {
            let mut sum = 0.0;
            for down in sides() {
                if sum > 5.0 {
                    return 0.0;
                }
                for right in sides() {
                    for channel in 0..channels {
                        let difference = pixel(channel, row + down, column + right)
                            - pixel(channel, other_row + down, other_column + right);
                        let share = bell(down, right) / (total * channels as f64 * h * h);
                        sum += share * (difference * difference - 2.0 * sigma * sigma);
                    }
                }
            }
            exp(-sum.max(0.0))
        };
        let mut out = vec![0.0; image.len()];
        for row in 0..rows as isize {
            for column in 0..columns as isize {
                let mut total = 0.0;
                let mut sums = vec![0.0; channels];
                for other_row in (row - reach).max(0)..=(row + reach).min(rows as isize - 1) {
                    for other_column in (column - reach).max(0)..=(column + reach).min(columns as isize - 1) {
                        let weight = weight(row, column, other_row, other_column);
                        total += weight;
                        for (channel, sum) in sums.iter_mut().enumerate() {
                            *sum += weight * pixel(channel, other_row, other_column);
                        }
                    }
                }
                for (channel, sum) in sums.iter().enumerate() {
                    out[(channel * rows + row as usize) * columns + column as usize] = (sum / total) as f32;
                }
            }
        }
        out
    }

    /// Schraudolph 1999: the exponent bits of a double, filled by a linear function.
    fn schraudolph(x: f64) -> f64 {
        let upper = (x * f64::from(1 << 20) / std::f64::consts::LN_2) as i64 + (1023 << 20) - 60801;
        f64::from_bits((upper as u64) << 32)
    }

    fn run(image: &Tensor<3>, options: &NonLocalMeans) -> Tensor<3> {
        non_local_means(image.clone(), options, &mut Pass::silent()).unwrap().out
    }

    /// A picture with edges and a ramp, `[C, H, W]` in 0..1.
    fn scene(shape: [usize; 3]) -> Vec<f32> {
        let [channels, rows, columns] = shape;
        (0..channels * rows * columns)
            .map(|at| {
                let (channel, row, column) = (at / (rows * columns), at / columns % rows, at % columns);
                let stripe = if (column / 4 + channel) % 2 == 0 { 0.3 } else { 0.6 };
                stripe + 0.3 * row as f32 / rows as f32
            })
            .collect()
    }

    fn noisy_scene(shape: [usize; 3], amount: f32) -> Vec<f32> {
        let clean = scene(shape);
        clean.iter().zip(noise(clean.len(), 5)).map(|(clean, noise)| clean + amount * noise).collect()
    }

    fn tensor(values: Vec<f32>, shape: [usize; 3]) -> Tensor<3> {
        Tensor::from_data(TensorData::new(values, shape), &crate::device::cpu())
    }

    fn error(actual: &[f32], expected: &[f32]) -> f32 {
        actual.iter().zip(expected).map(|(a, e)| (a - e) * (a - e)).sum::<f32>() / actual.len() as f32
    }

    fn fixture() -> (Fixture, NonLocalMeans) {
        let fixture = Fixture::load("nl_means");
        let h = fixture.config["h"].as_f64().unwrap() as f32;
        let search = 2 * fixture.usize("patch_distance") + 1;
        let options = NonLocalMeans { patch: fixture.usize("patch_size"), search, sigma: 0.0, h };
        (fixture, options)
    }

    #[test]
    fn it_denoises_like_the_reference() {
        let (fixture, options) = fixture();
        let [clean, noisy, expected] =
            ["clean", "noisy", "denoised"].map(|name| fixture.tensor::<2>(&format!("io/{name}")));
        let ours = values(&run(&noisy.unsqueeze(), &options));
        let decibels = |image: &[f32]| -10.0 * error(image, &values(&clean)).log10();
        let (ours_db, expected_db) = (decibels(&ours), decibels(&values(&expected)));
        assert!((ours_db - expected_db).abs() < 0.1, "{ours_db} dB, reference {expected_db} dB");
        // the exponential: see the next test
        let distance = distance(&ours, &values(&expected));
        assert!(distance < 2e-3, "largest difference {distance}");
    }

    #[test]
    fn the_exponential_is_the_only_difference_from_the_reference() {
        let (fixture, options) = fixture();
        let noisy = fixture.tensor::<2>("io/noisy");
        let [rows, columns] = noisy.dims();
        let twin = naive(&values(&noisy), [1, rows, columns], &options, schraudolph);
        let distance = distance(&twin, &values(&fixture.tensor::<2>("io/denoised")));
        assert!(distance < 1e-5, "largest difference {distance}");
    }

    #[test]
    fn it_is_its_definition_in_gray_and_colour() {
        for (shape, patch, search, sigma) in
            [([1, 12, 17], 5, 7, 0.0), ([3, 19, 9], 3, 5, 0.1), ([4, 7, 7], 7, 21, 0.05), ([1, 1, 1], 1, 3, 0.1)]
        {
            let options = NonLocalMeans { patch, search, sigma, h: 0.15 };
            let image = noisy_scene(shape, 0.15);
            let ours = values(&run(&tensor(image.clone(), shape), &options));
            let distance = distance(&ours, &naive(&image, shape, &options, f64::exp));
            assert!(distance < 1e-5, "{shape:?}: largest difference {distance}");
        }
    }

    #[test]
    fn a_constant_image_is_unchanged() {
        let image = tensor(vec![0.3; 2 * 10 * 11], [2, 10, 11]);
        let out = values(&run(&image, &NonLocalMeans::for_noise(0.1)));
        assert!(distance(&out, &[0.3; 2 * 10 * 11]) < 1e-6);
    }

    #[test]
    fn without_noise_nothing_changes() {
        let image = random([1, 9, 9], 3);
        let options = NonLocalMeans::for_noise(0.0);
        let attended = non_local_means(image.clone(), &options, &mut Pass::recording()).unwrap();
        assert_eq!(values(&attended.out), values(&image));
        let own = attended.weights.unwrap().slice([0..9, 0..9, 10..11, 10..11]);
        assert_eq!(values(&own), [1.0; 81]);
    }

    #[test]
    fn weights_sum_to_one_and_give_the_output() {
        let (shape, options) = ([2, 9, 8], NonLocalMeans { patch: 3, search: 5, sigma: 0.05, h: 0.1 });
        let image = noisy_scene(shape, 0.1);
        let attended = non_local_means(tensor(image.clone(), shape), &options, &mut Pass::recording()).unwrap();
        assert_eq!(
            values(&attended.out),
            values(&run(&tensor(image.clone(), shape), &options)),
            "recording changes nothing"
        );
        let weights = values(&attended.weights.unwrap());
        let out = values(&attended.out);
        for (pixel, weights) in weights.chunks(25).enumerate() {
            assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
            let (row, column) = (pixel / 8, pixel % 8);
            for channel in 0..2 {
                let mean: f32 = weights
                    .iter()
                    .enumerate()
                    .filter(|(_, weight)| **weight > 0.0)
                    .map(|(at, weight)| weight * image[(channel * 9 + row + at / 5 - 2) * 8 + column + at % 5 - 2])
                    .sum();
                assert!((mean - out[channel * 72 + pixel]).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn the_result_stays_between_the_smallest_and_the_largest_value() {
        let image = random([3, 20, 20], 8);
        let (low, high) = values(&image).iter().fold((1.0f32, -1.0f32), |(l, h), v| (l.min(*v), h.max(*v)));
        let out = values(&run(&image, &NonLocalMeans::for_noise(0.5)));
        assert!(out.iter().all(|value| (low - 1e-6..=high + 1e-6).contains(value)));
    }

    #[test]
    fn more_sigma_smooths_more() {
        let image = random([1, 24, 24], 9);
        let variance = |sigma: f32| {
            let out = values(&run(&image, &NonLocalMeans::for_noise(sigma)));
            let mean = out.iter().sum::<f32>() / out.len() as f32;
            error(&out, &vec![mean; out.len()])
        };
        let variances: Vec<f32> = [0.0, 0.2, 0.4, 0.8].map(variance).into();
        assert!(variances.windows(2).all(|pair| pair[1] < pair[0]), "{variances:?}");
    }

    #[test]
    fn a_noisy_picture_comes_nearer_to_the_clean_one() {
        for channels in [1, 3] {
            let shape = [channels, 32, 32];
            let (clean, noisy) = (scene(shape), noisy_scene(shape, 0.15));
            // uniform noise of amplitude a has standard deviation a/sqrt(3)
            let out = values(&run(&tensor(noisy.clone(), shape), &NonLocalMeans::for_noise(0.15 / 3f32.sqrt())));
            let (before, after) = (error(&noisy, &clean), error(&out, &clean));
            assert!(after < before / 4.0, "mean squared error {before} before, {after} after");
        }
    }

    #[test]
    fn one_and_two_threads_give_the_same_bytes() {
        let image = random([3, 50, 33], 4);
        let with = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| values(&run(&image, &NonLocalMeans::for_noise(0.3))))
        };
        assert_eq!(with(1), with(2));
    }

    #[test]
    fn what_cannot_work_is_named() {
        let image = random([1, 6, 9], 1);
        let options = NonLocalMeans::for_noise(0.1);
        let nan = tensor(vec![0.0, f32::NAN, 0.0, 0.0], [1, 2, 2]);
        for (image, options, words) in [
            (&image, NonLocalMeans { patch: 4, ..options }, ["`patch`", "4"]),
            (&image, NonLocalMeans { search: 20, ..options }, ["`search`", "20"]),
            (&image, NonLocalMeans { sigma: f32::NAN, ..options }, ["`sigma`", "NaN"]),
            (&image, NonLocalMeans { h: -1.0, ..options }, ["`h`", "-1"]),
            (&image, options, ["rows 6", "patch 7"]),
            (&nan, NonLocalMeans { patch: 1, ..options }, ["row 0, column 1", "NaN"]),
        ] {
            let error = non_local_means(image.clone(), &options, &mut Pass::silent()).unwrap_err().to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn every_row_is_reported_once() {
        let rows = std::sync::atomic::AtomicUsize::new(0);
        let count = |more| {
            rows.fetch_add(more, std::sync::atomic::Ordering::Relaxed);
        };
        let options = NonLocalMeans { patch: 3, ..NonLocalMeans::for_noise(0.1) };
        non_local_means_with_progress(random([2, 37, 5], 1), &options, &mut Pass::silent(), &count).unwrap();
        assert_eq!(rows.into_inner(), 37);
    }
}
