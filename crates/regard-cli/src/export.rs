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

    /// Write the linear maps of a transformer's blocks as bytes: about a quarter of the size, for `regard` alone
    #[arg(long)]
    int8: bool,

    /// The folder to write `model.safetensors` and `config.json` into
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

/// What timm calls a preset; other models keep their name.
fn timm_name(preset: &str) -> String {
    let size = |name: &str| if name.ends_with("-384") { "384" } else { "224" };
    if let Some(rest) = preset.strip_prefix("deit-") {
        let size = size(rest);
        return format!("deit_{}_patch16_{size}", rest.trim_end_matches("-384").replace('-', "_"));
    }
    match preset {
        "deit3-huge" => "deit3_huge_patch14_224".into(),
        "regnety-4gf" => "regnety_040".into(),
        "regnety-8gf" => "regnety_080".into(),
        "regnety-16gf" => "regnety_160".into(),
        name if name.starts_with("deit3-") => format!("{}_patch16_224", name.replace('-', "_")),
        name if name.starts_with("resnet-") => name.replace('-', ""),
        name => name.replace('-', "_"),
    }
}

pub fn run(args: &Args, device: &Device) -> Result<(), Failure> {
    let (mut config, preprocess) = args.model.config()?;
    let model = args.weights.load(&mut config, device)?;
    let fields = serde_json::to_value(&config).expect("a configuration is plain data");
    let export = Export {
        to: args.to,
        architecture: timm_name(&args.model.model),
        image: config.image(),
        heads: fields["heads"].as_u64().map(|heads| heads as usize),
        epsilon: fields["epsilon"].as_f64().unwrap_or(1e-5),
        preprocess,
        int8: args.int8,
    };
    weights::export(&model, &args.output, &export)?;
    writeln!(stderr(), "wrote {}", args.output.join("model.safetensors").display())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_names_of_timm() {
        for (ours, theirs) in [
            ("deit-tiny", "deit_tiny_patch16_224"),
            ("deit-base-distilled-384", "deit_base_distilled_patch16_384"),
            ("deit3-small", "deit3_small_patch16_224"),
            ("vit-base-patch16-224", "vit_base_patch16_224"),
            ("resnet-50", "resnet50"),
        ] {
            assert_eq!(timm_name(ours), theirs);
        }
    }
}
