//! `regard serve`: models over HTTP.

use burn::tensor::Device;
use regard::Prepared;
use regard::translate::Bundle;
use regard::weights::{EMBEDDED, Embedded};
use regard_serve::{Classifier, Entry, Error, Event, Reload, Service, Settings, Tell, Token};
use std::io::{Write as _, stderr};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::candidates::{Candidate, Loaded};
use crate::failure::Failure;
use crate::model::{WeightsArgs, at_least_one, named};
use crate::predict::label_names;
use crate::translate;

/// Where a token is looked for when no file is given.
const TOKEN: &str = "REGARD_TOKEN";

/// Serve models over HTTP: pictures, sentences, and tensors by the Open Inference Protocol
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A preset or a TOML file, and its weights: a file, `hf:owner/name` or an address; `mine:deit-tiny=FILE` calls it
    /// `mine`
    #[arg(long, value_name = "NAME=WEIGHTS")]
    model: Vec<String>,

    /// A name and the folder of a training run, of pictures or of sentences
    #[arg(long, value_name = "NAME=DIR")]
    run: Vec<String>,

    /// Serve what is named and not the small models that come with regard
    #[arg(long)]
    only: bool,

    /// Show the training runs below this folder, with curves that grow while they are written
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,

    /// The address to listen at; other machines reach 0.0.0.0
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: IpAddr,

    /// The port; 0 takes a free one
    #[arg(long, value_name = "NUMBER", default_value_t = 8000)]
    port: u16,

    /// A file with a token that clients have to show; without, the variable `REGARD_TOKEN` is looked at
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Pictures or sentences that are answered together
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = at_least_one)]
    batch: usize,

    /// How long a request waits for others that are on their way, such as 2ms
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = duration)]
    wait: Duration,

    /// Pictures or sentences of a model that may be on their way; more are refused with 429
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = at_least_one)]
    queue: usize,

    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    time: Duration,

    /// The most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20, value_parser = at_least_one)]
    body: usize,

    /// The most pixels of a picture
    #[arg(long, value_name = "COUNT", default_value_t = 1 << 25, value_parser = at_least_one)]
    pixels: usize,

    /// Compute in eight bits: transformers alone
    #[arg(long)]
    int8: bool,

    /// Let clients have a model loaded again from its files, as SIGHUP does with all of them
    #[arg(long)]
    allow_reload: bool,
}

/// A time with its unit.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let seconds = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err("a number and one of us, ms, s, min, such as 2ms".into()),
    };
    let number: f64 = number.parse().map_err(|_| "a number and its unit, such as 2ms")?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|time| *time <= Duration::from_hours(1))
        .ok_or_else(|| "a time from 0 to 60min".into())
}

/// Where a model comes from, so that it can be loaded again.
#[derive(Clone, Debug)]
enum Source {
    Weights { name: String, model: String, weights: String, int8: bool },
    Pictures { name: String, folder: PathBuf, int8: bool },
    Sentences { name: String, folder: PathBuf },
    Embedded(Embedded),
    EmbeddedTranslator,
}

impl Source {
    fn of_model(text: &str, int8: bool) -> Result<Self, Failure> {
        let Some((model, weights)) =
            text.split_once('=').filter(|(model, weights)| !model.is_empty() && !weights.is_empty())
        else {
            return Err(Failure::input(
                format!("`--model {text}` has no weights"),
                "write `--model deit-tiny=weights.safetensors`",
            ));
        };
        // one letter is a drive of Windows
        let (alias, model) = match model.split_once(':') {
            Some((alias, model)) if alias.len() > 1 && !model.is_empty() => (Some(alias), model),
            _ => (None, model),
        };
        let path = Path::new(model);
        let of_file = path.extension().is_some_and(|ending| ending == "toml");
        let stem = path.file_stem().filter(|_| of_file).map(|stem| stem.to_string_lossy().into_owned());
        let name = alias.map(String::from).or(stem).unwrap_or_else(|| model.to_string());
        Ok(Self::Weights { name, model: model.into(), weights: weights.into(), int8 })
    }

