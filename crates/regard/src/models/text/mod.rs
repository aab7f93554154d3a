//! Models of text: tokens in, logits of tokens out.

pub mod bert;
pub mod language_model;
pub mod rnn_search;
pub mod transformer;
pub mod translator;

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
