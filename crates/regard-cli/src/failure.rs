//! What a user hears when something fails: what, about which thing, and what to do.

use std::fmt::{self, Display};
use std::io::{self, Write as _};
use std::panic::{self, UnwindSafe};

/// Why a command ended without its result.
#[derive(Debug)]
pub enum Failure {
    /// Something the user gave cannot work: status 2.
    Input { message: String, hint: String },
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
        Self::Input { message: message.to_string(), hint: hint.to_string() }
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
    pub fn tell(&self) {
        // nothing is left to do when stderr is gone too
        let _ = io::stderr().write_all(format!("{self}\n").as_bytes());
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input { message, hint } | Self::Ours { message, hint } | Self::Found { message, hint } => {
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
            regard::Error::File { .. } => Self::input(error, "is the path right, and the file whole?"),
            regard::Error::Fetch { .. } => Self::input(error, "without a network, give the path of a file"),
            regard::Error::Weights { .. } => Self::input(
                error,
                "is it the same model? `--new-head CLASSES` replaces the head, `--set image=[H,W]` changes the size",
            ),
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

/// Errors of writing to stdout.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::ours(format!("cannot write the output: {error}"), "is the disk full?"),
        }
    }
}
