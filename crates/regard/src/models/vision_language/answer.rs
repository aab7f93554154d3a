//! The questions that a model of vision and language answers.

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::layers::check_size;

/// The head that answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerHead {
    #[default]
    None,
    /// One of so many answers to a question about a picture (VQA).
    Question { answers: usize },
    /// Whether a statement about two pictures is true (NLVR2): 0 is false, 1 is true.
    Pair,
}

impl AnswerHead {
    /// # Errors
    /// When there is no answer to choose from, or too many.
    pub fn validate(self) -> Result<(), Error> {
        match self {
            Self::Question { answers } => check_size("answers", answers),
            Self::None | Self::Pair => Ok(()),
        }
    }

    /// Number of logits; none without a head.
    #[must_use]
    pub const fn outputs(self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Question { answers } => Some(answers),
            Self::Pair => Some(2),
        }
    }
}
