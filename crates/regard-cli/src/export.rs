//! `regard export`: weights under somebody else's names.

use burn::tensor::Device;
use regard::weights::{self, Export, LoadOptions, Upstream};
use std::io::{Write as _, stderr};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::model::{ModelArgs, no_model, note_fresh, parse_upstream};

/// Write a model's weights under the names of timm or Hugging Face, with its preprocessing and its labels beside
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, as `--model` takes it
    #[arg(value_name = "MODEL")]
    positional: Option<String>,

    #[command(flatten)]
    model: ModelArgs,

    /// Whose names: timm or hugging-face
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream, default_value = "timm")]
    to: Upstream,

    /// Write the linear maps of a transformer's blocks as bytes: about a quarter of the size, for `regard` alone
    #[arg(long)]
    int8: bool,

    /// The folder to write `model.safetensors` and `config.json` into
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

pub fn run(args: &Args, device: &Device) -> Result<(), Failure> {
    let name = args.model.name(args.positional.as_deref())?.ok_or_else(no_model)?;
    let mut changes = args.model.changes.clone();
    let new_head = changes.new_head.take();
    let source = changes.source(&name)?;
    note_fresh(&source)?;
    if let Some(classes) = new_head {
        writeln!(stderr(), "note: the head for {classes} classes is new and knows nothing yet")?;
    }
    let loaded = source.load_with(device, &LoadOptions { new_head, ..LoadOptions::default() })?;
    let export = Export { int8: args.int8, ..Export::of(&loaded, args.to) };
    weights::export(&loaded.model, &args.output, &export)?;
    writeln!(stderr(), "wrote {}", args.output.join("model.safetensors").display())?;
    Ok(())
}
