//! A model to be looked into: a preset, a pair of a model and its weights, or the folder of a training run.

use burn::tensor::{Device, Tensor};
use regard::data::{Picture, Preprocess, prepare};
use regard::models::{Model, ModelConfig};
use regard::weights::Upstream;
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};

use crate::candidates::Candidate;
use crate::failure::Failure;
use crate::model::{WeightsArgs, batch, named, ready};
use crate::predict::label_names;

/// Whether a text means a run's folder: one may have the name of a preset.
fn is_run(text: &str) -> bool {
    let folder = Path::new(text);
    folder.is_dir() && (folder.join("model.toml").is_file() || regard::models::preset(text).is_err())
}

/// A model that records.
#[derive(Debug)]
pub struct Subject {
    /// What figures call it.
    pub name: String,
    pub model: Model,
    pub config: ModelConfig,
    preprocess: Preprocess,
    /// The names of its classes, which a run keeps.
    labels: Option<PathBuf>,
}

impl Subject {
    /// One of `--models`: a run's folder, `MODEL=WEIGHTS`, or a model as it starts.
    pub fn of(text: &str, device: &Device) -> Result<Self, Failure> {
        match text.split_once('=') {
            _ if is_run(text) => Self::of_run(Path::new(text), device),
            Some((model, weights)) => Self::of_model(model, &[], Some(weights), None, device),
            None => Self::of_model(text, &[], None, None, device),
        }
    }

    pub fn of_run(folder: &Path, device: &Device) -> Result<Self, Failure> {
        let candidate = Candidate::of_run(folder, &[], None, false)?;
        let (model, config) = candidate.load_plain(device)?;
        Ok(Self { name: candidate.name, model, config, preprocess: candidate.preprocess, labels: candidate.labels })
    }

    pub fn of_model(
        name: &str,
        set: &[String],
        weights: Option<&str>,
        from: Option<Upstream>,
        device: &Device,
    ) -> Result<Self, Failure> {
        let (mut config, preprocess) = named(name, set)?;
        let model = if let Some(weights) = weights {
            WeightsArgs { weights: weights.into(), from, new_head: None }.load(&mut config, device)?
        } else {
            writeln!(stderr(), "note: `{name}` has no weights: it is looked at as it starts")?;
            device.seed(0);
            let model = config.init(device)?;
            // parameters come to be when they are first used; a copy would draw its own
            regard::weights::tensors(&model);
            model
        };
        let file = Path::new(name).extension().is_some_and(|ending| ending == "toml");
        let name =
            if file { Path::new(name).file_stem().unwrap_or_default().display().to_string() } else { name.into() };
        Ok(Self { name, model, config, preprocess, labels: None })
    }

    /// Pictures as the model takes them, `[B, C, H, W]`.
    pub fn batch(&self, pictures: &[Picture], device: &Device) -> Result<Tensor<4>, Failure> {
        let read = |picture: &Picture| ready(picture, &self.preprocess, &self.config);
        let pixels = pictures.iter().map(read).collect::<Result<Vec<_>, regard::Error>>()?;
        Ok(batch(&pixels, &self.config, device))
    }

    /// A picture as the model sees it, before it is normalised.
    pub fn seen(&self, picture: &Picture) -> Result<Picture, Failure> {
        let plain = Preprocess { mean: [0.0; 3], std: [1.0; 3], ..self.preprocess };
        let size @ [rows, columns] = self.config.image();
        let planes = prepare(picture, &plain, size);
        let level = |at: usize| (255.0 * planes[at % 3 * rows * columns + at / 3]).round() as u8;
        Ok(Picture::new(size, (0..3 * rows * columns).map(level).collect())?)
    }

    /// The names of its classes: those of a file, of its run, ImageNet's, or numbers.
    pub fn class_names(&self, file: Option<&PathBuf>) -> Result<Vec<String>, Failure> {
        label_names(file.or(self.labels.as_ref()), self.config.classes())
    }
}
