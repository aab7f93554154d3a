//! `regard data`: datasets, before anything is trained on them.

mod browse;
mod check;
mod check_text;
mod fetch;

use clap::Subcommand;
use std::io::Write;

use crate::failure::Failure;

/// Look at a dataset, check it, or fetch a public one
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    Browse(browse::Args),
    Check(check::Args),
    Fetch(fetch::Args),
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    match &args.command {
        DataCommand::Browse(args) => browse::run(args),
        DataCommand::Check(args) => check::run(args, out),
        DataCommand::Fetch(args) => fetch::run(args, out),
    }
}

/// The failure of a dataset that cannot be read or fetched.
fn unusable(error: regard::Error) -> Failure {
    match &error {
        regard::Error::Fetch { .. } => Failure::input(error, "a fetch that was interrupted goes on where it was"),
        _ => Failure::input(
            error,
            "a folder for each class is the simplest; `fashion` is always there, `regard data fetch` gets others",
        ),
    }
}
