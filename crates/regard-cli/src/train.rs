//! `regard train`: trains by a recipe into a run folder.

mod interrupt;
#[cfg(feature = "mpi")]
mod job;
mod report;
mod watch;

pub use interrupt::Interrupt;

use burn::tensor::Device;
use regard::tasks::AnyRecipe;
use regard::train::{Ranks, SingleProcess, TrainEvent, TrainOptions, TrainOutcome, read_history, read_recipe_text};
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::recipes;
use watch::ProgressReporter;

/// Train a model by a recipe, or resume a run
///
/// Several machines: a build with `--features mpi` under `mpirun -n RANKS regard train RECIPE` gives every rank a part
/// of each batch. Ranks on one machine share its cores: set `RAYON_NUM_THREADS=CORES/RANKS`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML file, or a built-in recipe (`regard recipes` lists them)
    #[arg(required_unless_present = "resume")]
    recipe: Option<String>,

    /// Run folder; an existing run is resumed [default: runs/RECIPE-MODEL-seedN]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Resume the run in this folder with its own recipe; `--epochs` may make it longer
    #[arg(long, value_name = "DIR", conflicts_with_all = ["recipe", "output", "set", "model", "data", "init", "seed"])]
    resume: Option<PathBuf>,

    /// Train another model: a preset of `regard models`, or your own TOML file
    #[arg(long, value_name = "NAME|FILE")]
    model: Option<String>,

    /// Start from these weights: any model name, a checkpoint or an address; a head for other classes is initialised anew
    #[arg(long, value_name = "WEIGHTS")]
    init: Option<String>,

    /// Train on other data: a folder, a file, or `fashion`
    #[arg(long, value_name = "PATH")]
    data: Option<String>,

    /// Number of passes over the training data
    #[arg(long, value_name = "COUNT")]
    epochs: Option<usize>,

    /// Random seed: initial weights, order of the data, augmentation
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Change any other key of the recipe, such as `optimiser.rate=1e-4` or `set.depth=3`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Args {
    /// The recipe and the run folder.
    fn plan(&self, ranks: &dyn Ranks) -> Result<(AnyRecipe, PathBuf), Failure> {
        if let Some(folder) = &self.resume {
            let mut recipe = resumed(folder, ranks)?;
            if let Some(epochs) = self.epochs {
                let before = std::mem::replace(&mut recipe.common_mut().epochs, epochs);
                if epochs < before {
                    let message = format!("`--epochs` must be at least {before}, the epochs of the run, got {epochs}");
                    return Err(Failure::input(message, "leave out `--epochs` to resume it unchanged"));
                }
            }
            recipe.validate().map_err(recipe_failure)?;
            return Ok((recipe, folder.clone()));
        }
        let name = self.recipe.as_deref().expect("clap asks for one of the two");
        let (recipe, called) = recipes::read_any(name)?;
        let recipe = self.changed(recipe)?;
        let common = recipe.common();
        // the model may be a path
        let model = Path::new(&common.model).file_stem().unwrap_or_default().display().to_string();
        let default = || Path::new("runs").join(format!("{called}-{model}-seed{}", common.seed));
        let folder = self.output.clone().unwrap_or_else(default);
        Ok((recipe, folder))
    }

    /// A recipe with the changes of the arguments.
    fn changed(&self, mut recipe: AnyRecipe) -> Result<AnyRecipe, Failure> {
        let common = recipe.common_mut();
        if let Some(model) = &self.model {
            common.model.clone_from(model);
        }
        if let Some(data) = &self.data {
            common.data.clone_from(data);
        }
        if self.init.is_some() {
            common.weights.clone_from(&self.init);
        }
        common.epochs = self.epochs.unwrap_or(common.epochs);
        common.seed = self.seed.unwrap_or(common.seed);
        // before keys are changed, so that errors name the argument
        recipe.validate().map_err(recipe_failure)?;
        self.set.iter().try_fold(recipe, |recipe, change| with_change(&recipe, change))
    }
}

/// A recipe with one key changed: `key=value`.
pub fn with_change(recipe: &AnyRecipe, change: &str) -> Result<AnyRecipe, Failure> {
    let Some((key, value)) = change.split_once('=') else {
        return Err(Failure::input(format!("`--set {change}` has no value"), "write `--set key=value`"));
    };
    recipe.with(key.trim(), value.trim()).map_err(recipe_failure)
}

