//! `regard data check` for sentences in two languages.

use regard::data::text::check::{Leak, ListedPair, PartCount, TextReport, check};
use regard::data::text::{Languages, shortened};
use serde::Serialize;
use std::io::Write;
use std::path::Path;

use super::check::{list, verdict};
use super::unusable;
use crate::failure::Failure;
use crate::models::print_json;

#[derive(Serialize)]
struct Json<'a> {
    source: &'a str,
    layout: &'static str,
    columns: &'a [String; 2],
    problems: usize,
    #[serde(flatten)]
    report: &'a TextReport,
}

pub fn run(source: &str, columns: [String; 2], json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let languages = Languages { source: columns[0].clone(), columns };
    let report = check(Path::new(source), &languages).map_err(unusable)?;
    let columns = &languages.columns;
    if json {
        let layout = "sentences in two languages";
        print_json(&Json { source, layout, columns, problems: report.problems(), report: &report }, out)?;
    } else {
        print(&report, columns, out)?;
    }
    verdict(source, report.problems())
}

fn print(report: &TextReport, [first, second]: &[String; 2], out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "{:<8}{:>10}{:>12}{:>14}{:>14}{:>10}", "part", "pairs", "different", "words", "words", "longest")?;
    for PartCount { part, pairs, sources, words: [left, right], longest } in &report.parts {
        let part = format!("{part:?}").to_lowercase();
        writeln!(out, "{part:<8}{pairs:>10}{sources:>12}{left:>14}{right:>14}{longest:>10}")?;
    }
    writeln!(out, "\nlayout      sentences in two languages, columns {first} and {second}")?;
    list(out, "pairs with an empty side", report.empty.iter().map(describe_pair))?;
    list(out, "pairs of which one side is much longer", report.uneven.iter().map(describe_pair))?;
    list(out, "copies of a pair in one part", report.duplicates.iter().map(describe_pair))?;
    list(
        out,
        "test sentences that were trained on (leaks)",
        report.leaks.iter().map(|Leak { place, sides }| {
            let side = match sides {
                [true, true] => "both sides",
                [true, false] => first,
                _ => second,
            };
            format!("{} ({side})", describe_pair(place))
        }),
    )?;
    if report.problems() == 0 {
        writeln!(out, "problems    none")?;
    }
    Ok(())
}

fn describe_pair(ListedPair { part, row, source, target }: &ListedPair) -> String {
    format!("{} {row}: {} = {}", format!("{part:?}").to_lowercase(), shortened(source), shortened(target))
}
