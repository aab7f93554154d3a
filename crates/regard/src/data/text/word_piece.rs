//! `WordPiece`, the tokenizer of BERT, based on the `tokenizers` crate.
//! Wu et al. 2016, arXiv:1609.08144; Devlin et al. 2018, arXiv:1810.04805.
//!
//! A text is cleaned of control characters, in lower case without accents if the vocabulary is so, and cut at white space,
//! punctuation and around each CJK character. Each word becomes the longest pieces of the vocabulary from left to right, of
//! which all but the first start with `##`; a word with an unknown piece, or of more than 100 characters, is `[UNK]`.
//! Special tokens that a text contains, such as `[MASK]`, are what they say, as in the original.

use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::wordpiece::WordPieceTrainer;
use tokenizers::utils::truncation::{TruncationParams, truncate_encodings};
use tokenizers::{
    AddedToken, NormalizedString, Normalizer as _, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer as _, Tokenizer as Inner,
};

use super::shortened;
use crate::{Error, file};

const PAD: &str = "[PAD]";
const UNKNOWN: &str = "[UNK]";
const CLASS: &str = "[CLS]";
const SEPARATOR: &str = "[SEP]";
const MASK: &str = "[MASK]";
const SPECIAL: [&str; 5] = [PAD, UNKNOWN, CLASS, SEPARATOR, MASK];

/// The normalisation of letters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Letters {
    /// Lower case without accents: the vocabularies called uncased.
    #[default]
    Uncased,
    /// Lower case with accents.
    LowerCase,
    /// As they are: the vocabularies called cased.
    Cased,
}

/// A `WordPiece` tokenizer with its vocabulary.
#[derive(Clone, Debug)]
pub struct WordPiece {
    inner: Inner,
    special: Special,
}

/// Ids of the special tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Special {
    pub pad: u32,
    pub unknown: u32,
    /// Begins a text: `[CLS]`.
    pub class: u32,
    /// Ends a text: `[SEP]`.
    pub separator: u32,
    pub mask: u32,
}

/// A text, or two of them, as BERT reads it: `[CLS] first [SEP] second [SEP]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    pub ids: Vec<u32>,
    /// 0 for the first text and its special tokens, 1 for the second.
    pub types: Vec<u8>,
    /// Characters of its text that each token stands for; empty for special tokens.
    pub offsets: Vec<(usize, usize)>,
}

