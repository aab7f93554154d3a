//! Checkpoints of models of vision and language, and back: those of transformers, of ChenRocks/UNITER, `jiasenlu/vilbert_beta`
//! and uclanlp/visualbert.
//!
//! Our names are theirs, so there is little to translate: tied tensors that are stored twice, weight-normed maps, and the names
//! of the original `VisualBERT`. Training scripts wrap models in `module.`, `AllenNLP` in `model.`.

use burn::tensor::{Device, TensorData};
use serde_json::{Value, json};

use super::bert::{bert_names, check_field, drop_copy, finite, plain_names, untie_predictions};
use super::hugging_face::classes;
use super::names::fill_owned;
use super::rename::rename;
use super::{Checkpoint, Tensors};
use crate::Error;
use crate::models::vision_language::lxmert::LxmertConfig;
use crate::models::vision_language::visual_bert::VisualBertConfig;
use crate::models::vision_language::{AnswerHead, VisionLanguageConfig, VisionLanguageModel};

const DECODER: &str = "cls.predictions.decoder.weight";
const UNITER_FEATURES: [&str; 2] = ["feat_regress.weight", "uniter.img_embeddings.img_linear.weight"];

/// The names of the original `VisualBERT`, without `model.`.
const VISUAL_BERT: &[(&str, &str)] = &[
    ("bert.bert.embeddings.token_type_embeddings_visual.*", "visual_bert.embeddings.visual_token_type_embeddings.*"),
    ("bert.bert.embeddings.position_embeddings_visual.*", "visual_bert.embeddings.visual_position_embeddings.*"),
    ("bert.bert.embeddings.projection.*", "visual_bert.embeddings.visual_projection.*"),
    ("bert.bert.*", "visual_bert.*"),
    ("bert.cls.*", "cls.*"),
    ("bert.classifier.*", "classifier.*"),
    // transformers calls the head of answers as it calls those of pre-training
    ("cls.weight", "classifier.weight"),
    ("cls.bias", "classifier.bias"),
];

/// The table of words, which is tied to the logits of words.
const fn words_of(config: &VisionLanguageConfig) -> &'static str {
    match config {
        VisionLanguageConfig::VisualBert(_) => "visual_bert.embeddings.word_embeddings.weight",
        VisionLanguageConfig::Uniter(_) => "uniter.embeddings.word_embeddings.weight",
        VisionLanguageConfig::Lxmert(_) => "lxmert.embeddings.word_embeddings.weight",
        VisionLanguageConfig::Vilbert(_) | VisionLanguageConfig::VideoBert(_) => {
            "bert.embeddings.word_embeddings.weight"
        }
    }
}

/// A model with the weights of a checkpoint, in which nothing may be missing.
///
/// # Errors
/// When tensors are missing, unexpected, of the wrong shape or not finite, or a copy differs; all are listed.
pub fn load_vision_language(
    config: &VisionLanguageConfig,
    checkpoint: Checkpoint,
    device: &Device,
) -> Result<VisionLanguageModel, Error> {
    let tensors = finite(checkpoint)?;
    let tensors = match config {
        VisionLanguageConfig::VisualBert(_) => visual_bert_names(tensors),
        VisionLanguageConfig::Uniter(_) => uniter_names(tensors),
        VisionLanguageConfig::Vilbert(_) => vilbert_names(tensors),
        VisionLanguageConfig::Lxmert(_) => lxmert_names(tensors),
        VisionLanguageConfig::VideoBert(_) => bert_names(tensors),
    }?;
    fill_owned(config.init(device)?, tensors)
}