    /// A folder may come without a name, and is then called as it is.
    fn of_run(text: &str, int8: bool) -> Self {
        let (name, folder) = if let Some((name, folder)) = text.split_once('=') {
            (name.to_string(), PathBuf::from(folder))
        } else {
            let path = Path::new(text).canonicalize().unwrap_or_else(|_| text.into());
            (path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(), text.into())
        };
        let sentences = ["tokenizer.json", "source.json"].iter().any(|file| folder.join(file).is_file());
        if sentences { Self::Sentences { name, folder } } else { Self::Pictures { name, folder, int8 } }
    }

    fn name(&self) -> &str {
        match self {
            Self::Weights { name, .. } | Self::Pictures { name, .. } | Self::Sentences { name, .. } => name,
            Self::Embedded(one) => one.name,
            Self::EmbeddedTranslator => "it-en",
        }
    }

    fn load(&self, device: &Device) -> Result<Service, Failure> {
        let candidate = match self {
            Self::Sentences { folder, .. } => {
                return Ok(Service::Sentences { bundle: translate::open(folder, device)?, device: device.clone() });
            }
            Self::EmbeddedTranslator => {
                return Ok(Service::Sentences { bundle: Bundle::embedded(device)?, device: device.clone() });
            }
            Self::Embedded(one) => {
                let (model, config, preprocess) = one.load(device)?;
                let classifier = Classifier::new(Prepared::new(model), config, preprocess, one.labels(), device);
                let spoiled = |reason| Failure::ours(reason, "this is a bug, please report it");
                return classifier.map(Service::Pictures).map_err(spoiled);
            }
            Self::Weights { name, model, weights, int8 } => {
                let weights = WeightsArgs { weights: weights.clone(), from: None, new_head: None };
                Candidate::of_pair(name.clone(), named(model, &[])?, weights, *int8)
            }
            Self::Pictures { folder, int8, .. } => Candidate::of_run(folder, &[], None, *int8)?,
        };
        let labels = label_names(candidate.labels.as_ref(), candidate.classes())?;
        let Loaded { model, config, preprocess } = candidate.load(device)?;
        let classifier = Classifier::new(model, config, preprocess, labels, device);
        classifier
            .map(Service::Pictures)
            .map_err(|reason| Failure::input(reason, "`classes.txt` of a run has one name a line"))
    }

    fn entry(self, device: &Device) -> Result<Entry, Failure> {
        let (name, service, device) = (self.name().to_string(), self.load(device)?, device.clone());
        let reload: Option<Reload> = match self {
            Self::Embedded(_) | Self::EmbeddedTranslator => None,
            _ => Some(Box::new(move || self.load(&device).map_err(|failure| failure.message().to_string()))),
        };
        Ok(Entry { name, service, reload })
    }
}

/// The token of a file, or of the environment.
fn token(file: Option<&PathBuf>) -> Result<Option<Token>, Failure> {
    let (text, from) = match file {
        Some(path) => {
            let unreadable =
                |error| Failure::input(format!("cannot read `{}`: {error}", path.display()), "is the path right?");
            (std::fs::read_to_string(path).map_err(unreadable)?, path.display().to_string())
        }
        None => match std::env::var_os(TOKEN) {
            Some(text) => (text.to_string_lossy().into_owned(), TOKEN.to_string()),
            None => return Ok(None),
        },
    };
    let token = Token::new(text.trim());
    token.map(Some).map_err(|reason| Failure::input(format!("{from}: {reason}"), "`openssl rand -hex 32` makes one"))
}

/// What comes along, unless something else has its name.
fn embedded(named: &[Source]) -> Vec<Source> {
    let all = EMBEDDED.map(Source::Embedded).into_iter().chain([Source::EmbeddedTranslator]);
    all.filter(|one| named.iter().all(|other| other.name() != one.name())).collect()
}

