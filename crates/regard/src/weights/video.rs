//! Models of video by name, with the words that name classifiers of pictures ([`resolve`](fn@super::resolve)): a run folder, an
//! embedded model, a preset, a TOML file, a folder or repository of Hugging Face, and any of these `=WEIGHTS`.

use burn::tensor::Device;
use serde_json::Value;
use std::path::{Path, PathBuf};

use super::detector::is_classifier;
use super::resolve::{processor, read_json, weights_in};
use super::{
    Address, Checkpoint, EMBEDDED_DETECTORS, Fetcher, LoadOptions, Loaded, Progress, Tensors, WeightsFormat,
    WeightsOrigin, fetch, fill, fit, from_bytes, hugging_face, load_timesformer, read, resolve, start_i3d,
    start_timesformer, tensors, timesformer_config,
};
use crate::data::clip::FrameSampling;
use crate::data::{Preprocess, labels};
use crate::models::detect;
use crate::models::video::{self, AnyClipPreset, VideoConfig, VideoModel};
use crate::{Error, file, nearest};

/// A model of video that is not loaded yet.
#[derive(Clone, Debug)]
pub struct VideoSource {
    /// Its name in tables and figures.
    pub name: String,
    pub config: VideoConfig,
    pub preprocess: Preprocess,
    /// Which frames of a clip it sees.
    pub sampling: FrameSampling,
    /// Its class names, if known.
    pub labels: Option<Vec<String>>,
    pub origin: WeightsOrigin,
    weights: Weights,
}

#[derive(Clone, Debug)]
enum Weights {
    Fresh,
    Embedded(&'static EmbeddedVideo),
    File(PathBuf),
}

/// A model of video with its weights.
#[derive(Debug)]
pub struct LoadedVideo {
    pub name: String,
    pub model: VideoModel,
    pub config: VideoConfig,
    pub preprocess: Preprocess,
    pub sampling: FrameSampling,
    pub labels: Option<Vec<String>>,
}

/// A model of video that comes with the library.
#[derive(Debug)]
pub struct EmbeddedVideo {
    pub name: &'static str,
    model: &'static str,
    preprocess: &'static str,
    sampling: &'static str,
    classes: &'static str,
    /// In half precision.
    weights: &'static [u8],
}

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(EmbeddedVideo {
            name: $name,
            model: include_str!(concat!("../../assets/", $name, "/model.toml")),
            preprocess: include_str!(concat!("../../assets/", $name, "/preprocess.toml")),
            sampling: include_str!(concat!("../../assets/", $name, "/sampling.toml")),
            classes: include_str!(concat!("../../assets/", $name, "/classes.txt")),
            weights: include_bytes!(concat!("../../assets/", $name, "/best.safetensors")),
        }),*]
    };
}

/// Models of video that come with the library; `examples/embed_video.rs` makes the files of a run.
pub static EMBEDDED_VIDEOS: &[EmbeddedVideo] = embedded!["motions"];

/// The model of video that a text names; weights from the network are fetched into the cache, with `progress`.
///
/// # Errors
/// When the text names no model of video, a file beside the weights cannot be understood, or nothing can be fetched.
pub fn resolve_video(text: &str, progress: &mut dyn FnMut(Progress)) -> Result<VideoSource, Error> {
    if let Some(source) = without_weights(text, progress)? {
        return Ok(source);
    }
    let unknown = |reason: String| Error::Field { field: text.into(), reason };
    let named = text.split_once('=').filter(|(model, weights)| !model.is_empty() && !weights.is_empty());
    let Some((model, address)) = named else {
        if is_classifier(text) {
            return Err(unknown("a classifier of pictures, not of clips".into()));
        }
        if detect::preset(text).is_ok() || EMBEDDED_DETECTORS.iter().any(|one| one.name == text) {
            return Err(unknown("a detector; `regard detect` takes it".into()));
        }
        let presets = video::presets();
        let known: Vec<&str> =
            EMBEDDED_VIDEOS.iter().map(|one| one.name).chain(presets.iter().map(|one| one.name)).collect();
        return Err(unknown(nearest::unknown(text, &known)));
    };
    let source = match without_weights(model, progress)? {
        Some(source) => source,
        None => resolve_video(model, progress)?,
    };
    let path = match fetch(address, progress)? {
        folder if folder.is_dir() => weights_in(&folder)?,
        file => file,
    };
    let labels = source.labels.filter(|labels| labels.len() == source.config.classes());
    Ok(VideoSource { origin: WeightsOrigin::Checkpoint, weights: Weights::File(path), labels, ..source })
}

