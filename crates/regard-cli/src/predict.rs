//! `regard predict`: classifies pictures, and clips with a model of video.

mod clips;
mod pictures;

use burn::tensor::{Device, Tensor};
use regard::data::Preprocess;
use regard::evaluate::{ClassProbability, top_classes};
use regard::models::ModelConfig;
use regard::weights::{EMBEDDED_VIDEOS, ModelSource, is_video};
use regard::{PackedModel, StreamedModel};
use serde::Serialize;
use std::io::{Write, stderr};
use std::path::PathBuf;

use crate::clip_files::is_clip;
use crate::failure::Failure;
use crate::model::{Classifier, ModelArgs, at_least_one, batch, class_names, load_lazily, note_fresh, ready};
use crate::models::print_json;
pub use pictures::{PictureArgs, Source};

/// The default model.
const USUAL: &str = "fashion-vit";

/// Classify pictures, or clips with a model of video
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pictures: PictureArgs,

    #[command(flatten)]
    model: ModelArgs,

    /// How many classes to print
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = at_least_one)]
    top: usize,

    /// File of class names, one per line; by default the model's own, or ImageNet's for 1000 classes
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Views of a clip in time whose probabilities are averaged
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = at_least_one)]
    views: usize,

    /// Parts of the frames in each view: 1 or 3
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = at_least_one)]
    crops: usize,

    /// Compute in int8 where that is faster; only for transformers
    #[arg(long)]
    int8: bool,

    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV: one line per class
    #[arg(long)]
    csv: bool,
}

#[derive(Serialize)]
struct NamedPrediction {
    class: usize,
    label: String,
    probability: f32,
}

#[derive(Serialize)]
struct Prediction {
    picture: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    answers: Vec<NamedPrediction>,
    /// Which frames of a clip each view showed; none for a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    frames: Option<Vec<Vec<usize>>>,
}

/// A model for one or for several pictures.
enum Model {
    /// For a single picture; none after it.
    Streamed(Option<Box<StreamedModel>>),
    Packed(Box<PackedModel>),
}

struct LoadedClassifier {
    model: Model,
    config: ModelConfig,
    labels: Option<Vec<String>>,
}

impl LoadedClassifier {
    fn load(source: &ModelSource, pictures: usize, int8: bool, device: &Device) -> Result<Self, Failure> {
        if pictures == 1 && !int8 && StreamedModel::is_supported(&source.config, device) {
            let loaded = load_lazily(source, device)?;
            let model = Model::Streamed(Some(Box::new(StreamedModel::new(loaded.model)?)));
            return Ok(Self { model, config: loaded.config, labels: loaded.labels });
        }
        let Classifier { model, config, labels, .. } = Classifier::load(source, int8, device)?;
        Ok(Self { model: Model::Packed(Box::new(model)), config, labels })
    }

    fn forward(&mut self, picture: Tensor<4>) -> Result<Tensor<2>, Failure> {
        Ok(match &mut self.model {
            Model::Streamed(model) => model.take().expect("there is one picture").forward(picture)?,
            Model::Packed(model) => model.forward(picture),
        })
    }
}

/// The model of video that answers: the named one, or without a name the embedded one if the first file is a clip.
fn video_name(args: &Args, name: Option<&str>) -> Result<Option<String>, Failure> {
    if let Some(name) = name {
        return Ok(is_video(name).then(|| name.into()));
    }
    let Some(usual) = EMBEDDED_VIDEOS.first().filter(|_| args.pictures.first().is_some_and(is_clip)) else {
        return Ok(None);
    };
    let note = "which knows ten motions; choose another with `--model`";
    writeln!(stderr(), "note: no `--model`: using the embedded `{}`, {note}", usual.name)?;
    Ok(Some(usual.name.into()))
}

