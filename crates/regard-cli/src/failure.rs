//! What a user hears when something fails: what, about which thing, and what to do.

use std::fmt::{self, Display};
use std::io::{self, Write as _};
use std::panic::{self, UnwindSafe};

/// Why a command ended without its result.
#[derive(Debug)]
pub enum Failure {
    /// Something the user gave cannot work: status 2. `details` are for whoever asks with `--verbose`.
    Input { message: String, hint: String, details: Vec<String> },
    /// Something of ours or of the machine failed: status 1.
    Ours { message: String, hint: String },
    /// A check ran to its end and found what should not be: status 1.
    Found { message: String, hint: String },
    /// A signal stopped it: 128 and its number, as shells have it.
    Stopped { message: String, hint: String, status: u8 },
    /// Nobody reads our output any more: no failure at all.
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

    /// With the process that failed, of several.
    #[cfg(feature = "mpi")]
    #[must_use]
    pub fn of_rank(mut self, rank: usize) -> Self {
        if let Self::Input { message, .. } | Self::Ours { message, .. } | Self::Found { message, .. } = &mut self {
            let name = format!("rank {rank}: ");
            // an error of the ranks themselves has it already
            if !message.starts_with(&name) {
                message.insert_str(0, &name);
            }
        }
        self
    }

    /// What failed, without the hint.
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

    /// Runs a command; a panic becomes a failure of ours, told like every other.
    pub fn of_panics(run: impl FnOnce() -> Result<(), Self> + UnwindSafe) -> Result<(), Self> {
        // RUST_BACKTRACE asks for the usual report
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

    /// Says it on stderr in one write, so that what other processes say there cannot stand in its middle.
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
        // nothing is left to do when stderr is gone too
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
                        "such weights cannot answer anything: was the training stopped when it diverged?".into()
                    }
                    (Some(classes), _) => format!("the weights are for {classes} classes: `--set classes={classes}`"),
                    (None, Some(presets)) => format!("name the model of these weights: {presets}, then `=WEIGHTS`"),
                    (None, None) => {
                        "`regard models` lists the presets; a run folder or a TOML file says what a model of your own is".into()
                    }
                };
                let details = if problems.len() > 3 { problems.clone() } else { Vec::new() };
                Self::Input { message: error.to_string(), hint, details }
            }
            regard::Error::Device { .. } => Self::input(error, "`--device cpu` works in every build"),
            regard::Error::Diverged { .. } | regard::Error::Rank { .. } => {
                Self::ours(error, "the last checkpoint is whole")
            }
            regard::Error::Analysis { .. } => {
                Self::input(error, "`regard analyse --help` says what each analysis needs")
            }
            regard::Error::NotRecorded { .. } => Self::ours(error, "this is a bug, please report it"),
        }
    }
}

/// What may help with a file, by what the system or the reader says.
fn file_hint(reason: &str) -> &'static str {
    let os = |number: u32| reason.contains(&format!("(os error {number})"));
    match () {
        () if os(2) => "is the path right?",
        () if os(13) || os(1) => "may this user read and write it?",
        () if os(20) || os(21) => "a file is needed where this is a folder, or the other way round",
        () if os(28) || os(122) => "the disk is full: make room, or write somewhere else",
        () if os(30) => "this file system cannot be written: write somewhere else",
        () if reason.contains("whole") || reason.contains("end of file") || reason.contains("bytes are there") => {
            "is the file whole? a download that broke off looks like this"
        }
        () if reason.to_lowercase().contains("checksum") => "the file was damaged: fetch or write it again",
        () => "the line above says what is wrong with this file",
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
        assert!(hint("Permission denied (os error 13)").contains("may this user"));
        assert!(hint("not a whole safetensors file: ..").contains("whole?"));
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
