//! A page of one question: the picture with numbered regions, the answers, and how much each word attends to each region, layer by
//! layer.

use regard::Trace;
use regard::analyse::{Across, WordRegionAttention, word_region_attention};
use regard::data::Picture;
use regard::report::figure::{ColourScale, HeatMap};
use regard::report::page::PageImage;
use regard::report::{Page, PageSection, Table, png};
use regard::tasks::vision_language::{ScoredAnswer, VqaOutput};
use std::path::Path;

use crate::failure::Failure;

pub fn write(path: &Path, question: &str, answered: &VqaOutput, trace: &Trace, drawn: &Picture) -> Result<(), Failure> {
    let layers = word_region_attention(trace)?;
    let mut answers = Table::new().words("answer").numbers("probability");
    for ScoredAnswer { answer, probability } in &answered.answers {
        answers.row([answer.clone(), format!("{:.2} %", 100.0 * probability)]);
    }
    let image = PageImage {
        png: png(drawn.size(), drawn.pixels()),
        description: "the picture with its regions".into(),
        caption: "regions by number".into(),
    };
    let mut page = Page::new(question)
        .lead("What the model answers, and where its words look.")
        .section(PageSection::new("Answer").table(answers).pictures(vec![image]));
    for (direction, title, text) in [
        (
            Across::WordsToRegions,
            "Words to regions",
            "A row is a word, a column a region: the share of the word's attention.",
        ),
        (
            Across::RegionsToWords,
            "Regions to words",
            "A row is a region, a column a word: the share of the region's attention.",
        ),
    ] {
        let mut section = PageSection::new(title).text(text).text("The mean over the heads of each layer.");
        for layer in layers.iter().filter(|layer| layer.direction == direction) {
            section = section.figure(&figure(layer, &answered.tokens));
        }
        page = page.section(section);
    }
    regard::file::replace(path, page.html().as_bytes()).map_err(|error| {
        Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable?")
    })
}

fn figure(layer: &WordRegionAttention, tokens: &[String]) -> HeatMap {
    let words = tokens.to_vec();
    let regions: Vec<String> = (1..=layer.regions).map(|number| number.to_string()).collect();
    let (rows, columns, row_label, column_label) = match layer.direction {
        Across::WordsToRegions => (words, regions, "word", "region"),
        Across::RegionsToWords => (regions, words, "region", "word"),
    };
    HeatMap {
        title: layer.layer.trim_end_matches(".weights").into(),
        row_label: row_label.into(),
        column_label: column_label.into(),
        rows,
        columns,
        values: layer.mean(),
        decimals: 2,
        shades: ColourScale::Root,
    }
}
