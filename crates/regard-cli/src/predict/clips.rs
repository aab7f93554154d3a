//! `regard predict` of clips.

use burn::tensor::Device;
use indicatif::ProgressBar;
use regard::Pass;
use regard::evaluate::top_classes;
use regard::tasks::clips::{ClipPreparation, mean_of_views};
use std::io::{Write, stderr};

use super::{Args, NamedPrediction, Prediction};
use crate::clip_files::{clips_in, read_views};
use crate::failure::Failure;
use crate::model::class_names;
use crate::models::print_json;
use crate::video::{preparation, tensor, video_source};

/// Classifies clips with a model of video.
pub fn run(args: &Args, name: &str, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if args.int8 {
        return Err(Failure::input(format!("`{name}` is a model of video, which has no int8"), "leave `--int8` out"));
    }
    let clips = clips_in(&args.pictures.paths()?)?;
    let video = video_source(name, &args.model.changes)?.load(device)?;
    let names = class_names(args.labels.as_ref(), video.labels.as_ref(), video.config.classes())?;
    let preparation = ClipPreparation { views: args.views, crops: args.crops, ..preparation(&video) };
    preparation.validate()?;
    let bar = if clips.len() > 1 { ProgressBar::new(clips.len() as u64) } else { ProgressBar::hidden() };
    let (mut predictions, mut bad) = (Vec::new(), 0);
    if args.csv {
        writeln!(out, "picture,rank,class,label,probability")?;
    }
    for path in &clips {
        let clip = path.display().to_string();
        let answered = read_views(path, &preparation).map(|views| {
            let logits = video.model.forward(&tensor(&views, &preparation, device), &mut Pass::silent());
            (top_classes(mean_of_views(logits, views.count), args.top).remove(0), views.indices)
        });
        let prediction = match answered {
            Ok((found, frames)) => {
                let named = found.into_iter().map(|answer| NamedPrediction {
                    class: answer.class,
                    label: names[answer.class].clone(),
                    probability: answer.probability,
                });
                Prediction { picture: clip, error: None, answers: named.collect(), frames: Some(frames) }
            }
            // a bad file does not stop the others
            Err(error) => {
                bad += 1;
                bar.suspend(|| writeln!(stderr(), "error: {error}"))?;
                Prediction { picture: clip, error: Some(error.to_string()), answers: Vec::new(), frames: None }
            }
        };
        bar.inc(1);
        if args.json {
            predictions.push(prediction);
        } else if args.csv {
            bar.suspend(|| prediction.csv(out))?;
        } else {
            bar.suspend(|| prediction.text(out))?;
        }
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&predictions, out)?;
    }
    match bad {
        0 => Ok(()),
        bad => Err(Failure::input(
            format!("{bad} of {} clips could not be classified", clips.len()),
            "each is named above",
        )),
    }
}
