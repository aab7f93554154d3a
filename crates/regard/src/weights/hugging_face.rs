//! Reads the files next to Hugging Face weights: `config.json` and `preprocessor_config.json`.
//!
//! Missing fields have the defaults of `transformers`; an unsupported value is an error that names the field.

use serde_json::{Value, json};

use crate::data::{Filter, Preprocess, Resize};
use crate::models::ModelConfig;

/// The default epsilon of layer norms in Hugging Face's vision transformers.
pub(super) const EPSILON: f64 = 1e-12;

/// Whether a `config.json` is Hugging Face's: it has a `model_type`.
pub(super) fn is_config(config: &Value) -> bool {
    config["model_type"].is_string()
}

/// The model that a `config.json` describes.
pub(super) fn model(config: &Value) -> Result<ModelConfig, String> {
    let kind = config["model_type"].as_str().unwrap_or_default();
    let own = match kind {
        "vit" => json!({ "model": "vit", "pool": "class-token" }),
        "deit" => json!({ "model": "deit", "distilled": true }),
        other => return Err(format!("`model_type` is `{other}`; only `vit` and `deit` are supported")),
    };
    if config["hidden_act"].as_str().is_some_and(|name| name != "gelu") {
        return Err(format!("`hidden_act` must be gelu, got {}", config["hidden_act"]));
    }
    if config["qkv_bias"] == json!(false) {
        return Err("`qkv_bias` must be true, got false".into());
    }
    let number = |field: &str, usual: u64| config[field].as_u64().unwrap_or(usual);
    let image = sides(&config["image_size"]).unwrap_or([224, 224]);
    let mut fields = json!({
        "image": image,
        "patch": number("patch_size", 16),
        "channels": number("num_channels", 3),
        "classes": classes(config),
        "dim": number("hidden_size", 768),
        "depth": number("num_hidden_layers", 12),
        "heads": number("num_attention_heads", 12),
        "mlp_dim": number("intermediate_size", 3072),
        "epsilon": epsilon(config).unwrap_or(EPSILON),
    });
    if let (Some(fields), Some(own)) = (fields.as_object_mut(), own.as_object()) {
        fields.extend(own.clone());
    }
    serde_json::from_value(fields).map_err(|error| error.to_string())
}

/// The epsilon of layer norms.
pub(super) fn epsilon(config: &Value) -> Option<f64> {
    config["layer_norm_eps"].as_f64()
}

/// Number of classes.
pub(super) fn classes(config: &Value) -> usize {
    let names = config["id2label"].as_object().map(serde_json::Map::len);
    let count = config["num_labels"].as_u64().map(|count| count as usize);
    // without names, the default is two classes
    names.or(count).unwrap_or(2)
}

/// Names of classes, unless they are the placeholders `LABEL_0`, `LABEL_1`, ..
pub(super) fn labels(config: &Value) -> Option<Vec<String>> {
    let names = config["id2label"].as_object()?;
    let name = |class: usize| names.get(&class.to_string())?.as_str().map(String::from);
    let names: Vec<String> = (0..names.len()).map(name).collect::<Option<_>>()?;
    let placeholders = names.iter().enumerate().all(|(class, name)| *name == format!("LABEL_{class}"));
    (!placeholders).then_some(names)
}

/// The preprocessing that a `preprocessor_config.json` describes.
pub(super) fn preprocess(config: &Value) -> Result<Preprocess, String> {
    let kind = ["image_processor_type", "feature_extractor_type"].iter().find_map(|field| config[*field].as_str());
    let deit = kind.is_some_and(|kind| kind.starts_with("DeiT"));
    let is = |field: &str, usual: bool| config[field].as_bool().unwrap_or(usual);
    if !is("do_rescale", true) || !is("do_resize", true) {
        return Err("`do_rescale` and `do_resize` must be true".into());
    }
    if config["rescale_factor"].as_f64().is_some_and(|factor| (factor * 255.0 - 1.0).abs() > 1e-3) {
        return Err(format!("`rescale_factor` must be 1/255, got {}", config["rescale_factor"]));
    }
    let filter = match config["resample"].as_u64().unwrap_or(if deit { 3 } else { 2 }) {
        2 => Filter::Bilinear,
        3 => Filter::Bicubic,
        other => return Err(format!("`resample` must be 2 (bilinear) or 3 (bicubic), got {other}")),
    };
    let size = &config["size"];
    let (resized, resize) = match size["shortest_edge"].as_u64() {
        Some(side) => ([side as usize; 2], Resize::ShortSide),
        None => (sides(size).unwrap_or(if deit { [256, 256] } else { [224, 224] }), Resize::Stretch),
    };
    let cropped = if is("do_center_crop", deit) { sides(&config["crop_size"]).unwrap_or([224, 224]) } else { resized };
    let crop = config["crop_pct"].as_f64().unwrap_or(cropped[0] as f64 / resized[0].max(1) as f64);
    if !(crop > 0.0 && crop <= 1.0) {
        return Err(format!("`crop_size` is {}, and pictures are resized to {size}", config["crop_size"]));
    }
    let three = |field: &str, usual: f32| channels(&config[field]).unwrap_or([usual; 3]);
    let (mean, std) = if is("do_normalize", true) {
        (three("image_mean", 0.5), three("image_std", 0.5))
    } else {
        ([0.0; 3], [1.0; 3])
    };
    Ok(Preprocess { mean, std, crop, filter, resize })
}