/// Whether a text names a model of video; nothing is fetched for it, but the configuration of a repository of Hugging Face.
#[must_use]
pub fn is_video(text: &str) -> bool {
    let model = text.split_once('=').map_or(text, |(model, _)| model);
    if let Some(repository) = model.starts_with("hf:").then_some(model) {
        return repository_config(repository).is_ok_and(|(config, _)| is_hugging_face(&config));
    }
    // the configuration of a model of video with a mistake in it is still one
    [text, model].into_iter().any(|name| !matches!(without_weights(name, &mut |_| {}), Ok(None)))
}

/// Every kind of text but `MODEL=WEIGHTS`; none when it is another.
fn without_weights(text: &str, progress: &mut dyn FnMut(Progress)) -> Result<Option<VideoSource>, Error> {
    let path = Path::new(text);
    let config = path.join("model.toml");
    if config.is_file() {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let weights = Weights::File(path.join("best.safetensors"));
        let run = of_toml(&config)?;
        return Ok(run.map(|source| VideoSource { name, origin: WeightsOrigin::Run, weights, ..source }));
    }
    if let Some(embedded) = EMBEDDED_VIDEOS.iter().find(|one| one.name == text) {
        return embedded.source().map(Some);
    }
    if let Ok(preset) = video::preset(text) {
        return Ok(Some(VideoSource::fresh(preset)));
    }
    if text.starts_with("hf:") && !text.contains('=') {
        let (config, address) = repository_config(text)?;
        if !is_hugging_face(&config) {
            return Ok(None);
        }
        let fetcher = Fetcher::from_environment()?;
        fetcher.fetch_beside(&address, "preprocessor_config.json")?;
        let weights = fetcher.fetch(&address, progress)?;
        let folder = weights.parent().unwrap_or(Path::new("")).to_path_buf();
        let source = of_hugging_face(&folder, &config)?;
        return Ok(Some(VideoSource { name: text["hf:".len()..].into(), weights: Weights::File(weights), ..source }));
    }
    if path.extension().is_some_and(|ending| ending == "toml") && path.is_file() {
        return of_toml(path);
    }
    if path.join("config.json").is_file() {
        let config = read_json(&path.join("config.json"))?;
        return if is_hugging_face(&config) { of_hugging_face(path, &config).map(Some) } else { Ok(None) };
    }
    Ok(None)
}

/// The configuration of a repository of Hugging Face.
fn repository_config(text: &str) -> Result<(Value, Address), Error> {
    let address: Address = text.parse()?;
    let Some(path) = Fetcher::from_environment()?.fetch_beside(&address, "config.json")? else {
        return Err(Error::Fetch { address: text.into(), reason: "the repository has no config.json".into() });
    };
    Ok((read_json(&path)?, address))
}

/// Whether a `config.json` is of a model of video.
fn is_hugging_face(config: &Value) -> bool {
    config["model_type"] == "timesformer"
}

/// A folder as transformers writes it.
fn of_hugging_face(folder: &Path, config: &Value) -> Result<VideoSource, Error> {
    let wrong = |error: Error| Error::file(&folder.join("config.json"), error);
    let model = VideoConfig::Timesformer(timesformer_config(config).map_err(wrong)?);
    let usual = video::preset("timesformer-base")?;
    let absolute = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
    Ok(VideoSource {
        name: absolute.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned(),
        sampling: match model.frames() {
            16 => FrameSampling::Dense { rate: 16 },
            96 => FrameSampling::Dense { rate: 4 },
            _ => usual.sampling,
        },
        config: model,
        preprocess: processor(folder)?.unwrap_or(usual.preprocess),
        labels: hugging_face::labels(config),
        origin: WeightsOrigin::Checkpoint,
        weights: Weights::File(weights_in(folder)?),
    })
}

/// A configuration in a file, with what lies beside it in a run folder; none when it is no model's of video.
fn of_toml(path: &Path) -> Result<Option<VideoSource>, Error> {
    if !video::is_config(&file::read_text(path)?) {
        return Ok(None);
    }
    let classes = path.with_file_name("classes.txt");
    let labels = if classes.is_file() { Some(labels::read(&classes)?) } else { None };
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let source = VideoSource::fresh(video::named(&path.display().to_string())?);
    Ok(Some(VideoSource { name, labels, ..source }))
}

