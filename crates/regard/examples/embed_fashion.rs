//! Makes `assets/fashion/train.bin` and `test.bin` of the IDX files of Fashion-MNIST (Debian's `dataset-fashion-mnist`):
//!
//! ```text
//! cargo run -p regard --example embed_fashion -- /usr/share/datasets/fashion-mnist
//! ```
//!
//! The first 1,200 and 200 pictures of each class, the classes in turn.

#[path = "../src/data/dataset/packed.rs"]
mod packed;

use flate2::{Compression, write::ZlibEncoder};
use regard::data::dataset::{Dataset, Part, open};
use std::error::Error;
use std::io::Write as _;
use std::path::Path;

use packed::{BorderedPixels, SIDE, STREAMS, unpack};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("which folder has the IDX files?")?;
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/fashion");
    for (name, part, of_class) in [("train.bin", Part::TrainAndValidation, 1200), ("test.bin", Part::Test, 200)] {
        let pictures = first_of_each_class(&*open(&folder, part)?, of_class)?;
        let bytes = pack(&pictures)?;
        assert!(unpack(&bytes, pictures.len() / (SIDE * SIDE))? == pictures, "{name} unpacks to other pictures");
        writeln!(std::io::stdout(), "{name}: {} bytes of {}", bytes.len(), pictures.len())?;
        std::fs::write(assets.join(name), bytes)?;
    }
    Ok(())
}

/// `[N, H, W]`, the first picture of every class, then the second.
fn first_of_each_class(dataset: &dyn Dataset, of_class: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut classes = vec![Vec::new(); dataset.classes().len()];
    for index in 0..dataset.len() {
        classes[dataset.label(index)].push(index);
    }
    let mut pixels = Vec::new();
    for number in 0..of_class {
        for class in &classes {
            pixels.extend(dataset.picture(class[number])?.pixels().iter().step_by(3));
        }
    }
    Ok(pixels)
}

/// What [`unpack`] reads.
fn pack(pictures: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut streams = vec![Vec::new(); STREAMS];
    for picture in pictures.chunks_exact(SIDE * SIDE) {
        let mut canvas = BorderedPixels::BLACK;
        for (at, &level) in picture.iter().enumerate() {
            let (guess, stream) = canvas.guess(at / SIDE, at % SIDE);
            streams[stream].push(level.wrapping_sub(guess));
            canvas.set(at / SIDE, at % SIDE, level);
        }
    }
    let mut bytes = Vec::new();
    for stream in streams {
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::best());
        packer.write_all(&stream)?;
        let packed = packer.finish()?;
        bytes.extend(u32::try_from(packed.len())?.to_le_bytes());
        bytes.extend(packed);
    }
    Ok(bytes)
}
