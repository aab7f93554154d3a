//! Mixes the pictures of a batch with each other, as timm's batch mode: one lambda for the whole batch, and picture i is mixed
//! with the i-th from the end; the middle one of an odd batch with itself.

use rand::{Rng, RngExt as _};
use rand_distr::{Beta, Distribution as _};
use serde::{Deserialize, Serialize};
use std::ops::Range;

use super::{Batch, limits};
use crate::Error;

/// Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019); off by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mix {
    /// Alpha of Mixup's Beta distribution; 0 disables it.
    pub mixup: f64,
    /// Alpha of CutMix's Beta distribution; 0 disables it.
    pub cutmix: f64,
    /// Probability of CutMix if both are enabled.
    pub switch: f64,
    /// Probability that a batch is mixed at all.
    pub probability: f64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { mixup: 0.0, cutmix: 0.0, switch: 0.5, probability: 1.0 }
    }
}

/// How one batch is mixed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Blend {
    /// The weight of the picture itself.
    Mixup(f32),
    /// Rows and columns of the rectangle that comes from the other picture, and the fraction of the rest.
    CutMix([Range<usize>; 2], f32),
}

impl Mix {
    /// # Errors
    /// When a field cannot work; the error names it and its value.
    pub fn validate(&self) -> Result<(), Error> {
        limits::not_negative("mix.mixup", self.mixup)?;
        limits::not_negative("mix.cutmix", self.cutmix)?;
        limits::probability("mix.switch", self.switch)?;
        limits::probability("mix.probability", self.probability)
    }

    /// How a batch of such images is mixed; `None` if not at all.
    pub(super) fn draw(&self, image: [usize; 2], random: &mut impl Rng) -> Option<Blend> {
        if (self.mixup <= 0.0 && self.cutmix <= 0.0) || random.random::<f64>() >= self.probability {
            return None;
        }
        let both = self.mixup > 0.0 && self.cutmix > 0.0;
        let cut = if both { random.random::<f64>() < self.switch } else { self.cutmix > 0.0 };
        let alpha = if cut { self.cutmix } else { self.mixup };
        // a tiny alpha can overflow
        let share = Beta::new(alpha, alpha).ok()?.sample(random);
        if !(0.0..1.0).contains(&share) {
            return None;
        }
        if !cut {
            return Some(Blend::Mixup(share as f32));
        }
        let side = (1.0 - share).sqrt();
        let cut = image.map(|pixels| {
            let half = (pixels as f64 * side) as usize / 2;
            let centre = random.random_range(0..pixels);
            centre.saturating_sub(half)..(centre + half).min(pixels)
        });
        let area = cut[0].len() * cut[1].len();
        // clipping at the border changes the fraction
        let share = 1.0 - area as f64 / (image[0] * image[1]) as f64;
        (area > 0).then_some(Blend::CutMix(cut, share as f32))
    }
}