impl WordPiece {
    /// Reads `tokenizer.json`, `vocab.txt`, or the folder of one of them.
    ///
    /// For a vocabulary, `tokenizer_config.json` beside it says what happens to letters; without that file, a vocabulary without
    /// a capital letter is uncased.
    ///
    /// # Errors
    /// When there is no such file, it is not a tokenizer, or a special token is missing.
    pub fn load(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            let found =
                ["tokenizer.json", "vocab.txt"].map(|name| path.join(name)).into_iter().find(|file| file.exists());
            let found = found.ok_or_else(|| Error::file(path, "has no tokenizer.json and no vocab.txt"))?;
            return Self::load(&found);
        }
        let text = file::read_text(path)?;
        if text.trim_start().starts_with('{') {
            return Self::from_json(&text, path);
        }
        let beside = path.with_file_name("tokenizer_config.json");
        let letters = if beside.exists() { letters_of(&beside)? } else { None };
        Self::from_vocabulary(&text, letters, path)
    }

    /// From a vocabulary with one token a line, the ids of which are the numbers of lines; errors name `path`.
    ///
    /// # Errors
    /// When a special token is missing.
    pub fn from_vocabulary(text: &str, letters: Option<Letters>, path: &Path) -> Result<Self, Error> {
        let vocabulary: Map<String, Value> =
            text.lines().enumerate().map(|(id, line)| (line.trim_end().to_string(), json!(id))).collect();
        // text in brackets is a special token, which does not occur in texts; some letters have no lower case
        let is_capital = |letter: char| letter.is_uppercase() && letter.to_lowercase().ne([letter]);
        let written = vocabulary.keys().filter(|token| !token.starts_with('['));
        let cased = written.flat_map(|token| token.chars()).any(is_capital);
        let letters = letters.unwrap_or(if cased { Letters::Cased } else { Letters::Uncased });
        Self::from_json(&template(vocabulary, letters, path)?.to_string(), path)
    }

    /// From a `tokenizer.json`; errors name `path`.
    ///
    /// # Errors
    /// When it is not a tokenizer, or a special token is missing.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, Error> {
        let broken = |error: tokenizers::Error| Error::file(path, format!("no tokenizer: {error}"));
        let mut inner = Inner::from_bytes(text).map_err(broken)?;
        // lengths are ours to decide
        inner.with_padding(None).with_truncation(None).map_err(broken)?;
        let [pad, unknown, class, separator, mask] = SPECIAL.map(|name| {
            inner.token_to_id(name).ok_or_else(|| Error::file(path, format!("the vocabulary has no token {name}")))
        });
        let special = Special { pad: pad?, unknown: unknown?, class: class?, separator: separator?, mask: mask? };
        Ok(Self { inner, special })
    }

    /// Learns a vocabulary of at most `size` tokens, special ones and single characters included.
    ///
    /// # Errors
    /// When there is room for special tokens only.
    pub fn train<S: AsRef<str> + Send + Sync>(
        letters: Letters,
        size: usize,
        sentences: impl Iterator<Item = S> + Send,
    ) -> Result<Self, Error> {
        if size <= SPECIAL.len() {
            return Err(Error::config("vocabulary", format!("must be more than {}, got {size}", SPECIAL.len())));
        }
        let failed = |error: tokenizers::Error| Error::config("vocabulary", error.to_string());
        let own = Path::new("tokenizer.json");
        let first: Map<String, Value> =
            SPECIAL.iter().enumerate().map(|(id, token)| ((*token).into(), json!(id))).collect();
        let mut inner = Inner::from_bytes(template(first, letters, own)?.to_string()).map_err(failed)?;
        let sentences: Vec<S> = sentences.collect();
        // the trainer would number characters inside of words in the order of a hash map, and break ties by these numbers
        let inside = inner_characters(&inner, sentences.iter().map(AsRef::as_ref)).map_err(failed)?;
        let inside = inside.into_iter().map(|letter| format!("##{letter}"));
        let first = SPECIAL.map(String::from).into_iter().chain(inside);
        let mut trainer: TrainerWrapper = WordPieceTrainer::builder()
            .vocab_size(size)
            .show_progress(false)
            .special_tokens(first.map(|token| AddedToken::from(token, true)).collect())
            .build()
            .into();
        inner.train(&mut trainer, sentences.iter().map(AsRef::as_ref)).map_err(failed)?;
        let mut learned: Vec<(String, u32)> = inner.get_vocab(true).into_iter().collect();
        learned.sort_by_key(|(_, id)| *id);
        let vocabulary: String = learned.into_iter().flat_map(|(token, _)| [token, "\n".into()]).collect();
        Self::from_vocabulary(&vocabulary, Some(letters), own)
    }

    /// What [`from_json`](Self::from_json) reads.
    pub fn to_json(&self) -> String {
        self.inner.to_string(false).expect("a tokenizer is plain data")
    }

    /// What [`from_vocabulary`](Self::from_vocabulary) reads: the tokens in the order of their ids, one a line.
    pub fn to_vocabulary(&self) -> String {
        (0..self.vocabulary() as u32).flat_map(|id| [self.token(id), "\n".into()]).collect()
    }

    /// Number of tokens.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |last| *last as usize + 1)
    }

    #[must_use]
    pub const fn special(&self) -> Special {
        self.special
    }

    /// A text as BERT reads it.
    ///
    /// # Errors
    /// When a tokenizer of another library fails on the text, or `limit` is below 2.
    pub fn encode(&self, text: &str, limit: Option<usize>) -> Result<Encoded, Error> {
        self.encode_texts(text, None, limit)
    }

    /// Two texts as BERT reads them; too many tokens are cut from the end of the longer one.
    ///
    /// # Errors
    /// When a tokenizer of another library fails on a text, or `limit` is below 3.
    pub fn encode_pair(&self, first: &str, second: &str, limit: Option<usize>) -> Result<Encoded, Error> {
        self.encode_texts(first, Some(second), limit)
    }

    fn encode_texts(&self, first: &str, second: Option<&str>, limit: Option<usize>) -> Result<Encoded, Error> {
        let failed = |error: tokenizers::Error| Error::Field { field: shortened(first), reason: error.to_string() };
        let pieces = |text: &str| self.inner.encode_char_offsets(text, false).map_err(failed);
        let (mut first, mut second) = (pieces(first)?, second.map(pieces).transpose()?);
        if let Some(limit) = limit {
            let added = if second.is_some() { 3 } else { 2 };
            let Some(max_length) = limit.checked_sub(added) else {
                return Err(Error::config("limit", format!("must be at least {added} tokens, got {limit}")));
            };
            let params = TruncationParams { max_length, ..TruncationParams::default() };
            (first, second) = truncate_encodings(first, second, &params).map_err(failed)?;
        }
        let whole = self.inner.post_process(first, second, true).map_err(failed)?;
        Ok(Encoded {
            ids: whole.get_ids().to_vec(),
            types: whole.get_type_ids().iter().map(|kind| *kind as u8).collect(),
            offsets: whole.get_offsets().to_vec(),
        })
    }

    /// Decodes tokens, with special tokens or without.
    pub fn decode(&self, ids: &[u32], with_special: bool) -> String {
        self.inner.decode(ids, !with_special).unwrap_or_default()
    }

    /// One token for display.
    pub fn token(&self, id: u32) -> String {
        self.inner.id_to_token(id).unwrap_or_else(|| format!("<{id}>"))
    }

    /// The id of a token.
    pub fn find(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }
}

