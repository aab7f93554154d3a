//! Makes the files of an embedded model that answers questions, from a run:
//!
//! ```text
//! cargo run --release -p regard --example embed_answerer -- RUN crates/regard/assets/garments-vqa
//! ```
//!
//! Weights are written in half precision; the baseline of those who do not look is left out.

use regard::weights;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let (Some(run), Some(assets)) = (arguments.next(), arguments.next()) else {
        return Err("give the folder of a run, and the folder to write into".into());
    };
    std::fs::create_dir_all(&assets)?;
    for name in ["recipe.toml", "model.toml", "tokenizer.json", "answers.txt"] {
        std::fs::copy(run.join(name), assets.join(name))?;
    }
    let best = weights::read(&run.join("best.safetensors"))?;
    weights::write_half(&assets.join("best.safetensors"), &best.tensors)?;
    Ok(())
}