/// The tensors of a model as its upstream stores them: tied ones twice where it does so, and the answers of `VisualBERT` under
/// the name of transformers.
pub fn to_vision_language_names(config: &VisionLanguageConfig, mut tensors: Tensors) -> Tensors {
    let mut copy = |from: &str, to: &str| {
        if let Some(tensor) = tensors.get(from).cloned() {
            tensors.insert(to.into(), tensor);
        }
    };
    match config {
        VisionLanguageConfig::Uniter(own) if own.pretraining => {
            copy(words_of(config), DECODER);
            copy(UNITER_FEATURES[1], UNITER_FEATURES[0]);
        }
        VisionLanguageConfig::Vilbert(own) if own.pretraining => copy(words_of(config), DECODER),
        VisionLanguageConfig::VisualBert(own) if !own.pretraining => {
            for part in ["weight", "bias"] {
                if let Some(tensor) = tensors.remove(&format!("classifier.{part}")) {
                    tensors.insert(format!("cls.{part}"), tensor);
                }
            }
        }
        _ => {}
    }
    tensors
}

/// Renames the tensors of a `VisualBERT` of transformers, or of the original, to ours.
///
/// # Errors
/// When two tensors get one name, or one that should be tied to another differs from it; all are listed.
pub fn visual_bert_names(tensors: Tensors) -> Result<Tensors, Error> {
    let (mut ours, mut problems) = (Tensors::new(), Vec::new());
    for (name, tensor) in plain_names(tensors) {
        let name = name.strip_prefix("model.").map_or_else(|| name.clone(), String::from);
        let found = VISUAL_BERT.iter().find_map(|(there, here)| rename(&name, there, here));
        let new = found.unwrap_or_else(|| name.clone());
        if ours.insert(new.clone(), tensor).is_some() {
            problems.push(format!("`{name}` and another tensor are both `{new}`"));
        }
    }
    if !problems.is_empty() {
        return Err(Error::weights(problems));
    }
    untie_predictions(&mut ours, "visual_bert.embeddings.word_embeddings.weight")?;
    Ok(ours)
}

/// Drops the copies that ChenRocks/UNITER stores.
///
/// # Errors
/// When a tensor that should be tied to another differs from it; all are listed.
pub fn uniter_names(tensors: Tensors) -> Result<Tensors, Error> {
    let mut tensors = plain_names(tensors);
    untie_predictions(&mut tensors, "uniter.embeddings.word_embeddings.weight")?;
    let [copy, original] = UNITER_FEATURES;
    drop_copy(&mut tensors, copy, original).map_err(|problem| Error::weights(vec![problem]))?;
    Ok(tensors)
}

/// Drops the copies that `jiasenlu/vilbert_beta` stores, and resolves its weight-normed maps.
///
/// # Errors
/// When a tensor that should be tied to another differs from it, or a weight-normed map is not whole; all are listed.
pub fn vilbert_names(tensors: Tensors) -> Result<Tensors, Error> {
    let mut tensors = without_weight_norm(plain_names(tensors))?;
    untie_predictions(&mut tensors, "bert.embeddings.word_embeddings.weight")?;
    Ok(tensors)
}

/// Drops the copies that older files of transformers store.
///
/// # Errors
/// When a tensor that should be tied to another differs from it; all are listed.
pub fn lxmert_names(tensors: Tensors) -> Result<Tensors, Error> {
    let mut tensors = plain_names(tensors);
    untie_predictions(&mut tensors, "lxmert.embeddings.word_embeddings.weight")?;
    Ok(tensors)
}

/// Weight norm (Salimans and Kingma 2016): `weight = g v / |v|`, with one `g` for the whole map or one for each output.
fn without_weight_norm(tensors: Tensors) -> Result<Tensors, Error> {
    let (mut ours, mut problems) = (Tensors::new(), Vec::new());
    for (name, tensor) in &tensors {
        if name.ends_with(".weight_g") {
            continue;
        }
        let Some(map) = name.strip_suffix(".weight_v") else {
            ours.insert(name.clone(), tensor.clone());
            continue;
        };
        let scale = tensors.get(&format!("{map}.weight_g"));
        let Some(weight) = scale.and_then(|scale| scaled(tensor, scale)) else {
            problems.push(format!("`{name}` has no `{map}.weight_g` of its size"));
            continue;
        };
        ours.insert(format!("{map}.weight"), weight);
    }
    if problems.is_empty() { Ok(ours) } else { Err(Error::weights(problems)) }
}

