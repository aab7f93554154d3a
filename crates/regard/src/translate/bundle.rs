//! A translation model with its tokenizers: from text to text.

use burn::tensor::Device;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;

use super::{Hypothesis, Search, decode};
use crate::data::Tokens;
use crate::data::text::{Buckets, Tokenizer, shortened};
use crate::models::translator::{Translator, TranslatorConfig};
use crate::weights::{self, LoadOptions};
use crate::{Error, Pass, Trace};

/// Largest number of tokens of a sentence: recorded attention grows with its square.
pub const LONGEST: usize = 1024;

/// Largest number of bytes of a sentence: longer ones are refused before tokenising.
pub const LONGEST_BYTES: usize = 16 * LONGEST;

/// Tokens in a batch times the beam width, at most.
const BATCH: usize = 2000;

/// A model with the tokenizers of source and target.
#[derive(Clone, Debug)]
pub struct Bundle {
    config: TranslatorConfig,
    model: Translator,
    tokenizers: [Tokenizer; 2],
}

/// A translation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Translation {
    pub text: String,
    /// Log-probability over the length penalty.
    pub score: f64,
    #[serde(skip)]
    pub tokens: Vec<u32>,
}

/// The attention recorded during a translation.
#[derive(Debug)]
pub struct TranslationAttention {
    /// The source tokens, with the end token.
    pub source: Vec<String>,
    /// The input tokens of the decoding steps, from the begin token on.
    pub target: Vec<String>,
    pub trace: Trace,
}

impl Bundle {
    /// # Errors
    /// When the vocabularies of tokenizers and model differ.
    pub fn new(config: TranslatorConfig, model: Translator, tokenizers: [Tokenizer; 2]) -> Result<Self, Error> {
        for ((side, needed), tokenizer) in ["source", "target"].iter().zip(config.vocabularies()).zip(&tokenizers) {
            let there = tokenizer.vocabulary();
            if there != needed {
                let reason = format!("has {there} tokens, the model was trained with {needed}: another tokenizer");
                return Err(Error::Field { field: format!("{side} tokenizer"), reason });
            }
        }
        Ok(Self { config, model, tokenizers })
    }

    /// The best weights of a run.
    ///
    /// # Errors
    /// When the folder is not a run of translation, or a file is damaged.
    pub fn open(folder: &Path, device: &Device) -> Result<Self, Error> {
        let path = folder.join("model.toml");
        let text = std::fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
        let config = TranslatorConfig::from_toml(&text).map_err(|error| Error::file(&path, error))?;
        let tokenizers = Self::read_tokenizers(folder)?;
        let best = folder.join("best.safetensors");
        let model = weights::load(config.init(device)?, &best, &LoadOptions::default())?.model;
        Self::new(config, model, tokenizers)
    }

    /// The tokenizers in a folder: one for both languages, or two.
    ///
    /// # Errors
    /// When there are none, or one is damaged.
    pub fn read_tokenizers(folder: &Path) -> Result<[Tokenizer; 2], Error> {
        let [both, source, target] = ["tokenizer.json", "source.json", "target.json"].map(|name| folder.join(name));
        if both.exists() || !source.exists() {
            let both = Tokenizer::load(&both)?;
            return Ok([both.clone(), both]);
        }
        Ok([Tokenizer::load(&source)?, Tokenizer::load(&target)?])
    }

    /// The tokenizers from the names and texts of their files.
    ///
    /// # Errors
    /// When there are none, or one is damaged.
    pub fn kept_tokenizers(files: &BTreeMap<String, String>) -> Result<[Tokenizer; 2], Error> {
        let load = |name: &str| {
            let text = files.get(name).ok_or_else(|| Error::file(Path::new(name), "it is not there"))?;
            Tokenizer::from_json(text, Path::new(name))
        };
        if files.contains_key("tokenizer.json") {
            let both = load("tokenizer.json")?;
            return Ok([both.clone(), both]);
        }
        Ok([load("source.json")?, load("target.json")?])
    }

    /// Names and texts of the files that [`read_tokenizers`](Self::read_tokenizers) reads.
    pub fn written_tokenizers([source, target]: &[Tokenizer; 2]) -> Vec<(&'static str, String)> {
        let [source, target] = [source, target].map(Tokenizer::to_json);
        if source == target {
            vec![("tokenizer.json", source)]
        } else {
            vec![("source.json", source), ("target.json", target)]
        }
    }

    pub const fn config(&self) -> &TranslatorConfig {
        &self.config
    }

    pub const fn model(&self) -> &Translator {
        &self.model
    }

    pub const fn tokenizers(&self) -> &[Tokenizer; 2] {
        &self.tokenizers
    }

    /// Beam search as in the paper, with the target's special tokens.
    pub fn search(&self) -> Search {
        Search::new(self.tokenizers[1].begin(), self.tokenizers[1].end())
    }

