//! Models by name. Every command, recipe and request that takes a model accepts the same names:
//!
//! | name | model |
//! |---|---|
//! | `runs/mine` | a run folder: its `model.toml`, `preprocess.toml`, `classes.txt` and `best.safetensors` |
//! | `fashion-vit` | an embedded model |
//! | `deit-tiny` | a preset, with fresh weights |
//! | `hf:owner/name`, `hf:owner/name@revision` | a repository of Hugging Face, by transformers or timm |
//! | `mine.toml` | your own configuration, with fresh weights |
//! | `folder` | a folder with `config.json` and weights, as transformers and timm write it |
//! | `MODEL=WEIGHTS` | any of these with other weights: a file, a folder, `hf:owner/name[/file]` or a web address |
//!
//! The first matching line of this table decides: a run folder wins over a preset of the same name, and a folder without
//! `model.toml` does not hide a preset of its name.

use burn::tensor::Device;
use serde_json::Value;
use std::path::{Path, PathBuf};

use super::address::{Address, HUGGING_FACE_FILES};
use super::files::{TensorStorage, read_with_storage};
use super::lookalike::presets_like;
use super::{
    EMBEDDED, Embedded, Fetcher, LoadOptions, Progress, Tensors, Upstream, fit, hugging_face, is_detector, is_video,
    read, recognise, tensors, timm, translate,
};
use crate::data::{Preprocess, labels};
use crate::models::{self, Model, ModelConfig, detect, video};
use crate::{Error, file, nearest};

/// A model that is not loaded yet: its configuration, preprocessing and class names.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// Its name in tables and figures.
    pub name: String,
    pub config: ModelConfig,
    pub preprocess: Preprocess,
    /// Its class names, if known.
    pub labels: Option<Vec<String>>,
    pub origin: WeightsOrigin,
    weights: WeightsSource,
    /// Whose tensor names the weights use, if known.
    upstream: Option<Upstream>,
    /// Rows and columns of patches that the weights were trained with, if known.
    grid: Option<[usize; 2]>,
    /// Whether the upstream of the weights decides the epsilon of norms: a preset has timm's, other upstreams their own.
    epsilon_of_weights: bool,
}

/// Where weights come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsOrigin {
    /// A run of `regard train`.
    Run,
    /// A checkpoint from elsewhere.
    Checkpoint,
    /// Embedded in the library.
    Embedded,
    /// Randomly initialised, untrained.
    Fresh,
}

#[derive(Clone, Debug)]
enum WeightsSource {
    Fresh,
    Embedded(Embedded),
    File(PathBuf),
}

/// A model with its weights.
#[derive(Debug)]
pub struct LoadedModel {
    pub name: String,
    pub model: Model,
    pub config: ModelConfig,
    pub preprocess: Preprocess,
    pub labels: Option<Vec<String>>,
    pub origin: WeightsOrigin,
}

/// Finds the model of a name; downloads weights into the cache if necessary, and calls `progress` meanwhile.
///
/// # Errors
/// When there is no such model, a file next to the weights is not supported, or a download fails.
pub fn resolve(text: &str, progress: &mut dyn FnMut(Progress)) -> Result<ModelSource, Error> {
    let unknown = |reason: String| Error::Field { field: text.into(), reason };
    if let Some(source) = without_weights(text, progress)? {
        return Ok(source);
    }
    let path = Path::new(text);
    if path.is_dir() {
        return Err(unknown(
            "a folder without `model.toml` (a run) and without `config.json` (Hugging Face, timm)".into(),
        ));
    }
    if path.is_file() {
        return from_weights_file(path);
    }
    let Some((model, weights)) =
        text.split_once('=').filter(|(model, weights)| !model.is_empty() && !weights.is_empty())
    else {
        if is_detector(text) {
            return Err(unknown("a detector; `regard detect` takes it".into()));
        }
        if is_video(text) {
            return Err(unknown("a model of video, which takes clips and no pictures".into()));
        }
        let (classifiers, detectors, videos) = (models::presets(), detect::presets(), video::presets());
        let presets = classifiers.iter().map(|one| one.name).chain(detectors.iter().map(|one| one.name));
        let presets = presets.chain(videos.iter().map(|one| one.name));
        let known: Vec<&str> = EMBEDDED.iter().map(|one| one.name).chain(presets).collect();
        return Err(unknown(nearest::unknown(text, &known)));
    };
    let source = match without_weights(model, progress)? {
        Some(source) => source,
        None => resolve(model, progress)?,
    };
    source.with_weights(weights, progress)
}

