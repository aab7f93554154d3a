//! Sentences: tokens and their vocabulary, lines of text, pairs of sentences in two languages, and batches of them.

mod buckets;
pub mod check;
mod lines;
mod parallel;
mod tokenizer;
mod tokens;
mod word_piece;
mod words;

pub use buckets::Buckets;
pub use lines::{has_lines, read_lines};
pub use parallel::{Languages, Referenced, SentencePair, TextPart, columns_of, has_part, read, with_references};
pub use tokenizer::{FEWEST, Pieces, Tokenizer, clean, shortened};
pub use tokens::Tokens;
pub use word_piece::{Encoded, Letters, Special, WordPiece};
pub use words::Words;
