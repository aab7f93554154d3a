//! `regard train`: a recipe becomes a run folder.

#[cfg(feature = "mpi")]
mod job;
mod report;
mod text;
mod watch;

pub use report::write_report;
pub use watch::{Interrupt, Watch};

use burn::tensor::Device;
use regard::train::{Alone, AnyRecipe, Event, Outcome, Ranks, Recipe, Written, train};
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::recipes;

/// Train a model by a recipe, or go on with a run
///
/// Several machines: a build with `--features mpi` under `mpirun -n RANKS regard train RECIPE` gives every rank its part
/// of each batch. Ranks on one machine share its cores: `RAYON_NUM_THREADS=CORES/RANKS` in the environment.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML file, or the name of a recipe that comes along (`regard recipes` lists them)
    #[arg(required_unless_present = "resume")]
    recipe: Option<String>,

    /// The folder of the run; one that is there goes on where it was [default: runs/RECIPE-MODEL-seedN]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Go on with the run of this folder, as its own recipe says
    #[arg(long, value_name = "DIR", conflicts_with_all = ["recipe", "output", "set", "model", "data", "epochs", "seed"])]
    resume: Option<PathBuf>,

    /// Train another model, a preset of `regard models`
    #[arg(long, value_name = "NAME")]
    model: Option<String>,

    /// Train on other data: a folder, a file, or `fashion`
    #[arg(long, value_name = "PATH")]
    data: Option<String>,

    #[arg(long, value_name = "COUNT")]
    epochs: Option<usize>,

    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,

    /// Change any other key of the recipe, such as `optimiser.rate=1e-4` or `set.depth=3`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl Args {
    /// What to train where.
    fn plan(&self, ranks: &dyn Ranks) -> Result<(AnyRecipe, PathBuf), Failure> {
        if let Some(folder) = &self.resume {
            return Ok((resumed(folder, ranks)?, folder.clone()));
        }
        let name = self.recipe.as_deref().expect("clap asks for one of the two");
        let (recipe, called) = recipes::read_any(name)?;
        let recipe = match recipe {
            AnyRecipe::Pictures(recipe) => AnyRecipe::Pictures(self.changed(recipe)?),
            AnyRecipe::Translation(recipe) => AnyRecipe::Translation(self.changed(recipe)?),
        };
        let (model, seed) = match &recipe {
            AnyRecipe::Pictures(recipe) => (&recipe.model, recipe.seed),
            AnyRecipe::Translation(recipe) => (&recipe.model, recipe.seed),
        };
        let default = || Path::new("runs").join(format!("{called}-{model}-seed{seed}"));
        let folder = self.output.clone().unwrap_or_else(default);
        Ok((recipe, folder))
    }

    /// A recipe of any kind with what was typed.
    fn changed<R: Written>(&self, mut recipe: R) -> Result<R, Failure> {
        let common = recipe.common();
        if let Some(model) = &self.model {
            common.model.clone_from(model);
        }
        if let Some(data) = &self.data {
            common.data.clone_from(data);
        }
        *common.epochs = self.epochs.unwrap_or(*common.epochs);
        *common.seed = self.seed.unwrap_or(*common.seed);
        for change in &self.set {
            let Some((key, value)) = change.split_once('=') else {
                return Err(Failure::input(format!("`--set {change}` has no value"), "write `--set key=value`"));
            };
            recipe = recipe.with(key.trim(), value.trim()).map_err(recipe_failure)?;
        }
        recipe.check().map_err(recipe_failure)?;
        Ok(recipe)
    }
}

/// The recipe of a run that goes on; its folder may be seen by the first process alone.
fn resumed(folder: &Path, ranks: &dyn Ranks) -> Result<AnyRecipe, Failure> {
    let own = if ranks.rank() == 0 {
        let path = folder.join("recipe.toml");
        std::fs::read_to_string(&path).map_err(|error| {
            let hint = "`--resume` wants the folder of a run; `regard train RECIPE` begins one";
            Failure::input(format!("{}: {error}", path.display()), hint)
        })?
    } else {
        String::new()
    };
    let bytes = ranks.share(own.into_bytes())?;
    AnyRecipe::from_toml(&String::from_utf8_lossy(&bytes)).map_err(recipe_failure)
}

