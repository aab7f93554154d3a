//! The orientation of a picture: upright by its EXIF tag, or as stored.
//!
//! Annotation tools show the upright picture; many loaders read the stored one. The annotations' own width and height tell
//! which of the two the boxes are for, unless they fit both.

use serde::Serialize;
use std::path::Path;

use crate::data::Picture;
use crate::data::decode::{self, MOST_BYTES};
use crate::{Error, file};

/// The size of a stored picture, and its orientation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Orientation {
    /// Rows and columns as stored.
    pub stored: [usize; 2],
    /// EXIF tag 0x0112, from 1 (upright) to 8.
    pub tag: u8,
}

impl Orientation {
    /// Rows and columns of the upright picture.
    #[must_use]
    pub const fn upright(&self) -> [usize; 2] {
        if self.tag >= 5 { [self.stored[1], self.stored[0]] } else { self.stored }
    }

    /// Whether annotations with this size are for the stored picture.
    #[must_use]
    pub fn fits_stored_only(&self, declared: [usize; 2]) -> bool {
        declared == self.stored && declared != self.upright()
    }
}

/// Reads the size and the orientation of a picture without decoding its pixels.
///
/// # Errors
/// When it is not a picture; the error names the file.
pub fn orientation(path: &Path) -> Result<Orientation, Error> {
    let bytes = file::read_bounded(path, MOST_BYTES)?;
    read(&bytes).map_err(|reason| Error::file(path, reason))
}

fn read(bytes: &[u8]) -> Result<Orientation, String> {
    let (stored, tag) = decode::header(bytes)?;
    Ok(Orientation { stored, tag })
}

/// The picture that annotations with this size are for: upright, unless their size fits only the stored one.
pub(super) fn fitting_picture(path: &Path, declared: Option<[usize; 2]>) -> Result<Picture, Error> {
    let wrong = |reason: String| Error::file(path, reason);
    let bytes = file::read_bounded(path, MOST_BYTES)?;
    let picture = Picture::decode(&bytes).map_err(wrong)?;
    match declared {
        Some(declared)
            if declared != picture.size() && read(&bytes).is_ok_and(|own| own.fits_stored_only(declared)) =>
        {
            Picture::decode_stored(&bytes).map_err(wrong)
        }
        _ => Ok(picture),
    }
}
