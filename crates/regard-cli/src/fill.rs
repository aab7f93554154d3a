//! `regard fill`: predictions of a language model, at a `[MASK]` or after a text.

use burn::tensor::Device;
use regard::tasks::language::{Continuation, Filling, LanguageBundle};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

use crate::failure::Failure;
use crate::models::print_json;
use crate::sentences;

/// Fill [MASK] in sentences with a masked language model, or continue texts with a causal one
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sentences, or files with one sentence per line; by default lines of standard input
    #[arg(value_name = "TEXT|FILE")]
    texts: Vec<String>,

    /// The folder of a run that trained a language model
    #[arg(short, long, value_name = "MODEL")]
    model: PathBuf,

    /// Number of words to print for each [MASK], best first
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = crate::model::at_least_one)]
    top: usize,

    /// Maximum number of new tokens
    #[arg(long, value_name = "COUNT", default_value_t = 30)]
    length: usize,

    /// Sampling temperature; 0 always takes the most probable token
    #[arg(long, value_name = "NUMBER", default_value_t = 0.0)]
    temperature: f64,

    /// Random seed of sampling
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    seed: u64,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result for one sentence: the words for each mask from a masked model, the whole text from a causal one.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer {
    Masked { sentence: String, fillings: Vec<Vec<Filling>> },
    Causal { sentence: String, text: String },
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let bundle = LanguageBundle::open(&args.model, device).map_err(|error| {
        Failure::input(error, "`--model` takes the folder that `regard train` of a language model wrote")
    })?;
    let rest = Continuation { length: args.length, temperature: args.temperature, seed: args.seed };
    let answer = |sentence: String| {
        Ok(if bundle.is_masked() {
            Answer::Masked { fillings: bundle.fill(&sentence, args.top)?, sentence }
        } else {
            Answer::Causal { text: bundle.write_on(&sentence, rest)?, sentence }
        })
    };
    let hint = if bundle.is_masked() {
        "a masked model fills `the cat [MASK] on the mat`"
    } else {
        "a causal model continues `the cat`; `--temperature` is at least 0"
    };
    let answers: Result<Vec<Answer>, regard::Error> = sentences::read(&args.texts)?.into_iter().map(answer).collect();
    let answers = answers.map_err(|error| Failure::input(error, hint))?;
    if args.json {
        return print_json(&answers, out);
    }
    for answer in answers {
        match answer {
            Answer::Causal { text, .. } => writeln!(out, "{text}")?,
            Answer::Masked { fillings, .. } => {
                for Filling { word, probability, sentence } in fillings.iter().flatten() {
                    writeln!(out, "{:>6.2} %  {word:<16} {sentence}", 100.0 * probability)?;
                }
            }
        }
    }
    Ok(())
}
