//! Tokenizers, based on the `tokenizers` crate.
//!
//! Ours split at white space and punctuation, and write a space as `▁` before the next word, so that decoding restores
//! the text. A character without a token becomes the tokens of its bytes.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::ops::Range;
use std::path::Path;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BpeTrainer;
use tokenizers::models::wordlevel::WordLevelTrainer;
use tokenizers::{AddedToken, Tokenizer as Inner};

use crate::{Error, file};

/// The kind of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pieces {
    /// Byte-pair encoding: Sennrich et al. 2016, arXiv:1508.07909.
    #[default]
    Bpe,
    /// Whole words; unseen words are unknown. For small demonstrations.
    Words,
}

/// Names of special tokens: ours first, then those of others.
const UNKNOWN: &[&str] = &["<unk>", "[UNK]"];
const BEGIN: &[&str] = &["<s>", "[CLS]", "<bos>", "<|startoftext|>", "<pad>"];
const END: &[&str] = &["</s>", "[SEP]", "<eos>", "<|endoftext|>"];
const MASK: &[&str] = &["<mask>", "[MASK]"];

/// Smallest vocabulary: special tokens, bytes, and some letters.
pub const FEWEST: usize = 300;

/// A tokenizer with its vocabulary.
#[derive(Clone, Debug)]
pub struct Tokenizer {
    inner: Inner,
    begin: u32,
    end: u32,
    unknown: Option<u32>,
    mask: Option<u32>,
}

