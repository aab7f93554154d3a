//! Reads the `config.json` next to timm weights.
//!
//! Our own exports also have the complete configuration under `regard`, because timm's has only an architecture name.

use serde_json::{Value, json};

use super::hugging_face::channels;
use crate::data::{Filter, Preprocess, Resize};
use crate::models::{self, AnyPreset, ModelConfig};

/// Whether a `config.json` is timm's: it names an architecture.
pub(super) fn is_config(config: &Value) -> bool {
    config["architecture"].is_string()
}

/// The timm name of a preset; other models keep their name.
#[must_use]
pub fn timm_name(preset: &str) -> String {
    let size = |name: &str| if name.ends_with("-384") { "384" } else { "224" };
    if let Some(rest) = preset.strip_prefix("deit-") {
        let size = size(rest);
        return format!("deit_{}_patch16_{size}", rest.trim_end_matches("-384").replace('-', "_"));
    }
    match preset {
        "deit3-huge" => "deit3_huge_patch14_224".into(),
        "regnety-4gf" => "regnety_040".into(),
        "regnety-8gf" => "regnety_080".into(),
        "regnety-16gf" => "regnety_160".into(),
        name if name.starts_with("deit3-") => format!("{}_patch16_224", name.replace('-', "_")),
        name if name.starts_with("resnet-") => name.replace('-', ""),
        name => name.replace('-', "_"),
    }
}

/// The model and preprocessing that a `config.json` describes.
pub(super) fn model(config: &Value) -> Result<(ModelConfig, Preprocess), String> {
    let name = config["architecture"].as_str().unwrap_or_default();
    // `vit_base_patch16_224.augreg_in1k` is an architecture and a tag of its weights
    let preset = preset(name.split('.').next().unwrap_or_default());
    if let Some(own) = config["regard"].get("model") {
        let model: ModelConfig =
            serde_json::from_value(own.clone()).map_err(|error| format!("`regard.model`: {error}"))?;
        let usual = preset.map_or(Preprocess::WHOLE, |preset| preset.preprocess);
        return Ok((model, preprocess(config, usual)?));
    }
    let preset = preset.ok_or_else(|| format!("`architecture` is `{name}`, which is not a known preset"))?;
    let mut model = preset.config;
    let mut set = |field: &str, value: Value| -> Result<(), String> {
        model = model.with(field, value).map_err(|error| error.to_string())?;
        Ok(())
    };
    let about = about(config);
    if let Some([channels, rows, columns]) = about["input_size"].as_array().map(Vec::as_slice) {
        set("image", json!([rows, columns]))?;
        set("channels", channels.clone())?;
    }
    if let Some(classes) = config["num_classes"].as_u64().or_else(|| about["num_classes"].as_u64()) {
        set("classes", json!(classes))?;
    }
    if config["global_pool"] == "avg" && name.starts_with("vit_") {
        set("pool", json!("average"))?;
    }
    Ok((model, preprocess(config, preset.preprocess)?))
}

fn preset(architecture: &str) -> Option<AnyPreset> {
    models::presets().into_iter().find(|preset| timm_name(preset.name) == architecture)
}

/// The section about preprocessing and classes; older files have no section.
fn about(config: &Value) -> &Value {
    config.get("pretrained_cfg").unwrap_or(config)
}

/// The preprocessing; missing fields are those of the preset.
fn preprocess(config: &Value, usual: Preprocess) -> Result<Preprocess, String> {
    let about = about(config);
    let filter = match about["interpolation"].as_str() {
        Some("bicubic") => Filter::Bicubic,
        Some("bilinear" | "random") => Filter::Bilinear,
        None => usual.filter,
        Some(other) => return Err(format!("`interpolation` must be bilinear or bicubic, got `{other}`")),
    };
    let resize = match about["crop_mode"].as_str() {
        Some("center") | None => Resize::ShortSide,
        Some("squash") => Resize::Stretch,
        Some(other) => return Err(format!("`crop_mode` must be center or squash, got `{other}`")),
    };
    let crop = about["crop_pct"].as_f64().unwrap_or(usual.crop);
    if !(crop > 0.0 && crop <= 1.0) {
        return Err(format!("`crop_pct` must be from 0 to 1, got {crop}"));
    }
    let mean = channels(&about["mean"]).unwrap_or(usual.mean);
    Ok(Preprocess { mean, std: channels(&about["std"]).unwrap_or(usual.std), crop, filter, resize })
}

/// Names of classes, where the file has them.
pub(super) fn labels(config: &Value) -> Option<Vec<String>> {
    let names = config.get("label_names").or_else(|| about(config).get("label_names"))?.as_array()?;
    let descriptions = config.get("label_descriptions").or_else(|| about(config).get("label_descriptions"));
    let title = |name: &Value| {
        let name = name.as_str()?;
        Some(descriptions.and_then(|all| all[name].as_str()).unwrap_or(name).to_string())
    };
    names.iter().map(title).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_names_of_timm() {
        for (ours, theirs) in [
            ("deit-tiny", "deit_tiny_patch16_224"),
            ("deit-base-distilled-384", "deit_base_distilled_patch16_384"),
            ("deit3-small", "deit3_small_patch16_224"),
            ("vit-base-patch16-224", "vit_base_patch16_224"),
            ("resnet-50", "resnet50"),
        ] {
            assert_eq!(timm_name(ours), theirs);
        }
    }

    #[test]
    fn a_config_is_a_preset_with_its_own_pictures_classes_and_names() {
        let config = json!({
            "architecture": "deit_tiny_patch16_224.fb_in1k", "num_classes": 3,
            "label_names": ["n1", "n2", "n3"], "label_descriptions": { "n1": "a cat", "n2": "a dog" },
            "pretrained_cfg": { "input_size": [3, 96, 128], "interpolation": "bilinear", "crop_pct": 0.95,
                "crop_mode": "squash", "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6] },
        });
        let (model, preprocess) = model(&config).unwrap();
        assert_eq!((model.family(), model.image(), model.classes()), ("deit".into(), [96, 128], 3));
        assert_eq!((preprocess.mean, preprocess.crop, preprocess.resize), ([0.1, 0.2, 0.3], 0.95, Resize::Stretch));
        assert_eq!(preprocess.filter, Filter::Bilinear);
        assert_eq!(labels(&config).unwrap(), ["a cat", "a dog", "n3"]);
    }

    #[test]
    fn a_stranger_is_named() {
        let of = |config: Value| model(&config).unwrap_err();
        assert!(of(json!({ "architecture": "swin_tiny" })).contains("`swin_tiny`"));
        let odd = json!({ "architecture": "deit_tiny_patch16_224", "pretrained_cfg": { "interpolation": "lanczos" } });
        assert!(of(odd).contains("`lanczos`"));
    }
}
