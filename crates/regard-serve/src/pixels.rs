//! Memory of picture decoders, bounded before they start.

use image::{ImageDecoder as _, ImageReader, Limits};
use regard::data::Picture;
use std::io::Cursor;

use crate::error::ApiError;

/// The unit of charges for decoders.
pub const UNIT: u64 = 1 << 20;

/// Maximum memory of a decoder per pixel: four channels of sixteen bits, twice.
const BYTES_OF_PIXEL: u64 = 16;

/// Maximum memory of a decoder besides pixels and file: tables and colour profiles.
const TABLES: u64 = 4 << 20;

/// Number of units for a number of bytes, rounded up.
pub fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).clamp(1, u32::MAX >> 3)
}

/// The size according to a file's header.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Size {
    pixels: u64,
    /// Maximum memory of decoding, in bytes.
    pub memory: u64,
}

impl Size {
    /// Reads the header of a file; no pixel is decoded.
    ///
    /// # Errors
    /// When it has more pixels than allowed. A file that is not a picture has none, and fails when decoded.
    pub fn read(bytes: &[u8], most: u64) -> Result<Self, ApiError> {
        let (columns, rows) = dimensions(bytes).unwrap_or((0, 0));
        let pixels = u64::from(columns) * u64::from(rows);
        if pixels > most {
            return Err(ApiError::Unprocessable(format!("{columns} x {rows} pixels are more than {most}")));
        }
        Ok(Self { pixels, memory: BYTES_OF_PIXEL * pixels + bytes.len() as u64 + TABLES })
    }

    /// Decodes a file within this size.
    ///
    /// # Errors
    /// When it is not a picture.
    pub fn decode(self, bytes: &[u8]) -> Result<Picture, ApiError> {
        Picture::decode_at_most(bytes, self.pixels).map_err(ApiError::Unprocessable)
    }
}

fn dimensions(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format().ok()?;
    let mut limits = Limits::default();
    // a colour profile may claim any size
    limits.max_alloc = Some(bytes.len() as u64 + TABLES);
    reader.limits(limits);
    Some(reader.into_decoder().ok()?.dimensions())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png(columns: u32, rows: u32) -> Vec<u8> {
        let mut bytes = Cursor::new(Vec::new());
        image::RgbImage::new(columns, rows).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
        bytes.into_inner()
    }

    #[test]
    fn memory_is_that_of_the_pixels_that_a_file_says_it_has() {
        let file = png(1000, 500);
        let size = Size::read(&file, 500_000).unwrap();
        assert_eq!((size.pixels, size.memory), (500_000, 8_000_000 + file.len() as u64 + TABLES));
        assert_eq!(size.decode(&file).unwrap().size(), [500, 1000]);
        assert!(Size::read(&file, 499_999).unwrap_err().to_string().contains("1000 x 500 pixels are more than 499999"));
    }

    #[test]
    fn what_is_no_picture_takes_no_memory_and_says_so() {
        let text = b"no picture at all";
        let size = Size::read(text, 1000).unwrap();
        assert_eq!(size.memory, text.len() as u64 + TABLES);
        assert!(size.decode(text).unwrap_err().to_string().contains("not a JPEG"));
        let size = Size::read(b"", 1000).unwrap();
        assert!(size.decode(b"").unwrap_err().to_string().contains("not a JPEG"));
    }
}