impl Tokenizer {
    /// Learns a vocabulary of at most `size` tokens.
    ///
    /// # Errors
    /// When the size is below [`FEWEST`].
    pub fn train<S: AsRef<str> + Send>(
        pieces: Pieces,
        size: usize,
        sentences: impl Iterator<Item = S> + Send,
    ) -> Result<Self, Error> {
        if size < FEWEST {
            return Err(Error::config("vocabulary", format!("must be at least {FEWEST}, got {size}")));
        }
        let special: Vec<AddedToken> =
            ["<pad>", "<unk>", "<s>", "</s>"].map(|token| AddedToken::from(token, true)).to_vec();
        let mut trainer: TrainerWrapper = match pieces {
            Pieces::Bpe => BpeTrainer::builder()
                .vocab_size(size - 256)
                .min_frequency(2)
                .show_progress(false)
                .special_tokens(special)
                .build()
                .into(),
            Pieces::Words => WordLevelTrainer::builder()
                .vocab_size(size)
                .show_progress(false)
                .special_tokens(special)
                .build()
                .map_err(|error| Error::config("vocabulary", error.to_string()))?
                .into(),
        };
        let failed = |error: tokenizers::Error| Error::config("vocabulary", error.to_string());
        let mut inner = Inner::from_bytes(template(pieces).to_string()).map_err(failed)?;
        inner.train(&mut trainer, sentences.map(|sentence| clean(sentence.as_ref()))).map_err(failed)?;
        let mut value: Value = serde_json::to_value(&inner).expect("a tokenizer is plain data");
        if pieces == Pieces::Bpe {
            with_bytes(&mut value["model"]);
        }
        Self::from_json(&value.to_string(), Path::new("tokenizer.json"))
    }

    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// When it cannot be read, is not a tokenizer, or has no begin or end token.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let text = file::read_text(path)?;
        Self::from_json(&text, path)
    }

    /// [`read`](Self::read) from text; errors name `path`.
    ///
    /// # Errors
    /// When it is not a tokenizer, or has no begin or end token.
    pub fn from_json(text: &str, path: &Path) -> Result<Self, Error> {
        let mut inner = Inner::from_bytes(text).map_err(|error| Error::file(path, format!("no tokenizer: {error}")))?;
        // `</s>` in the input is plain text
        inner.set_encode_special_tokens(true);
        let find = |names: &[&str]| names.iter().find_map(|name| inner.token_to_id(name));
        let needed = |what: &str, names: &[&str]| {
            let reason = || Error::file(path, format!("no token to {what} with: none of {}", names.join(", ")));
            find(names).ok_or_else(reason)
        };
        let (begin, end) = (needed("begin", BEGIN)?, needed("end", END)?);
        let (unknown, mask) = (find(UNKNOWN), find(MASK));
        Ok(Self { inner, begin, end, unknown, mask })
    }

    /// The same with a token that hides another, if it has none; its vocabulary is then one larger.
    #[must_use]
    pub fn with_mask(mut self) -> Self {
        if self.mask.is_none() {
            self.inner.add_special_tokens(&[AddedToken::from(MASK[0], true)]);
            self.mask = self.inner.token_to_id(MASK[0]);
        }
        self
    }

    /// What [`from_json`](Self::from_json) reads.
    pub fn to_json(&self) -> String {
        self.inner.to_string(false).expect("a tokenizer is plain data")
    }

    /// Number of tokens.
    pub fn vocabulary(&self) -> usize {
        self.inner.get_vocab(true).values().max().map_or(0, |last| *last as usize + 1)
    }

    /// The begin-of-sentence token.
    pub const fn begin(&self) -> u32 {
        self.begin
    }

    /// The end-of-sentence token.
    pub const fn end(&self) -> u32 {
        self.end
    }

    /// The tokens of a sentence, without begin and end token.
    ///
    /// # Errors
    /// When a tokenizer of another library fails on the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Error> {
        let encoding = self.inner.encode_fast(clean(text), false);
        let encoding = encoding.map_err(|error| Error::Field { field: shortened(text), reason: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The token that hides another, if there is one.
    pub const fn mask(&self) -> Option<u32> {
        self.mask
    }

    /// The tokens of a sentence in which `[MASK]` (or `<mask>`) hides a word; also which of them do so.
    ///
    /// # Errors
    /// When there is no token that hides another, or a tokenizer of another library cannot take the text.
    pub fn encode_masked(&self, text: &str) -> Result<(Vec<u32>, Vec<usize>), Error> {
        let failed = |reason: String| Error::Field { field: shortened(text), reason };
        let mask = self.mask.ok_or_else(|| failed("the tokenizer has no token that hides a word".into()))?;
        let (plain, hidden) = stood_in(text);
        let encoding = self.inner.encode(plain, false).map_err(|error| failed(error.to_string()))?;
        let (mut tokens, mut places, mut before) = (Vec::new(), Vec::new(), None);
        for (token, (start, end)) in encoding.get_ids().iter().zip(encoding.get_offsets()) {
            // a token that was put before the first letter has no length
            let overlaps = |range: &Range<usize>| *start < range.end && (*end > range.start || start == end);
            let inside = hidden.iter().position(overlaps);
            if inside.is_none() {
                tokens.push(*token);
            } else if inside != before {
                places.push(tokens.len());
                tokens.push(mask);
            }
            before = inside;
        }
        Ok((tokens, places))
    }

    /// Decodes tokens; special tokens are skipped.
    pub fn decode(&self, tokens: &[u32]) -> String {
        self.inner.decode(tokens, true).unwrap_or_default().trim().to_string()
    }

    /// One token for display.
    pub fn token(&self, token: u32) -> String {
        self.inner.id_to_token(token).unwrap_or_else(|| format!("<{token}>"))
    }

    /// Whether it is the unknown token.
    pub fn is_unknown(&self, token: u32) -> bool {
        self.unknown == Some(token)
    }
}

/// Text on one line: runs of white space and control characters become single spaces.
pub fn clean(text: &str) -> String {
    let blank = |c: char| c.is_whitespace() || c.is_control();
    text.split(blank).filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A sentence on one line with a letter instead of each `[MASK]`, so that what is around it is cut as around a word; and
/// the bytes of these letters, each with the space before it.
fn stood_in(text: &str) -> (String, Vec<Range<usize>>) {
    let text = MASK.iter().fold(text.to_string(), |text, name| text.replace(name, MASK[0]));
    let blank = |c: Option<char>| c.is_some_and(|c| c.is_whitespace() || c.is_control());
    let (mut plain, mut hidden) = (String::new(), Vec::new());
    for (number, piece) in text.split(MASK[0]).enumerate() {
        if number > 0 {
            if plain.ends_with(char::is_alphanumeric) {
                plain.push(' ');
            }
            let start = plain.len() - usize::from(plain.ends_with(' '));
            plain.push('x');
            hidden.push(start..plain.len());
            if piece.starts_with(char::is_alphanumeric) {
                plain.push(' ');
            }
        }
        if blank(piece.chars().next()) && !plain.is_empty() {
            plain.push(' ');
        }
        let cleaned = clean(piece);
        plain.push_str(&cleaned);
        if !cleaned.is_empty() && blank(piece.chars().next_back()) {
            plain.push(' ');
        }
    }
    plain.truncate(plain.trim_end().len());
    (plain, hidden)
}

/// The beginning of a text, for messages.
pub fn shortened(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}..", &text[..end]),
        None => text.to_string(),
    }
}

fn template(pieces: Pieces) -> Value {
    let model = match pieces {
        Pieces::Bpe => json!({
            "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": {}, "merges": [],
        }),
        Pieces::Words => json!({ "type": "WordLevel", "vocab": {}, "unk_token": "<unk>" }),
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "post_processor": null,
        "normalizer": { "type": "NFC" },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true },
            { "type": "Punctuation", "behavior": "Isolated" },
        ]},
        "decoder": { "type": "Sequence", "decoders": [
            { "type": "Replace", "pattern": { "String": "▁" }, "content": " " },
            { "type": "ByteFallback" },
            { "type": "Fuse" },
        ]},
        "model": model,
    })
}

