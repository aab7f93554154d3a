//! `regard serve`: models over HTTP.

use burn::tensor::Device;
use regard::tasks::vision_language::{EMBEDDED_ANSWERERS, RegionCache};
use regard::translate::Bundle;
use regard::weights::{
    EMBEDDED, EMBEDDED_DETECTORS, EMBEDDED_VIDEOS, WeightsOrigin, is_bert_folder, is_detector, is_video,
    load_bert_folder, resolve_detector,
};
use regard_serve::{
    Answerer, Classifier, Detector, Embedder, Entry, Error, Event, Reload, Service, Settings, Tell, Token,
    VideoClassifier,
};
use std::io::{Write as _, stderr};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::answerer::{self, is_answerer};
use crate::failure::Failure;
use crate::model::{self, ChangeArgs, at_least_one, class_names, download_bar, note_fresh};
use crate::translate;
use crate::video::video_source;

/// The environment variable for a token, if no file is given.
const TOKEN: &str = "REGARD_TOKEN";

/// Serve models over HTTP: pictures, sentences, and tensors by the Open Inference Protocol
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A model: a run folder (of pictures, boxes, sentences or questions), PRESET=WEIGHTS, FILE.toml=WEIGHTS,
    /// `hf:owner/name[@revision]`, a folder of Hugging Face or timm, of a BERT too; `mine:deit-tiny=FILE` names it `mine`
    #[arg(value_name = "[NAME:]MODEL")]
    models: Vec<String>,

    /// A model, as an option
    #[arg(short, long, value_name = "[NAME:]MODEL")]
    model: Vec<String>,

    /// The old spelling of `NAME:DIR`
    #[arg(long, value_name = "NAME=DIR", hide = true)]
    run: Vec<String>,

    /// Serve only the named models, not the embedded ones
    #[arg(long)]
    only: bool,

    /// Show the training runs in this folder, with live curves
    #[arg(long, value_name = "DIR")]
    runs: Option<PathBuf>,

    /// Address to listen on; use 0.0.0.0 for access from other machines
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    bind: IpAddr,

    /// Port; 0 for any free one
    #[arg(long, value_name = "NUMBER", default_value_t = 8000)]
    port: u16,

    /// File with a token that clients must send; by default the environment variable `REGARD_TOKEN`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Largest batch of pictures or sentences
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = at_least_one)]
    batch: usize,

    /// How long a batch waits for requests that are already queued, such as 2ms
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = duration)]
    wait: Duration,

    /// Largest queue of pictures or sentences per model; more are refused with status 429
    #[arg(long, value_name = "COUNT", default_value_t = 128, value_parser = at_least_one)]
    queue: usize,

    /// Time limit of a request
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    time: Duration,

    /// Largest request body, in bytes
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20, value_parser = at_least_one)]
    body: usize,

    /// Largest picture, in pixels
    #[arg(long, value_name = "COUNT", default_value_t = 1 << 25, value_parser = at_least_one)]
    pixels: usize,

    /// Largest number of open connections; more wait, and idle ones are closed for them
    #[arg(long, value_name = "COUNT", default_value_t = 512, value_parser = at_least_one)]
    connections: usize,

    /// Host name that clients may use for this server, in addition to `localhost` and its address; repeatable
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,

    /// Compute in int8; only for transformers
    #[arg(long)]
    int8: bool,

    /// Let clients reload a model from its files, as SIGHUP does for all models
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
        _ => return Err("must be a number with us, ms, s or min, such as 2ms".into()),
    };
    let number: f64 = number.parse().map_err(|_| "must be a number with a unit, such as 2ms")?;
    Duration::try_from_secs_f64(number * seconds)
        .ok()
        .filter(|time| *time <= Duration::from_hours(1))
        .ok_or_else(|| "must be from 0 to 60min".into())
}

