//! The models to evaluate: one or several names.

use burn::tensor::Device;
use regard::weights::{ModelSource, WeightsOrigin};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::model::{ChangeArgs, Classifier, no_model, note_fresh, old_pair, old_run};

#[derive(Debug, clap::Args)]
pub struct CandidateArgs {
    /// A model: a run folder, PRESET=WEIGHTS, FILE.toml=WEIGHTS, `hf:owner/name[@revision]`, a folder of Hugging Face or timm,
    /// or an embedded model such as `fashion-vit`
    #[arg(value_name = "MODEL")]
    models: Vec<String>,

    /// A model, as an option
    #[arg(short, long, value_name = "MODEL")]
    model: Vec<String>,

    #[command(flatten)]
    changes: ChangeArgs,

    /// Compute in int8; only for transformers
    #[arg(long)]
    int8: bool,

    /// The old spelling of `MODEL=WEIGHTS`
    #[arg(long, value_name = "FILE", hide = true)]
    weights: Vec<String>,

    /// The old spelling of a run folder
    #[arg(long, value_name = "DIR", hide = true)]
    run: Vec<PathBuf>,
}

/// A model that is not loaded yet.
#[derive(Debug)]
pub struct Candidate {
    source: ModelSource,
    /// Its name in tables.
    pub name: String,
    int8: bool,
}

impl CandidateArgs {
    /// The run folder, if only a run was given.
    pub fn only_run(&self) -> Option<&Path> {
        match (&self.models[..], &self.model[..], &self.run[..]) {
            ([one], [], []) | ([], [one], []) => Some(Path::new(one)).filter(|path| path.is_dir()),
            ([], [], [one]) => Some(one),
            _ => None,
        }
    }

    /// The name of the model, if only one was given.
    pub fn only_name(&self) -> Option<&str> {
        match (&self.models[..], &self.model[..], &self.weights[..], &self.run[..]) {
            ([one], [], [], []) | ([], [one], [], []) => Some(one),
            _ => None,
        }
    }

    /// The changes of its fields.
    pub const fn changes(&self) -> &ChangeArgs {
        &self.changes
    }

    /// The models in the order of the arguments.
    pub fn resolve(&self) -> Result<Vec<Candidate>, Failure> {
        let mut names = self.models.clone();
        if self.weights.is_empty() {
            names.extend(self.model.iter().cloned());
        } else if self.model.len() == self.weights.len() {
            for (model, weights) in self.model.iter().zip(&self.weights) {
                names.push(old_pair(model, weights)?);
            }
        } else {
            return Err(Failure::input(
                format!("{} of --model and {} of --weights", self.model.len(), self.weights.len()),
                "write `A=a.pth B=b.pth`, each model with its weights",
            ));
        }
        for folder in &self.run {
            names.push(old_run(folder)?);
        }
        if names.is_empty() {
            return Err(no_model());
        }
        let sources: Vec<ModelSource> = names.iter().map(|name| self.changes.source(name)).collect::<Result<_, _>>()?;
        let alone = |name: &str| sources.iter().filter(|source| source.name == name).count() == 1;
        // two checkpoints of the same model are named by their arguments
        let called =
            |source: &ModelSource, text: &String| if alone(&source.name) { source.name.clone() } else { text.clone() };
        let called: Vec<String> = sources.iter().zip(&names).map(|(source, text)| called(source, text)).collect();
        for source in &sources {
            note_fresh(source)?;
        }
        Ok(sources.into_iter().zip(called).map(|(source, name)| Candidate { source, name, int8: self.int8 }).collect())
    }
}

impl Candidate {
    /// Whether it comes from a run, which may have been trained on everything except the test part.
    pub fn is_trained_here(&self) -> bool {
        self.source.origin == WeightsOrigin::Run
    }

    pub fn classes(&self) -> usize {
        self.source.config.classes()
    }

    pub fn labels(&self) -> Option<&Vec<String>> {
        self.source.labels.as_ref()
    }

    pub fn load(&self, device: &Device) -> Result<Classifier, Failure> {
        Classifier::load(&self.source, self.int8, device)
    }
}