impl Blend {
    /// Mixes each picture of a batch with one of `others`, the first with the last, and so on.
    ///
    /// # Panics
    /// When the batches have different shapes.
    pub(super) fn apply(&self, batch: &mut Batch, others: &Batch) {
        assert_eq!(batch.shape, others.shape, "mix: batches of different shapes");
        let [_, channels, rows, columns] = batch.shape;
        let size = channels * rows * columns;
        for (image, other) in batch.images.chunks_exact_mut(size).zip(others.images.chunks_exact(size).rev()) {
            match self {
                Self::Mixup(share) => {
                    image.iter_mut().zip(other).for_each(|(x, y)| *x = share * *x + (1.0 - share) * y);
                }
                Self::CutMix([cut_rows, cut_columns], _) => {
                    for plane in (0..channels).map(|channel| channel * rows * columns) {
                        for row in cut_rows.clone() {
                            let start = plane + row * columns;
                            let line = start + cut_columns.start..start + cut_columns.end;
                            image[line.clone()].copy_from_slice(&other[line]);
                        }
                    }
                }
            }
        }
        let (Self::Mixup(share) | Self::CutMix(_, share)) = *self;
        for (target, other) in batch.targets.iter_mut().zip(others.targets.iter().rev()) {
            (target.other, target.share) = (other.class, share);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Target;
    use crate::random::{Purpose, generator};

    const BOTH: Mix = Mix { mixup: 0.8, cutmix: 1.0, switch: 0.5, probability: 1.0 };

    fn draws(mix: Mix, count: u64) -> Vec<Option<Blend>> {
        (0..count).map(|step| mix.draw([8, 12], &mut generator(0, Purpose::Mix, [0, step]))).collect()
    }

    /// Picture i is full of i.
    fn batch(pictures: usize) -> Batch {
        let images = (0..pictures).flat_map(|picture| [picture as f32; 192]).collect();
        Batch { images, shape: [pictures, 2, 8, 12], targets: (0..pictures).map(Target::pure).collect() }
    }

    #[test]
    fn targets_have_the_share_that_the_pixels_have() {
        for blend in draws(BOTH, 50).into_iter().flatten() {
            for pictures in [1, 2, 5, 6] {
                let mut mixed = batch(pictures);
                blend.apply(&mut mixed, &batch(pictures));
                for (place, target) in mixed.targets.iter().enumerate() {
                    assert_eq!((target.class, target.other), (place, pictures - 1 - place));
                    let image = &mixed.images[192 * place..][..192];
                    let mean = image.iter().sum::<f32>() / 192.0;
                    let expected = target.share * place as f32 + (1.0 - target.share) * target.other as f32;
                    assert!((mean - expected).abs() < 1e-4, "{blend:?}: {mean} instead of {expected}");
                }
            }
        }
    }

    #[test]
    fn a_cut_is_a_rectangle_of_the_other_picture() {
        let mut mixed = batch(2);
        Blend::CutMix([1..3, 4..9], 1.0 - 10.0 / 96.0).apply(&mut mixed, &batch(2));
        for (at, value) in mixed.images[..192].iter().enumerate() {
            let (row, column) = (at / 12 % 8, at % 12);
            let inside = (1..3).contains(&row) && (4..9).contains(&column);
            assert_eq!(*value, f32::from(u8::from(inside)), "{row}, {column}");
        }
    }

    #[test]
    fn it_happens_as_often_as_it_should() {
        let count = |mix: Mix, what: fn(&Blend) -> bool| draws(mix, 2000).iter().flatten().filter(|b| what(b)).count();
        let mixup: fn(&Blend) -> bool = |blend| matches!(blend, Blend::Mixup(_));
        let cutmix: fn(&Blend) -> bool = |blend| matches!(blend, Blend::CutMix(..));
        assert_eq!(count(Mix::default(), |_| true), 0);
        assert_eq!(count(Mix { probability: 0.0, ..BOTH }, |_| true), 0);
        assert_eq!((count(Mix { cutmix: 0.0, ..BOTH }, mixup), count(Mix { cutmix: 0.0, ..BOTH }, cutmix)), (2000, 0));
        assert_eq!(count(Mix { mixup: 0.0, ..BOTH }, mixup), 0);
        // a cut of less than a pixel is empty
        assert!(count(Mix { mixup: 0.0, ..BOTH }, cutmix) > 1700);
        assert!((300..500).contains(&count(Mix { probability: 0.2, cutmix: 0.0, ..BOTH }, mixup)));
        assert!((500..700).contains(&count(Mix { switch: 0.7, ..BOTH }, mixup)));
    }

    #[test]
    fn shares_are_of_the_beta_distribution() {
        let shares = |mix| -> Vec<f64> {
            let share = |blend: Option<Blend>| match blend {
                Some(Blend::Mixup(share) | Blend::CutMix(_, share)) => f64::from(share),
                None => 1.0,
            };
            draws(mix, 4000).into_iter().map(share).collect()
        };
        let (mean, variance) = {
            let shares = shares(Mix { cutmix: 0.0, ..BOTH });
            let mean = shares.iter().sum::<f64>() / 4000.0;
            (mean, shares.iter().map(|share| (share - mean).powi(2)).sum::<f64>() / 4000.0)
        };
        // variance of Beta(a, a): 1 / (4 (2 a + 1))
        assert!((mean - 0.5).abs() < 0.02 && (variance - 1.0 / 10.4).abs() < 0.004, "{mean}, {variance}");
        assert!(shares(Mix { mixup: 1e-300, ..BOTH }).iter().all(|share| (0.0..=1.0).contains(share)));
    }

    #[test]
    fn a_wrong_setting_is_named_with_its_value() {
        for (mix, field, value) in [
            (Mix { mixup: -0.1, ..BOTH }, "mix.mixup", "-0.1"),
            (Mix { cutmix: f64::NAN, ..BOTH }, "mix.cutmix", "NaN"),
            (Mix { switch: 1.5, ..BOTH }, "mix.switch", "1.5"),
            (Mix { probability: 2.0, ..BOTH }, "mix.probability", "2"),
        ] {
            let error = mix.validate().unwrap_err().to_string();
            assert!(error.contains(field) && error.ends_with(value), "{error}");
        }
        assert!(BOTH.validate().is_ok() && Mix::default().validate().is_ok());
    }
}
