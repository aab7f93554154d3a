//! `regard predict`: what is on these pictures?

use burn::tensor::{Device, Tensor};
use regard::data::labels;
use regard::evaluate::{Answer, answers};
use regard::models::ModelConfig;
use regard::{Once, Prepared};
use serde::Serialize;
use std::io::{Write, stderr};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::model::{ModelArgs, WeightsArgs, at_least_one, batch, prepared, read_picture};
use crate::models::print_json;

/// Classify pictures
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    weights: WeightsArgs,

    /// JPEG, PNG, WebP, GIF or BMP
    #[arg(required = true, value_name = "PICTURE")]
    pictures: Vec<PathBuf>,

    /// How many answers to give
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = at_least_one)]
    top: usize,

    /// Names of the classes, one a line; ImageNet's for 1000 classes
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Compute in eight bits where that is faster: transformers alone
    #[arg(long)]
    int8: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Named {
    class: usize,
    label: String,
    probability: f32,
}

#[derive(Serialize)]
struct Prediction {
    picture: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    answers: Vec<Named>,
}

/// The names of classes, from a file or ImageNet's.
pub fn label_names(file: Option<&PathBuf>, classes: usize) -> Result<Vec<String>, Failure> {
    let names = match file {
        Some(path) => labels::read(path)?,
        None if classes == 1000 => labels::imagenet(),
        None => (0..classes).map(|class| class.to_string()).collect(),
    };
    if names.len() != classes {
        return Err(Failure::input(
            format!("{} labels for a model of {classes} classes", names.len()),
            "`--labels` takes a file with one name a line",
        ));
    }
    Ok(names)
}

/// A model for as many pictures as there are.
enum Ready {
    /// None after its picture.
    Once(Option<Box<Once>>),
    Often(Box<Prepared>),
}

impl Ready {
    fn of(args: &Args, config: &mut ModelConfig, device: &Device) -> Result<Self, Failure> {
        Ok(if args.pictures.len() == 1 && !args.int8 && Once::pays(config, device) {
            Self::Once(Some(Box::new(Once::new(args.weights.load_lazily(config, device)?)?)))
        } else {
            Self::Often(Box::new(prepared(args.weights.load(config, device)?, args.int8)?))
        })
    }

    fn forward(&mut self, picture: Tensor<4>) -> Result<Tensor<2>, Failure> {
        Ok(match self {
            Self::Once(once) => once.take().expect("there is one picture").forward(picture)?,
            Self::Often(model) => model.forward(picture),
        })
    }
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let (mut config, preprocess) = args.model.config()?;
    let pictures = config.clone();
    let read = |path: &PathBuf| read_picture(path, &preprocess, &pictures);
    // the first picture is decoded while the weights are read
    let (model, first) = rayon::join(|| Ready::of(args, &mut config, device), || args.pictures.first().map(read));
    let mut model = model?;
    let names = label_names(args.labels.as_ref(), config.classes())?;
    let named = |Answer { class, probability }| Named { class, label: names[class].clone(), probability };
    let mut predictions = Vec::new();
    for (path, pixels) in args.pictures.iter().zip(first.into_iter().chain(args.pictures.iter().skip(1).map(read))) {
        let picture = path.display().to_string();
        predictions.push(match pixels {
            Ok(pixels) => {
                let logits = model.forward(batch(&[pixels], &config, device))?;
                let answers = answers(logits, args.top).remove(0).into_iter().map(named).collect();
                Prediction { picture, error: None, answers }
            }
            // one bad file does not stop the others
            Err(error) => {
                writeln!(stderr(), "error: {error}")?;
                Prediction { picture, error: Some(error.to_string()), answers: Vec::new() }
            }
        });
        if let (false, Some(Prediction { picture, answers, .. })) = (args.json, predictions.last()) {
            if !answers.is_empty() {
                writeln!(out, "{picture}")?;
            }
            for Named { class, label, probability } in answers {
                writeln!(out, "  {:>6.2} %  {class:>4}  {label}", probability * 100.0)?;
            }
        }
    }
    if args.json {
        print_json(&predictions, out)?;
    }
    match predictions.iter().filter(|prediction| prediction.error.is_some()).count() {
        0 => Ok(()),
        bad => Err(Failure::input(
            format!("{bad} of {} pictures could not be read", predictions.len()),
            if bad < predictions.len() {
                "each is named above; the others were classified"
            } else {
                "each is named above"
            },
        )),
    }
}