/// The source of a model, to reload it.
#[derive(Clone, Debug)]
enum Source {
    Classifier { name: String, model: String, int8: bool },
    Detector { name: String, model: String, int8: bool },
    Video { name: String, model: String, int8: bool },
    Translator { name: String, folder: PathBuf },
    EmbeddedTranslator { name: String },
    Answerer { name: String, model: String },
    Embedder { name: String, folder: PathBuf },
}

impl Source {
    /// `MODEL` or `NAME:MODEL`.
    fn of(text: &str, int8: bool) -> Self {
        let (alias, model) = alias(text);
        let name = alias.map_or_else(|| usual_name(model), String::from);
        let folder = Path::new(model);
        if is_answerer(model) {
            Self::Answerer { name, model: model.into() }
        } else if is_bert_folder(folder) {
            Self::Embedder { name, folder: folder.into() }
        } else if ["tokenizer.json", "source.json"].iter().any(|file| folder.join(file).is_file()) {
            Self::Translator { name, folder: folder.into() }
        } else if model == translate::EMBEDDED && !folder.join("model.toml").is_file() {
            Self::EmbeddedTranslator { name }
        } else if is_detector(model) {
            Self::Detector { name, model: model.into(), int8 }
        } else if is_video(model) {
            Self::Video { name, model: model.into(), int8 }
        } else {
            Self::Classifier { name, model: model.into(), int8 }
        }
    }

    /// Replaces the old spellings `--run NAME=DIR` and `--run DIR`.
    fn of_run(text: &str, int8: bool) -> Result<Self, Failure> {
        let new = match text.split_once('=') {
            Some((name, folder)) => format!("{name}:{folder}"),
            None => text.to_string(),
        };
        writeln!(stderr(), "note: `--run {text}` is now `--model {new}`; the next release removes the old spelling")?;
        Ok(Self::of(&new, int8))
    }

    fn name(&self) -> &str {
        match self {
            Self::Classifier { name, .. }
            | Self::Detector { name, .. }
            | Self::Video { name, .. }
            | Self::Translator { name, .. }
            | Self::EmbeddedTranslator { name }
            | Self::Answerer { name, .. }
            | Self::Embedder { name, .. } => name,
        }
    }

    fn load(&self, device: &Device) -> Result<Service, Failure> {
        let (model, int8) = match self {
            Self::Translator { folder, .. } => {
                return Ok(Service::Sentences { bundle: translate::open(folder, device)?, device: device.clone() });
            }
            Self::EmbeddedTranslator { .. } => {
                return Ok(Service::Sentences { bundle: Bundle::embedded(device)?, device: device.clone() });
            }
            Self::Answerer { model, .. } => return answerer(model, device).map(Service::Answers),
            Self::Embedder { folder, .. } => {
                return Ok(Service::Embeddings(Embedder::new(load_bert_folder(folder, device)?)));
            }
            Self::Detector { model, int8, .. } => return detector(model, *int8, device).map(Service::Detections),
            Self::Video { model, int8, .. } => return video(model, *int8, device).map(Service::Clips),
            Self::Classifier { model, int8, .. } => (model, *int8),
        };
        let source = ChangeArgs::default().source(model)?;
        note_fresh(&source)?;
        // embedded models are small: int8 would only make them slower
        let int8 = int8 && source.origin != WeightsOrigin::Embedded;
        let loaded = model::Classifier::load(&source, int8, device)?;
        let labels = class_names(None, loaded.labels.as_ref(), loaded.config.classes())?;
        let classifier = Classifier::new(loaded.model, loaded.config, loaded.preprocess, labels, device);
        classifier
            .map(Service::Pictures)
            .map_err(|reason| Failure::input(reason, "`classes.txt` of a run has one name a line"))
    }