fn source(args: &Args, name: Option<String>) -> Result<ModelSource, Failure> {
    if name.is_none() {
        let note = "which knows ten kinds of clothes; choose another with `--model`";
        writeln!(stderr(), "note: no `--model`: using the embedded `{USUAL}`, {note}")?;
    }
    let name = name.unwrap_or_else(|| USUAL.into());
    let source = args.model.changes.source(&name)?;
    note_fresh(&source)?;
    Ok(source)
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let name = args.model.name(None)?;
    if let Some(name) = video_name(args, name.as_deref())? {
        return clips::run(args, &name, device, out);
    }
    let source = source(args, name)?;
    let pictures = args.pictures.sources()?;
    let read = |picture: &Source| pixels(picture, &source.preprocess, &source.config);
    // the first picture is decoded while the weights are read
    let load = || LoadedClassifier::load(&source, pictures.len(), args.int8, device);
    let (model, first) = rayon::join(load, || pictures.first().map(read));
    let mut model = model?;
    let names = class_names(args.labels.as_ref(), model.labels.as_ref(), model.config.classes())?;
    let named =
        |ClassProbability { class, probability }| NamedPrediction { class, label: names[class].clone(), probability };
    let mut predictions = Vec::new();
    let mut bad = 0;
    if args.csv {
        writeln!(out, "picture,rank,class,label,probability")?;
    }
    for (picture, pixels) in pictures.iter().zip(first.into_iter().chain(pictures.iter().skip(1).map(read))) {
        let name = picture.name();
        let answered = match pixels {
            Ok(pixels) => {
                let logits = model.forward(batch(&[pixels], &model.config, device))?;
                let found = top_classes(logits, args.top).remove(0);
                let finite = found.iter().all(|answer| answer.probability.is_finite());
                if finite { Ok(found) } else { Err(format!("{name}: the model's output is not finite")) }
            }
            Err(error) => Err(error.to_string()),
        };
        let prediction = match answered {
            Ok(found) => {
                Prediction { picture: name, error: None, answers: found.into_iter().map(named).collect(), frames: None }
            }
            // a bad file does not stop the others
            Err(error) => {
                bad += 1;
                writeln!(stderr(), "error: {error}")?;
                Prediction { picture: name, error: Some(error), answers: Vec::new(), frames: None }
            }
        };
        if args.json {
            predictions.push(prediction);
        } else if args.csv {
            prediction.csv(out)?;
        } else {
            prediction.text(out)?;
        }
    }
    if args.json {
        print_json(&predictions, out)?;
    }
    match bad {
        0 => Ok(()),
        bad => Err(Failure::input(
            format!("{bad} of {} pictures could not be classified", pictures.len()),
            if bad < pictures.len() {
                "each is named above; the others were classified"
            } else {
                "each is named above"
            },
        )),
    }
}

fn pixels(picture: &Source, preprocess: &Preprocess, config: &ModelConfig) -> Result<Vec<f32>, regard::Error> {
    ready(&picture.read()?, preprocess, config)
}

impl Prediction {
    fn text(&self, out: &mut impl Write) -> Result<(), Failure> {
        if !self.answers.is_empty() {
            writeln!(out, "{}", self.picture)?;
        }
        for NamedPrediction { class, label, probability } in &self.answers {
            writeln!(out, "  {:>6.2} %  {class:>4}  {label}", probability * 100.0)?;
        }
        Ok(())
    }

    fn csv(&self, out: &mut impl Write) -> Result<(), Failure> {
        for (rank, NamedPrediction { class, label, probability }) in self.answers.iter().enumerate() {
            writeln!(out, "{},{},{class},{},{probability}", quoted(&self.picture), rank + 1, quoted(label))?;
        }
        Ok(())
    }
}

/// A CSV field, quoted if necessary (RFC 4180).
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_csv_is_quoted_where_it_needs_to_be() {
        assert_eq!(quoted("a b.png"), "a b.png");
        assert_eq!(quoted("tabby, \"cat\""), "\"tabby, \"\"cat\"\"\"");
    }
}
