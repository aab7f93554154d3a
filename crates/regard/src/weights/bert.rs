//! Checkpoints of BERT and its relatives: which names they have, and a folder with a tokenizer as on the Hugging Face hub.
//!
//! Our names are those of `transformers`. What differs between files is taken care of here: bare encoders without a prefix,
//! `gamma` and `beta` of the first releases, and tied tensors that are stored twice.

use burn::tensor::Device;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

use super::files::read;
use super::names::{fill_owned, not_finite};
use super::{Checkpoint, Tensors};
use crate::data::Words;
use crate::data::text::{Encoded, WordPiece};
use crate::models::bert::{Bert, BertConfig};
use crate::{Error, Pass, file};

const WORDS: &str = "bert.embeddings.word_embeddings.weight";

/// A BERT with its tokenizer.
#[derive(Debug)]
pub struct LoadedBert {
    pub config: BertConfig,
    pub model: Bert,
    pub tokenizer: WordPiece,
}

/// Vectors of sentences.
#[derive(Clone, Debug)]
pub struct SentenceVectors {
    /// Of length one each.
    pub vectors: Vec<Vec<f32>>,
    /// For each sentence the most tokens, if it had more.
    pub cut: Vec<Option<usize>>,
}

impl LoadedBert {
    /// One vector for each sentence, the mean of its tokens; tokens beyond the model's limit are left out.
    ///
    /// # Errors
    /// When a tokenizer of another library fails on a sentence.
    pub fn sentence_vectors(&self, texts: &[impl AsRef<str>]) -> Result<SentenceVectors, Error> {
        const BATCH: usize = 32;
        let limit = self.model.limit();
        let mut found = SentenceVectors { vectors: Vec::new(), cut: Vec::new() };
        for texts in texts.chunks(BATCH) {
            let mut encoded = Vec::new();
            for text in texts {
                let whole = self.tokenizer.encode(text.as_ref(), None)?;
                let is_long = whole.ids.len() > limit;
                found.cut.push(is_long.then_some(limit));
                encoded.push(if is_long { self.tokenizer.encode(text.as_ref(), Some(limit))? } else { whole });
            }
            found.vectors.extend(self.vectors(&encoded));
        }
        Ok(found)
    }

    /// One vector of length one for each text, in one forward pass.
    ///
    /// # Panics
    /// When there is no text, or one has more tokens than the model's limit.
    pub fn vectors(&self, texts: &[Encoded]) -> Vec<Vec<f32>> {
        let vectors = self.model.sentence_vectors(&Words::of(texts), &mut Pass::silent());
        let width = vectors.dims()[1];
        let values: Vec<f32> = vectors.into_data().iter::<f32>().collect();
        values.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }
}

/// The BERT that a `config.json` with `"model_type": "bert"` describes, with the pooler and both heads.
///
/// # Errors
/// When it is of another model, or a field has a value that is not supported; the error names it.
pub fn bert_config(config: &Value) -> Result<BertConfig, Error> {
    for (field, expected, is_needed) in [
        ("model_type", json!("bert"), true),
        ("hidden_act", json!("gelu"), false),
        ("position_embedding_type", json!("absolute"), false),
        ("is_decoder", json!(false), false),
        ("add_cross_attention", json!(false), false),
    ] {
        check_field(config, field, &expected, is_needed)?;
    }
    let number = |field: &str, usual: usize| config[field].as_u64().map_or(usual, |number| number as usize);
    Ok(BertConfig {
        vocabulary: number("vocab_size", 30_522),
        positions: number("max_position_embeddings", 512),
        types: number("type_vocab_size", 2),
        layers: number("num_hidden_layers", 12),
        dim: number("hidden_size", 768),
        heads: number("num_attention_heads", 12),
        inner: number("intermediate_size", 3072),
        dropout: config["hidden_dropout_prob"].as_f64().unwrap_or(0.1),
        epsilon: config["layer_norm_eps"].as_f64().unwrap_or(1e-12),
        pooler: true,
        masked_words: true,
        next_sentence: true,
    })
}

/// Refuses a field of a `config.json` with another value.
pub(super) fn check_field(config: &Value, field: &str, expected: &Value, is_needed: bool) -> Result<(), Error> {
    let found = &config[field];
    if found != expected && (is_needed || !found.is_null()) {
        return Err(Error::Field { field: field.into(), reason: format!("must be {expected}, got {found}") });
    }
    Ok(())
}

