//! `regard export`: weights under somebody else's names.

use burn::tensor::Device;
use regard::weights::{self, Export, Upstream};
use std::io::{Write as _, stderr};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::model::{ModelArgs, WeightsArgs, parse_upstream};

/// Write a model's weights under the names of timm or Hugging Face, with a config beside
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    weights: WeightsArgs,

    /// Whose names: timm or hugging-face
    #[arg(long, value_name = "UPSTREAM", value_parser = parse_upstream, default_value = "timm")]
    to: Upstream,

    /// The folder to write `model.safetensors` and `config.json` into
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

pub fn run(args: &Args, device: &Device) -> Result<(), Failure> {
    let (mut config, preprocess) = args.model.config()?;
    let model = args.weights.load(&mut config, device)?;
    let fields = serde_json::to_value(&config).expect("a configuration is plain data");
    let export = Export {
        to: args.to,
        architecture: args.model.model.clone(),
        image: config.image(),
        heads: fields["heads"].as_u64().map(|heads| heads as usize),
        epsilon: fields["epsilon"].as_f64().unwrap_or(1e-5),
        preprocess,
    };
    weights::export(&model, &args.output, &export)?;
    writeln!(stderr(), "wrote {}", args.output.join("model.safetensors").display())?;
    Ok(())
}
