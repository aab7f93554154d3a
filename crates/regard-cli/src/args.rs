//! The command line arguments, and the plan made from them.

use burn::tensor::Device;
use clap::{Parser, Subcommand};
use std::io::Write;

use crate::failure::Failure;
use crate::{
    analyse, ask, compare, data, denoise, detect, embed_text, eval, explain, export, fill, gallery, models, operators,
    plan, predict, quickstart, recipes, run, serve, table, train, translate,
};

/// Attention models for vision.
#[derive(Debug, Parser)]
#[command(name = "regard", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Args {
    /// Device to compute on: cpu, wgpu or cuda
    #[arg(long, global = true, display_order = 100, value_name = "NAME", default_value = "cpu")]
    device: String,

    /// Show all details of an error
    #[arg(short, long, global = true, display_order = 101)]
    verbose: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::Args),
    Gallery(gallery::Args),
    Denoise(denoise::Args),
    Operators(operators::Args),
    Models(models::Args),
    Cost(models::CostArgs),
    Plan(plan::Args),
    Table(table::Args),
    Predict(predict::Args),
    Detect(detect::Args),
    Translate(translate::Args),
    Fill(fill::Args),
    EmbedText(embed_text::Args),
    Ask(ask::Args),
    Eval(eval::Args),
    Explain(explain::Args),
    Analyse(analyse::Args),
    Run(run::Args),
    Serve(serve::Args),
    Export(export::Args),
    Data(data::Args),
    Train(train::Args),
    Compare(compare::Args),
    Recipes(recipes::Args),
}

/// A command with checked arguments.
#[derive(Debug)]
pub struct Plan {
    device: Device,
    task: Task,
}

#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // there is one of them, not an array
enum Task {
    Denoise(denoise::Plan),
    /// A command that checks its arguments when it runs.
    Other(Box<Command>),
}

impl Args {
    /// Whether the command reuses the same memory many times.
    pub fn is_long_running(&self) -> bool {
        use Command::{Analyse, Compare, Eval, Quickstart, Serve, Train};
        matches!(self.command, Analyse(_) | Compare(_) | Eval(_) | Quickstart(_) | Serve(_) | Train(_))
    }

    /// Whether errors are shown in full.
    pub const fn verbose(&self) -> bool {
        self.verbose
    }

    /// Whether it is a server.
    pub const fn is_server(&self) -> bool {
        matches!(self.command, Command::Serve(_))
    }

    pub fn into_plan(self) -> Result<Plan, Failure> {
        let device = regard::device::by_name(&self.device)?;
        let task = match self.command {
            Command::Denoise(args) => Task::Denoise(args.into_plan()?),
            other => Task::Other(Box::new(other)),
        };
        Ok(Plan { device, task })
    }
}

impl Plan {
    /// Data goes to `out`, everything else to stderr.
    pub fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        match self.task {
            Task::Denoise(plan) => plan.run(&self.device),
            Task::Other(command) => match *command {
                Command::Quickstart(args) => quickstart::run(&args, &self.device, out),
                Command::Gallery(args) => gallery::run(&args, &self.device, out),
                Command::Operators(args) => operators::run(&args, out),
                Command::Models(args) => models::run(&args, out),
                Command::Cost(args) => models::cost(&args, out),
                Command::Plan(args) => plan::run(&args, out),
                Command::Table(args) => table::run(&args, out),
                Command::Predict(args) => predict::run(&args, &self.device, out),
                Command::Detect(args) => detect::run(&args, &self.device, out),
                Command::Translate(args) => translate::run(&args, &self.device, out),
                Command::Fill(args) => fill::run(&args, &self.device, out),
                Command::EmbedText(args) => embed_text::run(&args, &self.device, out),
                Command::Ask(args) => ask::run(&args, &self.device, out),
                Command::Eval(args) => eval::run(&args, &self.device, out),
                Command::Explain(args) => explain::run(&args, &self.device, out),
                Command::Analyse(args) => analyse::run(&args, &self.device, out),
                Command::Run(args) => run::run(&args, &self.device),
                Command::Serve(args) => serve::run(&args, &self.device),
                Command::Export(args) => export::run(&args, &self.device),
                Command::Data(args) => data::run(&args, out),
                Command::Train(args) => train::run(&args, &self.device, out),
                Command::Compare(args) => compare::run(&args, &self.device, out),
                Command::Recipes(args) => recipes::run(&args, out),
                Command::Denoise(_) => unreachable!("it has its own task"),
            },
        }
    }
}
