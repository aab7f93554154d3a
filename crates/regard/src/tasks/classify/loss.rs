//! Losses of a classifier.

use burn::tensor::{Device, Tensor, TensorData, activation};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::data::Target;
use crate::function::log_softmax;

/// The loss of logits against classes, which may be smoothed and mixed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Loss {
    pub kind: LossKind,
    /// Label smoothing: probability taken from the true class.
    pub smoothing: f64,
    pub smoothing_over: SmoothingOver,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum LossKind {
    #[default]
    CrossEntropy,
    /// Binary cross-entropy of each class, as in `ResNet strikes back`: `{ binary = { threshold = 0.2 } }` makes every
    /// class with a probability above the threshold certain.
    Binary { threshold: f64 },
}

/// Which classes get the probability that smoothing takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmoothingOver {
    /// All classes, the true one included: `eps / K`, as in PyTorch and timm.
    #[default]
    All,
    /// The other classes: `eps / (K - 1)`, as in SAN's code.
    Others,
}

impl Default for Loss {
    fn default() -> Self {
        Self { kind: LossKind::default(), smoothing: 0.0, smoothing_over: SmoothingOver::default() }
    }
}

impl Loss {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        crate::train::check_share("loss.smoothing", self.smoothing)?;
        match self.kind {
            LossKind::Binary { threshold } => crate::train::check_share("loss.kind.binary.threshold", threshold),
            LossKind::CrossEntropy => Ok(()),
        }
    }

    /// The sum over pictures, from logits `[B, classes]`; with [`LossKind::Binary`] a mean over classes.
    pub fn sum(&self, logits: Tensor<2>, targets: &[Target]) -> Tensor<1> {
        let [_, classes] = logits.dims();
        let wanted = self.targets(targets, classes, &logits.device());
        match self.kind {
            LossKind::CrossEntropy => (log_softmax(logits) * wanted).sum().neg(),
            LossKind::Binary { .. } => {
                // -t log s(x) - (1 - t) log s(-x) = softplus(x) - t x
                (activation::softplus(logits.clone(), 1.0) - logits * wanted).sum() / classes as f32
            }
        }
    }

    /// `[B, classes]`
    fn targets(&self, targets: &[Target], classes: usize, device: &Device) -> Tensor<2> {
        let smoothing = self.smoothing as f32;
        let (on, off) = match self.smoothing_over {
            SmoothingOver::All => (1.0 - smoothing + smoothing / classes as f32, smoothing / classes as f32),
            SmoothingOver::Others => (1.0 - smoothing, smoothing / (classes.max(2) - 1) as f32),
        };
        let mut wanted = vec![off; targets.len() * classes];
        for (row, target) in wanted.chunks_exact_mut(classes).zip(targets) {
            assert!(
                target.class < classes && target.other < classes,
                "loss: {target:?} is not among {classes} classes"
            );
            row[target.class] += (on - off) * target.share;
            row[target.other] += (on - off) * (1.0 - target.share);
            if let LossKind::Binary { threshold } = self.kind {
                let threshold = threshold as f32;
                for (class, share) in [(target.class, target.share), (target.other, 1.0 - target.share)] {
                    let certain = target.class == target.other || share > threshold;
                    row[class] = if certain { on } else { row[class] };
                }
            }
        }
        Tensor::from_data(TensorData::new(wanted, [targets.len(), classes]), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::random;

    const PURE: Target = Target::pure(1);
    const MIXED: Target = Target { class: 0, other: 2, share: 0.7 };

    fn rows(loss: Loss, target: Target) -> Vec<f32> {
        loss.targets(&[target], 4, &device::cpu()).into_data().iter::<f32>().collect()
    }

    fn close(left: &[f32], right: &[f32]) {
        assert!(left.iter().zip(right).all(|(a, b)| (a - b).abs() < 1e-6), "{left:?} {right:?}");
    }

    #[test]
    fn smoothing_takes_from_the_true_class_and_gives_to_all_or_to_the_others() {
        let all = Loss { smoothing: 0.2, ..Loss::default() };
        close(&rows(all, PURE), &[0.05, 0.85, 0.05, 0.05]);
        let others = Loss { smoothing_over: SmoothingOver::Others, ..all };
        close(&rows(others, PURE), &[0.2 / 3.0, 0.8, 0.2 / 3.0, 0.2 / 3.0]);
    }

    #[test]
    fn mixed_targets_share_the_probability_and_sum_to_one() {
        close(&rows(Loss::default(), MIXED), &[0.7, 0.0, 0.3, 0.0]);
        let smoothed = rows(Loss { smoothing: 0.1, ..Loss::default() }, MIXED);
        assert!((smoothed.iter().sum::<f32>() - 1.0).abs() < 1e-6);
    }

    #[test]
    fn binary_targets_are_certain_above_the_threshold() {
        let binary = |threshold| Loss { kind: LossKind::Binary { threshold }, ..Loss::default() };
        close(&rows(binary(0.0), MIXED), &[1.0, 0.0, 1.0, 0.0]);
        close(&rows(binary(0.4), MIXED), &[1.0, 0.0, 0.3, 0.0]);
        close(&rows(binary(0.9), PURE), &[0.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn cross_entropy_and_binary_loss_are_their_formulas() {
        let logits = random([2, 4], 1);
        let values: Vec<f64> = logits.to_data().iter::<f32>().map(f64::from).collect();
        let targets = [PURE, MIXED];
        let of = |kind| f64::from(Loss { kind, ..Loss::default() }.sum(logits.clone(), &targets).into_scalar::<f32>());
        let log_softmax = |row: usize, class: usize| {
            let row = &values[4 * row..4 * row + 4];
            row[class] - row.iter().map(|x| x.exp()).sum::<f64>().ln()
        };
        let expected = -log_softmax(0, 1) - 0.7 * log_softmax(1, 0) - 0.3 * log_softmax(1, 2);
        assert!((of(LossKind::CrossEntropy) - expected).abs() < 1e-5);
        let wanted = [0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0];
        let terms = values.iter().zip(wanted).map(|(x, t)| {
            let sure = 1.0 / (1.0 + (-x).exp());
            -t * sure.ln() - (1.0 - t) * (1.0 - sure).ln()
        });
        assert!((of(LossKind::Binary { threshold: 0.0 }) - terms.sum::<f64>() / 4.0).abs() < 1e-5);
    }

    #[test]
    fn a_binary_loss_of_huge_logits_is_finite() {
        let logits = Tensor::from_data(TensorData::new(vec![1e4f32, -1e4], [1, 2]), &device::cpu());
        let loss = Loss { kind: LossKind::Binary { threshold: 0.0 }, ..Loss::default() };
        assert!((loss.sum(logits, &[PURE]).into_scalar::<f32>() - 1e4).abs() < 1.0);
    }
}
