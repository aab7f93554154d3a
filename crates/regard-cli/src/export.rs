//! `regard export`: writes weights for other libraries.

use burn::tensor::Device;
use regard::weights::{self, Export, LoadOptions, Upstream};
use std::io::{Write as _, stderr};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::model::{ModelArgs, no_model, note_fresh, parse_upstream};

/// Export a model for timm or Hugging Face: weights, configuration, preprocessing and labels
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, same as `--model`
    #[arg(value_name = "MODEL")]
    positional: Option<String>,

    #[command(flatten)]
    model: ModelArgs,

    /// Format to write: timm or hugging-face
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream, default_value = "timm")]
    to: Upstream,

    /// Write the linear layers of a transformer's blocks as int8: about a quarter of the size, readable only by `regard`
    #[arg(long)]
    int8: bool,

    /// Folder for `model.safetensors` and `config.json`
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
        writeln!(stderr(), "note: the head for {classes} classes is untrained")?;
    }
    let loaded = source.load_with(device, &LoadOptions { new_head, ..LoadOptions::default() })?;
    let export = Export { int8: args.int8, ..Export::of(&loaded, args.to) };
    weights::export(&loaded.model, &args.output, &export)?;
    writeln!(stderr(), "wrote {}", args.output.join("model.safetensors").display())?;
    Ok(())
}