impl EmbeddedVideo {
    fn source(&'static self) -> Result<VideoSource, Error> {
        let spoiled = |error: toml::de::Error| Error::file(Path::new(self.name), error.message());
        Ok(VideoSource {
            name: self.name.into(),
            config: VideoConfig::from_toml(self.model)?,
            preprocess: toml::from_str(self.preprocess).map_err(spoiled)?,
            sampling: FrameSampling::from_toml(self.sampling)?,
            labels: Some(self.classes.lines().map(String::from).collect()),
            origin: WeightsOrigin::Embedded,
            weights: Weights::Embedded(self),
        })
    }
}

impl VideoSource {
    fn fresh(AnyClipPreset { name, preprocess, sampling, config, .. }: AnyClipPreset) -> Self {
        let (origin, weights) = (WeightsOrigin::Fresh, Weights::Fresh);
        Self { name: name.into(), config, preprocess, sampling, labels: None, origin, weights }
    }

    /// Whether the weights are untrained.
    #[must_use]
    pub fn is_fresh(&self) -> bool {
        self.origin == WeightsOrigin::Fresh
    }

    /// Changes one field of the model, as `--set depth=4` does.
    ///
    /// # Errors
    /// When there is no such field (the error suggests the nearest one) or the value has the wrong type.
    pub fn with(mut self, field: &str, value: Value) -> Result<Self, Error> {
        self.config = self.config.with(field, value)?;
        Ok(self)
    }

    /// Loads the weights. Fresh weights are initialised with seed 0.
    ///
    /// # Errors
    /// When the file cannot be read, or its tensors do not fit the model or are not finite.
    pub fn load(&self, device: &Device) -> Result<LoadedVideo, Error> {
        let model = match &self.weights {
            Weights::Fresh => {
                device.seed(0);
                let model = self.config.init(device)?;
                // Burn initialises parameters on first use: do it now, or every clone would draw its own
                tensors(&model);
                model
            }
            Weights::Embedded(embedded) => {
                fill(self.config.init(device)?, &from_bytes(embedded.weights, Path::new(embedded.name))?)?
            }
            Weights::File(path) => load(&self.config, read(path)?, device)?,
        };
        let Self { name, config, preprocess, sampling, labels, .. } = self.clone();
        Ok(LoadedVideo { name, model, config, preprocess, sampling, labels })
    }
}

/// A model with the weights of a checkpoint, in which nothing may be missing.
fn load(config: &VideoConfig, checkpoint: Checkpoint, device: &Device) -> Result<VideoModel, Error> {
    match config {
        VideoConfig::Timesformer(config) => {
            load_timesformer(config, checkpoint, device).map(|Loaded { model, .. }| VideoModel::Timesformer(model))
        }
        VideoConfig::I3d(_) | VideoConfig::Resnet3d(_) => {
            Ok(fit(config.init(device)?, checkpoint, &LoadOptions::default())?.model)
        }
    }
}

/// A model that starts from weights: those of a model of video or of a classifier of pictures by any of its names, a file, or an
/// address. A head for other classes begins anew.
///
/// # Errors
/// When the weights cannot be read, or other layers do not fit.
pub fn begin_video(config: &VideoConfig, name: &str, device: &Device) -> Result<VideoModel, Error> {
    let checkpoint = if Path::new(name).is_file() || name.contains("://") || name.starts_with("hf:") {
        read(&super::fetch(name, &mut |_| {})?)?
    } else {
        let tensors = trained_tensors(name)?;
        Checkpoint { format: WeightsFormat::Safetensors, tensors, not_finite: Vec::new() }
    };
    match config {
        VideoConfig::Timesformer(config) => {
            start_timesformer(config, checkpoint, device).map(|Loaded { model, .. }| VideoModel::Timesformer(model))
        }
        VideoConfig::I3d(config) => {
            start_i3d(config, checkpoint, device).map(|Loaded { model, .. }| VideoModel::I3d(model))
        }
        VideoConfig::Resnet3d(_) => {
            let model = config.init(device)?;
            if let Ok(loaded) = fit(model.clone(), checkpoint.clone(), &LoadOptions::default()) {
                return Ok(loaded.model);
            }
            // other classes: only the head is new, or the error is that of the rest
            let options = LoadOptions { new_head: Some(config.classes()), ..LoadOptions::default() };
            Ok(fit(model, checkpoint, &options)?.model)
        }
    }
}