/// The recipe of a resumed run; only rank 0 may have access to its folder.
fn resumed(folder: &Path, ranks: &dyn Ranks) -> Result<AnyRecipe, Failure> {
    let own = if ranks.rank() == 0 {
        let hint = "`--resume` takes a run folder; `regard train RECIPE` starts one";
        read_recipe_text(folder).map_err(|error| Failure::input(error, hint))?
    } else {
        String::new()
    };
    let bytes = ranks.share(own.into_bytes())?;
    AnyRecipe::from_toml(&String::from_utf8_lossy(&bytes)).map_err(recipe_failure)
}

fn recipe_failure(error: regard::Error) -> Failure {
    Failure::input(error, "`regard recipes NAME` prints a valid recipe")
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    #[cfg(feature = "mpi")]
    if let Some(ranks) = regard::train::Mpi::start() {
        return job::run(ranks, |ranks| run_as(args, device, out, ranks));
    }
    run_as(args, device, out, &SingleProcess)
}

/// Trains as one of the ranks; only rank 0 prints.
fn run_as(args: &Args, device: &Device, out: &mut impl Write, ranks: &dyn Ranks) -> Result<(), Failure> {
    let (recipe, folder) = args.plan(ranks)?;
    let interrupt = Interrupt::listen(ranks)?;
    let start = TrainOptions { lengthen: args.resume.is_some() };
    if ranks.rank() > 0 {
        let mut watch = |_: TrainEvent| !interrupt.is_pressed();
        let outcome = recipe.train(&folder, start, device, ranks, &mut watch);
        return outcome.map(drop).map_err(|error| training_failure(error, &folder));
    }
    let resume = format!("`regard train --resume {}` resumes it", folder.display());
    Job { recipe: &recipe, folder: &folder, start, device, ranks, interrupt: &interrupt, resume: &resume }.run()?;
    summary(&recipe, &folder, out)
}

/// A run with its output.
pub struct Job<'a> {
    pub recipe: &'a AnyRecipe,
    pub folder: &'a Path,
    pub start: TrainOptions,
    pub device: &'a Device,
    pub ranks: &'a dyn Ranks,
    pub interrupt: &'a Interrupt,
    /// How to resume after an interruption.
    pub resume: &'a str,
}

impl Job<'_> {
    /// Trains or resumes to the end, and writes the report; an interruption is a failure.
    pub fn run(self) -> Result<(), Failure> {
        let Self { recipe, folder, start, device, ranks, interrupt, resume } = self;
        let common = recipe.common();
        writeln!(stderr(), "training    {} on {}", common.model, common.data)?;
        writeln!(stderr(), "run folder  {}", folder.display())?;
        let mut watch = ProgressReporter::new(recipe, folder, interrupt.clone());
        let outcome = recipe.train(folder, start, device, ranks, &mut |event| watch.show(&event));
        let problem = watch.finish();
        let outcome = outcome.map_err(|error| training_failure(error, folder))?;
        problem.map_or(Ok(()), Err)?;
        match outcome {
            TrainOutcome::Finished => Ok(()),
            TrainOutcome::Patience => {
                Ok(writeln!(stderr(), "no better validation for {} epochs: done", common.patience)?)
            }
            TrainOutcome::Stopped { step } => Err(Failure::Stopped {
                message: format!("stopped after step {step}, which is saved"),
                hint: resume.into(),
                status: interrupt.status(),
            }),
        }
    }
}

/// Prints the result of the run.
fn summary(recipe: &AnyRecipe, folder: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let (history, task) = (read_history(folder)?, recipe.info());
    let mut facts = Vec::new();
    if let Some(best) = history.best(task.primary()) {
        facts.push((
            "best epoch".to_string(),
            format!("{}, by {} on the validation part", best.epoch, task.primary().label),
        ));
        facts.push(("validation".into(), task.show(&best.metrics)));
    }
    if let Some(test) = &history.test {
        facts.push(("test".into(), task.show(&test.metrics)));
    }
    facts.push(("time".into(), format!("{:.0} s", history.seconds())));
    facts.push(("weights".into(), folder.join("best.safetensors").display().to_string()));
    facts.push(("report".into(), folder.join("REPORT.html").display().to_string()));
    for (name, value) in facts {
        writeln!(out, "{name:<11} {value}")?;
    }
    Ok(())
}

fn training_failure(error: regard::Error, folder: &Path) -> Failure {
    let resume = format!("`regard train --resume {}` resumes from the last checkpoint", folder.display());
    match &error {
        regard::Error::Diverged { .. } => Failure::ours(
            error,
            "a smaller `optimiser.rate`, a longer `schedule.warmup` or a `clip` of 1 usually helps",
        ),
        regard::Error::Rank { .. } => Failure::ours(error, resume),
        _ => error.into(),
    }
}
