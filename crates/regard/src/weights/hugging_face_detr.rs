//! Reads the `config.json` of Hugging Face's DETR.
//!
//! Missing fields have the defaults of `transformers`; an unsupported value is an error that names the field.

use serde_json::{Value, json};

use super::hugging_face::classes;
use crate::Error;
use crate::layers::{GridPositionKind, LastStage, NormKind};
use crate::models::detect::detr::{self, DetrConfig};
use crate::models::{ModelConfig, TrunkConfig, preset};

/// The detector that a `config.json` with `"model_type": "detr"` describes.
///
/// # Errors
/// When it is of another model, or a field has a value that is not supported; the error names it.
pub fn detr_config(config: &Value) -> Result<DetrConfig, Error> {
    let wrong = |field: &str, reason: String| Error::Field { field: field.into(), reason };
    let expect = |field: &str, expected: Value| match &config[field] {
        Value::Null => Ok(()),
        found if *found == expected => Ok(()),
        found => Err(wrong(field, format!("must be {expected}, got {found}"))),
    };
    if config["model_type"] != "detr" {
        return Err(wrong("model_type", format!("must be detr, got {}", config["model_type"])));
    }
    expect("activation_function", json!("relu"))?;
    let number = |field: &str, usual: usize| config[field].as_u64().map_or(usual, |number| number as usize);
    let same = |part: &str, usual: usize| {
        let [encoder, decoder] = ["encoder", "decoder"].map(|side| number(&format!("{side}_{part}"), usual));
        if encoder == decoder {
            return Ok(encoder);
        }
        Err(wrong(&format!("decoder_{part}"), format!("must be that of the encoder, {encoder}, got {decoder}")))
    };
    let position = match config["position_embedding_type"].as_str() {
        None | Some("sine") => GridPositionKind::Sine,
        Some("learned") => GridPositionKind::Learned,
        Some(other) => return Err(wrong("position_embedding_type", format!("must be sine or learned, got {other}"))),
    };
    let last_stage = if config["dilation"] == json!(true) { LastStage::Dilated } else { LastStage::Strided };
    Ok(DetrConfig {
        classes: classes(config),
        backbone: TrunkConfig { network: trunk(config)?, norm: NormKind::FROZEN, last_stage },
        dim: number("d_model", 256),
        heads: same("attention_heads", 8)?,
        inner: same("ffn_dim", 2048)?,
        encoder_layers: number("encoder_layers", 6),
        decoder_layers: number("decoder_layers", 6),
        dropout: config["dropout"].as_f64().unwrap_or(0.1),
        position,
        num_queries: number("num_queries", 100),
        ..detr::preset("detr-r50")?
    })
}

/// A residual network of timm by its name, or one that is described.
fn trunk(config: &Value) -> Result<ModelConfig, Error> {
    let fields = &config["backbone_config"];
    let wrong = |field: &str, reason: String| Err(Error::Field { field: format!("backbone_config.{field}"), reason });
    if fields["model_type"] != "resnet" {
        let name = config["backbone"].as_str().or_else(|| fields["backbone"].as_str()).unwrap_or("resnet50");
        return match name.split('.').next().unwrap_or_default() {
            "resnet50" => Ok(preset("resnet-50")?.config),
            "resnet101" => Ok(preset("resnet-101")?.config),
            _ => Err(Error::Field {
                field: "backbone".into(),
                reason: format!("must be resnet50 or resnet101, got {name}"),
            }),
        };
    }
    let block = fields["layer_type"].as_str().unwrap_or("bottleneck");
    let stride = if fields["downsample_in_bottleneck"] == json!(true) { "first" } else { "middle" };
    let (outputs, shrink) = match (serde_json::from_value::<Vec<usize>>(fields["hidden_sizes"].clone()), block) {
        (Ok(outputs), "bottleneck") => (outputs, 4),
        (Ok(outputs), "basic") => (outputs, 1),
        (Err(_), _) => {
            return wrong("hidden_sizes", format!("must be a list of numbers, got {}", fields["hidden_sizes"]));
        }
        (_, other) => return wrong("layer_type", format!("must be basic or bottleneck, got {other}")),
    };
    let widths: Vec<usize> = outputs.iter().map(|outputs| outputs / shrink).collect();
    let changes = [
        ("block", json!(block)),
        ("stem_width", fields["embedding_size"].clone()),
        ("layers", fields["depths"].clone()),
        ("widths", json!(widths)),
        ("channels", fields["num_channels"].as_u64().map_or(json!(3), |channels| json!(channels))),
        ("stride", json!(stride)),
    ];
    changes.into_iter().try_fold(preset("resnet-50")?.config, |network, (field, value)| network.with(field, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configs_of_the_released_detectors_are_our_presets() {
        for (backbone, dilation, name) in [
            ("resnet50", false, "detr-r50"),
            ("resnet101", false, "detr-r101"),
            ("resnet50", true, "detr-r50-dc5"),
            ("resnet101", true, "detr-r101-dc5"),
        ] {
            let labels: serde_json::Map<_, _> = (0..91).map(|class| (class.to_string(), json!("x"))).collect();
            let config = json!({ "model_type": "detr", "backbone": backbone, "dilation": dilation, "d_model": 256,
                "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 8, "decoder_attention_heads": 8,
                "encoder_ffn_dim": 2048, "decoder_ffn_dim": 2048, "num_queries": 100, "id2label": labels });
            assert_eq!(detr_config(&config).unwrap(), detr::preset(name).unwrap(), "{name}");
        }
    }

    #[test]
    fn what_we_cannot_do_is_named() {
        for (config, field) in [
            (json!({ "model_type": "vit" }), "`model_type`"),
            (json!({ "model_type": "detr", "activation_function": "gelu" }), "`activation_function`"),
            (json!({ "model_type": "detr", "decoder_attention_heads": 4 }), "`decoder_attention_heads`"),
            (json!({ "model_type": "detr", "position_embedding_type": "x" }), "`position_embedding_type`"),
            (json!({ "model_type": "detr", "backbone": "swin" }), "`backbone`"),
            (
                json!({ "model_type": "detr", "backbone_config": { "model_type": "resnet" } }),
                "`backbone_config.hidden_sizes`",
            ),
        ] {
            let error = detr_config(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }
}