/// Every kind of name except `MODEL=WEIGHTS`; none if it is not a model.
fn without_weights(text: &str, progress: &mut dyn FnMut(Progress)) -> Result<Option<ModelSource>, Error> {
    let path = Path::new(text);
    if path.join("model.toml").is_file() {
        return from_run(path).map(Some);
    }
    if let Some(embedded) = EMBEDDED.into_iter().find(|one| one.name == text) {
        return from_embedded(embedded).map(Some);
    }
    if let Ok(preset) = models::preset(text) {
        return Ok(Some(ModelSource {
            name: preset.name.into(),
            config: preset.config,
            preprocess: preset.preprocess,
            labels: None,
            origin: WeightsOrigin::Fresh,
            weights: WeightsSource::Fresh,
            upstream: None,
            grid: None,
            epsilon_of_weights: true,
        }));
    }
    if text.starts_with("hf:") && !text.contains('=') {
        return from_repository(text, progress).map(Some);
    }
    if path.extension().is_some_and(|ending| ending == "toml") && (path.is_file() || !text.contains('=')) {
        return from_toml(path).map(Some);
    }
    if path.join("config.json").is_file() {
        return from_folder(path).map(Some);
    }
    Ok(None)
}

fn from_embedded(embedded: Embedded) -> Result<ModelSource, Error> {
    let (config, preprocess) = embedded.describe()?;
    Ok(ModelSource {
        name: embedded.name.into(),
        config,
        preprocess,
        labels: Some(embedded.labels()),
        origin: WeightsOrigin::Embedded,
        weights: WeightsSource::Embedded(embedded),
        upstream: Some(Upstream::Regard),
        grid: None,
        epsilon_of_weights: false,
    })
}

/// A configuration file with fresh weights; in a run folder also its preprocessing and class names.
fn from_toml(path: &Path) -> Result<ModelSource, Error> {
    let text = file::read_text(path)?;
    let config = ModelConfig::from_toml(&text).map_err(|error| {
        let words = ["tokenizer.json", "source.json"].iter().any(|file| path.with_file_name(file).is_file());
        let note = match (words, text.contains("\"language-model\"")) {
            (true, true) => "; this is a language model, which `regard fill` takes",
            (true, false) => "; this is a translator, which `regard translate` takes",
            (false, _) if video::is_config(&text) => "; this is a model of video, which takes clips and no pictures",
            (false, _) => "",
        };
        Error::Field { field: path.display().to_string(), reason: format!("{error}{note}") }
    })?;
    // without preprocess.toml: the preprocessing of the family's first preset
    let family = models::presets().into_iter().find(|preset| preset.config.family() == config.family());
    let run = RunFiles::beside(path)?;
    Ok(ModelSource {
        name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        grid: run.is_some().then(|| config.grid()).flatten(),
        preprocess: run
            .as_ref()
            .map_or_else(|| family.map_or(Preprocess::WHOLE, |preset| preset.preprocess), |run| run.preprocess),
        labels: run.and_then(|run| run.labels),
        config,
        origin: WeightsOrigin::Fresh,
        weights: WeightsSource::Fresh,
        upstream: None,
        epsilon_of_weights: false,
    })
}

/// The files of a run that belong to its weights.
struct RunFiles {
    preprocess: Preprocess,
    labels: Option<Vec<String>>,
}

impl RunFiles {
    /// None where the folder of a file has no `preprocess.toml`.
    fn beside(file: &Path) -> Result<Option<Self>, Error> {
        let own = file.with_file_name("preprocess.toml");
        if !own.is_file() {
            return Ok(None);
        }
        let names = file.with_file_name("classes.txt");
        let labels = if names.is_file() { Some(labels::read(&names)?) } else { None };
        Ok(Some(Self { preprocess: Preprocess::read(&own)?, labels }))
    }
}

