//! Top-k predictions of a classifier, and its accuracy.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::number::or_nan;
use crate::function::log_softmax;

/// A predicted class with its probability.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassProbability {
    pub class: usize,
    pub probability: f32,
}

/// `[B, classes]`: the `top` most probable classes of each picture, the best first; ties in the order of classes.
pub fn top_classes(logits: Tensor<2>, top: usize) -> Vec<Vec<ClassProbability>> {
    let [_, classes] = logits.dims();
    let scores: Vec<f32> = log_softmax(logits).into_data().iter::<f32>().collect();
    scores.chunks(classes).map(|row| best(row, top)).collect()
}

/// The `top` best classes by log-probability.
pub(super) fn best(row: &[f32], top: usize) -> Vec<ClassProbability> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
    order.into_iter().take(top).map(|class| ClassProbability { class, probability: row[class].exp() }).collect()
}

/// The log-probabilities of each picture, with its label.
///
/// # Panics
/// When the number of labels is not the number of pictures, or a label is not a class.
pub(super) fn log_probabilities(logits: Tensor<2>, labels: &[usize]) -> Vec<(Vec<f32>, usize)> {
    let [pictures, classes] = logits.dims();
    assert!(pictures == labels.len(), "evaluate: {pictures} pictures have {} labels", labels.len());
    for label in labels {
        assert!(*label < classes, "evaluate: label {label} is not among {classes} classes");
    }
    let scores: Vec<f32> = log_softmax(logits).into_data().iter::<f32>().collect();
    scores.chunks(classes).map(<[f32]>::to_vec).zip(labels.iter().copied()).collect()
}

/// Counts of correct predictions, and the loss, over the pictures so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Accuracy {
    pub pictures: usize,
    right_first: usize,
    right_in_five: usize,
    #[serde(deserialize_with = "or_nan")]
    sum_of_losses: f64,
}

impl Accuracy {
    /// Adds the logits of some pictures and their true classes.
    ///
    /// # Panics
    /// When the number of labels is not the number of pictures, or a label is not a class.
    pub fn add(&mut self, logits: Tensor<2>, labels: &[usize]) {
        for (row, label) in log_probabilities(logits, labels) {
            self.count(&row, &best(&row, 5), label);
        }
    }

    /// Adds a picture by its log-probabilities and its five best classes.
    pub(super) fn count(&mut self, row: &[f32], best: &[ClassProbability], label: usize) {
        self.pictures += 1;
        self.right_first += usize::from(best[0].class == label);
        self.right_in_five += usize::from(best.iter().any(|answer| answer.class == label));
        self.sum_of_losses -= f64::from(row[label]);
    }

    /// Top-1 accuracy.
    pub fn top1(&self) -> f64 {
        self.right_first as f64 / self.pictures as f64
    }

    /// Top-5 accuracy.
    pub fn top5(&self) -> f64 {
        self.right_in_five as f64 / self.pictures as f64
    }

    /// Mean cross-entropy.
    pub fn loss(&self) -> f64 {
        self.sum_of_losses / self.pictures as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use burn::tensor::TensorData;

    fn logits(rows: &[[f32; 6]]) -> Tensor<2> {
        Tensor::from_data(TensorData::new(rows.concat(), [rows.len(), 6]), &device::cpu())
    }

    #[test]
    fn answers_come_best_first_and_their_probabilities_are_of_all_classes() {
        let best = &top_classes(logits(&[[0.0, 2.0, 1.0, 2.0, -1.0, 0.0]]), 3)[0];
        assert_eq!(best.iter().map(|answer| answer.class).collect::<Vec<_>>(), [1, 3, 2]);
        let sum: f32 =
            top_classes(logits(&[[0.0, 2.0, 1.0, 2.0, -1.0, 0.0]]), 6)[0].iter().map(|a| a.probability).sum();
        assert!((sum - 1.0).abs() < 1e-6);
    }

    #[test]
    fn right_answers_are_counted_and_the_loss_is_the_mean_cross_entropy() {
        let mut accuracy = Accuracy::default();
        let sure = [9.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        accuracy.add(logits(&[sure, [0.0; 6]]), &[0, 4]);
        accuracy.add(logits(&[sure]), &[5]);
        assert_eq!((accuracy.pictures, accuracy.top1(), accuracy.top5()), (3, 1.0 / 3.0, 2.0 / 3.0));
        let sure_of = 9.0 - (9f64.exp() + 5.0).ln();
        let expected = (-sure_of + 6f64.ln() + (9f64.exp() + 5.0).ln()) / 3.0;
        assert!((accuracy.loss() - expected).abs() < 1e-5);
    }
}
