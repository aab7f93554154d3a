//! `regard models` and `regard cost`: the list of models and their costs.

use burn::module::Module;
use regard::cost::{Convention, Ledger};
use regard::device::cpu;
use regard::models::translator::{self, TranslatorConfig};
use regard::models::{self, bert, detect, language_model, video, vision_language};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

use crate::failure::Failure;
use crate::model::Configuration;

/// List the models, or show one of them part by part
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Parameters and costs of a model, part by part
    Show {
        /// A preset, a TOML file, a run folder, or any other model name
        #[arg(value_name = "MODEL")]
        name: String,
    },
    /// Print the configuration of a model as TOML, to edit and use as `--model FILE.toml`
    Config {
        /// A preset, a TOML file, a run folder, or any other model name
        #[arg(value_name = "MODEL")]
        name: String,
    },
}

/// Parameters and multiply-adds of a model for one picture or clip
#[derive(Debug, clap::Args)]
pub struct CostArgs {
    /// A preset (`regard models` lists them), a TOML file, a run folder, or any other model name
    #[arg(value_name = "MODEL")]
    model: String,

    /// Change a field of the model, such as `depth=4`
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,

    /// Side of the picture, or `ROWSxCOLUMNS`
    #[arg(long, value_name = "SIZE")]
    image: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What a model is for.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Classifier,
    Detector,
    Video,
    Translator,
    LanguageModel,
    VisionLanguage,
}

impl Kind {
    const ALL: [Self; 6] =
        [Self::Classifier, Self::Detector, Self::Video, Self::Translator, Self::LanguageModel, Self::VisionLanguage];

    const fn heading(self) -> &'static str {
        match self {
            Self::Classifier => "classifiers",
            Self::Detector => "detectors",
            Self::Video => "models of video",
            Self::Translator => "translators",
            Self::LanguageModel => "language models",
            Self::VisionLanguage => "vision and language",
        }
    }
}

#[derive(Serialize)]
struct Entry {
    name: &'static str,
    kind: Kind,
    family: String,
    paper: &'static str,
    /// Frames of a clip; none for models of pictures or text.
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<usize>,
    /// None for text models.
    #[serde(skip_serializing_if = "Option::is_none")]
    image: Option<[usize; 2]>,
    parameters: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    multiply_adds: Option<u64>,
}

#[derive(Serialize)]
struct Summary {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<usize>,
    image: [usize; 2],
    parameters: u64,
    multiply_adds: u64,
    activation_bytes: u64,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    match &args.command {
        None => list(args.json, out),
        Some(Command::Show { name }) => show(name, args.json, out),
        Some(Command::Config { name }) => {
            let config = match text_config(name) {
                Some(config) => config,
                None => Configuration::named(name, &[])?.to_toml(),
            };
            Ok(write!(out, "{config}")?)
        }
    }
}

/// The configuration of a preset that reads text.
fn text_config(name: &str) -> Option<String> {
    let translator = translator::preset(name).map(|preset| preset.config.to_toml());
    let language = || language_model::preset(name).map(|preset| (preset.config)().to_toml());
    let bert = || bert::preset(name).map(|config| config.to_toml());
    let both = || vision_language::preset(name).map(|config| config.to_toml());
    translator.or_else(|_| language()).or_else(|_| bert()).or_else(|_| both()).ok()
}

fn list(json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let entries = entries()?;
    if json {
        return print_json(&entries, out);
    }
    for kind in Kind::ALL {
        if kind != Kind::ALL[0] {
            writeln!(out)?;
        }
        writeln!(
            out,
            "{:<37}{:<18}{:<17}{:>10}{:>13}{:>16}",
            kind.heading(),
            "family",
            "paper",
            "image",
            "parameters",
            "multiply-adds"
        )?;
        for Entry { name, family, paper, frames, image, parameters, multiply_adds, .. } in
            entries.iter().filter(|entry| entry.kind == kind)
        {
            let frames = frames.map_or(String::new(), |frames| format!("{frames}x"));
            let image = image.map_or("text".into(), |[rows, columns]| format!("{frames}{rows}x{columns}"));
            let multiply_adds = multiply_adds.map_or("-".into(), short);
            writeln!(out, "{name:<37}{family:<18}{paper:<17}{image:>10}{parameters:>13}{multiply_adds:>16}")?;
        }
    }
    Ok(())
}

/// Every preset, kind by kind.
fn entries() -> Result<Vec<Entry>, Failure> {
    let mut entries = Vec::new();
    for preset in models::presets() {
        let config = Configuration::Classifier(preset.config);
        entries.push(picture_entry(preset.name, Kind::Classifier, preset.paper, &config)?);
    }
    for preset in detect::presets() {
        let config = Configuration::Detector(preset.config);
        entries.push(picture_entry(preset.name, Kind::Detector, preset.paper, &config)?);
    }
    for preset in video::presets() {
        let config = Configuration::Video(preset.config);
        entries.push(picture_entry(preset.name, Kind::Video, preset.paper, &config)?);
    }
    for preset in translator::presets() {
        let family = match preset.config {
            TranslatorConfig::Transformer(_) => "transformer",
            TranslatorConfig::RnnSearch(_) => "rnn-search",
        };
        let parameters = preset.config.init(&cpu())?.num_params() as u64;
        entries.push(text_entry(preset.name, Kind::Translator, family, preset.paper, parameters));
    }
    for preset in language_model::PRESETS {
        let parameters = (preset.config)().init(&cpu())?.num_params() as u64;
        entries.push(text_entry(preset.name, Kind::LanguageModel, "language-model", preset.paper, parameters));
    }
    for preset in bert::PRESETS {
        let parameters = (preset.config)().init(&cpu())?.num_params() as u64;
        entries.push(text_entry(preset.name, Kind::LanguageModel, "bert", preset.paper, parameters));
    }
    for preset in vision_language::PRESETS {
        let config = (preset.config)();
        let parameters = config.init(&cpu())?.num_params() as u64;
        entries.push(text_entry(preset.name, Kind::VisionLanguage, config.family(), preset.paper, parameters));
    }
    Ok(entries)
}

