//! The losses of the goals.
//! Chen et al. 2020 (UNITER), arXiv:1909.11740; Li et al. 2019 (VisualBERT), arXiv:1908.03557.
//!
//! Every step has one goal, as in UNITER; its loss is divided by what the goal counts over the whole step.

use burn::tensor::{Device, Tensor, TensorData};
use std::f32::consts::LN_2;

use super::batch::{GoalTargets, VisionLanguageBatch};
use super::section::{AnswerLoss, Goal};
use crate::function::{cross_entropy, log_softmax};
use crate::models::vision_language::losses::{
    binary_cross_entropy, divergence, foreground_classes, squared_error, transport_loss,
};
use crate::models::vision_language::{VisionLanguageConfig, VisionLanguageModel, VisionLanguageOutput};
use crate::pass::DropoutKey;
use crate::train::{Losses, Objective};
use crate::{Error, Pass};

/// The losses of a model of vision and language.
#[derive(Clone, Debug)]
pub struct VisionLanguageLoss {
    pub config: VisionLanguageConfig,
    pub answer_loss: AnswerLoss,
    /// Whether there are several goals, which are then told apart.
    pub is_mixed: bool,
    pub seed: u64,
    /// With gradients.
    pub device: Device,
}

/// UNITER's weight of the alignment loss.
const ALIGNMENT: f32 = 0.1;

impl Objective for VisionLanguageLoss {
    type Model = VisionLanguageModel;
    type Batch = VisionLanguageBatch;

    /// Texts, and what the goal's loss is divided by.
    const COUNTS: usize = 2;

    fn counts(&self, batch: &VisionLanguageBatch) -> Vec<usize> {
        vec![batch.len(), batch.elements()]
    }

    fn parts(&self) -> &'static [&'static str] {
        if self.is_mixed { Goal::NAMES } else { &[] }
    }

    fn losses(
        &self,
        model: &VisionLanguageModel,
        batch: &VisionLanguageBatch,
        counts: &[f64],
        draw_id: u64,
    ) -> Result<Losses, Error> {
        let mut pass = Pass::with_dropout(DropoutKey { seed: self.seed, step: draw_id });
        let output = model.forward(&batch.input(&self.device), &mut pass);
        // a step whose texts have no known answer teaches nothing
        let sum = self.sum(batch, output)? / counts[1].max(1.0) as f32;
        if !self.is_mixed {
            return Ok(sum.into());
        }
        let nothing = Tensor::<1>::zeros([1], &self.device);
        let mut parts = vec![nothing; Goal::NAMES.len()];
        parts[batch.goal.number()] = sum.clone();
        Ok(Losses { sum, parts })
    }
}

impl VisionLanguageLoss {
    /// The loss of a batch, not divided yet.
    fn sum(&self, batch: &VisionLanguageBatch, output: VisionLanguageOutput) -> Result<Tensor<1>, Error> {
        let lacks = |what: &str| {
            let goal = Goal::NAMES[batch.goal.number()];
            Error::Field { field: format!("goals.{goal}"), reason: format!("the model has no head for {what}") }
        };
        match &batch.targets {
            GoalTargets::Words(tokens) => {
                let logits = output.words.ok_or_else(|| lacks("words"))?;
                Ok(cross_entropy(logits, tokens.iter().copied().map(Some).collect(), 0.0))
            }
            GoalTargets::Features(features) => {
                let found = output.region_features.ok_or_else(|| lacks("features of regions"))?;
                let [places, width] = found.dims();
                Ok(squared_error(found, self.tensor(features, [places, width])) / width as f32)
            }
            GoalTargets::Classes(classes) => {
                let logits = output.region_classes.ok_or_else(|| lacks("classes of regions"))?;
                let [places, count] = logits.dims();
                if batch.goal == Goal::RegionClasses {
                    return Ok(cross_entropy(logits, foreground_classes(classes, count), 0.0));
                }
                Ok(divergence(logits, self.tensor(classes, [places, count])) / count as f32)
            }
            GoalTargets::Matched(matched) if batch.goal == Goal::Alignment => {
                let transport = output.alignment.ok_or_else(|| lacks("alignment"))?;
                Ok(transport_loss(transport.distance, matched) * ALIGNMENT)
            }
            GoalTargets::Matched(matched) => {
                let logits = output.matching.ok_or_else(|| lacks("matching"))?;
                let yes = self.config.matched_class();
                let right = matched.iter().map(|matched| Some(if *matched { yes } else { 1 - yes })).collect();
                Ok(cross_entropy(logits, right, 0.0))
            }
            GoalTargets::Answers(answers) => {
                let logits = output.answer.ok_or_else(|| lacks("answers"))?;
                let [texts, count] = logits.dims();
                let right = self.tensor(&answer_scores(answers, count, self.answer_loss), [texts, count]);
                if self.answer_loss == AnswerLoss::CrossEntropy {
                    return Ok((right * log_softmax(logits)).sum().neg());
                }
                // texts without a known answer are left out: a logit of zero costs ln 2, which is taken off again
                let known: Vec<f32> =
                    answers.iter().flat_map(|own| vec![if own.is_empty() { 0.0 } else { 1.0 }; count]).collect();
                let known = self.tensor(&known, [texts, count]);
                Ok(binary_cross_entropy(logits * known.clone(), right) - known.ones_like().sub(known).sum() * LN_2)
            }
        }
    }

    fn tensor(&self, values: &[f32], shape: [usize; 2]) -> Tensor<2> {
        Tensor::from_data(TensorData::new(values.to_vec(), shape), &self.device)
    }
}

/// `[B, answers]`: scores, or with cross-entropy distributions.
fn answer_scores(answers: &[Vec<(usize, f32)>], count: usize, loss: AnswerLoss) -> Vec<f32> {
    let mut scores = vec![0.0; answers.len() * count];
    for (row, own) in scores.chunks_exact_mut(count).zip(answers) {
        let sum: f32 = own.iter().map(|(_, score)| score).sum();
        let scale = if loss == AnswerLoss::CrossEntropy && sum > 0.0 { sum.recip() } else { 1.0 };
        own.iter().for_each(|(answer, score)| row[*answer] = score * scale);
    }
    scores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_distributions_for_cross_entropy_and_themselves_otherwise() {
        let answers = [vec![(0, 0.9), (2, 0.3)], Vec::new()];
        let soft = answer_scores(&answers, 3, AnswerLoss::CrossEntropy);
        assert!((soft[0] - 0.75).abs() < 1e-6 && (soft[2] - 0.25).abs() < 1e-6 && soft[3..] == [0.0; 3]);
        assert_eq!(answer_scores(&answers, 3, AnswerLoss::Binary), [0.9, 0.0, 0.3, 0.0, 0.0, 0.0]);
    }
}
