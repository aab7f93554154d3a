//! `regard compare`: one recipe for several models and seeds, and a table.

use burn::tensor::Device;
use regard::evaluate::{History, TaskInfo, Values};
use regard::report::Table;
use regard::report::figure::{Bar, Bars, Figure as _};
use regard::tasks::AnyRecipe;
use regard::train::{NamedResult, SingleProcess, TrainOptions, read_history};
use regard::weights::{EMBEDDED, EMBEDDED_VIDEOS};
use serde::Serialize;
use std::fs;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::models::print_json;
use crate::recipes;
use crate::train::{Interrupt, Job, with_change};

/// Train several models with one recipe and several seeds, and compare them
///
/// Finished runs are not trained again: the same command continues where it stopped.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML file, or a built-in recipe (`regard recipes` lists them)
    recipe: String,

    /// Presets, optionally with changed fields: `vit-nano,san-nano-pairwise+sharing=all-shared`; models that are
    /// already trained (a run folder, PRESET=WEIGHTS, `hf:owner/name`, `fashion-vit`) are only evaluated
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', required = true)]
    models: Vec<String>,

    /// Random seeds; each model is trained once per seed
    #[arg(long, value_name = "0,1,2", value_delimiter = ',', default_value = "0")]
    seeds: Vec<u64>,

    /// Train on other data: a folder, a file, or `fashion`
    #[arg(long, value_name = "PATH")]
    data: Option<String>,

    /// Number of passes over the training data
    #[arg(long, value_name = "COUNT")]
    epochs: Option<usize>,

    /// Change any key of the recipe, such as `epochs=3`
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Folder for the runs and the tables [default: runs/compare-RECIPE]
    #[arg(long, short, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A model and the results of its runs.
#[derive(Debug, Serialize)]
struct ComparedModel {
    model: String,
    /// The deciding metric for each seed: on the test part, or on validation if there is none.
    values: Vec<f64>,
    mean: f64,
    /// Sample standard deviation over seeds; `None` for one seed.
    deviation: Option<f64>,
    /// The means of all metrics over the seeds.
    metrics: Values,
    parameters: u64,
    multiply_adds: Option<u64>,
    /// `None` for a model that was not trained here.
    items_per_second: Option<f64>,
    seconds: Option<f64>,
}

/// A model of the table.
enum Entrant {
    /// To train with the recipe and these changes.
    Trained(Box<AnyRecipe>),
    /// Already trained.
    Measured(NamedResult),
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let (mut recipe, called) = recipes::read_any(&args.recipe)?;
    if let Some(data) = &args.data {
        recipe.common_mut().data.clone_from(data);
    }
    recipe.common_mut().epochs = args.epochs.unwrap_or(recipe.common().epochs);
    let recipe = args.set.iter().try_fold(recipe, |recipe, change| with_change(&recipe, change))?;
    let folder = args.output.clone().unwrap_or_else(|| Path::new("runs").join(format!("compare-{called}")));
    // all names are checked before the first run begins
    let entrants: Vec<(&String, Entrant)> =
        args.models.iter().map(|name| Ok((name, entrant(&recipe, name, device)?))).collect::<Result<_, Failure>>()?;
    let (interrupt, task) = (Interrupt::listen(&SingleProcess)?, recipe.info());
    let mut rows = Vec::new();
    for (name, entrant) in entrants {
        let row = match entrant {
            Entrant::Measured(result) => ComparedModel::measured(name, &task, &result),
            Entrant::Trained(recipe) => {
                let mut runs = Vec::new();
                for &seed in &args.seeds {
                    let run = folder.join(name.replace(['/', '='], "-")).join(format!("seed{seed}"));
                    let mut recipe = (*recipe).clone();
                    recipe.common_mut().seed = seed;
                    Job {
                        recipe: &recipe,
                        folder: &run,
                        start: TrainOptions::default(),
                        device,
                        ranks: &SingleProcess,
                        interrupt: &interrupt,
                        resume: "the same command goes on",
                    }
                    .run()?;
                    runs.push(read_history(&run)?);
                }
                ComparedModel::of(name, &recipe, &task, &runs)?
            }
        };
        rows.push(row);
        // the results so far, in case of an interruption
        write(&folder, &rows, &task, args.seeds.len())?;
    }
    if args.json {
        return print_json(&rows, out);
    }
    writeln!(out, "{}", table(&rows, &task).text())?;
    writeln!(out, "also in {}: compare.md, compare.json, compare.svg", folder.display())?;
    Ok(())
}

