//! Translators: texts in, translations out, at bounded cost.

use burn::tensor::Device;
use regard::translate::{Bundle, Search, Translation};
use std::sync::Arc;

use crate::classifier::count_parameters;
use crate::error::ApiError;
use crate::lane::{Batch, Permit, Served};
use crate::slot::ModelSlot;

/// Maximum of tokens times beams per request: decoding needs a forward pass for each.
pub const MOST_TOKENS: usize = 1 << 16;

/// A translator and its device.
#[derive(Debug)]
pub struct Translator {
    pub bundle: Bundle,
    pub device: Device,
}

impl Translator {
    pub fn parameters(&self) -> usize {
        count_parameters(self.bundle.model())
    }

    /// Refuses texts that would take too long to decode.
    ///
    /// # Errors
    /// When a text is too long, or all of them together are.
    pub fn check_length(&self, texts: &[String], beam: usize) -> Result<(), ApiError> {
        let mut tokens = 0;
        for text in texts {
            tokens += self.bundle.count_tokens(text)?;
            if tokens * beam > MOST_TOKENS {
                let reason = format!(
                    "the texts have more than {} tokens, the most at a beam of {beam}; send fewer at a time",
                    MOST_TOKENS / beam
                );
                return Err(ApiError::Unprocessable(reason));
            }
        }
        Ok(())
    }
}

/// Texts to translate, and the beam size.
pub struct TranslateRequest {
    pub texts: Vec<String>,
    pub beam: usize,
}

/// Translations of each text, best first.
pub type TranslateResponse = Result<Vec<Vec<Translation>>, ApiError>;

impl Served for Translator {
    type Request = TranslateRequest;
    type Response = TranslateResponse;

    /// Translates texts of requests with the same beam size together.
    fn answer(&self, requests: &[TranslateRequest], batch: &Batch<'_>) -> Vec<TranslateResponse> {
        let translate = |texts: &[&String], beam: usize| {
            let search = Search { beam, ..self.bundle.search() };
            let found = self.bundle.translate_while(texts, &search, &self.device, &|| batch.is_wanted())?;
            // no client waits for unfinished ones
            found.ok_or(ApiError::Internal)
        };
        let mut responses = Vec::new();
        for group in requests.chunk_by(|one, other| one.beam == other.beam) {
            let all: Vec<&String> = group.iter().flat_map(|request| &request.texts).collect();
            if let Ok(mut found) = translate(&all, group[0].beam) {
                for request in group {
                    let rest = found.split_off(request.texts.len());
                    responses.push(Ok(std::mem::replace(&mut found, rest)));
                }
            } else {
                // one text is at fault: run each request alone
                let alone = |one: &TranslateRequest| translate(&one.texts.iter().collect::<Vec<_>>(), one.beam);
                responses.extend(group.iter().map(alone));
            }
        }
        responses
    }
}

impl ModelSlot<Translator> {
    /// Translations of each text, best first.
    pub async fn translate(
        &self,
        permit: Permit,
        model: Arc<Translator>,
        request: TranslateRequest,
    ) -> TranslateResponse {
        let found = self.lane().submit(permit, model, request).await??;
        if found.iter().flatten().any(|translation| !translation.score.is_finite()) {
            return Err(ApiError::NotFinite(self.name().into()));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn decoding_ends_soon_after_the_last_client_leaves() {
        let device = regard::device::cpu();
        let translator = Translator { bundle: Bundle::embedded(&device).unwrap(), device };
        let request = TranslateRequest { texts: vec!["Il gatto dorme.".into()], beam: 2 };
        let asked = AtomicUsize::new(0);
        let is_wanted = || asked.fetch_add(1, Ordering::SeqCst) < 2;
        let responses = translator.answer(&[request], &Batch::new(8, &is_wanted));
        assert_eq!(responses, [Err(ApiError::Internal)]);
        assert!(asked.load(Ordering::SeqCst) <= 4, "{asked:?}");
    }
}
