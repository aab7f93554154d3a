//! A model for analysis: not packed, because it has to record.

use burn::tensor::{Device, Tensor};
use regard::data::{Picture, Preprocess, prepare};
use regard::models::{Model, ModelConfig};
use regard::weights::{LoadedModel, ModelSource};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::model::{ChangeArgs, batch, class_names, note_fresh, ready};

/// A model that can record.
#[derive(Debug)]
pub struct AnalysedModel {
    /// Its name in figures.
    pub name: String,
    pub model: Model,
    pub config: ModelConfig,
    preprocess: Preprocess,
    labels: Option<Vec<String>>,
}

impl AnalysedModel {
    /// One of `--models`.
    pub fn of(text: &str, device: &Device) -> Result<Self, Failure> {
        Self::load(&ChangeArgs::default().source(text)?, device)
    }

    pub fn load(source: &ModelSource, device: &Device) -> Result<Self, Failure> {
        note_fresh(source)?;
        let LoadedModel { name, model, config, preprocess, labels, .. } = source.load(device)?;
        Ok(Self { name, model, config, preprocess, labels })
    }

    /// Preprocessed pictures, `[B, C, H, W]`.
    pub fn batch(&self, pictures: &[Picture], device: &Device) -> Result<Tensor<4>, Failure> {
        let read = |picture: &Picture| ready(picture, &self.preprocess, &self.config);
        let pixels = pictures.iter().map(read).collect::<Result<Vec<_>, regard::Error>>()?;
        Ok(batch(&pixels, &self.config, device))
    }

    /// A picture as the model sees it, before normalisation.
    pub fn seen(&self, picture: &Picture) -> Result<Picture, Failure> {
        let plain = Preprocess { mean: [0.0; 3], std: [1.0; 3], ..self.preprocess };
        let size @ [rows, columns] = self.config.image();
        let planes = prepare(picture, &plain, size);
        let level = |at: usize| (255.0 * planes[at % 3 * rows * columns + at / 3]).round() as u8;
        Ok(Picture::new(size, (0..3 * rows * columns).map(level).collect())?)
    }

    /// The class names: from a file, from the model, ImageNet's, or numbers.
    pub fn class_names(&self, file: Option<&PathBuf>) -> Result<Vec<String>, Failure> {
        class_names(file, self.labels.as_ref(), self.config.classes())
    }
}
