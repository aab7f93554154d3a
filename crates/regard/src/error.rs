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

    /// Tensors that do not fit a model, each by name; the message shows the first few.
    #[error("weights do not fit the model: {}", summary(problems, looks_like.as_deref()))]
    Weights {
        problems: Vec<String>,
        /// Presets that the checkpoint fits, as a text such as "`deit-tiny`".
        looks_like: Option<String>,
        /// Classes of the checkpoint, when only the head differs.
        classes: Option<usize>,
    },

    /// A file that is not what it should be, or cannot be read or written.
    #[error("{path}: {reason}")]
    File { path: String, reason: String },

    /// An address from which nothing could be fetched.
    #[error("{address}: {reason}")]
    Fetch { address: String, reason: String },

    /// Training that leads nowhere.
    #[error(
        "step {step}: the loss is {loss} and the gradient {gradient_norm} long, at a rate of {rate:.3e}{}; {saved}",
        of_samples(samples)
    )]
    Diverged { step: usize, rate: f64, loss: f64, gradient_norm: f64, samples: Vec<String>, saved: String },

    /// Another process of the run is gone.
    #[error("rank {rank}: {reason}")]
    Rank { rank: usize, reason: String },

    /// Something that cannot be found out about this model, or from these pictures.
    #[error("{what}: {reason}")]
    Analysis { what: String, reason: String },

    /// A forward pass that no plan can be made of.
    #[error("no plan: {operation}: {reason}")]
    Plan { operation: String, reason: String },

    /// A name was asked of a trace that recorded something else.
    #[error("nothing was recorded under `{name}`; recorded: {known}")]
    NotRecorded { name: String, known: String },
}

/// How many problems a message shows: a wrong checkpoint has hundreds, and they say the same.
const SHOWN: usize = 3;

fn summary(problems: &[String], looks_like: Option<&str>) -> String {
    // a name comes from a file, and may be of any length
    let short = |problem: &String| problem.chars().take(200).collect::<String>();
    let text = match problems {
        few if few.len() <= SHOWN => few.iter().flat_map(|problem| ["\n  ".to_string(), short(problem)]).collect(),
        many => format!("{} tensors differ\n  {}, ..", many.len(), short(&many[0])),
    };
    match looks_like {
        Some(presets) => format!("{text}\n  this looks like {presets}"),
        None => text,
    }
}

/// The first samples of a batch, behind a comma.
fn of_samples(samples: &[String]) -> String {
    let shown: Vec<&str> = samples.iter().take(SHOWN).map(String::as_str).collect();
    let more = if samples.len() > SHOWN { ", .." } else { "" };
    if shown.is_empty() { String::new() } else { format!(", on {}{more}", shown.join(", ")) }
}

impl Error {
    /// Tensors that do not fit, without a guess at what they would fit.
    pub(crate) const fn weights(problems: Vec<String>) -> Self {
        Self::Weights { problems, looks_like: None, classes: None }
    }

    pub(crate) fn config(field: &'static str, reason: impl Into<String>) -> Self {
        Self::Config { field, reason: reason.into() }
    }

    pub(crate) fn analysis(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Analysis { what: what.into(), reason: reason.into() }
    }

    pub(crate) fn plan(operation: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Plan { operation: operation.into(), reason: reason.into() }
    }

    pub(crate) fn file(path: &Path, reason: impl ToString) -> Self {
        Self::File { path: path.display().to_string(), reason: reason.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_problems_are_told_in_three_lines() {
        let problems: Vec<String> = (0..1_000_000).map(|i| format!("unexpected `{i}`")).collect();
        let text = Error::Weights { problems, looks_like: Some("`deit-tiny`".into()), classes: None }.to_string();
        assert_eq!(text.lines().count(), 3);
        assert!(text.len() < 1000 && text.contains("1000000 tensors") && text.contains("this looks like `deit-tiny`"));
        let long = Error::weights(vec!["x".repeat(1_000_000)]).to_string();
        assert!(long.len() < 1000, "{}", long.len());
    }
}