/// The best weights of a run.
fn from_run(folder: &Path) -> Result<ModelSource, Error> {
    let source = from_toml(&folder.join("model.toml"))?;
    let path = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    let name = |path: &Path| path.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
    // `compare` writes runs to `MODEL/seed0`, `MODEL/seed1`, ..
    let seed = name(&path).strip_prefix("seed").is_some_and(|seed| seed.parse::<u64>().is_ok());
    let name = match path.parent().filter(|_| seed) {
        Some(model) => format!("{}/{}", name(model), name(&path)),
        None => name(&path),
    };
    let grid = source.config.grid();
    let weights = WeightsSource::File(folder.join("best.safetensors"));
    Ok(ModelSource { name, origin: WeightsOrigin::Run, weights, upstream: Some(Upstream::Regard), grid, ..source })
}

/// A folder as transformers or timm write it.
fn from_folder(folder: &Path) -> Result<ModelSource, Error> {
    let path = folder.join("config.json");
    let config = read_json(&path)?;
    let wrong = |reason: String| Error::file(&path, reason);
    let (config, preprocess, labels, upstream, epsilon_of_weights) = if hugging_face::is_config(&config) {
        let model = hugging_face::model(&config).map_err(wrong)?;
        (model, processor(folder)?, hugging_face::labels(&config), None, false)
    } else if timm::is_config(&config) {
        let (model, preprocess) = timm::model(&config).map_err(wrong)?;
        (model, Some(preprocess), timm::labels(&config), Some(Upstream::Timm), false)
    } else {
        return Err(wrong("neither `model_type` (transformers) nor `architecture` (timm) is in it".into()));
    };
    let weights = weights_in(folder)?;
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    Ok(ModelSource {
        name: absolute.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned(),
        grid: config.grid(),
        // without a processor config: the defaults of ViT's
        preprocess: preprocess.map_or_else(|| hugging_face::preprocess(&Value::Null).map_err(wrong), Ok)?,
        config,
        labels,
        origin: WeightsOrigin::Checkpoint,
        weights: WeightsSource::File(weights),
        upstream,
        epsilon_of_weights,
    })
}

/// The preprocessing in `preprocessor_config.json` of a folder.
pub(super) fn processor(folder: &Path) -> Result<Option<Preprocess>, Error> {
    let path = folder.join("preprocessor_config.json");
    if !path.is_file() {
        return Ok(None);
    }
    hugging_face::preprocess(&read_json(&path)?).map(Some).map_err(|reason| Error::file(&path, reason))
}

fn from_repository(text: &str, progress: &mut dyn FnMut(Progress)) -> Result<ModelSource, Error> {
    let address: Address = text.parse()?;
    let fetcher = Fetcher::from_environment()?;
    from_address(&fetcher, &address, progress)
}

fn from_address(
    fetcher: &Fetcher,
    address: &Address,
    progress: &mut dyn FnMut(Progress),
) -> Result<ModelSource, Error> {
    let Address::HuggingFace { owner, name, .. } = address else {
        return Err(Error::Fetch { address: address.to_string(), reason: "no repository of Hugging Face".into() });
    };
    let Some(config) = fetcher.fetch_beside(address, "config.json")? else {
        let reason = format!("the repository has no config.json; `PRESET={address}` says which model it is");
        return Err(Error::Fetch { address: address.to_string(), reason });
    };
    fetcher.fetch_beside(address, "preprocessor_config.json")?;
    let weights = fetcher.fetch(address, progress)?;
    let source = from_folder(config.parent().unwrap_or(&config))?;
    Ok(ModelSource { name: format!("{owner}/{name}"), weights: WeightsSource::File(weights), ..source })
}