pub fn run(args: &Args, device: &Device) -> Result<(), Failure> {
    let token = token(args.token_file.as_ref())?;
    let open = token.is_none() && !args.bind.is_loopback();
    let models = args.model.iter().map(|text| Source::of_model(text, args.int8));
    let runs = args.run.iter().map(|text| Ok(Source::of_run(text, args.int8)));
    let mut sources: Vec<Source> = models.chain(runs).collect::<Result<_, Failure>>()?;
    if !args.only {
        sources.extend(embedded(&sources));
    }
    if let Some(folder) = args.runs.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::input(
            format!("`{}` is no folder", folder.display()),
            "`--runs` takes one with runs in it",
        ));
    }
    let entries: Vec<Entry> = sources.into_iter().map(|source| source.entry(device)).collect::<Result<_, _>>()?;
    let settings = Settings {
        batch: args.batch,
        wait: args.wait,
        queue: args.queue,
        time: args.time,
        body: args.body,
        pixels: args.pixels as u64,
        token,
        reload: args.allow_reload,
        runs: args.runs.clone(),
        ..Settings::default()
    };
    if open {
        writeln!(stderr(), "note: everybody who reaches {} may ask; `--token-file` changes that", args.bind)?;
    }
    let tell: Tell = Arc::new(|event| {
        // nobody may be listening to stderr, and the server goes on
        let _ = writeln!(stderr(), "{}", told(&event));
    });
    regard_serve::run(entries, SocketAddr::new(args.bind, args.port), settings, tell).map_err(failure)
}

fn told(event: &Event) -> String {
    match event {
        Event::Ready(address) => format!("serving at http://{address}"),
        Event::Reloaded { name } => format!("loaded again: {name}"),
        Event::Kept { name, reason } => format!("error: {name} stays as it was: {reason}"),
        Event::Panicked { message } => format!("error: internal failure: {message}"),
        Event::Stopping => "stopping: what was asked is still answered".into(),
    }
}

fn failure(error: Error) -> Failure {
    match &error {
        Error::Empty => Failure::input(
            error,
            "`--model deit-tiny=weights.safetensors` serves a model, `--run NAME=DIR` a training run",
        ),
        Error::Name(_) => Failure::input(error, "letters, digits, `-`, `_` and `.`: `--run NAME=DIR` gives a run one"),
        Error::Twice(_) => {
            Failure::input(error, "`--model mine:deit-tiny=weights.safetensors` and `--run mine=DIR` give another name")
        }
        Error::Zero { .. } => Failure::input(error, "`regard serve --help` lists the limits"),
        Error::Address { .. } => Failure::input(error, "is another program there? `--port 0` takes a free port"),
        Error::System(_) => Failure::ours(error, "is the machine out of memory or threads?"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        assert_eq!(duration("2ms"), Ok(Duration::from_millis(2)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("0us"), Ok(Duration::ZERO));
        for wrong in ["2", "ms", "-1s", "61min", "1h", "NaNs", ""] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_model_is_called_as_its_preset_or_its_file_and_a_run_as_its_folder() {
        assert_eq!(Source::of_model("deit-tiny=a=b.pth", false).unwrap().name(), "deit-tiny");
        assert_eq!(Source::of_model("here/mine.toml=b.pth", false).unwrap().name(), "mine");
        assert_eq!(Source::of_model("tuned:deit-tiny=c:b.pth", false).unwrap().name(), "tuned");
        assert_eq!(Source::of_run("shapes=runs/1", false).name(), "shapes");
        assert_eq!(Source::of_run("runs/1", false).name(), "1");
        for wrong in ["deit-tiny", "=b.pth", "deit-tiny="] {
            assert!(Source::of_model(wrong, false).is_err(), "{wrong}");
        }
    }
}