/// A BERT with the weights of a checkpoint, in which nothing may be missing; it has the heads that the checkpoint has.
///
/// # Errors
/// When tensors are missing, unexpected, of the wrong shape or not finite; all are listed.
pub fn load_bert(config: &BertConfig, checkpoint: Checkpoint, device: &Device) -> Result<(BertConfig, Bert), Error> {
    let tensors = bert_names(finite(checkpoint)?)?;
    let has = |part: &str| tensors.keys().any(|name| name.starts_with(part));
    let config = BertConfig {
        pooler: has("bert.pooler."),
        masked_words: has("cls.predictions."),
        next_sentence: has("cls.seq_relationship."),
        ..config.clone()
    };
    let model = fill_owned(config.init(device)?, tensors)?;
    Ok((config, model))
}

/// The tensors of a checkpoint, unless one is not finite.
pub(super) fn finite(checkpoint: Checkpoint) -> Result<Tensors, Error> {
    if checkpoint.not_finite.is_empty() {
        return Ok(checkpoint.tensors);
    }
    Err(Error::weights(checkpoint.not_finite.iter().map(|name| not_finite(name)).collect()))
}

/// Reads `config.json`, the weights and the tokenizer of a folder.
///
/// # Errors
/// When a file is missing or damaged, or they do not fit together; the error names the file.
pub fn load_bert_folder(folder: &Path, device: &Device) -> Result<LoadedBert, Error> {
    let path = folder.join("config.json");
    let config: Value = serde_json::from_str(&file::read_text(&path)?).map_err(|error| Error::file(&path, error))?;
    let config = bert_config(&config).map_err(|error| Error::file(&path, error))?;
    let tokenizer = WordPiece::load(folder)?;
    let (known, wanted) = (tokenizer.vocabulary(), config.vocabulary);
    if known > wanted {
        let reason = format!("the tokenizer has {known} tokens, the model {wanted}: another tokenizer");
        return Err(Error::file(folder, reason));
    }
    let (config, model) = load_bert(&config, read(&weights_of(folder)?)?, device)?;
    Ok(LoadedBert { config, model, tokenizer })
}

/// Whether a folder has the `config.json` of a BERT.
#[must_use]
pub fn is_bert_folder(folder: &Path) -> bool {
    let config = file::read_text(&folder.join("config.json")).ok();
    let config: Option<Value> = config.and_then(|text| serde_json::from_str(&text).ok());
    config.is_some_and(|config| config["model_type"] == "bert")
}

/// The file with the weights in a folder of the hub.
pub(super) fn weights_of(folder: &Path) -> Result<PathBuf, Error> {
    let names = ["model.safetensors", "pytorch_model.bin"];
    let found = names.map(|name| folder.join(name)).into_iter().find(|file| file.exists());
    found.ok_or_else(|| Error::file(folder, format!("has no {}", names.join(" and no "))))
}

/// Renames the tensors of any BERT to ours.
///
/// # Errors
/// When a tensor that should be tied to another differs from it; all are listed.
pub fn bert_names(tensors: Tensors) -> Result<Tensors, Error> {
    let tensors = plain_names(tensors);
    let is_bare = tensors.contains_key("embeddings.word_embeddings.weight");
    let full = |name: String| if is_bare { format!("bert.{name}") } else { name };
    let mut tensors: Tensors = tensors.into_iter().map(|(name, tensor)| (full(name), tensor)).collect();
    untie_predictions(&mut tensors, WORDS)?;
    Ok(tensors)
}

/// Removes `module.` of parallel training, `gamma` and `beta` of the first releases, and constants that are no weights.
pub(super) fn plain_names(tensors: Tensors) -> Tensors {
    let plain = |name: String| {
        let name = name.strip_prefix("module.").map(String::from).unwrap_or(name);
        match name.rsplit_once('.') {
            Some((norm, "gamma")) => format!("{norm}.weight"),
            Some((norm, "beta")) => format!("{norm}.bias"),
            _ => name,
        }
    };
    let named = tensors.into_iter().map(|(name, tensor)| (plain(name), tensor));
    named.filter(|(name, _)| !name.ends_with("embeddings.position_ids")).collect()
}