/// The characters that words have after their first.
fn inner_characters<'a>(
    tokenizer: &Inner,
    sentences: impl Iterator<Item = &'a str>,
) -> Result<BTreeSet<char>, tokenizers::Error> {
    let mut found = BTreeSet::new();
    for sentence in sentences {
        let mut text = NormalizedString::from(sentence);
        if let Some(normalizer) = tokenizer.get_normalizer() {
            normalizer.normalize(&mut text)?;
        }
        let mut words = PreTokenizedString::from(text);
        if let Some(splitter) = tokenizer.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut words)?;
        }
        for (word, ..) in words.get_splits(OffsetReferential::Normalized, OffsetType::Byte) {
            found.extend(word.chars().skip(1));
        }
    }
    Ok(found)
}

/// The normalisation of letters in a `tokenizer_config.json`, if it has one.
fn letters_of(path: &Path) -> Result<Option<Letters>, Error> {
    let config: Value = serde_json::from_str(&file::read_text(path)?).map_err(|error| Error::file(path, error))?;
    Ok(config["do_lower_case"].as_bool().map(|lower| match (lower, config["strip_accents"].as_bool()) {
        (true, Some(false)) => Letters::LowerCase,
        (true, _) => Letters::Uncased,
        (false, _) => Letters::Cased,
    }))
}

