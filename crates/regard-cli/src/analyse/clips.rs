//! Mean attention distance of models of video, in space and in time, by layer and head.

use burn::tensor::Device;
use regard::analyse::{Attention, Check, HeadMeans, clip_distance_in_space, clip_distance_in_time, explain_clip};
use regard::data::{Part as DataPart, clip};
use regard::weights::LoadedVideo;
use serde_json::json;

use super::heads::{Measure, figure, table};
use crate::failure::Failure;
use crate::findings::{Findings, Part};
use crate::model::ChangeArgs;
use crate::video::{preparation, tensor, video_source};

const MEASURES: [Measure; 2] = [
    Measure {
        name: "distance-in-space",
        title: "mean attention distance in space",
        unit: "pixels",
        text: "How far in the picture a patch looks in any frame, weighted by attention without class tokens. Heads are sorted.",
        of: clip_distance_in_space,
    },
    Measure {
        name: "distance-in-time",
        title: "mean attention distance in time",
        unit: "frames",
        text: "How many frames away a patch looks, weighted by attention without class tokens. Heads are sorted.",
        of: clip_distance_in_time,
    },
];

/// Over some clips, spread over the data; also how many could not be read.
pub fn distance(models: &[String], data: &str, count: usize, device: &Device) -> Result<(Findings, usize), Failure> {
    let clips = clip::open(data, DataPart::Test)?;
    let clips = if clips.is_empty() { clip::open(data, DataPart::All)? } else { clips };
    let count = count.min(clips.len());
    let (mut parts, mut results, mut checks, mut unreadable) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for (index, name) in models.iter().enumerate() {
        let video: LoadedVideo = video_source(name, &ChangeArgs::default())?.load(device)?;
        let preparation = preparation(&video);
        let mut means = MEASURES.each_ref().map(|measure| HeadMeans::of(measure.of));
        let mut bad = 0;
        for number in 0..count {
            let clip = number * clips.len() / count;
            let read =
                clips.length(clip).and_then(|length| preparation.views(length, |wanted| clips.frames(clip, wanted)));
            let Ok(views) = read else {
                bad += 1;
                continue;
            };
            let found = explain_clip(&video.model, &tensor(&views, &preparation, device), 1)?;
            if found.attentions.is_empty() {
                let message = format!("`{}` has no attention", video.name);
                return Err(Failure::input(message, "`regard explain` shows what other models answer"));
            }
            checks.extend(found.attentions.iter().filter_map(Attention::check));
            for means in &mut means {
                means.add(&found.attentions)?;
            }
        }
        unreadable = unreadable.max(bad);
        for (measure, means) in MEASURES.iter().zip(&means) {
            let layers = means.layers();
            let part = Part::new(format!("{}: {}", video.name, measure.title), measure.text);
            let drawn = figure(measure, &video.name, &layers);
            parts.push(part.figure(format!("{}-{index}", measure.name), drawn).table(table(&layers)));
            results
                .push(json!({ "model": video.name, "measure": measure.name, "unit": measure.unit, "layers": layers }));
        }
    }
    let findings = Findings {
        title: "mean attention distance of clips".into(),
        lead: format!("in space and in time, by layer and head, over {count} clips"),
        parts,
        checks: Check::worst(checks).into_iter().collect(),
        data: json!({ "analysis": "distance", "clips": count, "models": results }),
    };
    Ok((findings, unreadable))
}
