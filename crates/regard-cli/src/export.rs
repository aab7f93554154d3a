//! `regard export`: writes weights for other libraries.

use burn::tensor::Device;
use regard::weights::{self, Export, LoadOptions, Upstream, detector_upstreams, export_detector, is_detector};
use std::io::{Write as _, stderr};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::model::{ModelArgs, detector_source, no_model, note_fresh, note_untrained, parse_upstream};

/// Export a model under the names of another library: weights, configuration, preprocessing and labels
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, same as `--model`
    #[arg(value_name = "MODEL")]
    positional: Option<String>,

    #[command(flatten)]
    model: ModelArgs,

    /// Whose names to write: for classifiers timm (the default) or hugging-face; for DETR facebook (the default) or
    /// hugging-face; for other detectors torchvision or detectron2, whichever has it
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream)]
    to: Option<Upstream>,

    /// Write the linear layers of a transformer's blocks as int8: about a quarter of the size, readable only by `regard`
    #[arg(long)]
    int8: bool,

    /// Folder for `model.safetensors` and `config.json`
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

pub fn run(args: &Args, device: &Device) -> Result<(), Failure> {
    let name = args.model.name(args.positional.as_deref())?.ok_or_else(no_model)?;
    if is_detector(&name) {
        detector(args, &name, device)?;
    } else {
        classifier(args, &name, device)?;
    }
    writeln!(stderr(), "wrote {}", args.output.join("model.safetensors").display())?;
    Ok(())
}

/// The file is read back and compared before this is a success.
fn detector(args: &Args, name: &str, device: &Device) -> Result<(), Failure> {
    let refused = match (&args.model.changes, args.int8) {
        (_, true) => Some("`--int8` is for classifiers"),
        (changes, _) if changes.new_head.is_some() => Some("`--new-head` is for classifiers"),
        (changes, _) if changes.from.is_some() => {
            Some("`--from` is for classifiers: the names of detectors are recognised")
        }
        _ => None,
    };
    if let Some(reason) = refused {
        return Err(Failure::input(reason, format!("`{name}` is a detector: leave it out")));
    }
    let source = detector_source(name, &args.model.changes.set)?;
    if source.is_fresh() {
        note_untrained(name)?;
    }
    let to = args.to.unwrap_or(detector_upstreams(&source.config)[0]);
    let loaded = source.load(device)?;
    export_detector(&loaded, &args.output, to, device).map_err(|error| match error {
        regard::Error::Config { field: "to", reason } => {
            Failure::input(format!("`--to`: {reason}"), "`--to regard` writes our own names, which `regard` reads")
        }
        other => other.into(),
    })
}

fn classifier(args: &Args, name: &str, device: &Device) -> Result<(), Failure> {
    let mut changes = args.model.changes.clone();
    let new_head = changes.new_head.take();
    let source = changes.source(name)?;
    note_fresh(&source)?;
    if let Some(classes) = new_head {
        writeln!(stderr(), "note: the head for {classes} classes is untrained")?;
    }
    let loaded = source.load_with(device, &LoadOptions { new_head, ..LoadOptions::default() })?;
    let export = Export { int8: args.int8, ..Export::of(&loaded, args.to.unwrap_or(Upstream::Timm)) };
    Ok(weights::export(&loaded.model, &args.output, &export)?)
}
