//! `regard data check`: finds problems in a dataset.

use indicatif::{ProgressBar, ProgressStyle};
use regard::data::check::{ClassCount, Copies, DatasetReport, check};
use regard::data::clip;
use regard::data::dataset::{Origins, layout, open_parts, origins};
use regard::data::detection::{self, Histogram};
use regard::data::text::columns_of;
use regard::data::vision_language::is_vision_language;
use serde::Serialize;
use std::io::Write;
use std::path::Path;

use super::{check_boxes, check_clips, check_text, check_vision_language, unusable};
use crate::failure::Failure;
use crate::models::print_json;

/// Find broken, duplicate, mislabelled and missing pictures, clips or sentences; exits with status 1 if there are any
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A folder with one folder per class, a `labels.csv`, files of a known dataset, or `fashion`; for boxes COCO, VOC, YOLO,
    /// a CSV table, or `scenes`; for clips a folder with one folder per class, lists of UCF101, HMDB51, Kinetics or
    /// Something-Something, a CSV table, or `clips`; for texts about pictures VQA v2, COCO captions, NLVR, easy-VQA, a table of
    /// `image,text` or `image,question,answer`, `questions` or `captions`; for sentence pairs a folder with `train.tsv`, or
    /// `train.en` and `train.it`, or a TSV file
    #[arg(value_name = "DIR")]
    source: String,

    /// Report classes with fewer pictures than this
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    least: usize,

    /// Read pictures in folders of folders as clips, a folder each; videos are recognised without it
    #[arg(long)]
    clips: bool,

    /// Report clips with fewer frames than this
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    frames: usize,

    /// Print JSON, with all problems
    #[arg(long)]
    json: bool,
}

/// Number of problems listed per kind; JSON has all.
const LISTED: usize = 10;

#[derive(Serialize)]
struct Json<'a> {
    source: &'a str,
    layout: &'static str,
    /// The origins of the validation and test parts.
    origins: &'a Origins,
    problems: usize,
    #[serde(flatten)]
    report: &'a DatasetReport,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    if args.clips {
        return check_clips::run(&args.source, args.frames, args.json, out);
    }
    if let Some(columns) = columns_of(Path::new(&args.source)) {
        return check_text::run(&args.source, columns, args.json, out);
    }
    if detection::is_detection(&args.source) {
        return check_boxes::run(&args.source, args.json, out);
    }
    if clip::is_clips(&args.source) {
        return check_clips::run(&args.source, args.frames, args.json, out);
    }
    if is_vision_language(&args.source) {
        return check_vision_language::run(&args.source, args.json, out);
    }
    let layout = layout(&args.source).map_err(unusable)?;
    let origins = origins(&args.source).map_err(unusable)?;
    let parts = open_parts(&args.source).map_err(unusable)?;
    let bar = progress(parts.train.len() + parts.validation.len() + parts.test.len());
    let report = check(&parts, args.least, || bar.inc(1));
    bar.finish_and_clear();

    if args.json {
        let (problems, report) = (report.problems(), &report);
        print_json(&Json { source: &args.source, layout, origins: &origins, problems, report }, out)?;
    } else {
        print(&report, layout, &origins, args.least, out)?;
    }
    verdict(&args.source, report.problems())
}

