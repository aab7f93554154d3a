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

/// The first one answers when no model is named. One that is added has its files in `assets/<name>`, taken in with `include_str!` and
/// `include_bytes!` as those of detectors are.
pub static EMBEDDED_ANSWERERS: &[EmbeddedAnswerer] = &[];

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
