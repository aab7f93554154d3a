//! Distillation from a teacher (Touvron et al. 2021, "Training data-efficient image transformers").

use burn::tensor::{Int, Tensor};
use serde::{Deserialize, Serialize};
use std::path::Path;

use super::Loss;
use crate::data::Target;
use crate::function::{log_softmax, softmax};
use crate::models::{self, Heads, ModelConfig};
use crate::train::Losses;
use crate::{Error, Pass};

/// The teacher and its loss.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Distillation {
    /// A model for the same classes, with weights: a run folder, `PRESET=WEIGHTS`, or any other name of a model.
    pub teacher: String,
    /// Its weights, a file or an address, if `teacher` is a preset or a model's TOML file without weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    #[serde(default)]
    pub kind: DistillationKind,
    /// Weight of the teacher's loss.
    #[serde(default = "half")]
    pub share: f64,
}

const fn half() -> f64 {
    0.5
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum DistillationKind {
    /// Cross-entropy with the teacher's top class.
    #[default]
    Hard,
    /// Divergence from the teacher's distribution, both softened: `{ soft = { temperature = 3.0 } }`.
    ///
    /// Summed over classes, times the square of the temperature (Hinton et al. 2015); DeiT's code divides by the
    /// number of classes as well.
    Soft { temperature: f64 },
}

impl Distillation {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        if self.weights.is_some() && !self.is_a_file() {
            models::preset(&self.teacher)?;
        }
        crate::train::check_share("distillation.share", self.share)?;
        match self.kind {
            DistillationKind::Soft { temperature } if !(temperature.is_finite() && temperature > 0.0) => {
                Err(Error::config("distillation.kind.soft.temperature", format!("{temperature} is not above 0")))
            }
            _ => Ok(()),
        }
    }

    fn is_a_file(&self) -> bool {
        Path::new(&self.teacher).extension().is_some_and(|ending| ending == "toml")
    }

    /// The teacher's configuration.
    pub(super) fn config(&self) -> Result<ModelConfig, Error> {
        if !self.is_a_file() {
            return Ok(models::preset(&self.teacher)?.config);
        }
        let unreadable = |reason: String| Error::Field { field: "distillation.teacher".into(), reason };
        let text = std::fs::read_to_string(&self.teacher)
            .map_err(|error| unreadable(format!("cannot read `{}`: {error}", self.teacher)))?;
        ModelConfig::from_toml(&text).map_err(|error| unreadable(format!("`{}`, {error}", self.teacher)))
    }

    /// Sums over pictures: the class loss, the teacher's loss, and their weighted sum. The distilled head learns from the
    /// teacher if there is one.
    pub fn losses(&self, heads: Heads, teacher: Tensor<2>, targets: &[Target], loss: &Loss) -> Losses {
        let Heads { class, distilled } = heads;
        let student = distilled.unwrap_or_else(|| class.clone());
        let taught = match self.kind {
            DistillationKind::Hard => {
                let best: Tensor<2, Int> = teacher.argmax(1);
                log_softmax(student).gather(1, best).sum().neg()
            }
            DistillationKind::Soft { temperature } => {
                let wanted = softmax(teacher.clone() / temperature);
                let certain = (wanted.clone() * log_softmax(teacher / temperature)).sum();
                let answer = (wanted * log_softmax(student / temperature)).sum();
                (certain - answer) * (temperature * temperature)
            }
        };
        let own = loss.sum(class, targets);
        let sum = own.clone() * (1.0 - self.share) + taught.clone() * self.share;
        Losses { sum, parts: vec![own.detach(), taught.detach()] }
    }
}

/// The teacher's logits, without gradients.
pub(super) fn ask(teacher: &models::Model, images: Tensor<4>) -> Tensor<2> {
    teacher.forward(images, &mut Pass::silent())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random;

    fn distillation(kind: DistillationKind, share: f64) -> Distillation {
        Distillation { teacher: "resnet-nano".into(), weights: Some("teacher.safetensors".into()), kind, share }
    }

    fn heads(distilled: bool) -> Heads {
        Heads { class: random([3, 5], 1), distilled: distilled.then(|| random([3, 5], 2)) }
    }

    const TARGETS: [Target; 3] = [Target::pure(0), Target::pure(4), Target::pure(2)];

    fn value(tensor: Tensor<1>) -> f32 {
        tensor.into_scalar::<f32>()
    }

    #[test]
    fn the_hard_loss_is_the_cross_entropy_with_the_teachers_top_class() {
        let teacher = random([3, 5], 3);
        let best =
            teacher.clone().argmax(1).into_data().iter::<i64>().map(|c| Target::pure(c as usize)).collect::<Vec<_>>();
        let loss = Loss::default();
        let expected =
            0.5 * value(loss.sum(random([3, 5], 1), &TARGETS)) + 0.5 * value(loss.sum(random([3, 5], 2), &best));
        let got = distillation(DistillationKind::Hard, 0.5).losses(heads(true), teacher, &TARGETS, &loss).sum;
        assert!((value(got) - expected).abs() < 1e-5);
    }

    #[test]
    fn a_student_that_agrees_with_its_teacher_has_no_soft_loss() {
        let soft = distillation(DistillationKind::Soft { temperature: 3.0 }, 1.0);
        let same = value(soft.losses(heads(false), random([3, 5], 1), &TARGETS, &Loss::default()).sum);
        assert!(same.abs() < 1e-5, "{same}");
        assert!(value(soft.losses(heads(false), random([3, 5], 4), &TARGETS, &Loss::default()).sum) > 0.1);
    }

    #[test]
    fn a_teacher_of_weight_zero_changes_nothing() {
        let plain = value(Loss::default().sum(random([3, 5], 1), &TARGETS));
        let none = distillation(DistillationKind::Hard, 0.0);
        assert_eq!(value(none.losses(heads(true), random([3, 5], 3), &TARGETS, &Loss::default()).sum), plain);
    }
}
