//! What can go wrong with input from the world, each error naming the thing at fault.

use std::path::Path;

/// An error of the library. Wrong shapes inside a model are bugs and panic instead.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A field of a configuration cannot work.
    #[error("`{field}`: {reason}")]
    Config { field: &'static str, reason: String },

    /// A name or value that a user gave does not fit a configuration.
    #[error("`{field}`: {reason}")]
    Field { field: String, reason: String },

    /// A device was asked for that this build or this machine does not have.
    #[error("device `{name}`: {reason}")]
    Device { name: String, reason: String },

    /// Tensors that do not fit a model, each by name.
    #[error("weights do not fit the model:\n  {}", problems.join("\n  "))]
    Weights { problems: Vec<String> },

    /// A file that is not what it should be, or cannot be read or written.
    #[error("{path}: {reason}")]
    File { path: String, reason: String },

    /// An address from which nothing could be fetched.
    #[error("{address}: {reason}")]
    Fetch { address: String, reason: String },

    /// Training that leads nowhere.
    #[error("step {step}: the loss is {loss} and the gradient {gradient_norm} long, at a rate of {rate:.3e}; {saved}")]
    Diverged { step: usize, rate: f64, loss: f64, gradient_norm: f64, saved: String },

    /// Another process of the run is gone.
    #[error("rank {rank}: {reason}")]
    Rank { rank: usize, reason: String },

    /// Something that cannot be found out about this model, or from these pictures.
    #[error("{what}: {reason}")]
    Analysis { what: String, reason: String },

    /// A name was asked of a trace that recorded something else.
    #[error("nothing was recorded under `{name}`; recorded: {known}")]
    NotRecorded { name: String, known: String },
}

impl Error {
    pub(crate) fn config(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Config { field, reason: reason.into() }
    }

    pub(crate) fn analysis(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Analysis { what: what.into(), reason: reason.into() }
    }

    pub(crate) fn file(path: &Path, reason: impl ToString) -> Self {
        Self::File { path: path.display().to_string(), reason: reason.to_string() }
    }
}
