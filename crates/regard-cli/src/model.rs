//! What commands that run a model have in common: which model, which weights, which pictures.

use burn::tensor::{Device, Tensor, TensorData};
use regard::Prepared;
use regard::data::{Picture, Preprocess, prepare, to_channels};
use regard::models::{self, Model, ModelConfig};
use regard::weights::{self, LoadOptions, Upstream};
use std::io::{Write as _, stderr};
use std::path::Path;

use crate::failure::Failure;

/// Which model.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// A preset (`regard models` lists them) or a TOML file with `model = ".."` and its fields
    #[arg(long, value_name = "NAME|FILE")]
    pub model: String,

    /// Change a field of the model, such as `depth=4`
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
}

/// Which weights.
#[derive(Debug, clap::Args)]
pub struct WeightsArgs {
    /// A checkpoint: safetensors, .pth, .npz; `hf:owner/name` or an address
    #[arg(long, value_name = "FILE")]
    pub weights: String,

    /// Whose names the checkpoint has, when it should not be guessed: timm, hugging-face, hugging-face-v5, torchvision, facebook, san, jax or regard
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream)]
    pub from: Option<Upstream>,

    /// Give the model a fresh head for this many classes
    #[arg(long, value_name = "CLASSES")]
    pub new_head: Option<usize>,
}

impl ModelArgs {
    /// The configuration and what the model expects of a picture.
    pub fn config(&self) -> Result<(ModelConfig, Preprocess), Failure> {
        named(&self.model, &self.set)
    }
}

/// The configuration that a name and changes of fields mean, and what the model expects of a picture.
pub fn named(model: &str, changes: &[String]) -> Result<(ModelConfig, Preprocess), Failure> {
    let path = Path::new(model);
    let (mut config, preprocess) = if path.extension().is_some_and(|ending| ending == "toml") {
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::input(format!("cannot read `{model}`: {error}"), "is the path right?"))?;
        let config = ModelConfig::from_toml(&text).map_err(|error| {
            Failure::input(format!("`{model}`, {error}"), "`regard models config NAME` prints a file to start from")
        })?;
        // pictures are prepared as the first preset of the family wants them
        let family = models::presets().into_iter().find(|preset| preset.config.family() == config.family());
        (config, family.map_or(Preprocess::WHOLE, |preset| preset.preprocess))
    } else {
        let preset = models::preset(model)?;
        (preset.config, preset.preprocess)
    };
    for change in changes {
        let Some((field, value)) = change.split_once('=') else {
            return Err(Failure::input(format!("`--set {change}` has no value"), "write `--set field=value`"));
        };
        // numbers, booleans and lists as JSON has them; anything else is a word
        let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.into()));
        config = config.with(field, value)?;
    }
    Ok((config, preprocess))
}

impl WeightsArgs {
    /// The model with its weights; a new head changes the configuration.
    pub fn load(&self, config: &mut ModelConfig, device: &Device) -> Result<Model, Failure> {
        self.load_with(config, device, LoadOptions::default())
    }

    /// The same, with large tensors left in their file until they are read.
    pub fn load_lazily(&self, config: &mut ModelConfig, device: &Device) -> Result<Model, Failure> {
        self.load_with(config, device, LoadOptions { lazily: true, ..LoadOptions::default() })
    }

    fn load_with(&self, config: &mut ModelConfig, device: &Device, options: LoadOptions) -> Result<Model, Failure> {
        if let Some(classes) = self.new_head {
            writeln!(stderr(), "note: the head for {classes} classes is new and knows nothing yet")?;
            *config = config.with("classes", serde_json::json!(classes))?;
        }
        let path = weights::fetch(&self.weights, &mut download_bar())?;
        let options = LoadOptions { from: self.from, new_head: self.new_head, grid: config.grid(), ..options };
        Ok(weights::load(config.init(device)?, &path, &options)?.model)
    }
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
fn download_bar() -> impl FnMut(weights::Progress) {
    let bar = indicatif::ProgressBar::no_length();
    bar.set_style(
        indicatif::ProgressStyle::with_template("{bytes} of {total_bytes} {wide_bar} {bytes_per_sec} {eta}")
            .expect("the template is fixed"),
    );
    move |weights::Progress { done, total }| {
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(done);
    }
}

/// A picture ready for a model, `[C, H, W]`.
pub fn read_picture(path: &Path, preprocess: &Preprocess, config: &ModelConfig) -> Result<Vec<f32>, regard::Error> {
    ready(&Picture::open(path)?, preprocess, config)
}

/// An open picture ready for a model, `[C, H, W]`.
pub fn ready(picture: &Picture, preprocess: &Preprocess, config: &ModelConfig) -> Result<Vec<f32>, regard::Error> {
    to_channels(prepare(picture, preprocess, config.image()), config.channels())
}

/// A model that only answers, in eight bits if asked for.
pub fn prepared(model: Model, int8: bool) -> Result<Prepared, Failure> {
    Ok(if int8 { Prepared::int8(model)? } else { Prepared::new(model) })
}

/// Pictures as one batch.
pub fn batch(pictures: &[Vec<f32>], config: &ModelConfig, device: &Device) -> Tensor<4> {
    let [height, width] = config.image();
    let shape = [pictures.len(), config.channels(), height, width];
    Tensor::from_data(TensorData::new(pictures.concat(), shape), device)
}
