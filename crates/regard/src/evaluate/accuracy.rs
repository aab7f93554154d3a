//! Answers of a classifier, and how many of them are right.

use burn::tensor::Tensor;
use serde::Serialize;

use crate::function::log_softmax;

/// A class and how sure the model is of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Answer {
    pub class: usize,
    pub probability: f32,
}

/// `[B, classes]`: the `top` best answers for each picture, the best first; equal ones in the order of classes.
pub fn answers(logits: Tensor<2>, top: usize) -> Vec<Vec<Answer>> {
    let [_, classes] = logits.dims();
    let scores: Vec<f32> = log_softmax(logits).into_data().iter::<f32>().collect();
    scores
        .chunks(classes)
        .map(|row| {
            let mut order: Vec<usize> = (0..classes).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            order.into_iter().take(top).map(|class| Answer { class, probability: row[class].exp() }).collect()
        })
        .collect()
}

/// Counts of right answers, and the loss, over pictures seen so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Accuracy {
    pub pictures: usize,
    top1: usize,
    top5: usize,
    loss: f64,
}

impl Accuracy {
    /// Adds the logits of some pictures and their true classes.
    ///
    /// # Panics
    /// When there is not one label for each picture, or a label is not among the classes.
    pub fn add(&mut self, logits: Tensor<2>, labels: &[usize]) {
        let [pictures, classes] = logits.dims();
        assert!(pictures == labels.len(), "accuracy: {pictures} pictures have {} labels", labels.len());
        let scores: Vec<f32> = log_softmax(logits.clone()).into_data().iter::<f32>().collect();
        for ((row, best), &label) in scores.chunks(classes).zip(answers(logits, 5)).zip(labels) {
            assert!(label < classes, "accuracy: label {label} is not among {classes} classes");
            self.pictures += 1;
            self.top1 += usize::from(best[0].class == label);
            self.top5 += usize::from(best.iter().any(|answer| answer.class == label));
            self.loss -= f64::from(row[label]);
        }
    }

    /// Share of pictures whose best answer is right.
    pub fn top1(&self) -> f64 {
        self.top1 as f64 / self.pictures as f64
    }

    /// Share of pictures with the right class among the five best.
    pub fn top5(&self) -> f64 {
        self.top5 as f64 / self.pictures as f64
    }

    /// Mean cross-entropy.
    pub fn loss(&self) -> f64 {
        self.loss / self.pictures as f64
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
        let best = &answers(logits(&[[0.0, 2.0, 1.0, 2.0, -1.0, 0.0]]), 3)[0];
        assert_eq!(best.iter().map(|answer| answer.class).collect::<Vec<_>>(), [1, 3, 2]);
        let sum: f32 = answers(logits(&[[0.0, 2.0, 1.0, 2.0, -1.0, 0.0]]), 6)[0].iter().map(|a| a.probability).sum();
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
