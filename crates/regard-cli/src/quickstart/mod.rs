//! `regard quickstart`: trains small models and compares them.

mod maps;
mod page;

use burn::tensor::Device;
use regard::Pass;
use regard::cost::Convention;
use regard::evaluate::{Accuracy, History, Rotation};
use regard::models::Model;
use regard::report::Table;
use regard::tasks::AnyRecipe;
use regard::tasks::classify::{Classification, Recipe};
use regard::train::{SingleProcess, TrainOptions, read_history};
use regard::weights::{self, LoadOptions};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::recipes;
use crate::train::{Interrupt, Job};

/// Train five small models on real pictures and see how good they are, in five minutes
///
/// Prints a table and writes REPORT.html, with training curves and attention maps. Models that
/// are already trained are not trained again.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Output folder [default: regard-out/quickstart, with `--small` regard-out/quickstart-small]
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Use only a few pictures and steps, to check that everything works
    #[arg(long)]
    small: bool,
}

/// The models, each with a recipe that trains it in about a minute.
const MODELS: [(&str, &str); 5] = [
    ("vit-nano", "quickstart-vit"),
    ("san-nano-pairwise", "quickstart-window"),
    ("san-nano-patchwise", "quickstart"),
    ("sasa-nano", "quickstart-window"),
    ("resnet-nano", "quickstart"),
];

/// A trained model with its history.
struct TrainedModel {
    folder: PathBuf,
    task: Classification,
    model: Model,
    history: History,
    upside_down: Accuracy,
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    // different recipes need different folders
    let usual = if args.small { "regard-out/quickstart-small" } else { "regard-out/quickstart" };
    let folder = args.out.clone().unwrap_or_else(|| usual.into());
    fs::create_dir_all(&folder).map_err(|error| {
        Failure::input(
            format!("cannot create the folder `{}`: {error}", folder.display()),
            "choose another with `--out`",
        )
    })?;
    let interrupt = Interrupt::listen(&SingleProcess)?;
    let mut trained = Vec::new();
    for (model, by) in MODELS {
        let (recipe, run) = (recipe(model, by, args.small)?, folder.join(model));
        Job {
            recipe: &AnyRecipe::Classify(recipe.clone()),
            folder: &run,
            start: TrainOptions::default(),
            device,
            ranks: &SingleProcess,
            interrupt: &interrupt,
            resume: "run the same command to resume",
        }
        .run()?;
        trained.push(TrainedModel::of(&recipe, run, device)?);
    }
    write!(out, "{}", table(&trained)?.text())?;
    let report = folder.join("REPORT.html");
    page::write(&report, &trained, device)?;
    writeln!(out, "\nreport  {}", report.display())?;
    writeln!(out, "\ntry next:")?;
    writeln!(out, "  regard train fashion --model san-nano-pairwise")?;
    writeln!(out, "  regard train fashion --data DIR          on your own pictures, one folder per class")?;
    writeln!(out, "  regard data browse fashion -o sheet.png  what a model sees")?;
    writeln!(out, "  regard gallery                           where each operator looks")?;
    Ok(())
}

/// The recipe of a model, shortened with `--small`.
fn recipe(model: &str, by: &str, small: bool) -> Result<Recipe, Failure> {
    let mut recipe = recipes::read_classify(by)?;
    recipe.common.model = model.into();
    if small {
        (recipe.own.per_class, recipe.own.test_per_class, recipe.own.batch) = (7, 4, 32);
    }
    Ok(recipe)
}

impl TrainedModel {
    fn of(recipe: &Recipe, folder: PathBuf, device: &Device) -> Result<Self, Failure> {
        let task = Classification::of(recipe)?;
        let best = folder.join("best.safetensors");
        let model = weights::load(task.config.init(device)?, &best, &LoadOptions::default())?.model;
        let mut upside_down = Accuracy::default();
        for batch in task.measuring(&task.test).epoch(0, 0) {
            let batch = batch?;
            let labels: Vec<usize> = batch.targets.iter().map(|target| target.class).collect();
            let images = batch.tensor(device);
            upside_down.add(model.forward(Rotation::UpsideDown.apply(images)?, &mut Pass::silent()), &labels);
        }
        let history = read_history(&folder)?;
        Ok(Self { folder, task, model, history, upside_down })
    }

    fn name(&self) -> &str {
        &self.task.recipe.common.model
    }
}

fn table(trained: &[TrainedModel]) -> Result<Table, Failure> {
    let mut table = Table::new().words("model");
    for name in ["accuracy", "upside-down", "parameters", "multiply-adds", "pictures/s", "seconds"] {
        table = table.numbers(name);
    }
    for one in trained {
        let ledger = one.task.config.ledger(one.task.config.image())?;
        table.row([
            one.name().to_string(),
            format!("{:.2} %", 100.0 * one.history.test.as_ref().map_or(f64::NAN, |test| test.metric("top1"))),
            format!("{:.2} %", 100.0 * one.upside_down.top1()),
            ledger.parameters().to_string(),
            format!("{:.1} M", ledger.total(Convention::MultiplyAdds) as f64 / 1e6),
            format!("{:.0}", one.history.items_per_second()),
            format!("{:.0}", one.history.seconds()),
        ]);
    }
    Ok(table)
}

/// Writes a text atomically.
fn put(path: &Path, text: &str) -> Result<(), Failure> {
    let failed = |error| Failure::ours(format!("{}: {error}", path.display()), "is the disk full?");
    regard::file::replace(path, text.as_bytes()).map_err(failed)
}