/// Adds tokens for the 256 bytes, for unseen characters.
fn with_bytes(model: &mut Value) {
    let vocabulary = model["vocab"].as_object_mut().expect("a BPE has a vocabulary");
    let first = vocabulary.values().filter_map(Value::as_u64).max().map_or(0, |last| last + 1);
    for byte in 0..256 {
        vocabulary.insert(format!("<0x{byte:02X}>"), json!(first + byte));
    }
    model["byte_fallback"] = json!(true);
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[&str] = &[
        "Io la sto mangiando.",
        "L'animale non ha attraversato la strada perché era troppo stanco.",
        "The animal didn't cross the street because it was too tired.",
        "È disponibile un aggiornamento, più o meno.",
        "I am eating it. I am eating an apple. She is eating, too.",
    ];

    fn trained(pieces: Pieces) -> Tokenizer {
        Tokenizer::train(pieces, 400, TEXT.iter().chain(TEXT)).unwrap()
    }

    #[test]
    fn text_comes_back_as_it_was() {
        for pieces in [Pieces::Bpe, Pieces::Words] {
            let tokenizer = trained(pieces);
            for text in TEXT {
                assert_eq!(tokenizer.decode(&tokenizer.encode(text).unwrap()), *text);
            }
        }
    }

    #[test]
    fn any_character_is_some_tokens_and_comes_back() {
        let tokenizer = trained(Pieces::Bpe);
        // accents in two code points are put together
        for (text, back) in [("日本語 ☃ Ŵ", "日本語 ☃ Ŵ"), ("perche\u{301}", "perché"), ("👩‍👩‍👧 </s> <s>", "👩‍👩‍👧 </s> <s>")]
        {
            let tokens = tokenizer.encode(text).unwrap();
            assert!(!tokens.iter().any(|token| tokenizer.is_unknown(*token) || *token == tokenizer.end()), "{text}");
            assert_eq!(tokenizer.decode(&tokens), back);
        }
        let words = trained(Pieces::Words);
        let tokens = words.encode("日本語 la").unwrap();
        assert!(words.is_unknown(tokens[0]) && !words.is_unknown(tokens[1]));
    }

    #[test]
    fn white_space_and_control_characters_are_single_spaces() {
        let tokenizer = trained(Pieces::Bpe);
        assert_eq!(tokenizer.encode(" Io\tla\u{7}\u{0}sto\r\n ").unwrap(), tokenizer.encode("Io la sto").unwrap());
        assert!(tokenizer.encode(" \u{1b} \n").unwrap().is_empty());
    }

    #[test]
    fn it_is_the_same_for_the_same_text_and_can_be_written_and_read() {
        let tokenizer = trained(Pieces::Bpe);
        assert_eq!(tokenizer.to_json(), trained(Pieces::Bpe).to_json());
        let read = Tokenizer::from_json(&tokenizer.to_json(), Path::new("here")).unwrap();
        assert_eq!(read.encode(TEXT[0]).unwrap(), tokenizer.encode(TEXT[0]).unwrap());
        assert!(tokenizer.vocabulary() <= 400 && tokenizer.vocabulary() > 300, "{}", tokenizer.vocabulary());
    }

    #[test]
    fn what_is_no_tokenizer_is_told_with_its_file() {
        let error_of = |text: &str| Tokenizer::from_json(text, Path::new("some.json")).unwrap_err().to_string();
        let whole = trained(Pieces::Bpe).to_json();
        assert!(error_of(&whole[..whole.len() / 2]).starts_with("some.json: no tokenizer"));
        assert!(error_of("{}").starts_with("some.json: no tokenizer"));
        assert!(error_of(&whole.replace("</s>", "<stop>")).contains("no token to end with"));
        assert!(Tokenizer::train(Pieces::Bpe, 10, TEXT.iter()).unwrap_err().to_string().contains("`vocabulary`"));
    }

    #[test]
    fn a_hidden_word_is_one_token_and_the_rest_is_cut_as_if_a_word_were_there() {
        for pieces in [Pieces::Bpe, Pieces::Words] {
            let plain = trained(pieces);
            let tokenizer = trained(pieces).with_mask();
            let mask = tokenizer.mask().unwrap();
            assert_eq!(
                (plain.mask(), mask as usize, tokenizer.vocabulary()),
                (None, plain.vocabulary(), mask as usize + 1)
            );
            let read = Tokenizer::from_json(&tokenizer.to_json(), Path::new("here")).unwrap();
            assert_eq!((read.mask(), read.vocabulary()), (Some(mask), tokenizer.vocabulary()));
            // `apple` is one word for both, with the space before it or without
            for (text, hidden) in [
                ("I am eating an apple.", "I am eating an [MASK]."),
                ("I am eating an apple.", " I  am eating an<mask>. "),
                ("apple an apple", "[MASK] an [MASK]"),
                ("apple apple", "[MASK][MASK]"),
                ("an apple an", "an[MASK]an"),
            ] {
                let word = plain.encode("apple").unwrap();
                let mut expected = Vec::new();
                let mut rest = &plain.encode(text).unwrap()[..];
                while let Some(first) = rest.first() {
                    let found = rest.starts_with(&word);
                    expected.push(if found { mask } else { *first });
                    rest = &rest[if found { word.len() } else { 1 }..];
                }
                let (tokens, places) = tokenizer.encode_masked(hidden).unwrap();
                assert_eq!(tokens, expected, "{hidden}");
                let masks: Vec<usize> = (0..tokens.len()).filter(|at| tokens[*at] == mask).collect();
                assert_eq!(places, masks, "{hidden}");
            }
        }
        assert!(trained(Pieces::Bpe).encode_masked("an [MASK]").unwrap_err().to_string().contains("an [MASK]"));
    }
}
