//! Language models made of the Transformer's parts: masked (an encoder) and causal (a decoder without a memory).
//! Devlin et al. 2018 (BERT), arXiv:1810.04805; Radford et al. 2018 (GPT).
//!
//! Differences from both: norms, positions and the network for each token are those of the Transformer, by config, and
//! the map to logits is the table of words itself.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::check_vocabulary;
use crate::data::Tokens;
use crate::layers::{NormPlace, PositionKind, StackConfig, TransformerEncoder, TransformerLayerConfig, check_depth};
use crate::models::limits::check_parameters;
use crate::{Error, Pass};

/// Who may look where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Every word at every word: a masked language model.
    Both,
    /// A word at those before it: a causal one.
    Forward,
}

/// A stack of layers over one vocabulary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanguageModelConfig {
    pub vocabulary: usize,
    pub direction: Direction,
    pub layers: usize,
    pub layer: TransformerLayerConfig,
    pub position: PositionKind,
}

impl LanguageModelConfig {
    /// # Errors
    /// When a field cannot work; the error names it.
    pub fn init(&self, device: &Device) -> Result<LanguageModel, Error> {
        self.layer.validate()?;
        check_depth(self.layers)?;
        check_vocabulary("vocabulary", self.vocabulary)?;
        let stack = StackConfig {
            layer: &self.layer,
            layers: self.layers,
            vocabulary: self.vocabulary,
            position: self.position,
            final_norm: self.layer.norm == NormPlace::Pre,
        };
        check_parameters(LanguageModel { encoder: stack.init(device), causal: self.direction == Direction::Forward })
    }
}

/// Tokens in, logits for each position out.
#[derive(Module, Debug)]
pub struct LanguageModel {
    pub encoder: TransformerEncoder,
    causal: bool,
}

impl LanguageModel {
    /// Logits of each position, or of the one after it: `[B, N, V]`.
    pub fn forward(&self, tokens: &Tokens, pass: &mut Pass) -> Tensor<3> {
        self.encoder.embed_tokens.logits(self.features(tokens, pass))
    }

    /// Vectors of the words in their sentence: `[B, N, D]`.
    pub fn features(&self, tokens: &Tokens, pass: &mut Pass) -> Tensor<3> {
        pass.within("encoder", |pass| self.encoder.forward(tokens, self.causal, pass))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{stirred, values};

    fn model(direction: Direction) -> LanguageModel {
        let layer =
            TransformerLayerConfig { dim: 8, heads: 2, inner: 16, norm: NormPlace::Pre, dropout: 0.0, epsilon: 1e-5 };
        let position = PositionKind::Sinusoidal;
        stirred(LanguageModelConfig { vocabulary: 11, direction, layers: 2, layer, position }.init(&cpu()).unwrap())
    }

    fn first_position(model: &LanguageModel, sentence: &[u32]) -> Vec<f32> {
        values(&model.forward(&Tokens::new(&[sentence]), &mut Pass::silent()).narrow(1, 0, 1))
    }

    #[test]
    fn a_masked_model_sees_what_comes_and_a_causal_one_does_not() {
        let (masked, causal) = (model(Direction::Both), model(Direction::Forward));
        assert_ne!(first_position(&masked, &[1, 2, 3]), first_position(&masked, &[1, 2, 4]));
        assert_eq!(first_position(&causal, &[1, 2, 3]), first_position(&causal, &[1, 2, 4]));
    }

    #[test]
    fn padding_changes_nothing() {
        for direction in [Direction::Both, Direction::Forward] {
            let model = model(direction);
            let alone = model.forward(&Tokens::new(&[[1, 2]]), &mut Pass::silent());
            let both = model.forward(&Tokens::new(&[vec![1, 2], vec![3, 4, 5, 6]]), &mut Pass::silent());
            crate::testing::assert_close(&both.slice([0..1, 0..2]), &alone, 1e-6);
        }
    }
}
