//! Pictures that come with the program, so that there is something to look at.

use axum::response::Response;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use regard::data::{Dataset, Part, Picture, dataset};
use regard::report::png;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock};

use super::json_response;

/// One of each class.
const SHOWN: usize = 10;

static SAMPLES: LazyLock<Value> = LazyLock::new(|| {
    let fashion = fashion();
    let sample = |index: usize| {
        let picture = picture(index);
        let address =
            format!("data:image/png;base64,{}", BASE64_STANDARD.encode(png(picture.size(), picture.pixels())));
        json!({ "name": fashion.classes()[fashion.label(index)], "picture": address })
    };
    json!({ "samples": (0..SHOWN).map(sample).collect::<Vec<_>>() })
});

pub async fn samples() -> Response {
    json_response(&*SAMPLES)
}

/// A test picture; the classes come in turn, and again from the first after the last.
pub fn picture(index: usize) -> Picture {
    let fashion = fashion();
    fashion.picture(index % fashion.len()).expect("it is in memory")
}

fn fashion() -> Arc<dyn Dataset> {
    dataset::open("fashion", Part::Test).expect("it is embedded")
}
