//! `regard data`: what is in a dataset.

mod browse;

use clap::Subcommand;

use crate::failure::Failure;

/// Look at a dataset
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: DataCommand,
}

#[derive(Debug, Subcommand)]
enum DataCommand {
    Browse(browse::Args),
}

pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        DataCommand::Browse(args) => browse::run(args),
    }
}
