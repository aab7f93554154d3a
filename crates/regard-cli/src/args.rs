//! What can be typed, and the plan it becomes.

use burn::tensor::Device;
use clap::{Parser, Subcommand};
use std::io::Write;

use crate::failure::Failure;
use crate::{denoise, operators, quickstart};

/// Attention models for vision.
#[derive(Debug, Parser)]
#[command(name = "regard", version, arg_required_else_help = true, max_term_width = 100)]
pub struct Args {
    /// Where tensors live: cpu, wgpu or cuda
    #[arg(long, global = true, display_order = 100, value_name = "NAME", default_value = "cpu")]
    device: String,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Quickstart(quickstart::Args),
    Denoise(denoise::Args),
    Operators(operators::Args),
}

/// A command whose arguments were checked.
#[derive(Debug)]
pub struct Plan {
    device: Device,
    task: Task,
}

#[derive(Debug)]
enum Task {
    Quickstart(quickstart::Args),
    Denoise(denoise::Plan),
    Operators(operators::Args),
}

impl Args {
    pub fn into_plan(self) -> Result<Plan, Failure> {
        let device = regard::device::by_name(&self.device)?;
        let task = match self.command {
            Command::Quickstart(args) => Task::Quickstart(args),
            Command::Denoise(args) => Task::Denoise(args.into_plan()?),
            Command::Operators(args) => Task::Operators(args),
        };
        Ok(Plan { device, task })
    }
}

impl Plan {
    /// Data goes to `out`, everything else to stderr.
    pub fn run(self, out: &mut impl Write) -> Result<(), Failure> {
        match self.task {
            Task::Quickstart(args) => quickstart::run(&args, &self.device, out),
            Task::Denoise(plan) => plan.run(&self.device),
            Task::Operators(args) => operators::run(&args, out),
        }
    }
}