    /// The tokens of a sentence, with the end token.
    ///
    /// # Errors
    /// When it is too long.
    fn source(&self, text: &str) -> Result<Vec<u32>, Error> {
        if text.len() > LONGEST_BYTES {
            let reason = format!(
                "{} bytes in one sentence are more tokens than {LONGEST}, the most; put each sentence on a line",
                text.len()
            );
            return Err(Error::Field { field: shortened(text), reason });
        }
        let mut tokens = self.tokenizers[0].encode(text)?;
        tokens.push(self.tokenizers[0].end());
        let most = self.model.limit().map_or(LONGEST, |limit| limit.min(LONGEST));
        if tokens.len() > most {
            let reason =
                format!("{} tokens in one sentence, the most is {most}; put each sentence on a line", tokens.len());
            return Err(Error::Field { field: shortened(text), reason });
        }
        Ok(tokens)
    }

    /// Number of tokens of a sentence.
    ///
    /// # Errors
    /// When it is too long.
    pub fn count_tokens(&self, text: &str) -> Result<usize, Error> {
        Ok(self.source(text)?.len() - 1)
    }

    /// Translations of each text, the best first; an empty text has an empty one. `watch` gets how many are done.
    ///
    /// # Errors
    /// When a text is too long, or the search is not valid.
    pub fn translate(
        &self,
        texts: &[impl AsRef<str>],
        search: &Search,
        device: &Device,
        watch: &mut dyn FnMut(usize),
    ) -> Result<Vec<Vec<Translation>>, Error> {
        let found = self.search_while(texts, search, device, &|| true, watch)?;
        Ok(found.expect("it is always wanted"))
    }

    /// As [`translate`](Self::translate), but calls `is_wanted` before every token; `None` if it
    /// returned false.
    ///
    /// # Errors
    /// When a text is too long, or the search is not valid.
    pub fn translate_while(
        &self,
        texts: &[impl AsRef<str>],
        search: &Search,
        device: &Device,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Vec<Vec<Translation>>>, Error> {
        self.search_while(texts, search, device, is_wanted, &mut |_| {})
    }

    fn search_while(
        &self,
        texts: &[impl AsRef<str>],
        search: &Search,
        device: &Device,
        is_wanted: &dyn Fn() -> bool,
        watch: &mut dyn FnMut(usize),
    ) -> Result<Option<Vec<Vec<Translation>>>, Error> {
        search.validate()?;
        let sources = texts.iter().map(|text| self.source(text.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let mut all: Vec<Vec<Translation>> = vec![vec![Translation::empty()]; texts.len()];
        // only the end token: an empty text
        let full: Vec<usize> = (0..texts.len()).filter(|index| sources[*index].len() > 1).collect();
        let lengths: Vec<[usize; 2]> = full.iter().map(|index| [sources[*index].len(); 2]).collect();
        let longest = lengths.iter().map(|[length, _]| *length).max().unwrap_or(0);
        let mut done = texts.len() - full.len();
        for batch in Buckets::new(lengths, (BATCH / search.beam).max(longest), 0)?.in_order() {
            let places: Vec<usize> = batch.iter().map(|place| full[*place]).collect();
            let tokens: Vec<&[u32]> = places.iter().map(|place| sources[*place].as_slice()).collect();
            let found = decode::translate_while(&self.model, &Tokens::new(&tokens), search, device, is_wanted);
            let Some(found) = found else { return Ok(None) };
            for (place, hypotheses) in places.into_iter().zip(found) {
                all[place] = hypotheses.into_iter().map(|one| self.translation(one)).collect();
                done += 1;
            }
            watch(done);
        }
        Ok(Some(all))
    }

    fn translation(&self, Hypothesis { tokens, score, .. }: Hypothesis) -> Translation {
        Translation { text: self.tokenizers[1].decode(&tokens), score, tokens }
    }

    /// The attention of the model for the tokens of a translation.
    ///
    /// # Errors
    /// When the text is too long.
    pub fn attend(&self, text: &str, translation: &Translation) -> Result<TranslationAttention, Error> {
        let source = self.source(text)?;
        let target = [&[self.tokenizers[1].begin()], translation.tokens.as_slice()].concat();
        let mut pass = Pass::recording_only([
            "encoder.layers.*.self_attn.weights",
            "decoder.layers.*.self_attn.weights",
            "decoder.layers.*.multihead_attn.weights",
            "decoder.attention.weights",
        ]);
        self.model.forward(&Tokens::new(&[source.as_slice()]), &Tokens::new(&[target.as_slice()]), &mut pass);
        let shown =
            |tokenizer: &Tokenizer, tokens: &[u32]| tokens.iter().map(|token| tokenizer.token(*token)).collect();
        let [source, target] = [(&self.tokenizers[0], source), (&self.tokenizers[1], target)]
            .map(|(tokenizer, tokens)| shown(tokenizer, &tokens));
        Ok(TranslationAttention { source, target, trace: pass.into_trace() })
    }
}

impl Translation {
    const fn empty() -> Self {
        Self { text: String::new(), score: 0.0, tokens: Vec::new() }
    }
}
