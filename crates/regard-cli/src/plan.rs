//! `regard plan show`: what a forward pass is made of, and where its time goes.

use regard::plan::{Plan, PlanNode};
use serde::Serialize;
use std::io::Write;

use crate::failure::Failure;
use crate::model::ChangeArgs;
use crate::models::{parse_size, print_json, short};

/// Look at the plan of a model: its forward pass as a graph of operations
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Show(ShowArgs),
}

/// Print the operations with their shapes, multiply-adds, bytes and measured time
#[derive(Debug, clap::Args)]
struct ShowArgs {
    /// A classifier: a preset, a TOML file, a run folder, or any other model name
    #[arg(value_name = "MODEL")]
    model: String,

    /// Change a field of the model, such as `depth=4`
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    set: Vec<String>,

    /// Side of the picture, or `ROWSxCOLUMNS`
    #[arg(long, value_name = "SIZE")]
    image: Option<String>,

    /// Runs of which the shortest time of each operation counts
    #[arg(long, value_name = "N", default_value = "5", value_parser = crate::model::at_least_one)]
    runs: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An operation and its time.
#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    node: PlanNode,
    microseconds: f64,
}

#[derive(Serialize)]
struct Shown {
    model: String,
    image: [usize; 2],
    multiply_adds: u64,
    microseconds: f64,
    nodes: Vec<Row>,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    let Command::Show(args) = &args.command;
    show(args, out)
}

fn show(args: &ShowArgs, out: &mut impl Write) -> Result<(), Failure> {
    let changes = ChangeArgs { set: args.set.clone(), ..ChangeArgs::default() };
    let source = changes.source(&args.model)?;
    let image = match &args.image {
        Some(size) => parse_size(size)?,
        None => source.config.image(),
    };
    // operations do not depend on weights, so that they need not be downloaded
    let model = source.config.init(&regard::device::cpu())?;
    let plan = Plan::of(&model, [source.config.channels(), image[0], image[1]])?;
    let times = plan.measure(args.runs).into_iter().map(|time| time.as_secs_f64() * 1e6);
    let nodes: Vec<Row> =
        plan.nodes().into_iter().zip(times).map(|(node, microseconds)| Row { node, microseconds }).collect();
    let microseconds = nodes.iter().map(|row| row.microseconds).sum();
    let shown = Shown { model: args.model.clone(), image, multiply_adds: plan.multiply_adds(), microseconds, nodes };
    if args.json {
        return print_json(&shown, out);
    }
    writeln!(out, "{}: {}x{}, {} operations\n", shown.model, image[0], image[1], shown.nodes.len())?;
    writeln!(
        out,
        "{:<32}{:<24}{:<20}{:>10}{:>10}{:>12}",
        "layer", "operation", "output", "mult-adds", "bytes", "time"
    )?;
    for Row { node, microseconds } in &shown.nodes {
        let shape = node.output.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
        let multiply_adds = node.multiply_adds.map_or_else(|| "-".into(), short);
        let bytes = if node.bytes == 0 { "-".into() } else { short(node.bytes as u64) };
        let time = if node.operation == "view" { "-".into() } else { time(*microseconds) };
        let (name, operation) = (&node.name, &node.operation);
        writeln!(out, "{name:<32}{operation:<24}{shape:<20}{multiply_adds:>10}{bytes:>10}{time:>12}")?;
    }
    let (multiply_adds, whole) = (short(shown.multiply_adds), time(shown.microseconds));
    writeln!(out, "{:<32}{:<24}{:<20}{multiply_adds:>10}{:>10}{whole:>12}", "all", "", "", "")?;
    Ok(())
}

fn time(microseconds: f64) -> String {
    if microseconds < 1000.0 { format!("{microseconds:.1} us") } else { format!("{:.2} ms", microseconds / 1000.0) }
}