fn print(
    report: &DatasetReport,
    layout: &str,
    origins: &Origins,
    least: usize,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let width = report.classes.iter().map(|count| count.name.chars().count()).max().unwrap_or(0).max(10) + 2;
    writeln!(out, "{:<width$}{:>8}{:>12}{:>8}", "class", "train", "validation", "test")?;
    for ClassCount { name, train, validation, test } in &report.classes {
        writeln!(out, "{name:<width$}{train:>8}{validation:>12}{test:>8}")?;
    }
    writeln!(out, "{:<width$}{:>8}{:>12}{:>8}\n", "all", report.train, report.validation, report.test)?;

    writeln!(out, "layout      {layout}")?;
    writeln!(out, "validation  {}", origins.validation)?;
    writeln!(out, "test        {}", origins.test)?;
    if let Some(sizes) = report.sizes {
        let describe = |[rows, columns]: [usize; 2]| format!("{columns}x{rows}");
        if sizes.smallest == sizes.largest && sizes.typical == sizes.largest {
            writeln!(out, "sizes       all {}", describe(sizes.typical))?;
        } else {
            let [smallest, typical, largest] = [sizes.smallest, sizes.typical, sizes.largest].map(describe);
            writeln!(out, "sizes       {smallest} to {largest}, typically {typical} (width x height)")?;
        }
    }
    if let Some(imbalance) = report.imbalance {
        let rating = if report.is_imbalanced() { ", too uneven" } else { "" };
        writeln!(out, "imbalance   {imbalance:.1} (training pictures, largest class to smallest{rating})")?;
    }

    list(out, "unreadable", report.unreadable.iter().map(|file| format!("{}: {}", file.name, file.reason)))?;
    let few = report.few.iter().map(|ClassCount { name, train, validation, test }| {
        format!("{name}: {train} train, {validation} validation, {test} test")
    });
    list(out, &format!("classes with fewer than {least} pictures, or none in a part"), few)?;
    list(out, "copies in more than one part (leaks)", report.leaks().map(describe))?;
    let others = || report.duplicates.iter().filter(|copies| !copies.leak);
    list(out, "copies with different classes", others().filter(|copies| copies.conflict).map(describe))?;
    list(out, "other copies", others().filter(|copies| !copies.conflict).map(describe))?;
    if report.problems() == 0 {
        writeln!(out, "problems    none")?;
    }
    Ok(())
}

/// A failure that says how many problems the data has, if any.
pub(super) fn verdict(source: &str, problems: usize) -> Result<(), Failure> {
    if problems == 0 {
        return Ok(());
    }
    let plural = if problems == 1 { "" } else { "s" };
    let hint = format!("they are listed above; `--json` lists all, also more than {LISTED} of a kind");
    Err(Failure::found(format!("`{source}` has {problems} problem{plural}"), hint))
}

/// A progress bar for this many pictures.
pub(super) fn progress(pictures: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos} of {len} {wide_bar} {per_sec} {eta}");
    ProgressBar::new(pictures as u64).with_style(style.expect("the template is fixed"))
}

/// Lists a kind of problem: the number, and the first ones.
pub(super) fn list(out: &mut impl Write, kind: &str, problems: impl Iterator<Item = String>) -> Result<(), Failure> {
    let problems: Vec<String> = problems.collect();
    if problems.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{kind}: {}", problems.len())?;
    for problem in problems.iter().take(LISTED) {
        writeln!(out, "  {problem}")?;
    }
    match problems.len().saturating_sub(LISTED) {
        0 => Ok(()),
        more => Ok(writeln!(out, "  and {more} more")?),
    }
}

/// Duplicates in one line, with their classes and parts where these differ.
fn describe(copies: &Copies) -> String {
    let of = |copy: &regard::data::check::Occurrence| {
        let class = copies.conflict.then(|| copy.class.clone());
        let part = copies.leak.then(|| copy.part.to_string());
        let notes: Vec<String> = class.into_iter().chain(part).collect();
        if notes.is_empty() { copy.name.clone() } else { format!("{} ({})", copy.name, notes.join(", ")) }
    };
    copies.pictures.iter().map(of).collect::<Vec<_>>().join(" = ")
}

/// Bins that are not empty.
pub(super) fn describe_histogram(histogram: &Histogram) -> String {
    let ends = histogram.edges.iter().skip(1).map(Some).chain([None]);
    let bins = histogram.edges.iter().zip(ends).zip(&histogram.counts).filter(|(_, count)| **count > 0);
    let bins: Vec<String> = bins
        .map(|((start, end), count)| match end {
            Some(end) => format!("{start}-{end}: {count}"),
            None => format!("{start}+: {count}"),
        })
        .collect();
    if bins.is_empty() { "no objects".into() } else { bins.join(", ") }
}
