//! `regard embed-text`: sentences as vectors, and how alike they are.

use burn::tensor::Device;
use regard::weights;
use serde::Serialize;
use std::io::{Write, stderr};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::models::print_json;
use crate::sentences;

/// Turn sentences into vectors with a BERT, and show how alike they are
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sentences, or files of one sentence a line; lines of the standard input when there is none
    #[arg(value_name = "TEXT|FILE")]
    texts: Vec<String>,

    /// The folder of a BERT as on the hub: config.json, model.safetensors, and vocab.txt or tokenizer.json
    #[arg(short, long, value_name = "FOLDER")]
    model: PathBuf,

    /// Print JSON, with the vectors
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Embedded<'a> {
    texts: Vec<Line<'a>>,
    /// The cosine of each pair.
    similarity: &'a [Vec<f32>],
}

#[derive(Serialize)]
struct Line<'a> {
    text: &'a str,
    vector: &'a [f32],
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let hint = "`--model` takes a folder with config.json, model.safetensors, and vocab.txt or tokenizer.json";
    let loaded = weights::load_bert_folder(&args.model, device).map_err(|error| Failure::input(error, hint))?;
    let texts = sentences::read(&args.texts)?;
    if texts.is_empty() {
        return Err(Failure::input("there is no sentence", "`regard embed-text \"A red shirt.\" --model FOLDER`"));
    }
    let vectors =
        loaded.sentence_vectors(&texts).map_err(|error| Failure::input(error, "the tokenizer cannot take it"))?;
    for (text, tokens) in texts.iter().zip(&vectors.cut) {
        if let Some(tokens) = tokens {
            let start: String = text.chars().take(40).collect();
            writeln!(stderr(), "note: `{start}..` has more than {tokens} tokens; the rest is left out")?;
        }
    }
    let vectors = vectors.vectors;
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let similarity: Vec<Vec<f32>> = vectors.iter().map(|a| vectors.iter().map(|b| dot(a, b)).collect()).collect();
    if args.json {
        let texts = texts.iter().zip(&vectors).map(|(text, vector)| Line { text, vector }).collect();
        return print_json(&Embedded { texts, similarity: &similarity }, out);
    }
    if let [vector] = &vectors[..] {
        let numbers: Vec<String> = vector.iter().map(ToString::to_string).collect();
        return Ok(writeln!(out, "{}", numbers.join(" "))?);
    }
    let numbers: Vec<String> = (1..=texts.len()).map(|number| format!("{number:>7}")).collect();
    writeln!(out, "{:>4}{}", "", numbers.concat())?;
    for (number, (row, text)) in similarity.iter().zip(&texts).enumerate() {
        let cells: Vec<String> = row.iter().map(|cosine| format!("{cosine:>7.3}")).collect();
        writeln!(out, "{:>4}{}  {text}", number + 1, cells.concat())?;
    }
    Ok(())
}