/// None when there is neither one scale nor one for each row.
fn scaled(direction: &TensorData, scale: &TensorData) -> Option<TensorData> {
    let (values, scales) = (direction.as_slice::<f32>().ok()?, scale.as_slice::<f32>().ok()?);
    let shape = direction.shape().to_vec();
    let rows = *shape.first()?;
    if scales.is_empty() || (scales.len() != 1 && scales.len() != rows) || values.is_empty() {
        return None;
    }
    let part = values.len() / scales.len();
    let scaled = values.chunks_exact(part).zip(scales).flat_map(|(part, scale)| {
        let length = part.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        let factor = f64::from(*scale) / length;
        part.iter().map(move |x| (f64::from(*x) * factor) as f32)
    });
    Some(TensorData::new(scaled.collect::<Vec<f32>>(), shape))
}

/// Fields that must have a value, if they are there.
fn check_fields(config: &Value, kind: &str, fields: &[(&str, Value)]) -> Result<(), Error> {
    check_field(config, "model_type", &json!(kind), true)?;
    fields.iter().try_for_each(|(field, expected)| check_field(config, field, expected, false))
}

fn number(config: &Value, field: &str, usual: usize) -> usize {
    config[field].as_u64().map_or(usual, |number| number as usize)
}

/// The class of transformers that wrote the config; the bare model when it does not say.
fn architecture(config: &Value) -> &str {
    config["architectures"][0].as_str().unwrap_or_default()
}

/// The `VisualBERT` that a `config.json` with `"model_type": "visual_bert"` describes, with the heads of its architecture.
///
/// # Errors
/// When it is of another model, or a field has a value that is not supported; the error names it.
pub fn visual_bert_config(config: &Value) -> Result<VisualBertConfig, Error> {
    check_fields(config, "visual_bert", &[("hidden_act", json!("gelu")), ("bypass_transformer", json!(false))])?;
    let (pretraining, answer) = match architecture(config) {
        "VisualBertForPreTraining" => (true, AnswerHead::None),
        "VisualBertForQuestionAnswering" => (false, AnswerHead::Question { answers: classes(config) }),
        "VisualBertForVisualReasoning" => (false, AnswerHead::Pair),
        "" | "VisualBertModel" => (false, AnswerHead::None),
        other => {
            let reason = format!("`{other}` is not supported");
            return Err(Error::Field { field: "architectures".into(), reason });
        }
    };
    Ok(VisualBertConfig {
        vocabulary: number(config, "vocab_size", 30_522),
        positions: number(config, "max_position_embeddings", 512),
        types: number(config, "type_vocab_size", 2),
        layers: number(config, "num_hidden_layers", 12),
        dim: number(config, "hidden_size", 768),
        heads: number(config, "num_attention_heads", 12),
        inner: number(config, "intermediate_size", 3072),
        features: number(config, "visual_embedding_dim", 512),
        region_type: 1,
        dropout: config["hidden_dropout_prob"].as_f64().unwrap_or(0.1),
        epsilon: config["layer_norm_eps"].as_f64().unwrap_or(1e-12),
        pretraining,
        answer,
    })
}

