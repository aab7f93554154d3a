//! Makes the files of `assets/NAME` of a training run: the model of video, what it expects of clips, its classes, and weights in
//! half precision. The name in `EMBEDDED_VIDEOS` of `weights/video.rs` embeds them.
//!
//! ```text
//! cargo run --release -p regard --example embed_video -- runs/clips-timesformer-nano-seed0 motions
//! ```

use regard::{device, weights};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (run, name) = arguments.next().zip(arguments.next()).ok_or("name a run, and the model")?;
    let to = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(name);
    std::fs::create_dir_all(&to)?;
    let video = weights::resolve_video(&run, &mut |_| {})?.load(&device::cpu())?;
    weights::write_half(&to.join("best.safetensors"), &weights::tensors(&video.model))?;
    for file in ["model.toml", "preprocess.toml", "sampling.toml", "classes.txt"] {
        std::fs::copy(Path::new(&run).join(file), to.join(file))?;
    }
    Ok(())
}
