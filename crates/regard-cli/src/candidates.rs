//! Which models are measured: pairs of a model and its weights, and folders of training runs.

use burn::tensor::Device;
use regard::Prepared;
use regard::data::Preprocess;
use regard::models::{Model, ModelConfig};
use regard::weights::Upstream;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::model::{WeightsArgs, named, parse_upstream, prepared};

#[derive(Debug, clap::Args)]
pub struct CandidateArgs {
    /// A preset (`regard models` lists them) or a TOML file with `model = ".."` and its fields; once for each `--weights`
    #[arg(long, value_name = "NAME|FILE", required_unless_present = "run")]
    model: Vec<String>,

    /// Change a field of the models, such as `depth=4`
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,

    /// A checkpoint: safetensors, .pth, .npz; `hf:owner/name` or an address
    #[arg(long, value_name = "FILE", required_unless_present = "run")]
    weights: Vec<String>,

    /// Whose names the checkpoint has, when it should not be guessed: timm, hugging-face, hugging-face-v5, torchvision, facebook, san, jax or regard
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream)]
    from: Option<Upstream>,

    /// Give the model a fresh head for this many classes
    #[arg(long, value_name = "CLASSES")]
    new_head: Option<usize>,

    /// Compute in eight bits: transformers alone
    #[arg(long)]
    int8: bool,

    /// The folder of a training run, with its model and its best weights
    #[arg(long, value_name = "DIR")]
    run: Vec<PathBuf>,
}

/// A model that is not loaded yet.
#[derive(Debug)]
pub struct Candidate {
    /// What tables call it.
    pub name: String,
    /// It comes from a run.
    pub trained: bool,
    /// The names of its classes, which a run keeps.
    pub labels: Option<PathBuf>,
    config: ModelConfig,
    pub preprocess: Preprocess,
    weights: WeightsArgs,
    int8: bool,
}

/// A model that is.
#[derive(Debug)]
pub struct Loaded {
    pub model: Prepared,
    pub config: ModelConfig,
    pub preprocess: Preprocess,
}

impl CandidateArgs {
    /// The folders of runs, as they were typed.
    pub fn runs(&self) -> &[PathBuf] {
        &self.run
    }

    /// The pairs and then the runs, each in the order in which they were typed.
    pub fn resolve(&self) -> Result<Vec<Candidate>, Failure> {
        if self.model.len() != self.weights.len() {
            return Err(Failure::input(
                format!("{} of --model and {} of --weights", self.model.len(), self.weights.len()),
                "each model needs its weights: `--model A --weights a.pth --model B --weights b.pth`",
            ));
        }
        let pairs = self.model.iter().zip(&self.weights).map(|(model, weights)| self.pair(model, weights));
        let runs = self.run.iter().map(|folder| Candidate::of_run(folder, &self.set, self.new_head, self.int8));
        pairs.chain(runs).collect()
    }

    fn pair(&self, model: &str, weights: &str) -> Result<Candidate, Failure> {
        let Self { set, from, new_head, int8, .. } = self;
        let weights = WeightsArgs { weights: weights.into(), from: *from, new_head: *new_head };
        // two checkpoints of a model are told apart by their files
        let alone = self.model.iter().filter(|other| *other == model).count() == 1;
        let name = if alone { model.to_string() } else { format!("{model} {}", weights.weights) };
        Ok(Candidate::of_pair(name, named(model, set)?, weights, *int8))
    }
}

impl Candidate {
    /// A configuration, what it expects of a picture, and weights for it.
    pub fn of_pair(
        name: String,
        (config, preprocess): (ModelConfig, Preprocess),
        weights: WeightsArgs,
        int8: bool,
    ) -> Self {
        Self { name, trained: false, labels: None, config, preprocess, weights, int8 }
    }

    /// The best weights of a training run.
    pub fn of_run(folder: &Path, changes: &[String], new_head: Option<usize>, int8: bool) -> Result<Self, Failure> {
        let (model, weights) = (folder.join("model.toml"), folder.join("best.safetensors"));
        for file in [&model, &weights] {
            if !file.is_file() {
                return Err(Failure::input(
                    format!("`{}` has no {}", folder.display(), file.file_name().unwrap_or_default().display()),
                    "`--run` takes the folder that `regard train` wrote",
                ));
            }
        }
        let (config, of_family) = named(&model.to_string_lossy(), changes)?;
        let own = folder.join("preprocess.toml");
        let preprocess = if own.is_file() { Preprocess::read(&own)? } else { of_family };
        let path = folder.canonicalize().unwrap_or_else(|_| folder.to_path_buf());
        let name = |path: &Path| path.file_name().unwrap_or(folder.as_os_str()).display().to_string();
        // the runs of a comparison are `MODEL/seed0`, `MODEL/seed1`, ..
        let seed = name(&path).strip_prefix("seed").is_some_and(|seed| seed.parse::<u64>().is_ok());
        let name = match path.parent().filter(|_| seed) {
            Some(model) => format!("{}/{}", name(model), name(&path)),
            None => name(&path),
        };
        let weights = WeightsArgs { weights: weights.display().to_string(), from: Some(Upstream::Regard), new_head };
        let labels = Some(folder.join("classes.txt")).filter(|labels| labels.is_file() && new_head.is_none());
        Ok(Self { name, trained: true, labels, config, preprocess, weights, int8 })
    }

    pub fn classes(&self) -> usize {
        self.weights.new_head.unwrap_or_else(|| self.config.classes())
    }

    pub fn load(&self, device: &Device) -> Result<Loaded, Failure> {
        let (model, config) = self.load_plain(device)?;
        let model = prepared(model, self.int8)?;
        Ok(Loaded { model, config, preprocess: self.preprocess })
    }

    /// The model as it is, for whoever records.
    pub fn load_plain(&self, device: &Device) -> Result<(Model, ModelConfig), Failure> {
        let mut config = self.config.clone();
        let model = self.weights.load(&mut config, device)?;
        Ok((model, config))
    }
}
