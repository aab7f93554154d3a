//! `regard eval`: how many pictures of a folder does a model get right?

use burn::tensor::Device;
use indicatif::{ProgressBar, ProgressStyle};
use regard::Pass;
use regard::evaluate::Accuracy;
use serde::Serialize;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::failure::Failure;
use crate::model::{ModelArgs, WeightsArgs, at_least_one, batch, pictures_in, read_picture};
use crate::models::print_json;
use crate::predict::label_names;

/// Measure the accuracy of a model on a folder of pictures
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    weights: WeightsArgs,

    /// A folder with a folder for each class (in the order of their names), or with a `labels.csv` of `file,label`
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Names of the classes, for labels that are names
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Pictures at a time
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = at_least_one)]
    batch: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    pictures: usize,
    unreadable: usize,
    top1: f64,
    top5: f64,
    loss: f64,
    pictures_per_second: f64,
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let (mut config, preprocess) = args.model.config()?;
    let names = label_names(args.labels.as_ref(), args.weights.new_head.unwrap_or(config.classes()))?;
    let samples = samples(&args.data, &names)?;
    let model = args.weights.load(&mut config, device)?;
    let bar = ProgressBar::new(samples.len() as u64);
    bar.set_style(
        ProgressStyle::with_template("{pos} of {len} {wide_bar} {per_sec} {eta} {msg}").expect("the template is fixed"),
    );

    let (mut accuracy, mut unreadable, start) = (Accuracy::default(), 0, Instant::now());
    for samples in samples.chunks(args.batch) {
        let (mut pictures, mut labels) = (Vec::new(), Vec::new());
        for (path, label) in samples {
            match read_picture(path, &preprocess, &config) {
                Ok(picture) => {
                    pictures.push(picture);
                    labels.push(*label);
                }
                Err(error) => {
                    unreadable += 1;
                    bar.suspend(|| writeln!(stderr(), "error: {error}"))?;
                }
            }
        }
        if !pictures.is_empty() {
            accuracy.add(model.forward(batch(&pictures, &config, device), &mut Pass::silent()), &labels);
            bar.set_message(format!("top-1 {:.2} %", 100.0 * accuracy.top1()));
        }
        bar.inc(samples.len() as u64);
    }
    bar.finish_and_clear();
    if accuracy.pictures == 0 {
        return Err(Failure::input(
            format!("no picture of `{}` could be read", args.data.display()),
            "each is named above",
        ));
    }
    let report = Report {
        pictures: accuracy.pictures,
        unreadable,
        top1: accuracy.top1(),
        top5: accuracy.top5(),
        loss: accuracy.loss(),
        pictures_per_second: accuracy.pictures as f64 / start.elapsed().as_secs_f64(),
    };
    if args.json {
        print_json(&report, out)?;
    } else {
        writeln!(out, "pictures    {}", report.pictures)?;
        writeln!(out, "unreadable  {unreadable}")?;
        writeln!(out, "top-1       {:.2} %", 100.0 * report.top1)?;
        writeln!(out, "top-5       {:.2} %", 100.0 * report.top5)?;
        writeln!(out, "loss        {:.4}", report.loss)?;
        writeln!(out, "speed       {:.1} pictures/s", report.pictures_per_second)?;
    }
    match unreadable {
        0 => Ok(()),
        bad => Err(Failure::input(
            format!("{bad} of {} pictures could not be read", samples.len()),
            "each is named above; the numbers are of the others",
        )),
    }
}

/// Every picture and its class.
fn samples(folder: &Path, names: &[String]) -> Result<Vec<(PathBuf, usize)>, Failure> {
    let manifest = folder.join("labels.csv");
    let samples =
        if manifest.is_file() { from_manifest(folder, &manifest, names)? } else { from_folders(folder, names)? };
    if samples.is_empty() {
        return Err(Failure::input(
            format!("no pictures in `{}`", folder.display()),
            "it needs a folder for each class, or a labels.csv of `file,label`",
        ));
    }
    Ok(samples)
}

fn from_manifest(folder: &Path, manifest: &Path, names: &[String]) -> Result<Vec<(PathBuf, usize)>, Failure> {
    let text = std::fs::read_to_string(manifest)
        .map_err(|error| Failure::input(format!("cannot read `{}`: {error}", manifest.display()), "is it text?"))?;
    let mut samples = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let parts = line.rsplit_once(',').map(|(file, label)| (file.trim(), label.trim()));
        let class = parts.and_then(|(_, label)| class_of(label, names));
        match (parts, class) {
            (Some((file, _)), Some(class)) => samples.push((folder.join(file), class)),
            // the first line may be a heading
            _ if number == 0 => {}
            (Some((_, label)), None) => {
                return Err(Failure::input(
                    format!("line {} of `{}`: unknown label `{label}`", number + 1, manifest.display()),
                    format!("a label is a name, or a number below {}", names.len()),
                ));
            }
            (None, _) => {
                return Err(Failure::input(
                    format!("line {} of `{}` is not `file,label`: {line}", number + 1, manifest.display()),
                    "one picture a line",
                ));
            }
        }
    }
    Ok(samples)
}

fn from_folders(folder: &Path, names: &[String]) -> Result<Vec<(PathBuf, usize)>, Failure> {
    let entries = std::fs::read_dir(folder)
        .map_err(|error| Failure::input(format!("cannot read `{}`: {error}", folder.display()), "is it a folder?"))?;
    let mut classes: Vec<PathBuf> =
        entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| path.is_dir()).collect();
    classes.sort();
    if !classes.is_empty() && classes.len() != names.len() {
        return Err(Failure::input(
            format!("`{}` has {} folders, the model {} classes", folder.display(), classes.len(), names.len()),
            "one folder for each class, or a labels.csv of `file,label`",
        ));
    }
    let mut samples = Vec::new();
    for (class, folder) in classes.iter().enumerate() {
        samples.extend(pictures_in(folder)?.into_iter().map(|path| (path, class)));
    }
    Ok(samples)
}

fn class_of(label: &str, names: &[String]) -> Option<usize> {
    label.parse().ok().filter(|class| *class < names.len()).or_else(|| names.iter().position(|name| name == label))
}
