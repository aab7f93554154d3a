//! A batch of token sequences.

use burn::tensor::{Bool, Device, Int, Tensor, TensorData};

/// Token ids of several sentences, padded at the end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// Row by row, [`length`](Self::length) a row.
    ids: Vec<u32>,
    lengths: Vec<usize>,
    length: usize,
}

impl Tokens {
    /// # Panics
    /// When there is no sentence, or all are empty.
    pub fn new(sentences: &[impl AsRef<[u32]>]) -> Self {
        let lengths: Vec<usize> = sentences.iter().map(|sentence| sentence.as_ref().len()).collect();
        let length = lengths.iter().copied().max().unwrap_or(0);
        assert!(length > 0, "tokens: no sentence has a token");
        let mut ids = vec![0; sentences.len() * length];
        for (row, sentence) in ids.chunks_exact_mut(length).zip(sentences) {
            row[..sentence.as_ref().len()].copy_from_slice(sentence.as_ref());
        }
        Self { ids, lengths, length }
    }

    /// Number of sentences.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.lengths.len()
    }

    /// Tokens of the longest sentence.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// Tokens of each sentence.
    #[must_use]
    pub fn lengths(&self) -> &[usize] {
        &self.lengths
    }

    /// The tokens of one sentence.
    #[must_use]
    pub fn sentence(&self, index: usize) -> &[u32] {
        &self.ids[index * self.length..][..self.lengths[index]]
    }

    /// `[B, N]`, padding is 0.
    pub fn ids(&self, device: &Device) -> Tensor<2, Int> {
        let ids: Vec<i64> = self.ids.iter().map(|&id| i64::from(id)).collect();
        Tensor::from_data(TensorData::new(ids, [self.batch(), self.length]), device)
    }

    /// `[B, N]`, true for padding; none if all sentences have the same length.
    pub fn padding(&self, device: &Device) -> Option<Tensor<2, Bool>> {
        if self.lengths.iter().all(|length| *length == self.length) {
            return None;
        }
        let hidden = self.lengths.iter().flat_map(|length| (0..self.length).map(move |place| place >= *length));
        let data = TensorData::new(hidden.collect::<Vec<bool>>(), [self.batch(), self.length]);
        Some(Tensor::from_data(data, device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;

    #[test]
    fn shorter_sentences_are_padded_and_the_padding_is_known() {
        let tokens = Tokens::new(&[vec![3, 4], vec![5, 6, 7]]);
        assert_eq!((tokens.batch(), tokens.length(), tokens.sentence(0)), (2, 3, &[3, 4][..]));
        assert_eq!(tokens.ids(&cpu()).into_data().iter::<i64>().collect::<Vec<_>>(), [3, 4, 0, 5, 6, 7]);
        let padding = tokens.padding(&cpu()).unwrap().into_data().iter::<bool>().collect::<Vec<_>>();
        assert_eq!(padding, [false, false, true, false, false, false]);
        assert!(Tokens::new(&[vec![1, 2], vec![3, 4]]).padding(&cpu()).is_none());
    }
}
