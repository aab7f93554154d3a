//! Pictures as an animation.

use image::codecs::gif::{GifEncoder, Repeat};
use image::{Delay, Frame, RgbaImage};
use regard::data::Picture;
use std::path::Path;

use crate::failure::Failure;

/// Milliseconds of a frame.
const PERIOD: u32 = 250;

/// Writes an endless GIF.
pub fn write(path: &Path, frames: &[Picture]) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| {
        Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable?")
    };
    let mut bytes = Vec::new();
    {
        let mut encoder = GifEncoder::new_with_speed(&mut bytes, 10);
        encoder.set_repeat(Repeat::Infinite).map_err(|error| failed(&error))?;
        for frame in frames {
            let [rows, columns] = frame.size();
            let pixels = frame.pixels().as_chunks::<3>().0.iter().flat_map(|[r, g, b]| [*r, *g, *b, 255]).collect();
            let image = RgbaImage::from_raw(columns as u32, rows as u32, pixels).expect("as many pixels as it has");
            let delay = Delay::from_numer_denom_ms(PERIOD, 1);
            encoder.encode_frame(Frame::from_parts(image, 0, 0, delay)).map_err(|error| failed(&error))?;
        }
    }
    regard::file::replace(path, &bytes).map_err(|error| failed(&error))
}
