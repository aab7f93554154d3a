//! `regard explain --question`: the answer to a question about a picture, and what words and regions have to do with each other.

use burn::tensor::Device;
use regard::analyse::{Across, WordRegionAttention, WordRegionPlan};
use regard::data::vision_language::OnePicture;
use regard::data::{Bounds, Picture};
use regard::report::figure::{ColourScale, Flow, HeatMap, Panel, Sheet};
use regard::report::overlay::{fitted, heat, overlay_between};
use regard::report::{Table, draw_boxes};
use regard::tasks::vision_language::{AnswerExplanation, Answered, RegionCache};
use serde_json::json;
use std::io::Write;

use super::{Args, check_page};
use crate::answerer::{self, labelled, note_detector, note_unknown};
use crate::failure::Failure;
use crate::findings::{Findings, Part};

/// Side of a panel, of a head's panel, and of the picture with all regions.
const PANEL: usize = 150;
const HEAD: usize = 112;
const LARGE: usize = 384;

/// Maximum number of heads per row.
const MOST_HEADS: usize = 12;

pub fn run(args: &Args, question: &str, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(page) = &args.output {
        check_page(page)?;
    }
    refuse_other_arguments(args)?;
    let name = answerer::name_or_usual(args.model.name(None)?.as_deref())?;
    let bundle = answerer::load(&name, args.detector.as_deref(), RegionCache::OnDisk, device)?;
    note_detector(&bundle, args.detector.as_deref())?;
    let paths = || std::iter::once(&args.picture).chain(&args.second);
    let pictures = paths().map(|path| Picture::open(path)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = paths().map(|path| path.display().to_string()).collect();
    let shown: Vec<OnePicture> =
        pictures.iter().zip(&names).map(|(picture, name)| OnePicture { name, picture, boxes: &[] }).collect();
    let hint = "`--question \"what colour is the bag ?\"`";
    let found = bundle.explain(&shown, question, args.top).map_err(|error| Failure::input(error, hint))?;
    note_unknown(&found.answered)?;
    let findings = findings(args, question, &name, &found, &pictures[0]);
    if !args.json {
        writeln!(out, "{} under {name}: {question}", args.picture.display())?;
    }
    findings.print(args.json, out)?;
    if let Some(page) = &args.output {
        findings.write(page, &page.with_extension(""))?;
    }
    findings.hold()
}

/// Refuses options that other models have.
fn refuse_other_arguments(args: &Args) -> Result<(), Failure> {
    let changes = &args.model.changes;
    let given = [
        ("--class", args.class.is_some()),
        ("--labels", args.labels.is_some()),
        ("--set", !changes.set.is_empty()),
        ("--from", changes.from.is_some()),
        ("--discard", args.discard != 0.0),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((argument, _)) => {
            let message =
                format!("`{argument}` is for classifiers, and `--question` for models of vision and language");
            Err(Failure::input(message, "leave one of them out"))
        }
        None => Ok(()),
    }
}

fn findings(args: &Args, question: &str, model: &str, found: &AnswerExplanation, picture: &Picture) -> Findings {
    let AnswerExplanation { answered, cross } = found;
    let (words, regions) = (answered.tokens.clone(), region_names(answered));
    let small = fitted(picture, PANEL);
    let mut answers = Table::new().numbers("%").words("answer");
    for one in &answered.answers {
        answers.row([format!("{:.2}", 100.0 * one.probability), one.answer.clone()]);
    }
    let best = answered.answers.first().map_or("", |one| one.answer.as_str());
    let drawn = draw_boxes(&fitted(picture, LARGE), &labelled(answered));
    let panel = Panel { name: String::new(), picture: drawn, frame: None };
    let drawn = Sheet { title: "regions".into(), columns: 1, side: LARGE as f64, panels: vec![panel] };
    let mut parts = vec![Part::new("answers", "").figure("picture", drawn).table(answers)];

    let text = "How each word's attention to regions is shared among them, over all layers and heads. A region explains the words \
                that look at it more than at an average region.";
    parts.push(
        Part::new("which words each region explains", text)
            .figure("words-on-picture", on_picture(answered, &cross.shares, &small))
            .figure(
                "shares",
                heat_map("shares of attention", ["word", "region"], &words, &regions, cross.shares.clone()),
            )
            .table(explained(found, &regions)),
    );
    if let Some(relevance) = &cross.relevance {
        let text = format!(
            "How much of each word and region reached the place where the answer is read: attention times the gradient of \
             {best}, layer by layer. Words and regions together sum to one."
        );
        let row = |values: &[f32]| vec![values.iter().map(|value| f64::from(*value)).collect()];
        let rows = [String::new()];
        parts.push(
            Part::new(format!("what mattered for {best}"), text)
                .figure("relevance-words", heat_map("words", ["", "word"], &rows, &words, row(&relevance.words)))
                .figure(
                    "relevance-regions",
                    heat_map("regions", ["", "region"], &rows, &regions, row(&relevance.regions)),
                ),
        );
    }
    if let Some(WordRegionPlan { shares, .. }) = &cross.plan {
        let trained =
            if cross.is_plan_trained { "" } else { " This model was not trained to align words with regions." };
        let text = format!(
            "The plan that moves words onto regions at the least cost, one minus the cosine of their hidden states. All words \
             have the same mass, and so have all regions.{trained}"
        );
        let shares: Vec<Vec<f64>> =
            shares.iter().map(|row| row.iter().map(|share| f64::from(*share)).collect()).collect();
        let sides = ["word".to_string(), "region".to_string()];
        let flow = Flow { title: "transport plan".into(), sides, left: words.clone(), right: regions.clone(), shares };
        parts.push(Part::new("transport plan", text).figure("transport-plan", flow));
    }
    for direction in [Across::WordsToRegions, Across::RegionsToWords] {
        parts.extend(attention(direction, &cross.layers, &words, &regions));
    }
    Findings {
        title: format!("{question} · {}", args.picture.file_name().unwrap_or_default().display()),
        lead: format!("what {model} answers, and what words and regions have to do with each other"),
        parts,
        checks: cross.checks(),
        data: data(args, question, model, found),
    }
}

/// Names of all regions, those of a second picture after those of the first.
fn region_names(answered: &Answered) -> Vec<String> {
    let of_picture = |(which, count): (usize, usize)| {
        (1..=count).map(move |number| if which == 0 { number.to_string() } else { format!("second {number}") })
    };
    answered.regions.iter().map(Vec::len).enumerate().flat_map(of_picture).collect()
}

fn heat_map(title: &str, labels: [&str; 2], rows: &[String], columns: &[String], values: Vec<Vec<f64>>) -> HeatMap {
    let [row_label, column_label] = labels.map(String::from);
    let (rows, columns) = (rows.to_vec(), columns.to_vec());
    HeatMap {
        title: title.into(),
        row_label,
        column_label,
        rows,
        columns,
        values,
        decimals: 2,
        shades: ColourScale::Root,
    }
}

/// The words that each region explains.
fn explained(found: &AnswerExplanation, regions: &[String]) -> Table {
    let mut table = Table::new().words("region").words("words, with their share in %");
    for one in &found.cross.explained {
        let word = |share: &regard::analyse::WordShare| {
            format!("{} {:.0}", found.answered.tokens[share.word], 100.0 * share.share)
        };
        let words: Vec<String> = one.words.iter().map(word).collect();
        table.row([regions[one.region].clone(), words.join(", ")]);
    }
    table
}

/// The first picture for each word, brighter where the word looks.
fn on_picture(answered: &Answered, shares: &[Vec<f64>], small: &Picture) -> Sheet {
    let [rows, columns] = small.size();
    let boxes = answered.regions.first().map_or(&[][..], Vec::as_slice);
    let most = shares.iter().flatten().copied().fold(0.0, f64::max) as f32;
    let panel = |(token, row): (&String, &Vec<f64>)| {
        let mut values = vec![f32::NAN; rows * columns];
        for ([x1, y1, x2, y2], share) in boxes.iter().zip(row) {
            let place = |share: f32, side: usize| ((share * side as f32).round() as usize).min(side);
            for y in place(*y1, rows)..place(*y2, rows) {
                for x in place(*x1, columns)..place(*x2, columns) {
                    let value = &mut values[y * columns + x];
                    *value = value.max(*share as f32);
                }
            }
        }
        let picture = overlay_between(small, [rows, columns], &values, [0.0, most]);
        Panel { name: token.clone(), picture, frame: None }
    };
    let panels: Vec<Panel> = answered.tokens.iter().zip(shares).map(panel).collect();
    Sheet { title: "where each word looks".into(), columns: panels.len().min(6), side: PANEL as f64, panels }
}

/// Every head of every layer as a small map, and the mean over heads of each layer with its numbers.
fn attention(direction: Across, layers: &[WordRegionAttention], words: &[String], regions: &[String]) -> Option<Part> {
    let own: Vec<&WordRegionAttention> = layers.iter().filter(|layer| layer.direction == direction).collect();
    let columns = own.iter().map(|layer| layer.heads.min(MOST_HEADS)).max()?;
    let (title, name, text) = match direction {
        Across::WordsToRegions => ("words look at regions", "words-to-regions", "A row is a word, a column a region"),
        Across::RegionsToWords => ("regions look at words", "regions-to-words", "A row is a region, a column a word"),
    };
    let mut panels = Vec::new();
    for (number, layer) in own.iter().enumerate() {
        for head in 0..columns {
            let blank = || Picture::new([1, 1], vec![255; 3]).expect("one white pixel");
            panels.push(if head < layer.heads {
                let rows = layer.head(head);
                let picture = heat([rows.len(), rows[0].len()], &rows.concat());
                Panel { name: format!("{number} head {head}"), picture, frame: None }
            } else {
                Panel { name: String::new(), picture: blank(), frame: None }
            });
        }
    }
    let sheet = Sheet { title: format!("{title}: layers and heads"), columns, side: HEAD as f64, panels };
    let text =
        format!("{text}: first every head, each from its lowest to its highest weight, then the mean of each layer.");
    let mut part = Part::new(title, text).figure(format!("{name}-heads"), sheet);
    for (number, layer) in own.iter().enumerate() {
        // two pictures are read one after the other, each with its own regions
        let is_whole = layer.regions == regions.len();
        let own_names = || (1..=layer.regions).map(|number| number.to_string()).collect();
        let of_layer: Vec<String> = if is_whole { regions.to_vec() } else { own_names() };
        let (rows, columns, labels) = match direction {
            Across::WordsToRegions => (words, of_layer.as_slice(), ["word", "region"]),
            Across::RegionsToWords => (of_layer.as_slice(), words, ["region", "word"]),
        };
        let title = layer.layer.trim_end_matches(".weights");
        part = part.figure(format!("{name}-{number}"), heat_map(title, labels, rows, columns, layer.mean()));
    }
    Some(part)
}

fn data(args: &Args, question: &str, model: &str, found: &AnswerExplanation) -> serde_json::Value {
    let AnswerExplanation { answered, cross } = found;
    let layer = |layer: &WordRegionAttention| {
        let heads: Vec<Vec<&[f32]>> = (0..layer.heads).map(|head| layer.head(head)).collect();
        json!({ "layer": layer.layer.trim_end_matches(".weights"), "direction": layer.direction, "heads": heads })
    };
    let corners = |[x1, y1, x2, y2]: &[f32; 4]| Bounds::from_corners([*x1, *y1, *x2, *y2].map(f64::from)).corners();
    let regions = answered.regions.iter().map(|own| own.iter().map(corners).collect::<Vec<_>>());
    json!({
        "picture": args.picture.display().to_string(),
        "model": model,
        "question": question,
        "answers": answered.answers,
        "tokens": answered.tokens,
        "unknown": answered.unknown,
        "regions": regions.collect::<Vec<_>>(),
        "shares": cross.shares,
        "explained": cross.explained,
        "plan": cross.plan.as_ref().map(|plan| json!({ "shares": plan.shares, "trained": cross.is_plan_trained })),
        "relevance": cross.relevance.as_ref().map(|one| json!({ "words": one.words, "regions": one.regions })),
        "layers": cross.layers.iter().map(layer).collect::<Vec<_>>(),
    })
}