/// Drops the second copies of the table of words and of the bias of the head for masked words.
pub(super) fn untie_predictions(tensors: &mut Tensors, words: &str) -> Result<(), Error> {
    let (bias, copy) = ("cls.predictions.bias", "cls.predictions.decoder.bias");
    if !tensors.contains_key(bias)
        && let Some(tensor) = tensors.remove(copy)
    {
        tensors.insert(bias.into(), tensor);
    }
    let mut problems = Vec::new();
    for (copy, original) in [("cls.predictions.decoder.weight", words), (copy, bias)] {
        problems.extend(drop_copy(tensors, copy, original).err());
    }
    if problems.is_empty() { Ok(()) } else { Err(Error::weights(problems)) }
}

/// Drops a tensor that is a copy of another one, if both are there.
pub(super) fn drop_copy(tensors: &mut Tensors, copy: &str, original: &str) -> Result<(), String> {
    let (Some(found), Some(own)) = (tensors.get(copy), tensors.get(original)) else { return Ok(()) };
    if found != own {
        return Err(format!("`{copy}` differs from `{original}`, to which our model ties it"));
    }
    tensors.remove(copy);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::Fixture;
    use crate::weights::{WeightsFormat, tensors};
    use burn::tensor::TensorData;

    fn checkpoint(tensors: Tensors) -> Checkpoint {
        Checkpoint { format: WeightsFormat::Safetensors, tensors, not_finite: Vec::new() }
    }

    fn whole() -> (BertConfig, Tensors) {
        let fixture = Fixture::load("hf_bert_mlm");
        (bert_config(&fixture.config).unwrap(), fixture.checkpoint(|name| Some(name.into())))
    }

    #[test]
    fn what_is_loaded_is_written_under_the_same_names() {
        let (config, there) = whole();
        let (found, model) = load_bert(&config, checkpoint(there.clone()), &cpu()).unwrap();
        assert_eq!((found, tensors(&model)), (config, there));
    }

    #[test]
    fn bare_encoders_and_the_names_of_the_first_releases_load() {
        let (config, there) = whole();
        let bare: Tensors = there
            .iter()
            .filter_map(|(name, tensor)| Some((name.strip_prefix("bert.")?.to_string(), tensor.clone())))
            .chain([("embeddings.position_ids".to_string(), TensorData::from([0f32, 1.0]))])
            .collect();
        let (found, model) = load_bert(&config, checkpoint(bare), &cpu()).unwrap();
        assert!(found.pooler && !found.masked_words && !found.next_sentence);
        assert_eq!(tensors(&model)[WORDS], there[WORDS]);
        let old = |name: &String| {
            let name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta");
            format!("module.{name}")
        };
        let mut old: Tensors = there.iter().map(|(name, tensor)| (old(name), tensor.clone())).collect();
        old.insert("module.cls.predictions.decoder.weight".into(), there[WORDS].clone());
        let (_, model) = load_bert(&config, checkpoint(old), &cpu()).unwrap();
        assert_eq!(tensors(&model), there);
    }

    #[test]
    fn a_decoder_of_its_own_is_refused_by_name() {
        let (config, mut there) = whole();
        let other = there["cls.predictions.transform.dense.weight"].clone();
        there.insert("cls.predictions.decoder.weight".into(), other);
        let error = load_bert(&config, checkpoint(there), &cpu()).unwrap_err().to_string();
        assert!(error.contains("`cls.predictions.decoder.weight` differs from"), "{error}");
    }

    #[test]
    fn what_we_cannot_do_with_a_bert_is_named() {
        for (config, field) in [
            (json!({ "model_type": "roberta" }), "`model_type`"),
            (json!({}), "`model_type`"),
            (json!({ "model_type": "bert", "hidden_act": "relu" }), "`hidden_act`"),
            (json!({ "model_type": "bert", "position_embedding_type": "relative_key" }), "`position_embedding_type`"),
            (json!({ "model_type": "bert", "is_decoder": true }), "`is_decoder`"),
        ] {
            let error = bert_config(&config).unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
        let base = bert_config(&json!({ "model_type": "bert" })).unwrap();
        assert_eq!(base, crate::models::bert::preset("bert-base").unwrap());
        let empty = tempfile::tempdir().unwrap();
        assert!(load_bert_folder(empty.path(), &cpu()).unwrap_err().to_string().contains("config.json"));
    }
}
