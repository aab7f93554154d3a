//! `regard eval`: evaluates models. Classifiers are evaluated here in several respects; everything else as its
//! task says.

mod classes;
mod pictures;
mod print;
mod run;

use burn::tensor::Device;
use regard::evaluate::{ClassificationMetrics, Robustness};
use regard::report::{Figure as _, classes as by_class};
use regard::tasks::{AnyRecipe, named_model};
use regard::train::{EvalRequest, NamedModel, NamedRequest};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::candidates::{Candidate, CandidateArgs};
use crate::failure::Failure;
use crate::files::check_folder;
use crate::model::{at_least_one, class_names, download_bar, field_and_value, note_untrained};
use classes::Classes;
use pictures::{DataArgs, Pictures};
use run::Outputs;

/// Evaluate models: classifiers and detectors on labelled pictures, or the best weights of any
/// run on its data
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    candidates: CandidateArgs,

    #[command(flatten)]
    source: DataArgs,

    /// File of class names, one per line; by default the model's own, or ImageNet's for 1000 classes
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Pictures at a time
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = at_least_one)]
    batch: usize,

    /// Views of a clip in time whose probabilities are averaged; a run has those of its recipe
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = at_least_one)]
    views: usize,

    /// Parts of the frames in each view of a clip: 1 or 3
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = at_least_one)]
    crops: usize,

    /// Also print every class
    #[arg(long)]
    per_class: bool,

    /// Write the confusion matrix as a figure
    #[arg(long, value_name = "FILE.svg")]
    confusion: Option<PathBuf>,

    /// Write the figures into this folder: the confusion matrix; for detectors also precision and recall, and the worst
    /// misses and false alarms
    #[arg(short, long, value_name = "DIR", conflicts_with = "robustness")]
    output: Option<PathBuf>,

    /// Rotate the pictures by 90, 180 and 270 degrees and flip them, and print the drop in accuracy
    #[arg(long, conflicts_with_all = ["per_class", "confusion"])]
    robustness: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.confusion {
        check_figure(path)?;
    }
    let run = args.candidates.only_run().and_then(|folder| Some((folder, run::recipe(folder)?)));
    let own_data = run.as_ref().map(|(_, recipe)| recipe.common().data.clone());
    if let Some((folder, recipe)) = run.filter(|(folder, _)| !run::is_classifier(folder)) {
        args.refuse_classes(folder, &recipe)?;
        let request = EvalRequest { folder, data: &args.source.data(own_data)?, part: args.source.part() };
        return run::print(|watch| recipe.evaluate(&request, device, watch), &args.outputs(), out);
    }
    if let Some(name) = args.candidates.only_name()
        && let Some(model) = named_model(name, &mut download_bar())?
    {
        return measure_named(args, name, model, device, out);
    }
    let candidates = args.candidates.resolve()?;
    let pictures = args.source.open(own_data, candidates.iter().any(Candidate::is_trained_here))?;
    let unreadable = if args.robustness {
        measure_robustness(args, &candidates, &pictures, device, out)?
    } else {
        let [candidate] = &candidates[..] else {
            return Err(Failure::input(
                format!("{} models at a time", candidates.len()),
                "several are compared with `--robustness`",
            ));
        };
        measure(args, candidate, &pictures, device, out)?
    };
    match unreadable {
        0 => Ok(()),
        bad => Err(Failure::input(
            format!("{bad} of {} pictures could not be read", pictures.len()),
            "each is named above; the numbers are of the others",
        )),
    }
}

impl Args {
    fn outputs(&self) -> Outputs<'_> {
        Outputs { json: self.json, confusion: self.confusion.as_deref(), folder: self.output.as_deref() }
    }

    /// Refuses options about classes for tasks without classes.
    fn refuse_classes(&self, run: &Path, recipe: &AnyRecipe) -> Result<(), Failure> {
        let (task, has_classes) = (recipe.info().task, run::has_classes(run));
        let flags = [
            ("--labels", self.labels.is_some()),
            ("--per-class", self.per_class && !has_classes),
            ("--confusion", self.confusion.is_some() && !has_classes),
            ("--output", self.output.is_some() && !has_classes),
            ("--robustness", self.robustness),
        ];
        match flags.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::input(
                format!("`{flag}` is about pictures with classes, and this is a run of the task `{task}`"),
                format!("leave `{flag}` out"),
            )),
            None => Ok(()),
        }
    }
}

