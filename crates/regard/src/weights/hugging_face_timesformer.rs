//! Reads the `config.json` of Hugging Face's TimeSformer.
//!
//! Missing fields have the defaults of `transformers`; an unsupported value is an error that names the field.

use serde_json::{Value, json};

use super::hugging_face::{classes, epsilon, sides};
use crate::Error;
use crate::attention::SpaceTime;
use crate::layers::Start;
use crate::models::timesformer::TimesformerConfig;

/// The model that a `config.json` with `"model_type": "timesformer"` describes.
///
/// With `"attention_type": "space_only"`, `transformers` gives logits for every frame: those of our model with one frame. Ours
/// averages the tokens of all frames before the last norm, as facebookresearch/TimeSformer does.
///
/// # Errors
/// When it is of another model, or a field has a value that is not supported; the error names it.
pub fn timesformer_config(config: &Value) -> Result<TimesformerConfig, Error> {
    let wrong = |field: &str, reason: String| Error::Field { field: field.into(), reason };
    for (field, expected, is_needed) in [
        ("model_type", json!("timesformer"), true),
        ("hidden_act", json!("gelu"), false),
        ("qkv_bias", json!(true), false),
    ] {
        let found = &config[field];
        if *found != expected && (is_needed || !found.is_null()) {
            return Err(wrong(field, format!("must be {expected}, got {found}")));
        }
    }
    let scheme = match config["attention_type"].as_str() {
        None | Some("divided_space_time") => SpaceTime::Divided,
        Some("space_only") => SpaceTime::Space,
        Some("joint_space_time") => SpaceTime::Joint,
        Some(other) => {
            let known = "divided_space_time, space_only or joint_space_time";
            return Err(wrong("attention_type", format!("must be {known}, got {other}")));
        }
    };
    let number = |field: &str, usual: usize| config[field].as_u64().map_or(usual, |number| number as usize);
    Ok(TimesformerConfig {
        scheme,
        frames: number("num_frames", 8),
        image: sides(&config["image_size"]).unwrap_or([224, 224]),
        patch: number("patch_size", 16),
        channels: number("num_channels", 3),
        classes: classes(config),
        dim: number("hidden_size", 768),
        depth: number("num_hidden_layers", 12),
        heads: number("num_attention_heads", 12),
        mlp_dim: number("intermediate_size", 3072),
        epsilon: epsilon(config).unwrap_or(1e-6),
        start: Start::Paper,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::timesformer;

    #[test]
    fn the_configs_of_the_released_timesformers_are_our_presets() {
        let labels: serde_json::Map<_, _> = (0..400).map(|class| (class.to_string(), json!("x"))).collect();
        for (image, frames, name) in
            [(224, 8, "timesformer-base"), (448, 16, "timesformer-hr"), (224, 96, "timesformer-l")]
        {
            let config = json!({ "model_type": "timesformer", "attention_type": "divided_space_time", "image_size": image,
                "num_frames": frames, "hidden_size": 768, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "id2label": labels });
            assert_eq!(timesformer_config(&config).unwrap(), timesformer::preset(name).unwrap(), "{name}");
        }
    }

    #[test]
    fn what_we_cannot_do_with_a_timesformer_is_named() {
        for (config, field) in [
            (json!({ "model_type": "vivit" }), "`model_type`"),
            (json!({}), "`model_type`"),
            (json!({ "model_type": "timesformer", "hidden_act": "relu" }), "`hidden_act`"),
            (json!({ "model_type": "timesformer", "qkv_bias": false }), "`qkv_bias`"),
            (json!({ "model_type": "timesformer", "attention_type": "axial" }), "`attention_type`"),
        ] {
            let error = timesformer_config(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