    fn entry(self, device: &Device) -> Result<Entry, Failure> {
        let (name, service, device) = (self.name().to_string(), self.load(device)?, device.clone());
        let embedded = match &self {
            Self::EmbeddedTranslator { .. } => true,
            Self::Classifier { model, .. } => EMBEDDED.iter().any(|one| one.name == model),
            Self::Detector { model, .. } => EMBEDDED_DETECTORS.iter().any(|one| one.name == model),
            Self::Video { model, .. } => EMBEDDED_VIDEOS.iter().any(|one| one.name == model),
            Self::Answerer { model, .. } => answerer::is_embedded(model),
            Self::Translator { .. } | Self::Embedder { .. } => false,
        };
        let reload = move || self.load(&device).map_err(|failure| failure.message().to_string());
        let reload: Option<Reload> = if embedded { None } else { Some(Box::new(reload)) };
        Ok(Entry { name, service, reload })
    }
}

fn detector(model: &str, int8: bool, device: &Device) -> Result<Detector, Failure> {
    if int8 {
        let hint = "serve it without `--int8`, or in a server of its own";
        return Err(Failure::input(format!("`{model}` is a detector, and `--int8` is for classifiers"), hint));
    }
    let source = resolve_detector(model, &mut download_bar())?;
    if source.is_fresh() {
        writeln!(stderr(), "note: `{model}` has untrained weights; use `{model}=WEIGHTS` for trained ones")?;
    }
    let loaded = source.load(device)?;
    let labels = class_names(None, loaded.labels.as_ref(), loaded.config.classes())?;
    Detector::new(loaded, labels, device)
        .map_err(|reason| Failure::input(reason, "`classes.txt` of a run has one name a line"))
}

fn video(model: &str, int8: bool, device: &Device) -> Result<VideoClassifier, Failure> {
    if int8 {
        let hint = "serve it without `--int8`, or in a server of its own";
        return Err(Failure::input(format!("`{model}` is a model of video, and `--int8` is for classifiers"), hint));
    }
    let loaded = video_source(model, &ChangeArgs::default())?.load(device)?;
    let labels = class_names(None, loaded.labels.as_ref(), loaded.config.classes())?;
    VideoClassifier::new(loaded, labels, device)
        .map_err(|reason| Failure::input(reason, "`classes.txt` of a run has one name a line"))
}

/// Nothing of a client's picture may stay on the disk.
fn answerer(model: &str, device: &Device) -> Result<Answerer, Failure> {
    let bundle = answerer::load(model, None, RegionCache::Off, device)?;
    Answerer::new(bundle).map_err(|reason| Failure::input(reason, "serve a model that was trained on pictures"))
}

/// Splits `NAME:MODEL`. The colons of `hf:` and web addresses do not count, nor one after a single letter, which is a Windows
/// drive.
fn alias(text: &str) -> (Option<&str>, &str) {
    match text.split_once(':') {
        Some((name, model))
            if name.len() > 1
                && !model.is_empty()
                && !["hf", "http", "https"].contains(&name)
                && !name.contains(['/', '\\', '=']) =>
        {
            (Some(name), model)
        }
        _ => (None, text),
    }
}

/// The default name of a model: that of its preset, file, folder or repository.
fn usual_name(model: &str) -> String {
    let whole = Path::new(model);
    let of_folder = |path: &Path| {
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
    };
    if whole.is_dir() {
        return of_folder(whole);
    }
    let model = model.split_once('=').map_or(model, |(model, _)| model);
    if let Some(repository) = model.strip_prefix("hf:") {
        let name = repository.split('/').nth(1).unwrap_or(repository);
        return name.split('@').next().unwrap_or(name).to_string();
    }
    let path = Path::new(model);
    match path.extension() {
        Some(ending) if ending == "toml" => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
        _ => of_folder(path),
    }
}

/// The token from a file or from the environment.
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
    token.map(Some).map_err(|reason| Failure::input(format!("{from}: {reason}"), "`openssl rand -hex 32` creates one"))
}

/// The embedded models, except those whose name is taken.
fn embedded(named: &[Source]) -> Vec<Source> {
    let classifiers = EMBEDDED.iter().map(|one| Source::of(one.name, false));
    let detectors = EMBEDDED_DETECTORS.iter().map(|one| Source::of(one.name, false));
    let videos = EMBEDDED_VIDEOS.iter().map(|one| Source::of(one.name, false));
    let answerers = EMBEDDED_ANSWERERS.iter().map(|one| Source::of(one.name, false));
    let all =
        classifiers.chain(detectors).chain(videos).chain([Source::of(translate::EMBEDDED, false)]).chain(answerers);
    all.filter(|one| named.iter().all(|other| other.name() != one.name())).collect()
}

