//! Makes the files of `assets/scenes` of a training run: the detector, what it expects of pictures, its classes, and weights in
//! half precision.
//!
//! ```text
//! cargo run --release -p regard --example embed_detector -- runs/scenes-retinanet
//! ```

use regard::{device, weights};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let run = std::env::args().nth(1).ok_or("name a run")?;
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/scenes");
    std::fs::create_dir_all(&to)?;
    let detector = weights::resolve_detector(&run, &mut |_| {})?.load(&device::cpu())?;
    weights::write_half(&to.join("best.safetensors"), &weights::tensors(&detector.model))?;
    for file in ["model.toml", "preprocess.toml", "classes.txt"] {
        std::fs::copy(Path::new(&run).join(file), to.join(file))?;
    }
    Ok(())
}
