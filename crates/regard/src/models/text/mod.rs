//! Models of text: tokens in, logits of tokens out.

pub mod language_model;
pub mod rnn_search;
pub mod transformer;
pub mod translator;

use crate::Error;

/// A named configuration of a paper about text.
#[derive(Clone, Copy, Debug)]
pub struct TextPreset<C> {
    /// Its name.
    pub name: &'static str,
    /// Its source.
    pub paper: &'static str,
    /// Its configuration.
    pub config: fn() -> C,
}

/// Vocabularies may be larger than all other sizes.
fn check_vocabulary(field: &'static str, tokens: usize) -> Result<(), Error> {
    const LARGEST: usize = 1 << 20;
    if (1..=LARGEST).contains(&tokens) {
        return Ok(());
    }
    Err(Error::config(field, format!("must be from 1 to {LARGEST}, got {tokens}")))
}