fn recipe_failure(error: regard::Error) -> Failure {
    Failure::input(error, "`regard recipes NAME` prints a recipe with keys that work")
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    #[cfg(feature = "mpi")]
    if let Some(ranks) = regard::train::Mpi::start() {
        return job::run(ranks, |ranks| run_as(args, device, out, ranks));
    }
    run_as(args, device, out, &Alone)
}

/// Trains as one of the ranks; the first speaks for all.
fn run_as(args: &Args, device: &Device, out: &mut impl Write, ranks: &dyn Ranks) -> Result<(), Failure> {
    let (recipe, folder) = args.plan(ranks)?;
    let interrupt = Interrupt::listen(ranks)?;
    let recipe = match recipe {
        AnyRecipe::Pictures(recipe) => recipe,
        AnyRecipe::Translation(recipe) if ranks.count() == 1 => {
            return text::run(&recipe, &folder, device, &interrupt, out);
        }
        AnyRecipe::Translation(_) => {
            let message = format!("translation in {} processes", ranks.count());
            return Err(Failure::input(message, "a translator trains in one process"));
        }
    };
    if ranks.rank() > 0 {
        let mut watch = |_: Event| !interrupt.pressed();
        let outcome = train(&folder, &recipe, device, ranks, &mut watch);
        return outcome.map(drop).map_err(|error| training_failure(error, &folder));
    }
    let resume = format!("`regard train --resume {}` goes on", folder.display());
    to_the_end(&recipe, &folder, device, ranks, &interrupt, &resume)?;
    summary(&folder, out)
}

/// Trains to the end, from wherever the run is, and reports; an interruption is a failure with `resume` as its hint.
pub fn to_the_end(
    recipe: &Recipe,
    folder: &Path,
    device: &Device,
    ranks: &dyn Ranks,
    interrupt: &Interrupt,
    resume: &str,
) -> Result<(), Failure> {
    writeln!(stderr(), "training    {} on {}", recipe.model, recipe.data)?;
    writeln!(stderr(), "run folder  {}", folder.display())?;
    let mut watch = Watch::new(recipe, folder, interrupt.clone());
    let outcome = train(folder, recipe, device, ranks, &mut |event| watch.tell(&event));
    let problem = watch.finish();
    let outcome = outcome.map_err(|error| training_failure(error, folder))?;
    problem.map_or(Ok(()), Err)?;
    if let Outcome::Stopped { step } = outcome {
        let message = format!("stopped after step {step}, which is saved");
        return Err(Failure::Stopped { message, hint: resume.into() });
    }
    if outcome == Outcome::Patience {
        writeln!(stderr(), "no better test for {} epochs: done", recipe.patience)?;
    }
    write_report(folder, recipe, device, true)
}

/// What the run came to, as data.
fn summary(folder: &Path, out: &mut impl Write) -> Result<(), Failure> {
    let history = regard::train::read_history(folder)?;
    if let Some(best) = history.best() {
        writeln!(out, "best top-1  {:.2} % (epoch {})", 100.0 * best.top1, best.epoch)?;
        writeln!(out, "test loss   {:.4}", best.test_loss)?;
        writeln!(out, "time        {:.0} s", history.seconds())?;
        writeln!(out, "weights     {}", folder.join("best.safetensors").display())?;
        writeln!(out, "report      {}", folder.join("REPORT.html").display())?;
    }
    Ok(())
}

fn training_failure(error: regard::Error, folder: &Path) -> Failure {
    let resume = format!("`regard train --resume {}` goes on from the last checkpoint", folder.display());
    match &error {
        regard::Error::Diverged { .. } => Failure::ours(
            error,
            "a smaller `optimiser.rate`, a longer `schedule.warmup` or a `clip` of 1 usually helps",
        ),
        regard::Error::Rank { .. } => Failure::ours(error, resume),
        _ => error.into(),
    }
}
