//! Shared by all commands that run a model: choosing the model, and preprocessing pictures for it.

use burn::tensor::{Device, Tensor, TensorData};
use regard::PackedModel;
use regard::cost::Ledger;
use regard::data::{Picture, Preprocess, labels, prepare, to_channels};
use regard::models::detect::DetectorConfig;
use regard::models::{Model, ModelConfig, VideoConfig};
use regard::weights::{
    self, DetectorSource, LoadOptions, LoadedModel, ModelSource, Upstream, is_detector, is_video, resolve,
    resolve_detector,
};
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::video::video_source;

/// The model. Every command takes the same names, those of [`regard::weights::resolve`].
#[derive(Debug, Default, clap::Args)]
pub struct ModelArgs {
    /// The model: a run folder, PRESET, PRESET=WEIGHTS, FILE.toml, FILE.toml=WEIGHTS, `hf:owner/name[@revision]`, a folder of
    /// Hugging Face or timm, or an embedded model such as `fashion-vit`
    #[arg(short, long, value_name = "MODEL")]
    pub model: Option<String>,

    #[command(flatten)]
    pub changes: ChangeArgs,

    /// The old spelling of `--model MODEL=WEIGHTS`
    #[arg(long, value_name = "FILE", hide = true)]
    pub weights: Option<String>,

    /// The old spelling of `--model DIR`
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["model", "weights"])]
    pub run: Option<PathBuf>,
}

/// Changes to the named model.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ChangeArgs {
    /// Change a field of the model, such as `depth=4`
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,

    /// Whose tensor names the checkpoint uses, instead of recognising them: timm, hugging-face, hugging-face-v5, torchvision, facebook, san, jax or regard
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream)]
    pub from: Option<Upstream>,

    /// Removed: predictions of an untrained head are random
    #[arg(long, value_name = "CLASSES", hide = true)]
    pub new_head: Option<usize>,
}

impl ModelArgs {
    /// The named model; `positional` is the argument of commands that take it without `--model`.
    pub fn source(&self, positional: Option<&str>) -> Result<ModelSource, Failure> {
        match self.name(positional)? {
            Some(name) => self.changes.source(&name),
            None => Err(no_model()),
        }
    }

    /// The name of the model, if there is one; old spellings get a note.
    pub fn name(&self, positional: Option<&str>) -> Result<Option<String>, Failure> {
        let model = match (positional, &self.model) {
            (Some(one), Some(other)) => {
                return Err(Failure::input(format!("two models: `{one}` and `{other}`"), "give only one"));
            }
            (one, other) => one.or(other.as_deref()),
        };
        match (model, &self.weights, &self.run) {
            (_, _, Some(folder)) => old_run(folder).map(Some),
            (Some(model), Some(weights), None) => old_pair(model, weights).map(Some),
            (None, Some(weights), None) => Err(Failure::input(
                format!("weights `{weights}` without a model"),
                format!("write `--model PRESET={weights}`; `regard models` lists the presets"),
            )),
            (model, None, None) => Ok(model.map(String::from)),
        }
    }
}

/// The failure of a command that needs a model and got none.
pub fn no_model() -> Failure {
    Failure::input(
        "no model",
        "`--model` takes a run folder, PRESET=WEIGHTS, hf:owner/name or an embedded model such as `fashion-vit`",
    )
}

/// Replaces the old spelling `--model MODEL --weights WEIGHTS`.
pub fn old_pair(model: &str, weights: &str) -> Result<String, Failure> {
    let new = format!("{model}={weights}");
    writeln!(
        stderr(),
        "note: `--model {model} --weights {weights}` is now `--model {new}`; the next release removes the old spelling"
    )?;
    Ok(new)
}

/// Replaces the old spelling `--run DIR`.
pub fn old_run(folder: &Path) -> Result<String, Failure> {
    let new = folder.display().to_string();
    writeln!(stderr(), "note: `--run {new}` is now `--model {new}`; the next release removes the old spelling")?;
    // it must be a run, even if a preset has this name
    if !folder.join("model.toml").is_file() {
        let message = format!("`{new}` has no model.toml");
        return Err(Failure::input(message, "give a folder that `regard train` wrote"));
    }
    Ok(new)
}

impl ChangeArgs {
    /// The model of a name, with these changes. Prints a note if its weights are untrained.
    pub fn source(&self, name: &str) -> Result<ModelSource, Failure> {
        if let Some(classes) = self.new_head {
            return Err(Failure::input(
                format!("`--new-head {classes}`: predictions of an untrained head are random"),
                format!(
                    "weights for {classes} classes need `--set classes={classes}`; `regard train --init` trains a new head"
                ),
            ));
        }
        let mut source = resolve(name, &mut download_bar())?;
        for change in &self.set {
            source = changed(source, change)?;
        }
        Ok(match self.from {
            Some(upstream) => source.from_upstream(upstream),
            None => source,
        })
    }
}

/// A model with one field changed by `FIELD=VALUE`.
fn changed(source: ModelSource, change: &str) -> Result<ModelSource, Failure> {
    let (field, value) = field_and_value(change)?;
    Ok(source.with(field, value)?)
}

/// `FIELD=VALUE`, where a value is JSON, or else a string.
pub fn field_and_value(change: &str) -> Result<(&str, serde_json::Value), Failure> {
    let Some((field, value)) = change.split_once('=') else {
        return Err(Failure::input(format!("`--set {change}` has no value"), "write `--set field=value`"));
    };
    Ok((field, serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.into()))))
}

/// A named detector with changed fields.
pub fn detector_source(name: &str, changes: &[String]) -> Result<DetectorSource, Failure> {
    let mut source = resolve_detector(name, &mut download_bar())?;
    for change in changes {
        let (field, value) = field_and_value(change)?;
        source.config = source.config.with(field, value)?;
    }
    source.labels = source.labels.filter(|labels| labels.len() == source.config.classes());
    Ok(source)
}