/// The LXMERT that a `config.json` with `"model_type": "lxmert"` describes, with the heads of its architecture.
///
/// # Errors
/// When it is of another model, or a field has a value that is not supported; the error names it.
pub fn lxmert_config(config: &Value) -> Result<LxmertConfig, Error> {
    let needed = [
        ("hidden_act", json!("gelu")),
        ("visual_pos_dim", json!(4)),
        ("task_mask_lm", json!(true)),
        ("task_matched", json!(true)),
        ("task_obj_predict", json!(true)),
        ("task_qa", json!(true)),
        ("visual_obj_loss", json!(true)),
        ("visual_attr_loss", json!(true)),
        ("visual_feat_loss", json!(true)),
    ];
    check_fields(config, "lxmert", &needed)?;
    let answer = AnswerHead::Question { answers: number(config, "num_qa_labels", 9500) };
    let (pretraining, answer) = match architecture(config) {
        "LxmertForPreTraining" => (true, answer),
        "LxmertForQuestionAnswering" => (false, answer),
        "" | "LxmertModel" => (false, AnswerHead::None),
        other => {
            let reason = format!("`{other}` is not supported");
            return Err(Error::Field { field: "architectures".into(), reason });
        }
    };
    Ok(LxmertConfig {
        vocabulary: number(config, "vocab_size", 30_522),
        positions: number(config, "max_position_embeddings", 512),
        types: number(config, "type_vocab_size", 2),
        layers: number(config, "l_layers", 9),
        region_layers: number(config, "r_layers", 5),
        cross_layers: number(config, "x_layers", 5),
        dim: number(config, "hidden_size", 768),
        heads: number(config, "num_attention_heads", 12),
        inner: number(config, "intermediate_size", 3072),
        features: number(config, "visual_feat_dim", 2048),
        classes: number(config, "num_object_labels", 1600),
        attributes: number(config, "num_attr_labels", 400),
        dropout: config["hidden_dropout_prob"].as_f64().unwrap_or(0.1),
        epsilon: config["layer_norm_eps"].as_f64().unwrap_or(1e-12),
        pretraining,
        answer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::models::vision_language::uniter::UniterConfig;
    use crate::models::vision_language::vilbert::VilbertConfig;
    use crate::testing::Fixture;
    use crate::weights::{WeightsFormat, tensors};

    fn checkpoint(tensors: Tensors) -> Checkpoint {
        Checkpoint { format: WeightsFormat::Safetensors, tensors, not_finite: Vec::new() }
    }

    fn theirs(case: &str) -> Tensors {
        Fixture::load(case).checkpoint(|name| Some(name.into()))
    }

    fn uniter() -> VisionLanguageConfig {
        let base = UniterConfig::base();
        VisionLanguageConfig::Uniter(UniterConfig {
            vocabulary: 60,
            positions: 24,
            layers: 2,
            dim: 32,
            heads: 4,
            inner: 48,
            features: 18,
            classes: 13,
            ..base
        })
    }

    fn vilbert() -> VilbertConfig {
        VilbertConfig {
            vocabulary: 50,
            positions: 24,
            layers: 3,
            dim: 24,
            heads: 3,
            inner: 32,
            region_layers: 2,
            region_dim: 32,
            region_heads: 4,
            region_inner: 24,
            joint_dim: 32,
            joint_heads: 4,
            text_places: vec![1, 2],
            region_places: vec![0, 1],
            features: 14,
            classes: 9,
            ..VilbertConfig::base()
        }
    }

    #[test]
    fn what_is_loaded_is_written_under_the_same_names() {
        let described = |case: &str| Fixture::load(case).config;
        let visual = |case: &str| VisionLanguageConfig::VisualBert(visual_bert_config(&described(case)).unwrap());
        for (case, config) in [
            ("hf_visual_bert_pretraining", visual("hf_visual_bert_pretraining")),
            ("hf_visual_bert_vqa", visual("hf_visual_bert_vqa")),
            ("hf_visual_bert_nlvr2", visual("hf_visual_bert_nlvr2")),
            ("uniter", uniter()),
            ("vilbert", VisionLanguageConfig::Vilbert(vilbert())),
            ("lxmert", VisionLanguageConfig::Lxmert(lxmert_config(&described("lxmert")).unwrap())),
        ] {
            let there = theirs(case);
            let model = load_vision_language(&config, checkpoint(there.clone()), &cpu()).unwrap();
            assert_eq!(to_vision_language_names(&config, tensors(&model)), there, "{case}");
        }
    }

    #[test]
    fn the_original_names_of_visual_bert_load() {
        let config = visual_bert_config(&Fixture::load("hf_visual_bert_pretraining").config).unwrap();
        let there = theirs("hf_visual_bert_pretraining");
        let original = |name: &String| {
            let name = name
                .replace("visual_token_type_embeddings", "token_type_embeddings_visual")
                .replace("visual_position_embeddings", "position_embeddings_visual")
                .replace("visual_projection", "projection");
            let name = name.strip_prefix("visual_bert.").map_or_else(|| name.clone(), |name| format!("bert.{name}"));
            format!("model.bert.{name}")
        };
        let original: Tensors = there.iter().map(|(name, tensor)| (original(name), tensor.clone())).collect();
        assert!(original.contains_key("model.bert.bert.embeddings.projection.weight"));
        assert!(original.contains_key("model.bert.cls.predictions.bias"));
        let config = VisionLanguageConfig::VisualBert(config);
        let model = load_vision_language(&config, checkpoint(original), &cpu()).unwrap();
        assert_eq!(tensors(&model), there);
    }

    #[test]
    fn weight_normed_answers_are_resolved_and_broken_ones_are_named() {
        let config = VilbertConfig { answer: AnswerHead::Question { answers: 3 }, ..vilbert() };
        let config = VisionLanguageConfig::Vilbert(config);
        let mut there = theirs("vilbert");
        let ones = |shape: Vec<usize>| TensorData::new(vec![2f32; shape.iter().product()], shape);
        for (map, shape) in [("0", vec![64, 32]), ("3", vec![3, 64])] {
            there.insert(format!("vil_prediction.main.{map}.weight_v"), ones(shape.clone()));
            there.insert(format!("vil_prediction.main.{map}.bias"), ones(vec![shape[0]]));
        }
        there.insert("vil_prediction.main.0.weight_g".into(), TensorData::new(vec![8f32], [1]));
        let lacking = load_vision_language(&config, checkpoint(there.clone()), &cpu()).unwrap_err().to_string();
        assert!(lacking.contains("`vil_prediction.main.3.weight_v` has no"), "{lacking}");
        let scales = TensorData::new(vec![8f32, 16.0, 24.0], [3, 1]);
        there.insert("vil_prediction.main.3.weight_g".into(), scales);
        let model = load_vision_language(&config, checkpoint(there), &cpu()).unwrap();
        let ours = tensors(&model);
        // 64 x 32 times 2: a length of 2 sqrt(2048)
        let first = ours["vil_prediction.main.0.weight"].as_slice::<f32>().unwrap()[0];
        assert!((first - 8.0 / 2048f32.sqrt()).abs() < 1e-6, "{first}");
        let last = ours["vil_prediction.main.3.weight"].as_slice::<f32>().unwrap()[64 * 2];
        assert!((last - 24.0 / 8.0).abs() < 1e-6, "{last}");
    }

    #[test]
    fn copies_that_differ_are_refused_by_name() {
        let mut there = theirs("uniter");
        let other = TensorData::new(vec![0f32; 32 * 18], [32, 18]);
        there.insert(UNITER_FEATURES[0].into(), other);
        let error = load_vision_language(&uniter(), checkpoint(there), &cpu()).unwrap_err().to_string();
        assert!(
            error.contains("`feat_regress.weight` differs from `uniter.img_embeddings.img_linear.weight`"),
            "{error}"
        );
    }

    #[test]
    fn what_we_cannot_do_is_named() {
        for (config, field) in [
            (json!({ "model_type": "bert" }), "`model_type`"),
            (json!({ "model_type": "visual_bert", "bypass_transformer": true }), "`bypass_transformer`"),
            (json!({ "model_type": "visual_bert", "architectures": ["VisualBertForFun"] }), "`architectures`"),
        ] {
            assert!(visual_bert_config(&config).unwrap_err().to_string().contains(field), "{field}");
        }
        for (config, field) in [
            (json!({ "model_type": "lxmert", "task_qa": false }), "`task_qa`"),
            (json!({ "model_type": "lxmert", "visual_pos_dim": 5 }), "`visual_pos_dim`"),
            (json!({ "model_type": "lxmert", "architectures": ["Other"] }), "`architectures`"),
        ] {
            assert!(lxmert_config(&config).unwrap_err().to_string().contains(field), "{field}");
        }
    }
}
