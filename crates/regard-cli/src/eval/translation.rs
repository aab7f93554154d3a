//! `regard eval` of a translator: its translations of a part, beside those of people.

use burn::tensor::Device;
use regard::data::text::{Pair, TextPart, read, with_references};
use regard::evaluate::{TranslationScore, score};
use regard::tasks::translate::{Recipe, token_loss};
use regard::train::read_recipe;
use serde::Serialize;
use std::io::{IsTerminal as _, Write, stderr};
use std::path::Path;
use std::time::Instant;

use crate::failure::Failure;
use crate::models::print_json;
use crate::translate;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    score: TranslationScore,
    /// Of a token, by all that came before it.
    perplexity: f64,
    /// Share of tokens that were predicted.
    tokens_foreseen: f64,
    references: usize,
    beam: usize,
    seconds: f64,
}

pub fn run(
    folder: &Path,
    data: &str,
    part: TextPart,
    json: bool,
    device: &Device,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let recipe: Recipe = read_recipe(folder)?;
    let pairs = read(Path::new(data), part, &recipe.own.languages()).map_err(|error| {
        Failure::input(error, "`--data` takes the folder that the run was trained on, or one like it")
    })?;
    let bundle = translate::open(folder, device)?;
    let pairs: Vec<Pair> =
        pairs.into_iter().filter(|pair| !pair.source.is_empty() && !pair.target.is_empty()).collect();
    let start = Instant::now();
    let referenced = with_references(&pairs);
    let sources: Vec<&str> = referenced.iter().map(|one| one.source.as_str()).collect();
    let search = bundle.search();
    let shown = stderr().is_terminal();
    let found = bundle.translate(&sources, &search, device, &mut |done| {
        if shown {
            // nobody reads it: the test goes on
            let _ = write!(stderr(), "\rtranslated {done} of {}", sources.len());
        }
    })?;
    if shown {
        writeln!(stderr())?;
    }
    let best: Vec<&str> = found.iter().map(|all| all.first().map_or("", |one| one.text.as_str())).collect();
    let seconds = start.elapsed().as_secs_f64();
    let references: Vec<Vec<String>> = referenced.iter().map(|one| one.references.clone()).collect();
    let loss = token_loss(&bundle, &pairs, 2000)?;
    let report = Report {
        score: score(&best, &references),
        perplexity: loss.loss().exp(),
        tokens_foreseen: loss.top1(),
        references: references.iter().map(Vec::len).sum(),
        beam: search.beam,
        seconds,
    };
    if json {
        return print_json(&report, out);
    }
    let Report { score, perplexity, tokens_foreseen, references, beam, seconds } = report;
    writeln!(out, "BLEU        {:.2}", score.bleu)?;
    writeln!(out, "chrF        {:.2}", score.chrf)?;
    let precisions = score.precisions.map(|precision| format!("{precision:.1}")).join(" / ");
    writeln!(out, "precisions  {precisions} (brevity {:.3})", score.brevity_penalty)?;
    writeln!(out, "perplexity  {perplexity:.3}")?;
    writeln!(out, "tokens      {:.2} % predicted", 100.0 * tokens_foreseen)?;
    writeln!(out, "sentences   {} with {references} references, beam {beam}", score.sentences)?;
    writeln!(out, "speed       {:.1} sentences/s", score.sentences as f64 / seconds)?;
    Ok(())
}
