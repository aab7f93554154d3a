//! A batch of texts as BERT takes them: tokens and the text that each belongs to.

use burn::tensor::{Device, Int, Tensor, TensorData};

use super::Tokens;
use super::word_piece::Encoded;

/// Tokens with their types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words {
    /// `[B, N]`, with special tokens: `[CLS] .. [SEP]`.
    pub tokens: Tokens,
    /// Segment of each token, `B * N` of them, padding included: 0, or 1 for a second sentence. Empty if all are 0.
    pub types: Vec<u8>,
}

impl Words {
    /// Single sentences: all types are 0.
    #[must_use]
    pub const fn new(tokens: Tokens) -> Self {
        Self { tokens, types: Vec::new() }
    }

    /// # Panics
    /// When there is no text.
    #[must_use]
    pub fn of(texts: &[Encoded]) -> Self {
        let tokens = Tokens::new(&texts.iter().map(|text| text.ids.as_slice()).collect::<Vec<_>>());
        if texts.iter().all(|text| text.types.iter().all(|kind| *kind == 0)) {
            return Self::new(tokens);
        }
        let mut types = vec![0; tokens.batch() * tokens.length()];
        for (row, text) in types.chunks_exact_mut(tokens.length()).zip(texts) {
            row[..text.types.len()].copy_from_slice(&text.types);
        }
        Self { tokens, types }
    }

    /// `[B, N]`
    pub fn type_ids(&self, device: &Device) -> Tensor<2, Int> {
        let shape = [self.tokens.batch(), self.tokens.length()];
        if self.types.is_empty() {
            return Tensor::zeros(shape, device);
        }
        let types: Vec<i64> = self.types.iter().map(|kind| i64::from(*kind)).collect();
        Tensor::from_data(TensorData::new(types, shape), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;

    #[test]
    fn types_are_padded_like_tokens() {
        let text = |ids: &[u32], types: &[u8]| Encoded { ids: ids.into(), types: types.into(), offsets: Vec::new() };
        let pair = Words::of(&[text(&[2, 7, 3, 8, 3], &[0, 0, 0, 1, 1]), text(&[2, 3], &[0, 0])]);
        let ids = pair.type_ids(&cpu()).into_data().iter::<i64>().collect::<Vec<_>>();
        assert_eq!(ids, [0, 0, 0, 1, 1, 0, 0, 0, 0, 0]);
        let single = Words::of(&[text(&[2, 3], &[0, 0])]);
        assert_eq!((single.types.len(), single.type_ids(&cpu()).dims()), (0, [1, 2]));
    }
}
