//! Token prediction: loss, top-1 and top-5 accuracy.

use burn::tensor::Tensor;

use crate::evaluate::Values;
use crate::function::cross_entropy;

/// Sums over tokens seen so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokenLoss {
    tokens: usize,
    top1: usize,
    top5: usize,
    loss: f64,
}

impl TokenLoss {
    /// Adds logits `[sentences, length, vocabulary]` and the right tokens, `None` at positions without a prediction.
    pub fn add(&mut self, logits: Tensor<3>, right: &[Option<u32>]) {
        let [sentences, length, vocabulary] = logits.dims();
        let logits = logits.reshape([sentences * length, vocabulary]);
        self.loss += f64::from(cross_entropy(logits.clone(), right.to_vec(), 0.0).into_scalar::<f32>());
        let values: Vec<f32> = logits.into_data().try_to_vec().expect("logits are f32");
        for (row, right) in values.chunks_exact(vocabulary).zip(right) {
            let Some(right) = *right else { continue };
            let own = row[right as usize];
            let above = row.iter().filter(|logit| **logit > own).count();
            self.tokens += 1;
            self.top1 += usize::from(above == 0);
            self.top5 += usize::from(above < 5);
        }
    }

    /// Mean loss of a token; its exponential is the perplexity.
    #[must_use]
    pub fn loss(&self) -> f64 {
        self.loss / self.tokens as f64
    }

    /// Fraction of right predictions.
    #[must_use]
    pub fn top1(&self) -> f64 {
        self.top1 as f64 / self.tokens as f64
    }

    /// As the metrics `loss`, `top1` and `top5`.
    #[must_use]
    pub fn values(&self) -> Values {
        let top5 = self.top5 as f64 / self.tokens as f64;
        [("loss", self.loss()), ("top1", self.top1()), ("top5", top5)].map(|(name, value)| (name.into(), value)).into()
    }
}
