//! The embedded translator: Italian to English, trained by `recipes/translate-it-en.toml`.
//!
//! `examples/embed_translator.rs` makes its files from a run.

use burn::tensor::Device;
use std::path::Path;

use super::Bundle;
use crate::Error;
use crate::data::text::Tokenizer;
use crate::models::translator::TranslatorConfig;
use crate::weights::{fill, from_bytes};

const MODEL: &str = include_str!("../../assets/it-en/model.toml");
const TOKENIZER: &str = include_str!("../../assets/it-en/tokenizer.json");
/// In half precision.
const WEIGHTS: &[u8] = include_bytes!("../../assets/it-en/best.safetensors");

impl Bundle {
    /// # Errors
    /// When the embedded files are damaged.
    pub fn embedded(device: &Device) -> Result<Self, Error> {
        let place = Path::new("embedded it-en");
        let config = TranslatorConfig::from_toml(MODEL)?;
        let tokenizer = Tokenizer::from_json(TOKENIZER, place)?;
        let model = fill(config.init(device)?, &from_bytes(WEIGHTS, place)?)?;
        Self::new(config, model, [tokenizer.clone(), tokenizer])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;

    #[test]
    fn what_comes_with_the_library_translates_the_sentence_of_the_lectures() {
        let bundle = Bundle::embedded(&cpu()).unwrap();
        let found = bundle.translate(&["Io la sto mangiando."], &bundle.search(), &cpu(), &mut |_| {}).unwrap();
        assert_eq!(found[0][0].text, "I'm eating her.");
    }
}
