//! `regard eval` of a translator: its translations of a part, next to the references.

use burn::tensor::Device;
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

use super::{Recipe, token_loss};
use crate::Error;
use crate::data::text::{SentencePair, read, with_references};
use crate::evaluate::{TranslationScore, score};
use crate::tasks::sentences::text_part;
use crate::train::{EvalReport, EvalRequest};
use crate::translate::Bundle;

/// Maximum number of tokens per batch for perplexity.
const TOKENS: usize = 2000;

#[derive(Serialize)]
struct TranslationReport {
    #[serde(flatten)]
    score: TranslationScore,
    /// Per token, given all previous tokens.
    perplexity: f64,
    /// Fraction of right predictions.
    #[serde(rename = "tokens_foreseen")]
    token_accuracy: f64,
    references: usize,
    beam: usize,
    seconds: f64,
}

pub(super) fn evaluate(
    recipe: &Recipe,
    request: &EvalRequest,
    device: &Device,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<EvalReport, Error> {
    let pairs = read(Path::new(request.data), text_part(request.part)?, &recipe.own.languages())?;
    let bundle = Bundle::open(request.folder, device)?;
    let pairs: Vec<SentencePair> =
        pairs.into_iter().filter(|pair| !pair.source.is_empty() && !pair.target.is_empty()).collect();
    let start = Instant::now();
    let referenced = with_references(&pairs);
    let sources: Vec<&str> = referenced.iter().map(|one| one.source.as_str()).collect();
    let search = bundle.search();
    let found = bundle.translate(&sources, &search, device, &mut |done| watch(done, sources.len()))?;
    let best: Vec<&str> = found.iter().map(|all| all.first().map_or("", |one| one.text.as_str())).collect();
    let seconds = start.elapsed().as_secs_f64();
    let references: Vec<Vec<String>> = referenced.iter().map(|one| one.references.clone()).collect();
    let loss = token_loss(&bundle, &pairs, TOKENS)?;
    let report = TranslationReport {
        score: score(&best, &references),
        perplexity: loss.loss().exp(),
        token_accuracy: loss.top1(),
        references: references.iter().map(Vec::len).sum(),
        beam: search.beam,
        seconds,
    };
    Ok(EvalReport {
        lines: report.lines(),
        json: serde_json::to_value(&report).expect("plain data"),
        figures: Vec::new(),
    })
}

impl TranslationReport {
    fn lines(&self) -> Vec<(String, String)> {
        let Self { score, perplexity, token_accuracy, references, beam, seconds } = self;
        let precisions = score.precisions.map(|precision| format!("{precision:.1}")).join(" / ");
        let lines = [
            ("BLEU", format!("{:.2}", score.bleu)),
            ("chrF", format!("{:.2}", score.chrf)),
            ("precisions", format!("{precisions} (brevity {:.3})", score.brevity_penalty)),
            ("perplexity", format!("{perplexity:.3}")),
            ("tokens", format!("{:.2} % predicted", 100.0 * token_accuracy)),
            ("sentences", format!("{} with {references} references, beam {beam}", score.sentences)),
            ("speed", format!("{:.1} sentences/s", score.sentences as f64 / seconds)),
        ];
        lines.map(|(name, value)| (name.to_string(), value)).into()
    }
}
