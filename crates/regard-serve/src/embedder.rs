//! BERTs: from sentences to vectors.

use regard::data::text::Encoded;
use regard::weights::LoadedBert;
use std::sync::Arc;

use crate::classifier::count_parameters;
use crate::error::ApiError;
use crate::lane::{Batch, Permit, Served};
use crate::passes::passes;
use crate::slot::ModelSlot;

/// Maximum number of tokens per request.
pub const MOST_TOKENS: usize = 1 << 16;

/// Maximum number of bytes of a text.
pub const LONGEST_BYTES: usize = 1 << 14;

/// A BERT with its tokenizer.
#[derive(Debug)]
pub struct Embedder {
    loaded: LoadedBert,
}

/// Texts as the model reads them.
#[derive(Debug, PartialEq)]
pub struct ReadTexts {
    pub texts: Vec<Encoded>,
    /// Tokens of each text before it was cut off.
    pub tokens: Vec<usize>,
}

impl Embedder {
    pub const fn new(loaded: LoadedBert) -> Self {
        Self { loaded }
    }

    pub fn parameters(&self) -> usize {
        count_parameters(&self.loaded.model)
    }

    /// Numbers of a vector.
    pub const fn width(&self) -> usize {
        self.loaded.config.dim
    }

    /// Most tokens of a text.
    pub fn longest(&self) -> usize {
        self.loaded.model.limit()
    }

    /// Texts as the model reads them, within the bounds of a request. One that is too long is cut off or an error.
    ///
    /// # Errors
    /// When a text is empty or too long, or all of them together are.
    pub fn read(&self, texts: &[String], truncate: bool) -> Result<ReadTexts, ApiError> {
        let (longest, mut sum) = (self.longest(), 0);
        let mut read = ReadTexts { texts: Vec::new(), tokens: Vec::new() };
        for (number, text) in texts.iter().enumerate() {
            let refuse = |reason: String| ApiError::Unprocessable(format!("`texts[{number}]`: {reason}"));
            if text.trim().is_empty() {
                return Err(refuse("is empty".into()));
            }
            if text.len() > LONGEST_BYTES {
                return Err(refuse(format!("{} bytes, the most is {LONGEST_BYTES}", text.len())));
            }
            let mut encoded = self.loaded.tokenizer.encode(text, None)?;
            let tokens = encoded.ids.len();
            if tokens > longest {
                if !truncate {
                    let reason = format!("{tokens} tokens, the most is {longest}; `truncate` leaves the rest out");
                    return Err(refuse(reason));
                }
                encoded = self.loaded.tokenizer.encode(text, Some(longest))?;
            }
            sum += encoded.ids.len();
            if sum > MOST_TOKENS {
                let reason = format!("the texts have more than {MOST_TOKENS} tokens; send fewer at a time");
                return Err(ApiError::Unprocessable(reason));
            }
            read.texts.push(encoded);
            read.tokens.push(tokens);
        }
        Ok(read)
    }
}

impl Served for Embedder {
    type Request = Vec<Encoded>;
    type Response = Result<Vec<Vec<f32>>, ApiError>;

    /// Runs texts of all requests together, those of similar lengths in one forward pass.
    fn answer(&self, requests: &[Vec<Encoded>], batch: &Batch<'_>) -> Vec<Self::Response> {
        let all: Vec<&Encoded> = requests.iter().flatten().collect();
        let mut vectors = vec![Vec::new(); all.len()];
        for pass in passes(all.iter().map(|text| [text.ids.len(), 0]).collect(), batch.max_size) {
            if !batch.is_wanted() {
                // no client waits for the rest
                return requests.iter().map(|_| Err(ApiError::Internal)).collect();
            }
            let texts: Vec<Encoded> = pass.iter().map(|text| all[*text].clone()).collect();
            for (text, vector) in pass.into_iter().zip(self.loaded.vectors(&texts)) {
                vectors[text] = vector;
            }
        }
        let mut vectors = vectors.into_iter();
        requests.iter().map(|texts| Ok(vectors.by_ref().take(texts.len()).collect())).collect()
    }
}

impl ModelSlot<Embedder> {
    /// A vector for each text.
    pub async fn embed(
        &self,
        permit: Permit,
        model: Arc<Embedder>,
        texts: Vec<Encoded>,
    ) -> Result<Vec<Vec<f32>>, ApiError> {
        let found = self.lane().submit(permit, model, texts).await??;
        let is_finite = found.iter().flatten().all(|number| number.is_finite());
        if is_finite { Ok(found) } else { Err(ApiError::NotFinite(self.name().into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard::data::text::{Letters, WordPiece};
    use regard::device::cpu;
    use regard::models::bert::{BertConfig, preset};
    use std::path::Path;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn embedder() -> Embedder {
        let words = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nred\nbag\nshirt";
        let tokenizer = WordPiece::from_vocabulary(words, Some(Letters::Uncased), Path::new("vocab.txt")).unwrap();
        let small = BertConfig { vocabulary: 8, positions: 16, layers: 1, dim: 8, heads: 2, inner: 16, ..tiny() };
        let model = small.init(&cpu()).unwrap();
        Embedder::new(LoadedBert { config: small, model, tokenizer })
    }

    fn tiny() -> BertConfig {
        preset("bert-tiny").unwrap()
    }

    #[test]
    fn work_ends_when_the_last_client_leaves() {
        let model = embedder();
        let texts = model.read(&vec!["red bag".into(); 5], false).unwrap().texts;
        let asked = AtomicUsize::new(0);
        let is_wanted = || asked.fetch_add(1, Ordering::SeqCst) < 2;
        let responses = model.answer(&[texts.clone(), texts], &Batch::new(1, &is_wanted));
        assert_eq!(responses, [Err(ApiError::Internal), Err(ApiError::Internal)]);
        assert_eq!(asked.load(Ordering::SeqCst), 3, "two of ten passes");
    }

    #[test]
    fn texts_are_bounded_by_their_tokens() {
        let refused = embedder().read(&vec!["red bag".to_string(); 20_000], false).unwrap_err().to_string();
        assert!(refused.contains("more than 65536 tokens"), "{refused}");
    }
}