/// The configuration of a classifier, a detector or a model of video.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of them, not an array
pub enum Configuration {
    Classifier(ModelConfig),
    Detector(DetectorConfig),
    Video(VideoConfig),
}

impl Configuration {
    /// That of a named model with changed fields.
    pub fn named(name: &str, changes: &[String]) -> Result<Self, Failure> {
        if is_detector(name) {
            return Ok(Self::Detector(detector_source(name, changes)?.config));
        }
        let changes = ChangeArgs { set: changes.to_vec(), ..ChangeArgs::default() };
        if is_video(name) {
            return Ok(Self::Video(video_source(name, &changes)?.config));
        }
        Ok(Self::Classifier(changes.source(name)?.config))
    }

    pub fn family(&self) -> String {
        match self {
            Self::Classifier(config) => config.family(),
            Self::Detector(config) => config.family(),
            Self::Video(config) => config.family().into(),
        }
    }

    /// Frames of a clip; none for models of pictures.
    pub const fn frames(&self) -> Option<usize> {
        match self {
            Self::Classifier(_) | Self::Detector(_) => None,
            Self::Video(config) => Some(config.frames()),
        }
    }

    /// Rows and columns of its pictures.
    pub fn image(&self) -> [usize; 2] {
        match self {
            Self::Classifier(config) => config.image(),
            Self::Detector(config) => config.image(),
            Self::Video(config) => config.image(),
        }
    }

    pub fn ledger(&self, image: [usize; 2]) -> Result<Ledger, regard::Error> {
        match self {
            Self::Classifier(config) => config.ledger(image),
            Self::Detector(config) => config.ledger(image),
            Self::Video(config) => config.with("image", serde_json::json!(image))?.ledger(),
        }
    }

    pub fn to_toml(&self) -> String {
        match self {
            Self::Classifier(config) => config.to_toml(),
            Self::Detector(config) => config.to_toml(),
            Self::Video(config) => config.to_toml(),
        }
    }
}

/// Prints a note if the model is untrained.
pub fn note_fresh(source: &ModelSource) -> Result<(), Failure> {
    if source.is_fresh() { note_untrained(&source.name) } else { Ok(()) }
}

pub fn note_untrained(name: &str) -> Result<(), Failure> {
    Ok(writeln!(stderr(), "note: `{name}` has untrained weights; use `{name}=WEIGHTS` for trained ones")?)
}

/// A model loaded for inference: packed, in int8 on request.
pub struct Classifier {
    pub model: PackedModel,
    pub config: ModelConfig,
    pub preprocess: Preprocess,
    pub labels: Option<Vec<String>>,
}

impl Classifier {
    pub fn load(source: &ModelSource, int8: bool, device: &Device) -> Result<Self, Failure> {
        let LoadedModel { model, config, preprocess, labels, .. } = source.load(device)?;
        Ok(Self { model: packed(model, int8)?, config, preprocess, labels })
    }
}

/// A model packed for inference, in int8 on request.
pub fn packed(model: Model, int8: bool) -> Result<PackedModel, Failure> {
    Ok(if int8 { PackedModel::int8(model)? } else { PackedModel::new(model) })
}

/// A model with large tensors still in their file.
pub fn load_lazily(source: &ModelSource, device: &Device) -> Result<LoadedModel, Failure> {
    Ok(source.load_with(device, &LoadOptions { lazily: true, ..LoadOptions::default() })?)
}

/// The class names: from a file, from the model, ImageNet's, or numbers.
pub fn class_names(file: Option<&PathBuf>, own: Option<&Vec<String>>, classes: usize) -> Result<Vec<String>, Failure> {
    let names = match (file, own) {
        (Some(path), _) => labels::read(path)?,
        (None, Some(names)) => names.clone(),
        (None, None) if classes == 1000 => labels::imagenet(),
        (None, None) => (0..classes).map(|class| class.to_string()).collect(),
    };
    if names.len() != classes {
        return Err(Failure::input(
            format!("{} labels for a model of {classes} classes", names.len()),
            "`--labels` takes a file with one name per line",
        ));
    }
    Ok(names)
}

/// A count of at least 1.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "must be at least 1".into())
}

/// An upstream by its name.
pub fn parse_upstream(name: &str) -> Result<Upstream, String> {
    serde_json::from_value(serde_json::Value::String(name.into())).map_err(|_| {
        "must be timm, hugging-face, hugging-face-v5, torchvision, facebook, detectron2, san, jax or regard".into()
    })
}

/// A progress bar for downloads, on a terminal.
pub fn download_bar() -> impl FnMut(weights::Progress) {
    let mut bar = None;
    move |weights::Progress { done, total }| {
        let bar = bar.get_or_insert_with(|| {
            let bar = indicatif::ProgressBar::no_length();
            let template = "{bytes} of {total_bytes} {wide_bar} {bytes_per_sec} {eta}";
            bar.set_style(indicatif::ProgressStyle::with_template(template).expect("the template is fixed"));
            bar
        });
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(done);
    }
}

/// A preprocessed picture, `[C, H, W]`.
pub fn ready(picture: &Picture, preprocess: &Preprocess, config: &ModelConfig) -> Result<Vec<f32>, regard::Error> {
    to_channels(prepare(picture, preprocess, config.image()), config.channels())
}

/// Preprocessed pictures as one batch.
pub fn batch(pictures: &[Vec<f32>], config: &ModelConfig, device: &Device) -> Tensor<4> {
    let [height, width] = config.image();
    let shape = [pictures.len(), config.channels(), height, width];
    Tensor::from_data(TensorData::new(pictures.concat(), shape), device)
}