fn template(vocabulary: Map<String, Value>, letters: Letters, path: &Path) -> Result<Value, Error> {
    let id = |token: &str| {
        vocabulary.get(token).cloned().ok_or_else(|| Error::file(path, format!("the vocabulary has no token {token}")))
    };
    let added = |token: &str| -> Result<Value, Error> {
        let (id, no) = (id(token)?, false);
        Ok(
            json!({ "id": id, "content": token, "special": true, "single_word": no, "lstrip": no, "rstrip": no, "normalized": no }),
        )
    };
    let special = SPECIAL.into_iter().map(added).collect::<Result<Vec<_>, _>>()?;
    let (class, separator) = (id(CLASS)?, id(SEPARATOR)?);
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": special,
        "normalizer": {
            "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
            "strip_accents": if letters == Letters::LowerCase { json!(false) } else { Value::Null },
            "lowercase": letters != Letters::Cased,
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": [SEPARATOR, separator], "cls": [CLASS, class] },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece", "unk_token": UNKNOWN, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary,
        },
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fixture;
    use std::path::PathBuf;

    fn folder() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/wordpiece")
    }

    fn known(letters: Letters) -> WordPiece {
        let path = folder().join("vocab.txt");
        WordPiece::from_vocabulary(&std::fs::read_to_string(&path).unwrap(), Some(letters), &path).unwrap()
    }

    fn list<T: serde::de::DeserializeOwned>(value: &Value) -> T {
        serde_json::from_value(value.clone()).unwrap()
    }

    #[test]
    fn texts_are_cut_as_the_original_cuts_them() {
        let fixture = Fixture::load("wordpiece");
        for (run, letters) in
            [("uncased", Letters::Uncased), ("cased", Letters::Cased), ("accents_kept", Letters::LowerCase)]
        {
            let tokenizer = known(letters);
            let cases = fixture.config["runs"][run].as_array().unwrap();
            assert_eq!(cases.len(), 30);
            for case in cases {
                let text = case["text"].as_str().unwrap();
                let encoded = tokenizer.encode(text, None).unwrap();
                assert_eq!(encoded.ids, list::<Vec<u32>>(&case["ids"]), "{run}: {text}");
                assert_eq!(encoded.offsets, list::<Vec<(usize, usize)>>(&case["offsets"]), "{run}: {text}");
                let inner = &encoded.ids[1..encoded.ids.len() - 1];
                let pieces: Vec<String> = inner.iter().map(|id| tokenizer.token(*id)).collect();
                assert_eq!(pieces, list::<Vec<String>>(&case["tokens"]), "{run}: {text}");
            }
        }
    }

    #[test]
    fn pairs_have_types_and_lose_the_end_of_the_longer_text() {
        let (fixture, tokenizer) = (Fixture::load("wordpiece"), known(Letters::Uncased));
        let pairs = &fixture.config["pairs"];
        let limit = pairs["max_length"].as_u64().unwrap() as usize;
        for (row, texts) in pairs["texts"].as_array().unwrap().iter().enumerate() {
            let Encoded { mut ids, mut types, .. } =
                tokenizer.encode_pair(texts[0].as_str().unwrap(), texts[1].as_str().unwrap(), Some(limit)).unwrap();
            let own = ids.len();
            ids.resize(limit, tokenizer.special().pad);
            types.resize(limit, 0);
            assert_eq!(ids, list::<Vec<u32>>(&pairs["ids"][row]));
            assert_eq!(types, list::<Vec<u8>>(&pairs["types"][row]));
            assert_eq!(own, list::<Vec<usize>>(&pairs["mask"][row]).iter().sum::<usize>());
            assert_eq!(tokenizer.decode(&ids, true), fixture.config["decoded"][row].as_str().unwrap());
        }
        assert_eq!(tokenizer.encode("the red coat", Some(3)).unwrap().ids.len(), 3);
        assert!(tokenizer.encode("the red coat", Some(1)).unwrap_err().to_string().contains("`limit`"));
    }

    #[test]
    fn a_file_of_either_kind_or_its_folder_gives_the_same_tokenizer() {
        let (text, given) = ("Café naïve: two red coats", known(Letters::Uncased));
        let folder = tempfile::tempdir().unwrap();
        let expected = given.encode(text, None).unwrap();
        std::fs::write(folder.path().join("vocab.txt"), given.to_vocabulary()).unwrap();
        assert_eq!(WordPiece::load(folder.path()).unwrap().encode(text, None).unwrap(), expected);
        let config = folder.path().join("tokenizer_config.json");
        std::fs::write(&config, r#"{ "do_lower_case": true, "strip_accents": false }"#).unwrap();
        let kept = known(Letters::LowerCase).encode(text, None).unwrap();
        assert_eq!(WordPiece::load(folder.path()).unwrap().encode(text, None).unwrap(), kept);
        assert_ne!(kept, expected);
        std::fs::write(folder.path().join("tokenizer.json"), given.to_json()).unwrap();
        assert_eq!(WordPiece::load(folder.path()).unwrap().encode(text, None).unwrap(), expected);
        assert_eq!(given.find("coat"), Some(52));
    }

    #[test]
    fn a_learned_vocabulary_knows_its_text_and_is_the_same_each_time() {
        let text = ["the red shirt is left of the blue coat", "what colour is the coat ?"];
        let learned = || WordPiece::train(Letters::Uncased, 200, text.iter().cycle().take(20)).unwrap();
        let tokenizer = learned();
        assert_eq!(tokenizer.to_json(), learned().to_json());
        let encoded = tokenizer.encode(text[0], None).unwrap();
        assert_eq!(encoded.ids.len(), 2 + 9, "words that are frequent are whole");
        assert_eq!(tokenizer.decode(&encoded.ids, false), text[0]);
        assert_eq!(tokenizer.special().mask, 4);
        let error = WordPiece::train(Letters::Uncased, 5, text.iter()).unwrap_err().to_string();
        assert_eq!(error, "`vocabulary`: must be more than 5, got 5");
    }

    #[test]
    fn what_is_no_word_piece_vocabulary_names_its_file() {
        let told = |text: &str| WordPiece::from_vocabulary(text, None, Path::new("v.txt")).unwrap_err().to_string();
        assert_eq!(told("the\nred\n"), "v.txt: the vocabulary has no token [PAD]");
        assert!(
            WordPiece::from_json("{}", Path::new("t.json"))
                .unwrap_err()
                .to_string()
                .starts_with("t.json: no tokenizer")
        );
        let empty = tempfile::tempdir().unwrap();
        assert!(
            WordPiece::load(empty.path()).unwrap_err().to_string().ends_with("has no tokenizer.json and no vocab.txt")
        );
    }
}
