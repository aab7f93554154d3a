//! Translation: a model, the tokens of two languages, and the search for a sentence.

mod bundle;
mod decode;
mod embedded;

pub use bundle::{Bundle, LONGEST, LONGEST_BYTES, Translation, TranslationAttention};
pub use decode::{Hypothesis, Search, translate, translate_while};