fn picture_entry(
    name: &'static str,
    kind: Kind,
    paper: &'static str,
    config: &Configuration,
) -> Result<Entry, regard::Error> {
    let ledger = config.ledger(config.image())?;
    Ok(Entry {
        name,
        kind,
        family: config.family(),
        paper,
        frames: config.frames(),
        image: Some(config.image()),
        parameters: ledger.parameters(),
        multiply_adds: Some(ledger.total(Convention::MultiplyAdds)),
    })
}

/// Text models have no fixed number of multiply-adds: it depends on the length of the sentence.
fn text_entry(name: &'static str, kind: Kind, family: &str, paper: &'static str, parameters: u64) -> Entry {
    Entry { name, kind, family: family.into(), paper, frames: None, image: None, parameters, multiply_adds: None }
}

/// Parts are listed to the second level: `blocks.3`, `layer2.0`.
fn show(name: &str, json: bool, out: &mut impl Write) -> Result<(), Failure> {
    let config = Configuration::named(name, &[])?;
    let ledger = config.ledger(config.image())?;
    if json {
        return print_json(&ledger, out);
    }
    let mut order: Vec<String> = Vec::new();
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for line in ledger.lines() {
        let part = part_of(&line.name);
        let sums = parts.entry(part.clone()).or_insert_with(|| {
            order.push(part);
            Part::default()
        });
        sums.parameters += line.parameters;
        sums.multiply_adds += Convention::MultiplyAdds.count(line.work);
        sums.activations += line.activations;
    }
    let [height, width] = config.image();
    let frames = config.frames().map_or(String::new(), |frames| format!("{frames}x"));
    writeln!(out, "{name}: {}, {frames}{height}x{width}\n", config.family())?;
    writeln!(out, "{:<24}{:>14}{:>16}{:>14}", "part", "parameters", "multiply-adds", "activations")?;
    for name in order {
        let Part { parameters, multiply_adds, activations } = parts[&name];
        writeln!(out, "{name:<24}{parameters:>14}{:>16}{:>14}", short(multiply_adds), short(activations))?;
    }
    let whole = ledger.total(Convention::MultiplyAdds);
    writeln!(out, "{:<24}{:>14}{:>16}{:>14}", "all", ledger.parameters(), short(whole), short(activations(&ledger)))?;
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Part {
    parameters: u64,
    multiply_adds: u64,
    activations: u64,
}

/// `blocks.3.attn.qkv` is a part of `blocks.3`, `conv1` of itself.
fn part_of(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    match parts.as_slice() {
        [first, second, ..] if second.chars().all(|c| c.is_ascii_digit()) => format!("{first}.{second}"),
        [first, ..] => (*first).to_string(),
        [] => String::new(),
    }
}

fn activations(ledger: &Ledger) -> u64 {
    ledger.lines().iter().map(|line| line.activations).sum()
}

pub fn cost(args: &CostArgs, out: &mut impl Write) -> Result<(), Failure> {
    let config = Configuration::named(&args.model, &args.set)?;
    let image = match &args.image {
        Some(size) => parse_size(size)?,
        None => config.image(),
    };
    let ledger = config.ledger(image)?;
    let summary = Summary {
        name: args.model.clone(),
        frames: config.frames(),
        image,
        parameters: ledger.parameters(),
        multiply_adds: ledger.total(Convention::MultiplyAdds),
        activation_bytes: 4 * activations(&ledger),
    };
    if args.json {
        return print_json(&summary, out);
    }
    writeln!(out, "model          {}", summary.name)?;
    if let Some(frames) = summary.frames {
        writeln!(out, "frames         {frames}")?;
    }
    writeln!(out, "image          {}x{}", image[0], image[1])?;
    writeln!(out, "parameters     {}", summary.parameters)?;
    writeln!(out, "multiply-adds  {}", short(summary.multiply_adds))?;
    writeln!(out, "activations    {}B", short(summary.activation_bytes))?;
    Ok(())
}

pub fn parse_size(size: &str) -> Result<[usize; 2], Failure> {
    let (rows, columns) = size.split_once('x').unwrap_or((size, size));
    match (rows.parse(), columns.parse()) {
        (Ok(rows), Ok(columns)) if rows > 0 && columns > 0 => Ok([rows, columns]),
        _ => Err(Failure::input(format!("not a size: `{size}`"), "write `384` or `224x320`")),
    }
}

/// Four digits and a unit.
pub fn short(count: u64) -> String {
    match count as f64 {
        n if n >= 1e9 => format!("{:.3} G", n / 1e9),
        n if n >= 1e6 => format!("{:.3} M", n / 1e6),
        n if n >= 1e3 => format!("{:.3} k", n / 1e3),
        n => format!("{n}"),
    }
}

pub fn print_json(value: &impl Serialize, out: &mut impl Write) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).expect("plain data serialises");
    Ok(writeln!(out, "{text}")?)
}
