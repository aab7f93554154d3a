//! Makes the files of `assets/it-en` of a training run: its model and tokenizer, and its best weights in half precision.
//!
//! ```text
//! cargo run --release -p regard --example embed_translator -- runs/it-en
//! ```

use half::f16;
use regard::data::text::Tokenizer;
use regard::translate::Bundle;
use regard::{device, weights};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::error::Error;
use std::io::Write as _;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let run = std::env::args().nth(1).ok_or("the folder of which run?")?;
    let bundle = Bundle::open(Path::new(&run), &device::cpu())?;
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/it-en");
    std::fs::create_dir_all(&assets)?;
    let half = weights::tensors(bundle.model()).into_iter().map(|(name, tensor)| {
        let bytes: Vec<u8> = tensor.iter::<f32>().flat_map(|x| f16::from_f32(x).to_le_bytes()).collect();
        (name, tensor.shape().to_vec(), bytes)
    });
    let half: Vec<_> = half.collect();
    let views = half.iter().map(|(name, shape, bytes)| Ok((name, TensorView::new(Dtype::F16, shape.clone(), bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>()?;
    let files = [
        ("model.toml", bundle.config().to_toml().into_bytes()),
        ("tokenizer.json", Tokenizer::to_json(&bundle.tokenizers()[0]).into_bytes()),
        ("best.safetensors", safetensors::serialize(views, None)?),
    ];
    for (name, bytes) in files {
        writeln!(std::io::stdout(), "{name}: {} bytes", bytes.len())?;
        std::fs::write(assets.join(name), bytes)?;
    }
    Ok(())
}
