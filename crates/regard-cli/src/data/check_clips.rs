//! `regard data check` for clips.

use regard::data::check::ClassCount;
use regard::data::check::Occurrence;
use regard::data::clip::{BadClip, ClipPartReport, ClipParts, ClipReport, check, survey};
use regard::data::dataset::Origins;
use regard::data::detection::{Issue, Severity};
use serde::Serialize;
use std::io::Write;

use super::check::{describe_histogram, list, progress, verdict};
use super::unusable_clips;
use crate::failure::Failure;
use crate::models::print_json;

#[derive(Serialize)]
struct Json<'a> {
    source: &'a str,
    layout: &'static str,
    origins: &'a Origins,
    problems: usize,
    #[serde(flatten)]
    report: &'a ClipReport,
}

pub fn run(source: &str, frames: usize, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let parts = survey(source).map_err(unusable_clips)?;
    let bar = progress(parts.train.len() + parts.validation.len() + parts.test.len());
    let report = check(&parts, frames, || bar.inc(1));
    bar.finish_and_clear();
    if json {
        let (origins, problems, report) = (&parts.origins, report.problems(), &report);
        print_json(&Json { source, layout: parts.layout, origins, problems, report }, out)?;
    } else {
        print(&report, &parts, frames, out)?;
    }
    verdict(source, report.problems())
}

fn print(report: &ClipReport, parts: &ClipParts, frames: usize, out: &mut impl Write) -> Result<(), Failure> {
    let width = report.classes.iter().map(|count| count.name.chars().count()).max().unwrap_or(0).max(14) + 2;
    let mut row = |name: &str, cells: [String; 3]| -> Result<(), Failure> {
        Ok(writeln!(out, "{name:<width$}{:>8}{:>12}{:>8}", cells[0], cells[1], cells[2])?)
    };
    row("clips", ["train", "validation", "test"].map(String::from))?;
    for ClassCount { name, train, validation, test } in &report.classes {
        row(name, [train, validation, test].map(ToString::to_string))?;
    }
    let of = |number: fn(&ClipPartReport) -> usize| report.parts().map(|(_, part)| number(part).to_string());
    row("all", of(|part| part.clips))?;
    row("frames", of(|part| part.frames))?;
    row("shortest", of(|part| part.shortest))?;
    row("longest", of(|part| part.longest))?;

    writeln!(out, "\nlayout      {}", parts.layout)?;
    writeln!(out, "validation  {}", parts.origins.validation)?;
    writeln!(out, "test        {}", parts.origins.test)?;
    writeln!(out, "lengths     {} (frames)", describe_histogram(&report.frames))?;
    writeln!(out, "            {} (seconds)", describe_histogram(&report.seconds))?;
    if let Some([slow, fast]) = report.rates {
        let rates = if slow == fast { format!("all {slow:.4}") } else { format!("{slow:.4} to {fast:.4}") };
        writeln!(out, "rates       {rates} (frames in a second)")?;
    }
    if let Some([smallest, largest]) = report.sizes {
        let describe = |[rows, columns]: [usize; 2]| format!("{columns}x{rows}");
        let sizes = match (describe(smallest), describe(largest)) {
            (one, other) if one == other => format!("all {one}"),
            (one, other) => format!("{one} to {other}"),
        };
        writeln!(out, "sizes       {sizes} (width x height)")?;
    }
    if let Some(imbalance) = report.imbalance {
        let rating = if report.is_imbalanced() { ", too uneven" } else { "" };
        writeln!(out, "imbalance   {imbalance:.1} (training clips, largest class to smallest{rating})")?;
    }
    let issues = |severity: Severity| {
        report.issues.iter().filter(move |issue: &&Issue| issue.severity == severity).map(ToString::to_string)
    };
    list(out, "errors: nothing is trained on this", issues(Severity::Error))?;
    list(out, "warnings", issues(Severity::Warning))?;
    let bad = |clips: &[BadClip]| -> Vec<String> {
        clips.iter().map(|clip| format!("{}: {}", clip.name, clip.reason)).collect()
    };
    list(out, "unreadable", bad(&report.unreadable).into_iter())?;
    list(out, "with frames that do not decode", bad(&report.undecodable).into_iter())?;
    let title = format!("shorter than {frames} frames, the last of which is repeated");
    list(out, &title, bad(&report.short).into_iter())?;
    let lacking = report.lacking.iter().map(|ClassCount { name, train, validation, test }| {
        format!("{name}: {train} train, {validation} validation, {test} test")
    });
    list(out, "classes that are missing in a part", lacking)?;
    list(out, "the same frames in more than one part (leaks)", report.leaks.iter().map(|copies| describe(copies)))?;
    list(out, "other copies", report.copies.iter().map(|copies| describe(copies)))?;
    if report.problems() == 0 {
        writeln!(out, "problems    none")?;
    }
    Ok(())
}

fn describe(copies: &[Occurrence]) -> String {
    let copies: Vec<String> =
        copies.iter().map(|copy| format!("{} ({}, {})", copy.name, copy.class, copy.part)).collect();
    copies.join(" = ")
}
