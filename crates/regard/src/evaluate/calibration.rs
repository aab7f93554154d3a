//! Calibration: whether confidence matches accuracy (Guo et al. 2017).

use serde::{Deserialize, Serialize};

use super::number::or_nan;

/// Number of equal bins for confidences from 0 to 1.
pub const BINS: usize = 15;

/// Pictures with about the same confidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    pub pictures: u64,
    right: u64,
    /// Sum of the confidences.
    #[serde(deserialize_with = "or_nan")]
    confidence: f64,
}

impl Bin {
    /// Accuracy; NaN if the bin is empty.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.right as f64 / self.pictures as f64
    }

    /// Mean confidence; NaN if the bin is empty.
    #[must_use]
    pub fn confidence(&self) -> f64 {
        self.confidence / self.pictures as f64
    }
}

/// Confidence and accuracy in bins, over the pictures so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Calibration {
    /// By increasing confidence.
    pub bins: [Bin; BINS],
}

impl Calibration {
    pub(super) fn count(&mut self, probability: f64, right: bool) {
        // bins include their upper end, so that 1.0 is in the last one
        let bin = (probability * BINS as f64).ceil() as usize;
        let bin = &mut self.bins[bin.clamp(1, BINS) - 1];
        bin.pictures += 1;
        bin.right += u64::from(right);
        bin.confidence += probability;
    }

    /// Expected calibration error: the mean distance of accuracy and confidence over the bins, weighted by their pictures.
    #[must_use]
    pub fn error(&self) -> f64 {
        let pictures: u64 = self.bins.iter().map(|bin| bin.pictures).sum();
        let distances = self.bins.iter().map(|bin| (bin.right as f64 - bin.confidence).abs());
        distances.sum::<f64>() / pictures as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn someone_who_is_right_as_often_as_claimed_has_no_error() {
        let mut calibration = Calibration::default();
        for i in 0..4 {
            calibration.count(0.75, i != 0);
        }
        assert!(calibration.error().abs() < 1e-12);
        assert_eq!((calibration.bins[11].accuracy(), calibration.bins[11].confidence()), (0.75, 0.75));
    }

    #[test]
    fn the_error_is_the_mean_distance_weighted_by_pictures() {
        let mut calibration = Calibration::default();
        calibration.count(0.9, true);
        for right in [true, false, false] {
            calibration.count(0.5, right);
        }
        let expected = (1.0 * (1.0f64 - 0.9) + 3.0 * (0.5f64 - 1.0 / 3.0)) / 4.0;
        assert!((calibration.error() - expected).abs() < 1e-12);
        assert!(Calibration::default().error().is_nan(), "nothing is known before the first picture");
    }

    #[test]
    fn every_probability_has_a_bin_and_its_upper_end_belongs_to_it() {
        let mut calibration = Calibration::default();
        for probability in [0.0, 1.0 / 15.0, 0.07, 1.0, 1.000_000_1] {
            calibration.count(probability, true);
        }
        let pictures = calibration.bins.map(|bin| bin.pictures);
        assert_eq!((pictures[0], pictures[1], pictures[14]), (2, 1, 2));
    }
}
