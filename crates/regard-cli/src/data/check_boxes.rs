//! `regard data check` for detection datasets.

use regard::data::check::ClassCount;
use regard::data::dataset::Origins;
use regard::data::detection::{DetectionDataset, DetectionParts, DetectionReport, FaultKind, Severity, check, survey};
use regard::evaluate::coco;
use serde::Serialize;
use std::io::Write;

use super::check::{describe_histogram, list, progress, verdict};
use super::unusable_boxes;
use crate::failure::Failure;
use crate::models::print_json;

#[derive(Serialize)]
struct Json<'a> {
    source: &'a str,
    layout: &'static str,
    origins: &'a Origins,
    problems: usize,
    /// AP of each part's objects against themselves: less than 1 means that the data does not suit the evaluation.
    truth_against_itself: [Option<f64>; 3],
    #[serde(flatten)]
    report: &'a DetectionReport,
}

pub fn run(source: &str, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let parts = survey(source).map_err(unusable_boxes)?;
    let bar = progress(parts.train.len() + parts.validation.len() + parts.test.len());
    let report = check(&parts, || bar.inc(1));
    bar.finish_and_clear();
    let truth = [&parts.train, &parts.validation, &parts.test].map(|part| against_itself(&**part));
    // COCO's evaluation uses the first 100 of a class in a picture
    let imperfect = truth.iter().flatten().filter(|ap| (**ap - 1.0).abs() > 1e-9).count();
    let problems = report.problems() + imperfect;
    if json {
        let (origins, report) = (&parts.origins, &report);
        let json = Json { source, layout: parts.layout, origins, problems, truth_against_itself: truth, report };
        print_json(&json, out)?;
    } else {
        print(&report, &parts, truth, out)?;
        if problems == 0 {
            writeln!(out, "problems    none")?;
        }
    }
    verdict(source, problems)
}

/// AP of the objects of a part against themselves; `None` without objects, or if they cannot be read.
fn against_itself(dataset: &dyn DetectionDataset) -> Option<f64> {
    let (images, truths) = coco::truths(dataset).ok()?;
    let found = coco::evaluate(&images, dataset.classes().len(), &truths, &coco::perfect(&truths)).ok()?;
    Some(found.summary.ap).filter(|ap| *ap >= 0.0)
}

fn print(
    report: &DetectionReport,
    parts: &DetectionParts,
    truth: [Option<f64>; 3],
    out: &mut impl Write,
) -> Result<(), Failure> {
    let width = report.classes.iter().map(|count| count.name.chars().count()).max().unwrap_or(0).max(16) + 2;
    let mut row = |name: &str, cells: [String; 3]| -> Result<(), Failure> {
        Ok(writeln!(out, "{name:<width$}{:>8}{:>12}{:>8}", cells[0], cells[1], cells[2])?)
    };
    row("objects", ["train", "validation", "test"].map(String::from))?;
    for ClassCount { name, train, validation, test } in &report.classes {
        row(name, [train, validation, test].map(ToString::to_string))?;
    }
    let of = |number: fn(&regard::data::detection::DetectionPartReport) -> usize| {
        report.parts().map(|(_, part)| number(part).to_string())
    };
    row("all", of(|part| part.objects))?;
    row("pictures", of(|part| part.pictures))?;
    row("without objects", of(|part| part.without_objects))?;
    row("crowds", of(|part| part.crowds))?;
    row("most in a picture", of(|part| part.most_objects))?;
    row("AP of the truth", truth.map(|ap| ap.map_or("-".into(), |ap| format!("{ap:.4}"))))?;

    writeln!(out, "\nlayout      {}", parts.layout)?;
    writeln!(out, "validation  {}", parts.origins.validation)?;
    writeln!(out, "test        {}", parts.origins.test)?;
    writeln!(out, "queries     more than {}, the most objects in a picture", report.most_objects())?;
    writeln!(out, "sizes       {} (square root of the area, pixels)", describe_histogram(&report.sizes))?;
    writeln!(out, "aspects     {} (width over height)", describe_histogram(&report.aspects))?;
    let [eight, sixteen, thirty_two] = report.below_stride;
    writeln!(out, "tiny        shorter side below 8 pixels: {eight}, below 16: {sixteen}, below 32: {thirty_two}")?;
    if report.exif.turned > 0 {
        let exif = report.exif;
        writeln!(
            out,
            "turned      {} pictures by EXIF: boxes fit the upright one {}, the stored one {}, undecided {}",
            exif.turned, exif.fits_upright, exif.fits_stored, exif.undecided
        )?;
    }
    if truth.iter().flatten().any(|ap| (ap - 1.0).abs() > 1e-9) {
        writeln!(out, "\nthe truth against itself has no AP of 1: more than 100 objects of a class in a picture")?;
    }
    if report.looks_like_corners {
        writeln!(out, "\nboxes look like x1, y1, x2, y2 where x, y, width, height is due")?;
    }
    let issues = |severity: Severity| report.issues.iter().filter(move |issue| issue.severity == severity);
    list(out, "errors: nothing is trained on this", issues(Severity::Error).map(ToString::to_string))?;
    list(out, "warnings", issues(Severity::Warning).map(ToString::to_string))?;
    list(out, "unreadable", report.unreadable.iter().map(|bad| format!("{}: {}", bad.name, bad.reason)))?;
    list(out, "other sizes", report.other_sizes.iter().map(|bad| format!("{}: {}", bad.name, bad.reason)))?;
    let kinds = [
        (FaultKind::Outside, "boxes outside the picture"),
        (FaultKind::OverBorder, "boxes over the border"),
        (FaultKind::Duplicate, "boxes that are there twice"),
    ];
    for (kind, title) in kinds {
        let faults = report.faults.iter().filter(|fault| fault.kind == kind).map(|fault| {
            let [x, y, w, h] = fault.bounds;
            let [rows, columns] = fault.size;
            format!(
                "{}: annotation {} ({}): {x}, {y}, {w} x {h} in {columns} x {rows}",
                fault.picture, fault.annotation, fault.class
            )
        });
        list(out, title, faults)?;
    }
    let lacking = report.in_one_part.iter().map(|ClassCount { name, train, validation, test }| {
        format!("{name}: {train} train, {validation} validation, {test} test")
    });
    list(out, "classes that are missing in a part", lacking)?;
    let leaks = report.leaks.iter().map(|copies| {
        let copies: Vec<String> = copies.iter().map(|copy| format!("{} ({})", copy.name, copy.part)).collect();
        copies.join(" = ")
    });
    list(out, "copies in more than one part (leaks)", leaks)
}