/// A weights file without a model: files next to it may describe one.
fn from_weights_file(path: &Path) -> Result<ModelSource, Error> {
    let named = |names: &[&str]| path.file_name().is_some_and(|name| names.iter().any(|other| name == *other));
    let folder = path.parent().unwrap_or(Path::new(""));
    let weights = WeightsSource::File(path.to_path_buf());
    if named(&RUN_FILES) && path.with_file_name("model.toml").is_file() {
        return Ok(ModelSource { weights, ..from_run(folder)? });
    }
    if named(&HUGGING_FACE_FILES) && path.with_file_name("config.json").is_file() {
        return Ok(ModelSource { weights, ..from_folder(folder)? });
    }
    let checkpoint = read(path)?;
    let upstream = recognise(checkpoint.tensors.keys().map(String::as_str));
    let shapes = translate(checkpoint.tensors, upstream)?;
    let shapes = shapes.into_iter().map(|(name, tensor)| (name, tensor.shape().to_vec())).collect();
    let reason = match presets_like(&shapes) {
        Some(presets) => format!(
            "weights alone do not say which model they are for; these look like {presets}: write `PRESET={}`",
            path.display()
        ),
        None => format!(
            "weights alone do not say which model they are for: write `PRESET={0}` or `MODEL.toml={0}`",
            path.display()
        ),
    };
    Err(Error::file(path, reason))
}

/// File names of a run's weights.
const RUN_FILES: [&str; 3] = ["best.safetensors", "last.safetensors", "average.safetensors"];

/// The weights in a folder.
pub(super) fn weights_in(folder: &Path) -> Result<PathBuf, Error> {
    let files = RUN_FILES.iter().take(1).chain(&HUGGING_FACE_FILES).map(|file| folder.join(file));
    let files: Vec<PathBuf> = files.collect();
    if let Some(file) = files.iter().find(|file| file.is_file()) {
        return Ok(file.clone());
    }
    let shards = folder.join("model.safetensors.index.json").is_file();
    let reason = if shards {
        "weights in several files are not supported; `save_pretrained(.., max_shard_size=\"100GB\")` writes one".into()
    } else {
        format!("no weights in it: {} or {}", HUGGING_FACE_FILES[0], HUGGING_FACE_FILES[1])
    };
    Err(Error::file(folder, reason))
}

impl ModelSource {
    /// Replaces the weights: by a file, a folder with weights, or an address.
    fn with_weights(mut self, text: &str, progress: &mut dyn FnMut(Progress)) -> Result<Self, Error> {
        let address: Address = text.parse()?;
        let file = match &address {
            Address::Path(path) if path.is_dir() => weights_in(path)?,
            Address::Path(path) => path.clone(),
            Address::Web { .. } => Fetcher::from_environment()?.fetch(&address, progress)?,
            Address::HuggingFace { .. } => {
                let fetcher = Fetcher::from_environment()?;
                let known = fetcher.has(&address);
                let file = fetcher.fetch(&address, progress)?;
                if !known {
                    // for `read_sidecars`; without them the model's own preprocessing is used
                    _ = fetcher.fetch_beside(&address, "config.json");
                    _ = fetcher.fetch_beside(&address, "preprocessor_config.json");
                }
                file
            }
        };
        (self.origin, self.upstream) = (WeightsOrigin::Checkpoint, None);
        let named = |names: &[&str]| file.file_name().is_some_and(|name| names.iter().any(|other| name == *other));
        if named(&RUN_FILES)
            && let Some(run) = RunFiles::beside(&file)?
        {
            (self.origin, self.upstream, self.preprocess) =
                (WeightsOrigin::Run, Some(Upstream::Regard), run.preprocess);
            self.labels = run.labels.or(self.labels);
        } else if named(&HUGGING_FACE_FILES) {
            self.read_sidecars(&file);
        }
        self.labels = self.labels.filter(|labels| labels.len() == self.config.classes());
        self.weights = WeightsSource::File(file);
        Ok(self)
    }

    /// Reads the files of transformers or timm next to a checkpoint. The model is given, so files that describe another one
    /// are ignored.
    fn read_sidecars(&mut self, weights: &Path) {
        let folder = weights.parent().unwrap_or(Path::new(""));
        let Ok(config) = read_json(&folder.join("config.json")) else { return };
        if hugging_face::is_config(&config) {
            let epsilon = hugging_face::epsilon(&config).filter(|_| self.epsilon_of_weights);
            let with = epsilon.and_then(|epsilon| self.config.with("epsilon", serde_json::json!(epsilon)).ok());
            if let Some(config) = with {
                (self.config, self.epsilon_of_weights) = (config, false);
            }
            self.labels = hugging_face::labels(&config).or(self.labels.take());
            self.preprocess = processor(folder).ok().flatten().unwrap_or(self.preprocess);
        } else if let (true, Ok((_, preprocess))) = (timm::is_config(&config), timm::model(&config)) {
            self.preprocess = preprocess;
            self.labels = timm::labels(&config).or(self.labels.take());
        }
    }

