//! Makes the files of `assets/small` of training runs: models, what they expect of pictures, and weights in half precision.
//!
//! ```text
//! cargo run --release -p regard --example embed_classifiers -- runs/vit runs/san runs/sasa runs/resnet
//! ```

use regard::{device, models::ModelConfig, weights};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    for run in std::env::args().skip(1) {
        let run = Path::new(&run);
        let name = run.file_name().ok_or("a run has a name")?;
        let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/small").join(name);
        std::fs::create_dir_all(&to)?;
        let config = ModelConfig::from_toml(&std::fs::read_to_string(run.join("model.toml"))?)?;
        let fresh = config.init(&device::cpu())?;
        let model = weights::load(fresh, &run.join("best.safetensors"), &weights::LoadOptions::default())?.model;
        weights::write_half(&to.join("best.safetensors"), &weights::tensors(&model))?;
        for file in ["model.toml", "preprocess.toml"] {
            std::fs::copy(run.join(file), to.join(file))?;
        }
    }
    Ok(())
}
