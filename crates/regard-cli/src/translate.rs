//! `regard translate`: sentences in, sentences out.

use burn::tensor::Device;
use regard::report::{AttentionReport, Figure as _};
use regard::translate::{Bundle, Search, Translation};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::files::check_folder;
use crate::model::old_run;
use crate::sentences;

/// Translate sentences with a trained model
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sentences, or files with one sentence per line; by default lines of standard input
    #[arg(value_name = "TEXT|FILE")]
    texts: Vec<String>,

    /// A translator: a run folder, or the embedded `it-en`, from Italian into English
    #[arg(short, long, value_name = "MODEL", default_value = EMBEDDED)]
    model: String,

    /// The old spelling of a run folder
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "model")]
    run: Option<PathBuf>,

    /// Beam size; 1 is greedy search
    #[arg(long, value_name = "COUNT", default_value_t = 4)]
    beam: usize,

    /// Print this many translations of each sentence, best first, with their scores
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    n_best: usize,

    /// Length penalty: 0 for none; larger values favour longer sentences
    #[arg(long, value_name = "NUMBER", default_value_t = 0.6)]
    length_penalty: f64,

    /// Write the attention during the translation of one sentence: a page (.html), data (.json) or the alignment (.svg)
    #[arg(long, value_name = "FILE")]
    attention: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Line<'a> {
    source: &'a str,
    translations: &'a [Translation],
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.attention {
        Format::of(path)?;
        check_folder(path)?;
    }
    if args.n_best == 0 || args.n_best > args.beam {
        return Err(Failure::input(
            format!("the {} best of a beam of {}", args.n_best, args.beam),
            "`--n-best` is at least 1 and at most `--beam`",
        ));
    }
    let bundle = match &args.run {
        Some(folder) => {
            old_run(folder)?;
            open(folder, device)?
        }
        None => named(&args.model, device)?,
    };
    let texts = sentences::read(&args.texts)?;
    let search = Search { beam: args.beam, penalty: args.length_penalty, ..bundle.search() };
    let mut found = bundle.translate(&texts, &search, device, &mut |_| {}).map_err(sentence_failure)?;
    found.iter_mut().for_each(|all| all.truncate(args.n_best));
    if let Some(path) = &args.attention {
        let [text] = &texts[..] else {
            return Err(Failure::input(
                format!("attention of {} sentences in one file", texts.len()),
                "give one sentence to `--attention`",
            ));
        };
        write_attention(&bundle, text, &found[0][0], path)?;
    }
    if args.json {
        let lines: Vec<Line> =
            texts.iter().zip(&found).map(|(source, translations)| Line { source, translations }).collect();
        return crate::models::print_json(&lines, out);
    }
    for all in &found {
        for translation in all {
            if args.n_best > 1 {
                writeln!(out, "{:.4}\t{}", translation.score, translation.text)?;
            } else {
                writeln!(out, "{}", translation.text)?;
            }
        }
    }
    Ok(())
}

/// The name of the embedded translator.
pub const EMBEDDED: &str = "it-en";

/// A translator by its name: a run folder, or the embedded one. A folder wins, as for every other model.
fn named(name: &str, device: &Device) -> Result<Bundle, Failure> {
    let folder = Path::new(name);
    if folder.join("model.toml").is_file() {
        return open(folder, device);
    }
    if name == EMBEDDED {
        return Ok(Bundle::embedded(device)?);
    }
    Err(Failure::input(
        format!("`{name}` is no translator"),
        format!("`--model` takes the folder that `regard train` of a translation wrote, or `{EMBEDDED}`"),
    ))
}

/// The translator of a run.
pub fn open(folder: &Path, device: &Device) -> Result<Bundle, Failure> {
    Bundle::open(folder, device)
        .map_err(|error| Failure::input(error, "`--model` takes the folder that `regard train` of a translation wrote"))
}

fn sentence_failure(error: regard::Error) -> Failure {
    match &error {
        regard::Error::Config { .. } => Failure::input(error, "`--beam` is from 1 to 256"),
        _ => Failure::input(error, "a sentence is a line of the standard input, or an argument"),
    }
}

enum Format {
    Page,
    Data,
    Alignment,
}

impl Format {
    fn of(path: &Path) -> Result<Self, Failure> {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        match ending.as_str() {
            "html" => Ok(Self::Page),
            "json" => Ok(Self::Data),
            "svg" => Ok(Self::Alignment),
            _ => Err(Failure::input(
                format!("unknown format: `{}`", path.display()),
                "end the name with .html, .json or .svg",
            )),
        }
    }
}

fn write_attention(bundle: &Bundle, text: &str, translation: &Translation, path: &Path) -> Result<(), Failure> {
    let attended = bundle.attend(text, translation).map_err(sentence_failure)?;
    let report = AttentionReport::of(text, &translation.text, attended)?;
    let text = match Format::of(path)? {
        Format::Page => report.html(),
        Format::Data => report.json(),
        Format::Alignment => report.alignment().svg(),
    };
    regard::file::replace(path, text.as_bytes()).map_err(|error| {
        Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable?")
    })
}
