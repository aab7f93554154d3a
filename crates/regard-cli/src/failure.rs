//! Failures of commands as users see them: what failed, where, and what to do.

use std::fmt::{self, Display};
use std::io::{self, Write as _};
use std::panic::{self, UnwindSafe};

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// Bad input of the user: status 2. `details` are shown with `--verbose`.
    Input { message: String, hint: String, details: Vec<String> },
    /// A bug, or a failure of the machine: status 1.
    Ours { message: String, hint: String },
    /// A check finished and found problems: status 1.
    Found { message: String, hint: String },
    /// A signal stopped it: status 128 plus its number, as in shells.
    Stopped { message: String, hint: String, status: u8 },
    /// The output pipe was closed: not a failure.
    Pipe,
}

impl Failure {
    pub fn input(message: impl Display, hint: impl Display) -> Self {
        Self::Input { message: message.to_string(), hint: hint.to_string(), details: Vec::new() }
    }

    pub fn ours(message: impl Display, hint: impl Display) -> Self {
        Self::Ours { message: message.to_string(), hint: hint.to_string() }
    }

    pub fn found(message: impl Display, hint: impl Display) -> Self {
        Self::Found { message: message.to_string(), hint: hint.to_string() }
    }

    /// Adds the rank of the process that failed.
    #[cfg(feature = "mpi")]
    #[must_use]
    pub fn of_rank(mut self, rank: usize) -> Self {
        if let Self::Input { message, .. } | Self::Ours { message, .. } | Self::Found { message, .. } = &mut self {
            let name = format!("rank {rank}: ");
            // errors of communication name it already
            if !message.starts_with(&name) {
                message.insert_str(0, &name);
            }
        }
        self
    }

    /// The message, without the hint.
    pub fn message(&self) -> &str {
        match self {
            Self::Input { message, .. }
            | Self::Ours { message, .. }
            | Self::Found { message, .. }
            | Self::Stopped { message, .. } => message,
            Self::Pipe => "output closed",
        }
    }

    pub fn status(&self) -> u8 {
        match self {
            Self::Input { .. } => 2,
            Self::Ours { .. } | Self::Found { .. } => 1,
            Self::Stopped { status, .. } => *status,
            Self::Pipe => 0,
        }
    }

    /// Runs a command; a panic becomes [`Failure::Ours`].
    pub fn of_panics(run: impl FnOnce() -> Result<(), Self> + UnwindSafe) -> Result<(), Self> {
        // with RUST_BACKTRACE, keep the usual report of a panic
        if std::env::var_os("RUST_BACKTRACE").is_none() {
            panic::set_hook(Box::new(|_| {}));
        }
        panic::catch_unwind(run).unwrap_or_else(|payload| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("unknown reason");
            Err(Self::ours(
                format!("internal failure: {text}"),
                "this is a bug; `RUST_BACKTRACE=1` shows where, please report it",
            ))
        })
    }

    /// Prints it on stderr in one write, so that the output of other processes cannot interleave.
    pub fn tell(&self, verbose: bool) {
        let mut text = format!("{self}\n");
        if let Self::Input { details, .. } = self
            && !details.is_empty()
        {
            if verbose {
                details.iter().for_each(|line| text.extend(["  ", line, "\n"]));
            } else {
                text += "note: `--verbose` lists every tensor\n";
            }
        }
        // nothing can be done if stderr is closed too
        let _ = io::stderr().write_all(text.as_bytes());
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input { message, hint, .. } | Self::Ours { message, hint } | Self::Found { message, hint } => {
                write!(f, "error: {message}\nhint: {hint}")
            }
            Self::Stopped { message, hint, .. } => write!(f, "{message}\nhint: {hint}"),
            Self::Pipe => f.write_str("output closed"),
        }
    }
}

impl From<regard::Error> for Failure {
    fn from(error: regard::Error) -> Self {
        match &error {
            regard::Error::Config { .. } => {
                Self::input(error, "`regard models config NAME` prints a configuration that works")
            }
            regard::Error::Field { .. } => {
                Self::input(error, "`regard models` lists the models, `regard models config NAME` the fields of one")
            }
            regard::Error::File { reason, .. } => {
                let hint = file_hint(reason);
                Self::input(error, hint)
            }
            regard::Error::Fetch { .. } => Self::input(error, "without a network, give the path of a file"),
            regard::Error::Weights { problems, looks_like, classes } => {
                let hint = match (classes, looks_like) {
                    _ if problems.iter().any(|problem| problem.contains("NaN")) => {
                        "these weights are unusable: did the training diverge?".into()
                    }
                    (Some(classes), _) => format!("the weights are for {classes} classes: `--set classes={classes}`"),
                    (None, Some(presets)) => format!("name the model of these weights: {presets}, then `=WEIGHTS`"),
                    (None, None) => {
                        "`regard models` lists the presets; for your own model give its run folder or TOML file".into()
                    }
                };
                let details = if problems.len() > 3 { problems.clone() } else { Vec::new() };
                Self::Input { message: error.to_string(), hint, details }
            }
            regard::Error::Device { .. } => Self::input(error, "`--device cpu` works in every build"),
            regard::Error::Diverged { .. } | regard::Error::Rank { .. } => {
                Self::ours(error, "the last checkpoint is intact")
            }
            regard::Error::Analysis { .. } => {
                Self::input(error, "`regard analyse --help` says what each analysis needs")
            }
            regard::Error::Plan { .. } => {
                Self::input(error, "`regard models show MODEL` tells the parts of a model that has no plan")
            }
            regard::Error::NotRecorded { .. } => Self::ours(error, "this is a bug, please report it"),
        }
    }
}

/// A hint for an error with a file, from its reason.
fn file_hint(reason: &str) -> &'static str {
    let os = |number: u32| reason.contains(&format!("(os error {number})"));
    match () {
        () if os(2) => "is the path right?",
        () if os(13) || os(1) => "check the permissions",
        () if os(20) || os(21) => "a folder was given instead of a file, or a file instead of a folder",
        () if os(28) || os(122) => "the disk is full: free some space, or write elsewhere",
        () if os(30) => "the file system is read-only: write elsewhere",
        () if ["complete", "whole", "end of file", ": only "].iter().any(|text| reason.contains(text)) => {
            "is the file complete? it looks like an interrupted download"
        }
        () if reason.to_lowercase().contains("checksum") => "the file is damaged: download or write it again",
        () => "the line above says what is wrong with the file",
    }
}

/// Errors of writing to stdout.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::ours(format!("cannot write the output: {error}"), "is the disk full?"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_about_a_file_fits_what_happened() {
        let hint = |reason: &str| {
            let error = regard::Error::File { path: "a.bin".into(), reason: reason.into() };
            Failure::from(error).to_string()
        };
        assert!(hint("No space left on device (os error 28)").contains("the disk is full"));
        assert!(hint("No such file or directory (os error 2)").ends_with("is the path right?"));
        assert!(hint("Permission denied (os error 13)").contains("check the permissions"));
        assert!(hint("not a complete safetensors file: ..").contains("complete?"));
        assert!(!hint("the file is empty").contains("is the path right"));
    }

    #[test]
    fn weights_for_other_classes_get_the_field_to_set_and_never_a_new_head() {
        let problems = vec!["`head.weight` is [5, 48], the model needs [10, 48]".to_string()];
        let error = regard::Error::Weights { problems, looks_like: None, classes: Some(5) };
        let text = Failure::from(error).to_string();
        assert!(text.contains("--set classes=5") && !text.contains("new-head"), "{text}");
    }
}
