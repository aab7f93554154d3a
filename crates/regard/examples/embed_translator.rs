//! Makes the files of `assets/it-en` of a training run: its model and tokenizer, and its best weights in half precision.
//!
//! ```text
//! cargo run --release -p regard --example embed_translator -- runs/it-en
//! ```

use regard::data::text::Tokenizer;
use regard::translate::Bundle;
use regard::{device, weights};
use std::error::Error;
use std::io::Write as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let run = std::env::args().nth(1).ok_or("the folder of which run?")?;
    let bundle = Bundle::open(Path::new(&run), &device::cpu())?;
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/it-en");
    std::fs::create_dir_all(&assets)?;
    let files = [
        ("model.toml", bundle.config().to_toml().into_bytes()),
        ("tokenizer.json", Tokenizer::to_json(&bundle.tokenizers()[0]).into_bytes()),
    ];
    for (name, bytes) in files {
        writeln!(std::io::stdout(), "{name}: {} bytes", bytes.len())?;
        std::fs::write(assets.join(name), bytes)?;
    }
    Ok(weights::write_half(&assets.join("best.safetensors"), &weights::tensors(bundle.model()))?)
}
