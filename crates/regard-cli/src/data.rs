//! `regard data`: browses, checks and fetches datasets.

mod browse;
mod browse_boxes;
mod browse_clips;
mod browse_vision_language;
mod check;
mod check_boxes;
mod check_clips;
mod check_text;
mod check_vision_language;
mod convert;
mod fetch;

use clap::Subcommand;
use std::io::Write;

use crate::failure::Failure;

/// Browse, check or convert a dataset, or fetch a public one
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    Browse(browse::Args),
    Check(check::Args),
    Convert(convert::Args),
    Fetch(fetch::Args),
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    match &args.command {
        DataCommand::Browse(args) => browse::run(args),
        DataCommand::Check(args) => check::run(args, out),
        DataCommand::Convert(args) => convert::run(args, out),
        DataCommand::Fetch(args) => fetch::run(args, out),
    }
}

/// The failure of a detection dataset that cannot be read.
fn unusable_boxes(error: regard::Error) -> Failure {
    Failure::input(error, "`regard data check` lists everything that is wrong; `scenes` is always there")
}

/// The failure of clips that cannot be read.
fn unusable_clips(error: regard::Error) -> Failure {
    Failure::input(error, "`regard data check` lists everything that is wrong; `clips` is always there")
}

/// The failure of texts about pictures that cannot be read.
fn unusable_texts(error: regard::Error) -> Failure {
    Failure::input(
        error,
        "`regard data check` lists everything that is wrong; `questions` and `captions` are always there",
    )
}

/// The failure of a dataset that cannot be read or fetched.
fn unusable(error: regard::Error) -> Failure {
    match &error {
        regard::Error::Fetch { .. } => Failure::input(error, "run it again to resume the download"),
        _ => Failure::input(
            error,
            "the simplest dataset is one folder per class; `fashion` is embedded, `regard data fetch` downloads others",
        ),
    }
}
