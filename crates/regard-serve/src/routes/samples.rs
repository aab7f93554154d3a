//! Embedded sample pictures.

use axum::extract::Request;
use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::data::{Dataset, Part, Picture, clip, dataset, detection, world};
use regard::report::png;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

use super::{json_response, query};
use crate::error::ApiError;

/// Number of pictures per kind; of clothes, one per class.
const SHOWN: usize = 10;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplesQuery {
    #[serde(default)]
    task: SampleTask,
}

/// The kind of samples.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SampleTask {
    /// Single garments.
    #[default]
    Classify,
    /// Scenes of several garments.
    Detect,
    /// Scenes, each with a question about it.
    Ask,
    /// Clips, as the pictures of their frames.
    Clips,
}

static GARMENTS: LazyLock<Value> = LazyLock::new(|| {
    let fashion = fashion();
    let sample = |index: usize| sample(&fashion.classes()[fashion.label(index)], &picture(index));
    json!({ "samples": (0..SHOWN).map(sample).collect::<Vec<_>>() })
});

static SCENES: LazyLock<Value> = LazyLock::new(|| {
    let scenes = detection::open("scenes", Part::Test).expect("it is embedded");
    let sample = |index: usize| {
        let (picture, objects) = scenes.sample(index).expect("it is painted in memory");
        let names: Vec<&str> = objects.iter().map(|object| scenes.classes()[object.class].as_str()).collect();
        sample(&names.join(", "), &picture)
    };
    json!({ "samples": (0..SHOWN).map(sample).collect::<Vec<_>>() })
});

static QUESTIONS: LazyLock<Value> = LazyLock::new(|| {
    // every template once, with different answers
    let sample = |index: usize| {
        let question = world::question(0, Part::Test, world::TEMPLATES.len() * index + index);
        json!({ "name": question.text, "picture": data_url(&question.scene.picture()), "question": question.text })
    };
    json!({ "samples": (0..SHOWN).map(sample).collect::<Vec<_>>() })
});

static CLIPS: LazyLock<Value> = LazyLock::new(|| {
    let clips = clip::open("clips", Part::Test).expect("it is embedded");
    let sample = |index: usize| {
        let length = clips.length(index).expect("it is painted in memory");
        let all: Vec<usize> = (0..length.frames).collect();
        let frames = clips.frames(index, &all).expect("it is painted in memory");
        let frames: Vec<String> = frames.iter().map(data_url).collect();
        json!({ "name": clips.classes()[clips.class(index)], "picture": frames[0], "frames": frames })
    };
    json!({ "samples": (0..SHOWN).map(sample).collect::<Vec<_>>() })
});

fn sample(name: &str, picture: &Picture) -> Value {
    json!({ "name": name, "picture": data_url(picture) })
}

fn data_url(picture: &Picture) -> String {
    let bytes = BASE64_STANDARD.encode(png(picture.size(), picture.pixels()));
    format!("data:image/png;base64,{bytes}")
}

pub async fn samples(request: Request) -> Result<Response, ApiError> {
    let SamplesQuery { task } = query(&request)?;
    Ok(match task {
        SampleTask::Classify => json_response(&*GARMENTS),
        SampleTask::Detect => json_response(&*SCENES),
        SampleTask::Ask => json_response(&*QUESTIONS),
        SampleTask::Clips => json_response(&*CLIPS),
    })
}

/// A test picture; classes alternate.
pub fn picture(index: usize) -> Picture {
    let fashion = fashion();
    fashion.picture(index % fashion.len()).expect("it is in memory")
}

fn fashion() -> Arc<dyn Dataset> {
    dataset::open("fashion", Part::Test).expect("it is embedded")
}
