//! Pictures, and their preprocessing for classifiers.
//!
//! As in PIL, alpha is dropped and not composited, the first frame of an animation is the picture, the EXIF orientation is
//! applied as by `ImageOps.exif_transpose`, and a resized picture is rounded to 8 bits before it is normalised. Unlike
//! PIL, 16 bits of gray become their upper 8 (PIL clips them at 255).

use image::DynamicImage;
use std::path::Path;

use super::decode::{self, FORMATS, MOST_BYTES, Reason};
use super::resample::resample;
use super::{Filter, Preprocess, Resize};
use crate::{Error, file};

/// Rows of RGB pixels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// `[H, W, 3]`
    pub(super) pixels: Vec<u8>,
}

/// Maximum number of pixels of a picture: 8192 x 8192.
pub const MOST_PIXELS: u64 = 1 << 26;

impl Picture {
    /// A picture of given pixels, `[H, W, 3]` for `size = [H, W]`.
    ///
    /// # Errors
    /// When the number of pixels differs, or is zero.
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
        let bytes = file::read_bounded(path, MOST_BYTES)?;
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
        decode::decode(bytes, &FORMATS, pixels.min(MOST_PIXELS)).map(Self::from_image).map_err(Self::reason)
    }

    /// Reads the bytes of such a file as the pixels are stored, ignoring the EXIF orientation.
    ///
    /// # Errors
    /// The reason why they are not a picture.
    pub(super) fn decode_stored(bytes: &[u8]) -> Result<Self, String> {
        let (picture, _) = decode::decode_stored(bytes, &FORMATS, MOST_PIXELS).map_err(Self::reason)?;
        Ok(Self::from_image(picture))
    }

    fn from_image(picture: DynamicImage) -> Self {
        let picture = picture.into_rgb8();
        let (columns, rows) = picture.dimensions();
        Self { rows: rows as usize, columns: columns as usize, pixels: picture.into_raw() }
    }

    fn reason(reason: Reason) -> String {
        match reason {
            Reason::Format => "not a JPEG, PNG, WebP, GIF or BMP picture".into(),
            Reason::Other(reason) => reason,
        }
    }

    /// Rows and columns.
    pub const fn size(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// `[H, W, 3]`
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// A part of the picture.
    ///
    /// # Panics
    /// When the part is not inside the picture, or empty.
    #[must_use]
    pub fn crop(&self, [row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> Self {
        assert!(rows > 0 && columns > 0, "crop: {columns} x {rows} pixels");
        assert!(row + rows <= self.rows && column + columns <= self.columns, "crop: beyond the picture");
        let line = |row: usize| &self.pixels[3 * (row * self.columns + column)..][..3 * columns];
        Self { rows, columns, pixels: (row..row + rows).flat_map(line).copied().collect() }
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

/// `[3, H, W]` for `image = [H, W]`: the picture resized to `image / crop` as its [`Resize`] says, its middle, normalised.
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
fn middle(picture: &Picture, preprocess: &Preprocess, image: [usize; 2]) -> Picture {
    let whole = whole(picture.size(), preprocess, image);
    let corner = middle_corner(whole, image);
    let middle = [0, 1].map(|axis| corner[axis]..corner[axis] + image[axis]);
    let pixels = resample(&picture.pixels, picture.size(), whole, middle, preprocess.filter);
    Picture { rows: image[0], columns: image[1], pixels }
}

/// The size to which a picture is resized before the middle of it is taken.
pub(super) fn whole(size: [usize; 2], preprocess: &Preprocess, image: [usize; 2]) -> [usize; 2] {
    match preprocess.resize {
        Resize::ShortSide => resized(size, preprocess.crop, image),
        Resize::Stretch => image.map(|side| ((side as f64 / preprocess.crop).round() as usize).max(side)),
    }
}

/// Where the middle of a picture begins, rounded as torchvision's `CenterCrop` does.
pub(super) fn middle_corner(whole: [usize; 2], image: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|axis| ((whole[axis] - image[axis]) as f64 / 2.0).round_ties_even() as usize)
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

#[cfg(test)]
mod tests;
