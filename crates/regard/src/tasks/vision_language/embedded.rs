//! Models of vision and language that come with the library.

use burn::tensor::Device;
use std::path::Path;

use super::bundle::{BundleFiles, VisionLanguageBundle};
use crate::Error;
use crate::weights::from_bytes;

/// A model that answers questions about pictures. `examples/embed_answerer.rs` makes its files from a run.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedAnswerer {
    pub name: &'static str,
    pub recipe: &'static str,
    pub model: &'static str,
    pub tokenizer: &'static str,
    pub answers: &'static str,
    /// In half precision.
    pub weights: &'static [u8],
}

/// The first one answers when no model is named.
pub static EMBEDDED_ANSWERERS: &[EmbeddedAnswerer] = &[EmbeddedAnswerer {
    name: "garments-vqa",
    recipe: include_str!("../../../assets/garments-vqa/recipe.toml"),
    model: include_str!("../../../assets/garments-vqa/model.toml"),
    tokenizer: include_str!("../../../assets/garments-vqa/tokenizer.json"),
    answers: include_str!("../../../assets/garments-vqa/answers.txt"),
    weights: include_bytes!("../../../assets/garments-vqa/best.safetensors"),
}];

impl EmbeddedAnswerer {
    /// # Errors
    /// When the embedded files are damaged.
    pub fn load(&self, device: &Device) -> Result<VisionLanguageBundle, Error> {
        let Self { name, recipe, model, tokenizer, answers, weights } = *self;
        let files = BundleFiles { recipe, model, tokenizer, answers: Some(answers), blind: None };
        let place = Path::new(name);
        VisionLanguageBundle::from_files(files, &from_bytes(weights, place)?, place, device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_answerers_are_small_and_load() {
        for embedded in EMBEDDED_ANSWERERS {
            assert!(embedded.weights.len() < 3 << 20, "{}", embedded.name);
            let bundle = embedded.load(&crate::device::cpu()).unwrap();
            assert_eq!(bundle.answers().unwrap(), crate::data::world::ANSWERS);
        }
    }
}