impl ComparedModel {
    /// A model that was not trained here.
    fn measured(name: &str, task: &TaskInfo, NamedResult { values, cost }: &NamedResult) -> Self {
        let primary = values.get(task.primary().name.as_ref()).copied().unwrap_or(f64::NAN);
        Self {
            model: name.into(),
            values: vec![primary],
            mean: primary,
            deviation: None,
            metrics: values.clone(),
            parameters: cost.parameters,
            multiply_adds: cost.multiply_adds,
            items_per_second: None,
            seconds: None,
        }
    }

    fn of(name: &str, recipe: &AnyRecipe, task: &TaskInfo, runs: &[History]) -> Result<Self, Failure> {
        let primary = task.primary();
        let measured: Vec<&Values> = runs.iter().filter_map(|run| measured(run, task)).collect();
        let of =
            |metric: &str| -> Vec<f64> { measured.iter().filter_map(|values| values.get(metric).copied()).collect() };
        let values = of(&primary.name);
        let (mean, deviation) = mean_and_deviation(&values);
        let means =
            task.metrics.iter().map(|metric| (metric.name.to_string(), mean_and_deviation(&of(&metric.name)).0));
        let average = |value: fn(&History) -> f64| mean_and_deviation(&runs.iter().map(value).collect::<Vec<_>>()).0;
        let cost = recipe.cost()?;
        Ok(Self {
            model: name.into(),
            values,
            mean,
            deviation,
            metrics: means.filter(|(_, mean)| mean.is_finite()).collect(),
            parameters: cost.parameters,
            multiply_adds: cost.multiply_adds,
            items_per_second: Some(average(History::items_per_second)),
            seconds: Some(average(History::seconds)),
        })
    }
}

/// The result of a run: on the test part, or the best on validation if there is none.
fn measured<'a>(run: &'a History, task: &TaskInfo) -> Option<&'a Values> {
    match &run.test {
        Some(test) => Some(&test.metrics),
        None => run.best(task.primary()).map(|best| &best.metrics),
    }
}

/// A model to train, or a trained one, which is evaluated at once.
fn entrant(recipe: &AnyRecipe, name: &str, device: &Device) -> Result<Entrant, Failure> {
    if !is_trained(name) {
        return Ok(Entrant::Trained(Box::new(variant(recipe, name)?)));
    }
    writeln!(stderr(), "measuring   {name} on {}", recipe.common().data)?;
    Ok(Entrant::Measured(recipe.measure_named(name, device)?))
}

/// Whether a name, by the rules of [`regard::weights::resolve`], is that of a model with weights.
fn is_trained(name: &str) -> bool {
    let (model, path) = (name.split('+').next().unwrap_or_default(), Path::new(name));
    path.join("model.toml").is_file()
        || EMBEDDED.iter().any(|one| one.name == name)
        || EMBEDDED_VIDEOS.iter().any(|one| one.name == name)
        || model.contains('=')
        || name.starts_with("hf:")
        || path.join("config.json").is_file() && regard::models::preset(name).is_err()
        || path.is_file() && path.extension().is_none_or(|extension| extension != "toml")
}

/// The recipe for `NAME+field=value+field=value`.
fn variant(recipe: &AnyRecipe, name: &str) -> Result<AnyRecipe, Failure> {
    let mut parts = name.split('+');
    let mut recipe = recipe.clone();
    recipe.common_mut().model = parts.next().unwrap_or_default().to_string();
    recipe.validate()?;
    let recipe = parts.try_fold(recipe, |recipe, change| with_change(&recipe, &format!("set.{change}")))?;
    // unknown fields are reported before anything runs
    recipe.cost()?;
    Ok(recipe)
}