fn trained_tensors(name: &str) -> Result<Tensors, Error> {
    let fresh = || Error::config("weights", format!("`{name}` has no weights; `{name}=WEIGHTS` names them"));
    let cpu = crate::device::cpu();
    if is_video(name) {
        let source = resolve_video(name, &mut |_| {})?;
        return if source.is_fresh() { Err(fresh()) } else { Ok(tensors(&source.load(&cpu)?.model)) };
    }
    let source = resolve(name, &mut |_| {})?;
    if source.is_fresh() { Err(fresh()) } else { Ok(tensors(&source.load(&cpu)?.model)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pass;
    use crate::data::Clips;
    use crate::device::cpu;
    use crate::testing::{assert_close, random};
    use crate::weights::{to_bytes, write_tensors};

    fn nano() -> (VideoModel, VideoConfig) {
        let config = video::preset("timesformer-nano").unwrap().config;
        cpu().seed(3);
        (config.init(&cpu()).unwrap(), config)
    }

    #[test]
    fn a_run_folder_a_preset_and_a_preset_with_weights_are_one_model_by_three_names() {
        let folder = tempfile::tempdir().unwrap();
        let (model, config) = nano();
        let weights = folder.path().join("best.safetensors");
        write_tensors(&weights, &tensors(&model)).unwrap();
        std::fs::write(folder.path().join("model.toml"), config.to_toml()).unwrap();
        let classes: Vec<String> = (0..10).map(|class| format!("class {class}")).collect();
        std::fs::write(folder.path().join("classes.txt"), classes.join("\n")).unwrap();
        std::fs::write(folder.path().join("sampling.toml"), FrameSampling::Segments.to_toml()).unwrap();
        let run = folder.path().display().to_string();
        let clips = Clips { pixels: random([1, 3, 8, 32, 32], 1) };
        let expected = model.forward(&clips, &mut Pass::silent());
        for name in [&run, &format!("timesformer-nano={}", weights.display())] {
            assert!(is_video(name), "{name}");
            let loaded = resolve_video(name, &mut |_| {}).unwrap().load(&cpu()).unwrap();
            assert_close(&loaded.model.forward(&clips, &mut Pass::silent()), &expected, 1e-6);
        }
        let source = resolve_video(&run, &mut |_| {}).unwrap();
        assert_eq!((source.labels.unwrap().len(), source.sampling), (10, FrameSampling::Segments));
        assert!(resolve_video("timesformer-nano", &mut |_| {}).unwrap().is_fresh());
    }

    #[test]
    fn a_folder_of_hugging_face_says_itself_that_it_is_of_video() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/hf_timesformer_divided_space_time");
        let name = fixture.display().to_string();
        assert!(is_video(&name));
        let source = resolve_video(&name, &mut |_| {}).unwrap();
        assert_eq!(source.config.family(), "timesformer");
        source.load(&cpu()).unwrap();
    }

    #[test]
    fn weights_of_a_picture_classifier_and_of_other_classes_start_a_model() {
        let folder = tempfile::tempdir().unwrap();
        let (model, config) = nano();
        let path = folder.path().join("other.safetensors");
        std::fs::write(&path, to_bytes(&tensors(&model), &path).unwrap()).unwrap();
        let other = config.with("classes", serde_json::json!(3)).unwrap();
        let started = tensors(&begin_video(&other, &path.display().to_string(), &cpu()).unwrap());
        let own = tensors(&model);
        let differ: Vec<&String> = started.keys().filter(|name| started[*name] != own[*name]).collect();
        assert_eq!(differ, ["head.bias", "head.weight"]);
        let error = begin_video(&config, "vit-nano", &cpu()).unwrap_err().to_string();
        assert!(error.contains("`vit-nano` has no weights"), "{error}");
    }

    #[test]
    fn embedded_models_are_small_and_load() {
        for embedded in EMBEDDED_VIDEOS {
            assert!(embedded.weights.len() <= 2 << 20, "{}: {} bytes", embedded.name, embedded.weights.len());
            let video = resolve_video(embedded.name, &mut |_| {}).unwrap().load(&cpu()).unwrap();
            assert_eq!(video.labels.map(|labels| labels.len()), Some(video.config.classes()));
        }
    }

    #[test]
    fn other_models_are_told_apart_and_a_wrong_name_gets_the_nearest() {
        let told = |name: &str| resolve_video(name, &mut |_| {}).unwrap_err().to_string();
        assert!(told("vit-nano").contains("classifier of pictures"));
        assert!(told("detr-nano").contains("detector"));
        assert!(told("timesformer-nanoo").contains("`timesformer-nano`"));
        assert!(is_video("timesformer-hr=FILE") && !is_video("deit-tiny") && !is_video("scenes-retinanet"));
    }
}