/// `224`, `[224, 320]` or `{"height": 224, "width": 320}`.
pub(super) fn sides(value: &Value) -> Option<[usize; 2]> {
    let side = |value: &Value| value.as_u64().map(|side| side as usize).filter(|side| *side > 0);
    match value {
        Value::Number(_) => side(value).map(|side| [side; 2]),
        Value::Array(both) => match &both[..] {
            [rows, columns] => Some([side(rows)?, side(columns)?]),
            _ => None,
        },
        _ => Some([side(&value["height"])?, side(&value["width"])?]),
    }
}

/// Three numbers.
pub(super) fn channels(value: &Value) -> Option<[f32; 3]> {
    let numbers: Vec<f32> = value.as_array()?.iter().filter_map(Value::as_f64).map(|number| number as f32).collect();
    numbers.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_stretched_as_their_vit_does_and_cropped_as_their_deit_does() {
        let vit = json!({ "image_processor_type": "ViTImageProcessor", "size": { "height": 224, "width": 224 },
            "resample": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5] });
        let half = Preprocess { mean: [0.5; 3], std: [0.5; 3], ..Preprocess::TORCHVISION };
        let stretched = Preprocess { resize: Resize::Stretch, crop: 1.0, ..half };
        assert_eq!(preprocess(&vit).unwrap(), stretched);
        let deit = json!({ "feature_extractor_type": "DeiTFeatureExtractor", "size": 256, "crop_size": 224,
            "do_center_crop": true, "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225] });
        assert_eq!(preprocess(&deit).unwrap(), Preprocess { resize: Resize::Stretch, ..Preprocess::DEIT });
        let short =
            json!({ "size": { "shortest_edge": 256 }, "do_center_crop": true, "crop_size": 224, "resample": 2 });
        assert_eq!(preprocess(&short).unwrap(), half);
        let none = json!({ "do_normalize": false, "resample": 3, "size": 32 });
        let plain = preprocess(&none).unwrap();
        assert_eq!((plain.mean, plain.std, plain.crop), ([0.0; 3], [1.0; 3], 1.0));
    }

    #[test]
    fn what_we_cannot_do_is_named() {
        for (config, field) in [
            (json!({ "resample": 1 }), "`resample`"),
            (json!({ "rescale_factor": 0.5 }), "`rescale_factor`"),
            (json!({ "do_resize": false }), "`do_resize`"),
            (json!({ "size": 100, "do_center_crop": true, "crop_size": 224 }), "`crop_size`"),
        ] {
            assert!(preprocess(&config).unwrap_err().contains(field), "{config}");
        }
        for (config, field) in [
            (json!({ "model_type": "swin" }), "`swin`"),
            (json!({ "model_type": "vit", "hidden_act": "relu" }), "`hidden_act`"),
            (json!({ "model_type": "vit", "qkv_bias": false }), "`qkv_bias`"),
        ] {
            assert!(model(&config).unwrap_err().contains(field), "{config}");
        }
    }

    #[test]
    fn names_are_in_the_order_of_their_numbers_and_placeholders_are_none() {
        let names: serde_json::Map<_, _> = (0..12).map(|i| (i.to_string(), json!(format!("name {i}")))).collect();
        let config = json!({ "model_type": "vit", "id2label": names });
        assert_eq!(labels(&config).unwrap()[10], "name 10");
        assert_eq!(model(&config).unwrap().classes(), 12);
        assert_eq!(labels(&json!({ "id2label": { "0": "LABEL_0", "1": "LABEL_1" } })), None);
        assert_eq!(labels(&json!({ "id2label": { "0": "cat", "7": "dog" } })), None, "a name is missing");
    }
}
