//! `regard run`: tensors in, tensors out, to compare models with other implementations.

use burn::tensor::{Device, Tensor};
use regard::Pass;
use regard::weights::{self, LoadedModel};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::files::check_folder;
use crate::model::{ModelArgs, note_fresh};

/// Run a model on the tensor `input` of a file and write its `logits`
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, same as `--model`
    #[arg(value_name = "MODEL")]
    positional: Option<String>,

    #[command(flatten)]
    model: ModelArgs,

    /// Safetensors file with `input` [B, C, H, W], already normalised
    #[arg(long, value_name = "FILE")]
    input: PathBuf,

    /// Safetensors file to write
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    /// Also write these recorded tensors, such as `blocks.*.attn.weights`; `*` stands for one part of a name
    #[arg(long, value_name = "NAME")]
    record: Vec<String>,
}

pub fn run(args: &Args, device: &Device) -> Result<(), Failure> {
    check_folder(&args.output)?;
    if let (Ok(input), Ok(output)) = (args.input.canonicalize(), args.output.canonicalize())
        && input == output
    {
        return Err(Failure::input(
            format!("`{}` is both input and output", args.input.display()),
            "write to another file",
        ));
    }
    let source = args.model.source(args.positional.as_deref())?;
    note_fresh(&source)?;
    let LoadedModel { model, config, .. } = source.load(device)?;
    let tensors = weights::read(&args.input)?.tensors;
    let Some(input) = tensors.get("input") else {
        let known: Vec<&str> = tensors.keys().map(String::as_str).collect();
        return Err(Failure::input(
            format!("`{}` has no tensor `input`", args.input.display()),
            format!("it has: {}", known.join(", ")),
        ));
    };
    let [height, width] = config.image();
    let shape = input.shape().to_vec();
    if shape.len() != 4 || shape[0] == 0 || shape[1..] != [config.channels(), height, width] {
        return Err(Failure::input(
            format!("`input` is {shape:?}, the model needs [batch, {}, {height}, {width}]", config.channels()),
            "`--set image=[rows,columns]` changes the model's size",
        ));
    }
    let mut pass = Pass::recording_only(args.record.iter().cloned());
    let logits = model.forward(Tensor::from_data(input.clone(), device), &mut pass);
    let mut out = weights::Tensors::from([("logits".to_string(), logits.into_data())]);
    let trace = pass.into_trace();
    for pattern in &args.record {
        if !trace.names().any(|name| regard::pass::matches(pattern, name)) {
            return Err(Failure::input(
                format!("nothing is recorded under `{pattern}`"),
                "names are paths of parts, such as `blocks.*.attn.weights`; `*` stands for one part of a name",
            ));
        }
    }
    out.extend(trace.into_data());
    Ok(weights::write_tensors(&args.output, &out)?)
}
