//! Pictures from files, and pictures as models want them.
//!
//! As PIL does: alpha is dropped and not composited, the first frame of an animation is the picture, and a resized picture
//! is rounded to 8 bits before it is normalised. Other than PIL: the EXIF orientation is respected, and 16 bits of gray
//! become their upper 8 (PIL clips them at 255).

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};
use std::io::Cursor;
use std::path::Path;

use super::resample::resample;
use super::{Filter, Preprocess};
use crate::Error;

/// Rows of RGB pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// `[H, W, 3]`
    pub(super) pixels: Vec<u8>,
}

/// The most pixels of a picture, as many as 8192 x 8192.
pub const MOST_PIXELS: u64 = 1 << 26;

/// The most bytes of a file, and of what a decoder makes of it.
const MOST_BYTES: u64 = 1 << 29;

/// What a decoder may take for a pixel: four channels of sixteen bits, twice.
const BYTES_OF_PIXEL: u64 = 16;

impl Picture {
    /// A picture of given pixels, `[H, W, 3]` for `size = [H, W]`.
    ///
    /// # Errors
    /// When there are more or fewer pixels than that, or none.
    pub fn new(size: [usize; 2], pixels: Vec<u8>) -> Result<Self, Error> {
        let [rows, columns] = size;
        let count = rows.checked_mul(columns).and_then(|count| count.checked_mul(3));
        if pixels.is_empty() || count != Some(pixels.len()) {
            let reason = format!("{rows} rows and {columns} columns of RGB are not {} bytes", pixels.len());
            return Err(Error::config("pixels", reason));
        }
        Ok(Self { rows, columns, pixels })
    }

    /// Reads a JPEG, PNG, WebP, GIF or BMP file, whatever its name.
    ///
    /// # Errors
    /// When it is none of these, broken or too large; the error names the file and the reason.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let length = std::fs::metadata(path).map_err(|error| Error::file(path, error))?.len();
        if length > MOST_BYTES {
            return Err(Error::file(path, format!("{length} bytes are no picture")));
        }
        let bytes = std::fs::read(path).map_err(|error| Error::file(path, error))?;
        Self::decode(&bytes).map_err(|reason| Error::file(path, reason))
    }

    /// Reads the bytes of such a file.
    ///
    /// # Errors
    /// The reason why they are not a picture.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        Self::decode_at_most(bytes, MOST_PIXELS)
    }

    /// Reads the bytes of such a file if it says that it has at most so many pixels; none is decoded otherwise.
    ///
    /// # Errors
    /// The reason why they are not a picture, or its size.
    pub fn decode_at_most(bytes: &[u8], pixels: u64) -> Result<Self, String> {
        let wrong = |error: image::ImageError| error.to_string();
        let format = image::guess_format(bytes).ok().filter(|format| FORMATS.contains(format));
        let format = format.ok_or("not a JPEG, PNG, WebP, GIF or BMP picture")?;
        let whole = match format {
            ImageFormat::Jpeg => jpeg_ends(bytes),
            ImageFormat::WebP => webp_ends(bytes),
            // their decoders notice by themselves
            _ => true,
        };
        if !whole {
            return Err("the data ends before the picture does".into());
        }
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        let most = pixels.min(MOST_PIXELS);
        let mut limits = Limits::default();
        // parts of a file claim sizes of their own: none needs more than the pixels, the file and some tables
        limits.max_alloc = Some((BYTES_OF_PIXEL * most + bytes.len() as u64 + (1 << 20)).min(MOST_BYTES));
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(wrong)?;
        let (columns, rows) = decoder.dimensions();
        if columns == 0 || rows == 0 {
            return Err(format!("{columns} x {rows} pixels"));
        }
        if u64::from(columns) * u64::from(rows) > most || decoder.total_bytes() > MOST_BYTES {
            return Err(format!("{columns} x {rows} pixels are more than {most}"));
        }
        let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
        let mut picture = DynamicImage::from_decoder(decoder).map_err(wrong)?;
        picture.apply_orientation(orientation);
        let picture = picture.into_rgb8();
        let (columns, rows) = picture.dimensions();
        Ok(Self { rows: rows as usize, columns: columns as usize, pixels: picture.into_raw() })
    }

    /// Rows and columns.
    pub const fn size(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// `[H, W, 3]`
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The whole picture at another size.
    ///
    /// # Panics
    /// When a side is zero.
    #[must_use]
    pub fn resize(&self, size: [usize; 2], filter: Filter) -> Self {
        assert!(size[0] > 0 && size[1] > 0, "resize: {} x {} pixels", size[1], size[0]);
        let pixels = resample(&self.pixels, self.size(), size, size.map(|side| 0..side), filter);
        Self { rows: size[0], columns: size[1], pixels }
    }
}

