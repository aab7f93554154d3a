//! `regard compare`: one recipe for several models and seeds, and an honest table.

use burn::tensor::Device;
use regard::cost::Convention;
use regard::report::Table;
use regard::report::figure::{Bar, Bars, Figure as _};
use regard::train::{Alone, Recipe, read_history};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::models::print_json;
use crate::recipes;
use crate::train::{Interrupt, to_the_end};

/// Train several models by the same recipe, with several seeds, and compare them
///
/// What is trained already is not trained again: the same command goes on where it was.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A TOML file, or the name of a recipe that comes along
    recipe: String,

    /// Presets, each with changes of its fields if you like: `vit-nano,san-nano-pairwise+sharing=all-shared`
    #[arg(long, value_name = "A,B,C", value_delimiter = ',', required = true)]
    models: Vec<String>,

    #[arg(long, value_name = "0,1,2", value_delimiter = ',', default_value = "0")]
    seeds: Vec<u64>,

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

/// A model and what its runs came to.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    /// Share of right answers of each seed.
    top1: Vec<f64>,
    mean: f64,
    /// Between seeds, of the sample; none for one seed.
    deviation: Option<f64>,
    parameters: u64,
    multiply_adds: u64,
    pictures_per_second: f64,
    seconds: f64,
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let (recipe, called) = recipes::read(&args.recipe)?;
    let recipe = args.set.iter().try_fold(recipe, |recipe, change| changed(&recipe, change))?;
    let folder = args.output.clone().unwrap_or_else(|| Path::new("runs").join(format!("compare-{called}")));
    // every name is checked before the first run begins
    let variants: Vec<(String, Recipe)> =
        args.models.iter().map(|name| Ok((name.clone(), variant(&recipe, name)?))).collect::<Result<_, Failure>>()?;
    let interrupt = Interrupt::listen(&Alone)?;
    let mut rows = Vec::new();
    for (name, recipe) in &variants {
        let mut runs = Vec::new();
        for &seed in &args.seeds {
            let run = folder.join(name.replace(['/', '='], "-")).join(format!("seed{seed}"));
            let recipe = Recipe { seed, ..recipe.clone() };
            to_the_end(&recipe, &run, device, &Alone, &interrupt, "the same command goes on")?;
            runs.push(read_history(&run)?);
        }
        let top1: Vec<f64> = runs.iter().filter_map(|history| Some(history.best()?.top1)).collect();
        let (mean, deviation) = mean_and_deviation(&top1);
        let (config, _) = recipe.model(regard::train::Parts::of(recipe)?.train.classes().len())?;
        let ledger = config.ledger(config.image())?;
        let average = |value: fn(&regard::evaluate::History) -> f64| {
            mean_and_deviation(&runs.iter().map(value).collect::<Vec<_>>()).0
        };
        rows.push(Row {
            model: name.clone(),
            top1,
            mean,
            deviation,
            parameters: ledger.parameters(),
            multiply_adds: ledger.total(Convention::MultiplyAdds),
            pictures_per_second: average(regard::evaluate::History::pictures_per_second),
            seconds: average(regard::evaluate::History::seconds),
        });
        // what is known so far, in case the rest is interrupted
        write(&folder, &rows, args.seeds.len())?;
    }
    if args.json {
        return print_json(&rows, out);
    }
    writeln!(out, "{}", table(&rows).text())?;
    writeln!(out, "also in {}: compare.md, compare.json, compare.svg", folder.display())?;
    Ok(())
}

fn changed(recipe: &Recipe, change: &str) -> Result<Recipe, Failure> {
    let hint = "`regard recipes NAME` prints a recipe with keys that work";
    let Some((key, value)) = change.split_once('=') else {
        return Err(Failure::input(format!("`{change}` has no value"), "write `key=value`"));
    };
    recipe.with(key.trim(), value.trim()).map_err(|error| Failure::input(error, hint))
}

/// The recipe for `NAME+field=value+field=value`.
fn variant(recipe: &Recipe, name: &str) -> Result<Recipe, Failure> {
    let mut parts = name.split('+');
    let model = parts.next().unwrap_or_default().to_string();
    let recipe = Recipe { model, ..recipe.clone() };
    recipe.validate()?;
    let recipe = parts.try_fold(recipe, |recipe, change| changed(&recipe, &format!("set.{change}")))?;
    // a field that the model does not have is told before anything runs
    recipe.model(10)?;
    Ok(recipe)
}

/// The mean, and the deviation of a sample when there are two or more.
fn mean_and_deviation(values: &[f64]) -> (f64, Option<f64>) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (values.len() > 1).then(|| (squares / (count - 1.0)).sqrt()))
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new().words("model");
    for name in ["top-1 %", "seeds", "parameters", "multiply-adds", "pictures/s", "seconds"] {
        table = table.numbers(name);
    }
    for row in rows {
        let spread = row.deviation.map_or(String::new(), |deviation| format!(" ± {:.2}", 100.0 * deviation));
        table.row([
            row.model.clone(),
            format!("{:.2}{spread}", 100.0 * row.mean),
            row.top1.len().to_string(),
            row.parameters.to_string(),
            format!("{:.1} M", row.multiply_adds as f64 / 1e6),
            format!("{:.0}", row.pictures_per_second),
            format!("{:.0}", row.seconds),
        ]);
    }
    table
}

fn write(folder: &Path, rows: &[Row], seeds: usize) -> Result<(), Failure> {
    let figure = Bars {
        title: format!("test accuracy, mean of {seeds} seeds"),
        x: "top-1 %".into(),
        decimals: 2,
        bars: rows
            .iter()
            .map(|row| Bar {
                name: row.model.clone(),
                value: 100.0 * row.mean,
                deviation: row.deviation.map(|deviation| 100.0 * deviation),
            })
            .collect(),
    };
    let json = serde_json::to_string_pretty(rows).expect("plain data");
    fs::create_dir_all(folder)?;
    for (name, text) in [("compare.md", table(rows).markdown()), ("compare.json", json), ("compare.svg", figure.svg())]
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
    fn a_variant_changes_fields_of_its_model_and_a_wrong_one_is_named() {
        let recipe = variant(&Recipe::default(), "vit-nano+depth=2+image=[28,28]").unwrap();
        let (config, _) = recipe.model(10).unwrap();
        assert_eq!(config.image(), [28, 28]);
        assert!(config.to_toml().contains("depth = 2"));
        assert!(variant(&Recipe::default(), "vit-nano+dept=2").unwrap_err().to_string().contains("`depth`"));
        assert!(variant(&Recipe::default(), "vit-nanu").unwrap_err().to_string().contains("`vit-nano`"));
        assert!(variant(&Recipe::default(), "vit-nano+depth").unwrap_err().to_string().contains("no value"));
    }

    #[test]
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(mean_and_deviation(&[0.5]), (0.5, None));
        let (mean, deviation) = mean_and_deviation(&[1.0, 2.0, 3.0]);
        assert_eq!((mean, deviation), (2.0, Some(1.0)));
    }
}
