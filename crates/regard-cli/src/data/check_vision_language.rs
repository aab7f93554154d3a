//! `regard data check` for texts about pictures.

use regard::data::dataset::Origins;
use regard::data::detection::Severity;
use regard::data::vision_language::{
    AnswerStatistics, TextPartReport, VisionLanguageReport, check, picture_count, survey,
};
use serde::Serialize;
use std::io::Write;

use super::check::{list, progress, verdict};
use super::unusable_texts;
use crate::failure::Failure;
use crate::models::print_json;

#[derive(Serialize)]
struct Json<'a> {
    source: &'a str,
    layout: &'static str,
    origins: &'a Origins,
    problems: usize,
    #[serde(flatten)]
    report: &'a VisionLanguageReport,
}

pub fn run(source: &str, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let parts = survey(source).map_err(unusable_texts)?;
    let pictures = [&parts.train, &parts.validation, &parts.test].map(|part| picture_count(&**part));
    let bar = progress(pictures.iter().sum());
    let report = check(&parts, || bar.inc(1)).map_err(unusable_texts)?;
    bar.finish_and_clear();
    let problems = report.problems();
    if json {
        let (layout, origins) = (parts.layout, &parts.origins);
        print_json(&Json { source, layout, origins, problems, report: &report }, out)?;
    } else {
        print(&report, parts.layout, &parts.origins, out)?;
        if problems == 0 {
            writeln!(out, "problems    none")?;
        }
    }
    verdict(source, problems)
}

fn print(report: &VisionLanguageReport, layout: &str, origins: &Origins, out: &mut impl Write) -> Result<(), Failure> {
    let mut row = |name: &str, cells: [String; 3]| -> Result<(), Failure> {
        Ok(writeln!(out, "{name:<20}{:>10}{:>12}{:>10}", cells[0], cells[1], cells[2])?)
    };
    row("texts", ["train", "validation", "test"].map(String::from))?;
    let of = |number: fn(&TextPartReport) -> String| report.parts().map(|(_, part)| number(part));
    row("all", of(|part| part.texts.to_string()))?;
    row("pictures", of(|part| part.pictures.to_string()))?;
    row("words, mean", of(|part| format!("{:.1}", part.mean_words)))?;
    row("words, most", of(|part| part.most_words.to_string()))?;
    row("repeated", of(|part| part.repeated.to_string()))?;
    let kind = serde_json::to_value(report.kind).expect("plain data");
    writeln!(out, "\nlayout      {layout}, {}", kind.as_str().unwrap_or_default())?;
    writeln!(out, "validation  {}", origins.validation)?;
    writeln!(out, "test        {}", origins.test)?;
    if let Some(answers) = &report.answers {
        print_answers(answers, out)?;
    }
    let issues = |severity: Severity| report.issues.iter().filter(move |issue| issue.severity == severity);
    list(out, "errors: nothing is trained on this", issues(Severity::Error).map(ToString::to_string))?;
    list(out, "warnings", issues(Severity::Warning).map(ToString::to_string))?;
    list(out, "missing pictures", report.missing.iter().map(ToString::to_string))?;
    list(out, "unreadable", report.unreadable.iter().map(|(_, reason)| reason.clone()))?;
    list(out, "copies in more than one part (leaks)", report.leaks.iter().map(|copies| copies.join(" = ")))
}

fn print_answers(answers: &AnswerStatistics, out: &mut impl Write) -> Result<(), Failure> {
    let percent = |share: &f64| format!("{:.2} %", 100.0 * share);
    let either = |[validation, test]: &[Option<f64>; 2]| {
        let shown = |share: &Option<f64>| share.as_ref().map_or("-".into(), percent);
        format!("{} validation, {} test", shown(validation), shown(test))
    };
    let frequent: Vec<String> =
        answers.frequent.iter().map(|(answer, share)| format!("{answer} {}", percent(share))).collect();
    writeln!(out, "answers     {}: {}", answers.different, frequent.join(", "))?;
    writeln!(out, "majority    {}", either(&answers.majority))?;
    writeln!(out, "blind       {} (the most frequent answer of the same text in training)", either(&answers.blind))?;
    for (group, share) in &answers.blind_groups {
        writeln!(out, "  {group:<32} {:>9}", percent(share))?;
    }
    let [validation, test] = answers.outside;
    if validation + test > 0 {
        let some = answers.outside_examples.join(", ");
        writeln!(out, "\nanswers that training never has: {validation} in validation, {test} in the test\n  {some}")?;
    }
    let shown = answers.predictable.iter().map(|(text, answer, count)| format!("{text} {answer} ({count} times)"));
    list(out, "texts whose answer needs no picture", shown)
}