const FORMATS: [ImageFormat; 5] =
    [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP, ImageFormat::Gif, ImageFormat::Bmp];

/// `[3, H, W]` for `image = [H, W]`: the picture resized so that the short side is `image / crop`, its middle, normalised.
///
/// As torchvision's `Resize`, `CenterCrop` and `Normalize` do, with sizes rounded as timm does.
///
/// # Panics
/// When a side of the image is zero.
pub fn prepare(picture: &Picture, preprocess: &Preprocess, image: [usize; 2]) -> Vec<f32> {
    assert!(image[0] > 0 && image[1] > 0, "prepare: an image of {} x {} pixels", image[1], image[0]);
    normalise(&middle(picture, preprocess, image), preprocess)
}

/// The middle of a resized picture.
pub(super) fn middle(picture: &Picture, preprocess: &Preprocess, image: [usize; 2]) -> Picture {
    let whole = resized(picture.size(), preprocess.crop, image);
    let middle = [0, 1].map(|axis| {
        let start = ((whole[axis] - image[axis]) as f64 / 2.0).round_ties_even() as usize;
        start..start + image[axis]
    });
    let pixels = resample(&picture.pixels, picture.size(), whole, middle, preprocess.filter);
    Picture { rows: image[0], columns: image[1], pixels }
}

/// `[3, H, W]`: levels as a model wants them.
pub(super) fn normalise(picture: &Picture, preprocess: &Preprocess) -> Vec<f32> {
    let mut values = Vec::with_capacity(picture.pixels.len());
    for channel in 0..3 {
        let (mean, std) = (preprocess.mean[channel], preprocess.std[channel]);
        let table: [f32; 256] = std::array::from_fn(|level| (level as f32 / 255.0 - mean) / std);
        values.extend(picture.pixels.as_chunks::<3>().0.iter().map(|pixel| table[usize::from(pixel[channel])]));
    }
    values
}

/// The size to which a picture is resized before its middle is taken, never smaller than the image.
pub(super) fn resized(size: [usize; 2], crop: f64, image: [usize; 2]) -> [usize; 2] {
    let scaled = image.map(|side| ((side as f64 / crop).floor() as usize).max(side));
    let [rows, columns] = size;
    let whole = if scaled[0] == scaled[1] {
        // the short side exactly, the long one rounded down
        let long = |long: usize, short: usize| (scaled[0] as u128 * long as u128 / short as u128) as usize;
        if rows <= columns { [scaled[0], long(columns, rows)] } else { [long(rows, columns), scaled[0]] }
    } else {
        let ratio = (rows as f64 / scaled[0] as f64).min(columns as f64 / scaled[1] as f64);
        size.map(|side| (side as f64 / ratio).round_ties_even() as usize)
    };
    [whole[0].max(image[0]), whole[1].max(image[1])]
}

/// Whether the segments and scans of a JPEG file go on to the marker of its end.
///
/// Decoders fill what is missing with gray; a picture that is half gray would be a wrong answer.
fn jpeg_ends(bytes: &[u8]) -> bool {
    let mut at = 2;
    while let Some(offset) = bytes.get(at..).and_then(|rest| rest.iter().position(|&byte| byte == 0xff)) {
        at += offset + 1;
        let Some(marker) = bytes.get(at) else { return false };
        match marker {
            0xd9 => return true,
            // a stuffed byte of a scan, a restart, a filling byte: no segment
            0x00 | 0x01 | 0xd0..=0xd8 => at += 1,
            0xff => {}
            _ => {
                let Some(length) = bytes.get(at + 1..at + 3) else { return false };
                at += 1 + usize::from(u16::from_be_bytes([length[0], length[1]])).max(2);
            }
        }
    }
    false
}

/// Whether a WebP file and its chunks are as long as they say: what is cut off may be only how the picture is turned, and
/// a decoder takes as much memory for a chunk as that claims.
fn webp_ends(bytes: &[u8]) -> bool {
    let number = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(|number| u32::from_le_bytes(number) as usize);
    let Some(end) = number(4).map(|length| 8 + length).filter(|end| *end <= bytes.len()) else { return false };
    let mut at = 12;
    while at < end {
        let Some(size) = number(at + 4) else { return false };
        at += 8 + size;
        if at > bytes.len() {
            return false;
        }
        // chunks begin at even places
        at += size % 2;
    }
    true
}

#[cfg(test)]
mod tests;