/// Evaluates a model, not that of a run, as its task does: its data has to be named.
fn measure_named(
    args: &Args,
    name: &str,
    mut model: Box<dyn NamedModel>,
    device: &Device,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let changes = args.candidates.changes();
    let refused = [
        ("--robustness", args.robustness),
        ("--from", changes.from.is_some()),
        ("--new-head", changes.new_head.is_some()),
    ];
    if let Some((flag, _)) = refused.into_iter().find(|(_, given)| *given) {
        let message = format!("`{flag}` is for classifiers of pictures, `{name}` is {}", model.kind());
        return Err(Failure::input(message, format!("leave `{flag}` out")));
    }
    let data = args.source.data(None)?;
    for change in &changes.set {
        let (field, value) = field_and_value(change)?;
        model.set(field, value)?;
    }
    if model.is_fresh() {
        note_untrained(name)?;
    }
    if let Some(file) = &args.labels {
        model.name_classes(class_names(Some(file), None, model.classes())?);
    }
    let views = [args.views, args.crops];
    let request = NamedRequest { data: &data, part: args.source.part(), batch: args.batch, views };
    run::print(|watch| model.evaluate(&request, device, watch), &args.outputs(), out)
}

/// Evaluates one model in all respects; returns the number of unreadable pictures.
fn measure(
    args: &Args,
    candidate: &Candidate,
    pictures: &Pictures,
    device: &Device,
    out: &mut impl Write,
) -> Result<usize, Failure> {
    let classes = Classes::of(pictures, candidate, args.labels.as_ref())?;
    let (model, start) = (candidate.load(device)?, Instant::now());
    let mut evaluation = ClassificationMetrics::default();
    let unreadable = pictures.visit(&model, args.batch, device, |images, labels| {
        evaluation.add(model.model.forward(images), &classes.of_data(labels));
        Ok(format!("top-1 {:.2} %", 100.0 * evaluation.accuracy.top1()))
    })?;
    let speed = evaluation.accuracy.pictures as f64 / start.elapsed().as_secs_f64();
    if args.confusion.is_some() || args.output.is_some() {
        let svg = by_class::confusion(&evaluation.confusion, &classes.names).svg();
        run::write_figures(&[("confusion.svg", svg)], &args.outputs())?;
    }
    let report = print::ClassificationReport { evaluation: &evaluation, classes: &classes.names, unreadable, speed };
    if args.json {
        report.json(out)?;
    } else {
        report.text(args.per_class, out)?;
    }
    Ok(unreadable)
}

/// Evaluates every model under every rotation and flip; returns the number of unreadable pictures.
fn measure_robustness(
    args: &Args,
    candidates: &[Candidate],
    pictures: &Pictures,
    device: &Device,
    out: &mut impl Write,
) -> Result<usize, Failure> {
    let (mut rows, mut unreadable) = (Vec::new(), 0);
    // mismatches are reported before the first model runs
    let classes: Vec<Classes> = candidates
        .iter()
        .map(|candidate| Classes::of(pictures, candidate, args.labels.as_ref()))
        .collect::<Result<_, _>>()?;
    for (candidate, classes) in candidates.iter().zip(classes) {
        let model = candidate.load(device)?;
        let mut robustness = Robustness { name: candidate.name.clone(), ..Robustness::default() };
        unreadable = pictures.visit(&model, args.batch, device, |images, labels| {
            robustness.add(images, &classes.of_data(labels), |images| model.model.forward(images))?;
            Ok(candidate.name.clone())
        })?;
        rows.push(robustness);
    }
    if args.json {
        print::robustness_json(&rows, out)?;
    } else {
        write!(out, "{}", regard::report::robustness(&rows).text())?;
    }
    Ok(unreadable)
}

fn check_figure(path: &Path) -> Result<(), Failure> {
    if !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("svg")) {
        return Err(Failure::input(format!("unknown figure format: `{}`", path.display()), "end the name with .svg"));
    }
    check_folder(path)
}
