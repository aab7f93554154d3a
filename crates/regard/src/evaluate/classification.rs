//! All metrics of a classifier, collected in one pass over the pictures.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::accuracy::{best, log_probabilities};
use super::{Accuracy, Better, Calibration, Confusion, Metric, Unit, Values};

/// The metrics of a classifier over the pictures so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassificationMetrics {
    pub accuracy: Accuracy,
    pub confusion: Confusion,
    pub calibration: Calibration,
}

impl ClassificationMetrics {
    /// The metrics that [`values`](Self::values) has; the first decides.
    pub const METRICS: &'static [Metric] = &[
        Metric::new("top1", "top-1 accuracy", Better::Higher, Unit::Percent),
        Metric::new("top5", "top-5 accuracy", Better::Higher, Unit::Percent),
        Metric::new("loss", "loss", Better::Lower, Unit::Number),
    ];

    /// The values of [`METRICS`](Self::METRICS), by name.
    #[must_use]
    pub fn values(&self) -> Values {
        let Self { accuracy, .. } = self;
        let values = [("top1", accuracy.top1()), ("top5", accuracy.top5()), ("loss", accuracy.loss())];
        values.map(|(name, value)| (name.to_string(), value)).into()
    }

    /// Adds the logits of some pictures, `[B, classes]`, and their true classes.
    ///
    /// # Panics
    /// When the number of labels is not the number of pictures, a label is not a class, or the number of classes changes.
    pub fn add(&mut self, logits: Tensor<2>, labels: &[usize]) {
        let [_, classes] = logits.dims();
        let before = self.confusion.counts.len();
        assert!(before == 0 || before == classes, "evaluation: {classes} classes after {before}");
        for (row, label) in log_probabilities(logits, labels) {
            let best = best(&row, 5);
            self.accuracy.count(&row, &best, label);
            self.confusion.count(classes, label, best[0].class);
            self.calibration.count(f64::from(best[0].probability), best[0].class == label);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use burn::tensor::TensorData;

    fn logits(rows: &[[f32; 3]]) -> Tensor<2> {
        Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), 3]), &device::cpu())
    }

    #[test]
    fn batches_of_any_size_give_what_one_pass_over_all_gives() {
        let rows = [[2.0, 0.0, 1.0], [0.0, 3.0, 0.0], [0.0, 3.0, 1.0], [-1.0, 0.0, 0.5]];
        let (mut whole, mut parts) = (ClassificationMetrics::default(), ClassificationMetrics::default());
        whole.add(logits(&rows), &[0, 1, 2, 2]);
        parts.add(logits(&rows[..1]), &[0]);
        parts.add(logits(&rows[1..]), &[1, 2, 2]);
        assert_eq!(whole, parts);
        assert_eq!(whole.confusion.counts, [[1, 0, 0], [0, 1, 0], [0, 1, 1]]);
        assert_eq!((whole.accuracy.pictures, whole.accuracy.top1()), (4, 0.75));
        let mut alone = Accuracy::default();
        alone.add(logits(&rows), &[0, 1, 2, 2]);
        assert_eq!(whole.accuracy, alone);
    }

    #[test]
    fn two_even_logits_are_a_confidence_of_a_third_of_three() {
        let mut evaluation = ClassificationMetrics::default();
        evaluation.add(logits(&[[0.0; 3], [0.0; 3], [0.0; 3]]), &[0, 1, 2]);
        assert!(evaluation.calibration.error() < 1e-6, "one of three is right, and a third is claimed");
    }

    #[test]
    fn an_evaluation_comes_back_from_json() {
        let mut evaluation = ClassificationMetrics::default();
        evaluation.add(logits(&[[2.0, 0.0, 1.0], [f32::NAN; 3]]), &[0, 2]);
        let text = serde_json::to_string(&evaluation).unwrap();
        let back: ClassificationMetrics = serde_json::from_str(&text).unwrap();
        assert_eq!(back.confusion, evaluation.confusion);
        assert!(evaluation.accuracy.loss().is_nan() && back.accuracy.loss().is_nan());
    }
}