pub fn run(args: &Args, device: &Device) -> Result<(), Failure> {
    let token = token(args.token_file.as_ref())?;
    let open = token.is_none() && !args.bind.is_loopback();
    let models = args.models.iter().chain(&args.model).map(|text| Ok(Source::of(text, args.int8)));
    let runs = args.run.iter().map(|text| Source::of_run(text, args.int8));
    let mut sources: Vec<Source> = models.chain(runs).collect::<Result<_, Failure>>()?;
    if !args.only {
        sources.extend(embedded(&sources));
    }
    if let Some(folder) = args.runs.as_ref().filter(|folder| !folder.is_dir()) {
        return Err(Failure::input(
            format!("`{}` is not a folder", folder.display()),
            "`--runs` takes a folder of runs",
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
        connections: args.connections,
        hosts: args.host.clone(),
        token,
        reload: args.allow_reload,
        runs: args.runs.clone(),
        ..Settings::default()
    };
    if open {
        writeln!(
            stderr(),
            "note: anyone who can reach {} can use the server; `--token-file` restricts access",
            args.bind
        )?;
    }
    let tell: Tell = Arc::new(|event| {
        // stderr may be closed: the server continues
        let _ = writeln!(stderr(), "{}", message(&event));
    });
    regard_serve::run(entries, SocketAddr::new(args.bind, args.port), settings, tell).map_err(failure)
}

fn message(event: &Event) -> String {
    match event {
        Event::Ready(address) => format!("serving at http://{address}"),
        Event::Reloaded { name } => format!("reloaded: {name}"),
        Event::Kept { name, reason } => format!("error: {name} was not reloaded: {reason}"),
        Event::Panicked { message } => format!("error: internal failure: {message}"),
        Event::Stopping => "stopping: finishing open requests".into(),
    }
}

fn failure(error: Error) -> Failure {
    match &error {
        Error::Empty => Failure::input(
            error,
            "`regard serve runs/mine` serves a run, `regard serve deit-tiny=weights.safetensors` a checkpoint",
        ),
        Error::Name(_) => Failure::input(error, "names have letters, digits, `-`, `_` and `.`; `NAME:MODEL` sets one"),
        Error::Twice(_) => Failure::input(error, "`mine:deit-tiny=weights.safetensors` sets another name"),
        Error::Zero { .. } => Failure::input(error, "`regard serve --help` lists the limits"),
        Error::Address { .. } => Failure::input(error, "does another program use it? `--port 0` takes a free port"),
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
    fn a_model_is_called_as_its_preset_its_file_its_folder_or_its_repository() {
        for (text, name) in [
            ("deit-tiny=a=b.pth", "deit-tiny"),
            ("here/mine.toml=b.pth", "mine"),
            ("tuned:deit-tiny=c:b.pth", "tuned"),
            ("shapes:runs/1", "shapes"),
            ("runs/1", "1"),
            ("hf:google/vit-base@v1", "vit-base"),
            ("mine:hf:google/vit-base", "mine"),
            ("fashion-vit", "fashion-vit"),
        ] {
            assert_eq!(Source::of(text, false).name(), name, "{text}");
        }
        assert_eq!(Source::of_run("shapes=runs/1", false).unwrap().name(), "shapes");
        assert!(matches!(Source::of("it-en", false), Source::EmbeddedTranslator { .. }));
        assert!(matches!(Source::of("garments-vqa", false), Source::Answerer { .. }));
        for detector in ["scenes-retinanet", "detr-r50=FILE", "mine:detr-nano"] {
            assert!(matches!(Source::of(detector, false), Source::Detector { .. }), "{detector}");
        }
    }
}