    /// Changes one field of the model, as `--set depth=4` does.
    ///
    /// # Errors
    /// When there is no such field (the error suggests the nearest one) or the value has the wrong type.
    pub fn with(mut self, field: &str, value: Value) -> Result<Self, Error> {
        self.config = self.config.with(field, value)?;
        self.epsilon_of_weights &= field != "epsilon";
        Ok(self)
    }

    /// Sets the upstream whose tensor names the weights use, instead of recognising it.
    #[must_use]
    pub fn from_upstream(self, upstream: Upstream) -> Self {
        Self { upstream: Some(upstream), ..self }
    }

    /// Whether the weights are untrained.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.origin == WeightsOrigin::Fresh
    }

    /// Loads the weights, on all threads. Fresh weights are initialised with seed 0.
    ///
    /// # Errors
    /// When the file cannot be read, or its tensors do not fit the model or are not finite.
    pub fn load(&self, device: &Device) -> Result<LoadedModel, Error> {
        self.load_with(device, &LoadOptions::default())
    }

    /// [`load`](Self::load) with options; `from` and `grid` are taken from the source.
    ///
    /// # Errors
    /// When the file cannot be read, or its tensors do not fit the model or are not finite.
    pub fn load_with(&self, device: &Device, options: &LoadOptions) -> Result<LoadedModel, Error> {
        let mut config = self.config.clone();
        if let Some(classes) = options.new_head {
            config = config.with("classes", serde_json::json!(classes))?;
        }
        let model = match &self.weights {
            WeightsSource::Fresh => {
                device.seed(0);
                let model = config.init(device)?;
                // Burn initialises parameters on first use: do it now, or every clone would draw its own
                tensors(&model);
                model
            }
            WeightsSource::Embedded(embedded) => embedded.fill(config.init(device)?)?,
            WeightsSource::File(path) => {
                let storage = if options.lazily { TensorStorage::InFile } else { TensorStorage::InMemory };
                let checkpoint = read_with_storage(path, storage)?;
                let guessed = || recognise(checkpoint.tensors.keys().map(String::as_str));
                let from = self.upstream.unwrap_or_else(guessed);
                if self.epsilon_of_weights && matches!(from, Upstream::HuggingFace | Upstream::HuggingFaceV5) {
                    config = config.with("epsilon", serde_json::json!(hugging_face::EPSILON))?;
                }
                // if the number of positions contradicts config.json, assume a square grid
                let fits = |grid: &[usize; 2]| has_positions(&checkpoint.tensors, grid);
                let (grid, grid_from) = (config.grid(), options.grid_from.or(self.grid.filter(fits)));
                let options = LoadOptions { from: Some(from), grid, grid_from, ..options.clone() };
                fit(config.init(device)?, checkpoint, &options)?.model
            }
        };
        let Self { name, preprocess, origin, .. } = self.clone();
        let labels = self.labels.clone().filter(|_| options.new_head.is_none());
        Ok(LoadedModel { name, model, config, preprocess, labels, origin })
    }
}

/// Whether the position table has the length of this grid plus up to two prefix tokens.
fn has_positions(tensors: &Tensors, [rows, columns]: &[usize; 2]) -> bool {
    let patches = rows * columns;
    let is_table = |shape: &[usize]| matches!(shape, [1, positions, _] if (patches..=patches + 2).contains(positions));
    tensors.iter().any(|(name, tensor)| name.contains("pos") && is_table(&tensor.shape().to_vec()))
}

pub(super) fn read_json(path: &Path) -> Result<Value, Error> {
    serde_json::from_str(&file::read_text(path)?).map_err(|error| Error::file(path, error))
}

#[cfg(test)]
mod tests;