/// The mean, and the sample standard deviation of two or more.
fn mean_and_deviation(values: &[f64]) -> (f64, Option<f64>) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()))
}

fn table(rows: &[ComparedModel], task: &TaskInfo) -> Table {
    let primary = task.primary();
    let mut table = Table::new().words("model").numbers(primary.heading());
    for name in ["seeds", "parameters", "multiply-adds", &format!("{}/s", task.items), "seconds"] {
        table = table.numbers(name);
    }
    for row in rows {
        let spread = row.deviation.map_or(String::new(), |deviation| format!(" ± {:.2}", primary.scaled(deviation)));
        table.row([
            row.model.clone(),
            format!("{:.2}{spread}", primary.scaled(row.mean)),
            row.values.len().to_string(),
            row.parameters.to_string(),
            row.multiply_adds.map_or("-".into(), |count| format!("{:.1} M", count as f64 / 1e6)),
            row.items_per_second.map_or("-".into(), |speed| format!("{speed:.0}")),
            row.seconds.map_or("-".into(), |seconds| format!("{seconds:.0}")),
        ]);
    }
    table
}

fn write(folder: &Path, rows: &[ComparedModel], task: &TaskInfo, seeds: usize) -> Result<(), Failure> {
    let primary = task.primary();
    let figure = Bars {
        title: format!("{} on the test part, mean of {seeds} seeds", primary.label),
        x: primary.heading(),
        decimals: 2,
        bars: rows
            .iter()
            .map(|row| Bar {
                name: row.model.clone(),
                value: primary.scaled(row.mean),
                deviation: row.deviation.map(|deviation| primary.scaled(deviation)),
            })
            .collect(),
    };
    let json = serde_json::to_string_pretty(rows).expect("plain data");
    fs::create_dir_all(folder)?;
    for (name, text) in
        [("compare.md", table(rows, task).markdown()), ("compare.json", json), ("compare.svg", figure.svg())]
    {
        let path = folder.join(name);
        regard::file::replace(&path, text.as_bytes())
            .map_err(|error| Failure::ours(format!("{}: {error}", path.display()), "is the disk full?"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_a_folder_of_another_library_and_a_file_of_weights_are_trained_models_and_a_preset_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        for file in ["run/model.toml", "timm/config.json", "own.toml", "own.safetensors"] {
            fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
            fs::write(folder.path().join(file), "").unwrap();
        }
        let run = path("run");
        for name in [&*run, &path("timm"), &path("own.safetensors"), "fashion-vit", "hf:a/b", "vit-nano=FILE"] {
            assert!(is_trained(name), "{name}");
        }
        for name in ["vit-nano", "vit-nano+image=[28,28]", &path("own.toml"), &path("none")] {
            assert!(!is_trained(name), "{name}");
        }
    }

    #[test]
    fn a_variant_changes_fields_of_its_model_and_a_wrong_one_is_named() {
        let recipe = AnyRecipe::from_toml("").unwrap();
        let thin = variant(&recipe, "vit-nano+depth=2+image=[28,28]").unwrap();
        assert!(thin.cost().unwrap().parameters < variant(&recipe, "vit-nano").unwrap().cost().unwrap().parameters);
        assert!(variant(&recipe, "vit-nano+dept=2").unwrap_err().to_string().contains("`depth`"));
        assert!(variant(&recipe, "vit-nanu").unwrap_err().to_string().contains("`vit-nano`"));
        assert!(variant(&recipe, "vit-nano+depth").unwrap_err().to_string().contains("no value"));
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[0.5]), (0.5, None));
        let (mean, deviation) = mean_and_deviation(&[1.0, 2.0, 3.0]);
        assert_eq!((mean, deviation), (2.0, Some(1.0)));
    }
}
