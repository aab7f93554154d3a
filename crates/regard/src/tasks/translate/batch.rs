//! Batches of sentence pairs.

use crate::Error;
use crate::data::Tokens;
use crate::data::text::{Buckets, SentencePair, Tokenizer};

/// A sentence and its translation, in tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Ends with the end token.
    pub source: Vec<u32>,
    /// Without start and end tokens.
    pub target: Vec<u32>,
}

/// A batch of sentences and their translations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TextBatch {
    pub source: Tokens,
    /// Begins with the start token.
    pub target: Tokens,
    /// The next token at every position, `None` for padding.
    pub next: Vec<Option<u32>>,
}

impl TextBatch {
    /// # Panics
    /// When there are no examples.
    pub fn new(examples: &[&Example], begin: u32, end: u32) -> Self {
        let source: Vec<&[u32]> = examples.iter().map(|example| example.source.as_slice()).collect();
        let target: Vec<Vec<u32>> =
            examples.iter().map(|example| [&[begin], example.target.as_slice()].concat()).collect();
        let (source, target) = (Tokens::new(&source), Tokens::new(&target));
        let next = examples.iter().flat_map(|example| {
            let next = example.target.iter().copied().chain([end]).map(Some);
            next.chain(std::iter::repeat(None)).take(target.length())
        });
        Self { next: next.collect(), source, target }
    }

    /// Number of target tokens.
    pub fn tokens(&self) -> usize {
        self.next.iter().flatten().count()
    }
}

/// Tokenizes sentence pairs.
pub(super) fn examples(pairs: &[SentencePair], [source, target]: &[Tokenizer; 2]) -> Result<Vec<Example>, Error> {
    let example = |pair: &SentencePair| {
        let mut tokens = source.encode(&pair.source)?;
        tokens.push(source.end());
        Ok(Example { source: tokens, target: target.encode(&pair.target)? })
    };
    pairs.iter().map(example).collect()
}

/// Batches of examples of similar lengths, with at most this many tokens per side.
pub(super) fn buckets(examples: &[Example], tokens: usize, seed: u64) -> Result<Buckets, Error> {
    let lengths = examples.iter().map(|example| [example.source.len(), example.target.len() + 1]);
    Buckets::new(lengths.collect(), tokens, seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_has_the_next_token_at_every_position() {
        let examples =
            [Example { source: vec![7, 3], target: vec![8, 9] }, Example { source: vec![5, 3], target: vec![6] }];
        let batch = TextBatch::new(&examples.iter().collect::<Vec<_>>(), 2, 3);
        assert_eq!((batch.target.sentence(0), batch.target.sentence(1)), (&[2, 8, 9][..], &[2, 6][..]));
        assert_eq!(batch.next, [Some(8), Some(9), Some(3), Some(6), Some(3), None]);
        assert_eq!(batch.tokens(), 5);
    }
}
