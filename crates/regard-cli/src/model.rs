//! What commands that run a model have in common: which model, and pictures as it takes them.

use burn::tensor::{Device, Tensor, TensorData};
use regard::PackedModel;
use regard::data::{Picture, Preprocess, labels, prepare, to_channels};
use regard::models::{Model, ModelConfig};
use regard::weights::{self, LoadOptions, LoadedModel, ModelSource, Upstream, resolve};
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Which model. Every command takes the same names; [`regard::weights::resolve`] says what they mean.
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

/// What differs from the model as it was named.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ChangeArgs {
    /// Change a field of the model, such as `depth=4`
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,

    /// Whose names the checkpoint has, when it should not be guessed: timm, hugging-face, hugging-face-v5, torchvision, facebook, san, jax or regard
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream)]
    pub from: Option<Upstream>,

    /// No longer: a new head knows nothing, so that its answers are random
    #[arg(long, value_name = "CLASSES", hide = true)]
    pub new_head: Option<usize>,
}

impl ModelArgs {
    /// The one model that was named; `positional` is the argument of commands that take it without `--model`.
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
                return Err(Failure::input(format!("two models: `{one}` and `{other}`"), "name one of them"));
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

/// A command that needs a model was given none.
pub fn no_model() -> Failure {
    Failure::input(
        "no model",
        "`--model` takes a run folder, PRESET=WEIGHTS, hf:owner/name or an embedded model such as `fashion-vit`",
    )
}

/// `--model MODEL --weights WEIGHTS`, as it is spelled now.
pub fn old_pair(model: &str, weights: &str) -> Result<String, Failure> {
    let new = format!("{model}={weights}");
    writeln!(
        stderr(),
        "note: `--model {model} --weights {weights}` is now `--model {new}`; the old spelling goes with the next release"
    )?;
    Ok(new)
}

/// `--run DIR`, as it is spelled now.
pub fn old_run(folder: &Path) -> Result<String, Failure> {
    let new = folder.display().to_string();
    writeln!(stderr(), "note: `--run {new}` is now `--model {new}`; the old spelling goes with the next release")?;
    // a run is meant, whatever else has this name
    if !folder.join("model.toml").is_file() {
        let message = format!("`{new}` has no model.toml");
        return Err(Failure::input(message, "a run is a folder that `regard train` wrote"));
    }
    Ok(new)
}

impl ChangeArgs {
    /// The model of a name, with these changes. Says so when its weights are fresh.
    pub fn source(&self, name: &str) -> Result<ModelSource, Failure> {
        if let Some(classes) = self.new_head {
            return Err(Failure::input(
                format!("`--new-head {classes}`: a new head knows nothing, and would answer at random"),
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
    let Some((field, value)) = change.split_once('=') else {
        return Err(Failure::input(format!("`--set {change}` has no value"), "write `--set field=value`"));
    };
    // numbers, booleans and lists as JSON has them; anything else is a word
    let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.into()));
    Ok(source.with(field, value)?)
}

/// The configuration that a name and changes of fields mean.
pub fn configuration(name: &str, changes: &[String]) -> Result<ModelConfig, Failure> {
    let changes = ChangeArgs { set: changes.to_vec(), ..ChangeArgs::default() };
    Ok(changes.source(name)?.config)
}

/// Says that answers mean nothing, if nobody trained the model.
pub fn note_fresh(source: &ModelSource) -> Result<(), Failure> {
    if source.is_fresh() {
        writeln!(
            stderr(),
            "note: `{0}` has fresh weights, which know nothing; `{0}=WEIGHTS` gives it others",
            source.name
        )?;
    }
    Ok(())
}

/// A loaded model for whoever measures or answers: packed, in eight bits if asked for.
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

/// A model that only answers, in eight bits if asked for.
pub fn packed(model: Model, int8: bool) -> Result<PackedModel, Failure> {
    Ok(if int8 { PackedModel::int8(model)? } else { PackedModel::new(model) })
}

/// A model some of whose tensors are still in their file.
pub fn load_lazily(source: &ModelSource, device: &Device) -> Result<LoadedModel, Failure> {
    Ok(source.load_with(device, &LoadOptions { lazily: true, ..LoadOptions::default() })?)
}

/// The names of classes: those of a file, of the model, ImageNet's, or numbers.
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
            "`--labels` takes a file with one name a line",
        ));
    }
    Ok(names)
}

/// A count for which zero makes no sense.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&count| count > 0).ok_or_else(|| "a number of at least 1".into())
}

/// An upstream by its name.
pub fn parse_upstream(name: &str) -> Result<Upstream, String> {
    serde_json::from_value(serde_json::Value::String(name.into()))
        .map_err(|_| "known: timm, hugging-face, hugging-face-v5, torchvision, facebook, san, jax, regard".into())
}

/// A bar for downloads, on a terminal.
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

/// A picture ready for a model, `[C, H, W]`.
pub fn ready(picture: &Picture, preprocess: &Preprocess, config: &ModelConfig) -> Result<Vec<f32>, regard::Error> {
    to_channels(prepare(picture, preprocess, config.image()), config.channels())
}

/// Pictures as one batch.
pub fn batch(pictures: &[Vec<f32>], config: &ModelConfig, device: &Device) -> Tensor<4> {
    let [height, width] = config.image();
    let shape = [pictures.len(), config.channels(), height, width];
    Tensor::from_data(TensorData::new(pictures.concat(), shape), device)
}
