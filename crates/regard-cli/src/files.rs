//! Reading and writing images.

use image::{DynamicImage, ImageFormat};
use std::io::Cursor;
use std::path::Path;

use regard::data::decode_image;
use regard::file::read_bounded;

use crate::failure::Failure;

/// Formats that can be written, by their usual ending.
const WRITABLE: &[(&str, ImageFormat)] = &[
    ("png", ImageFormat::Png),
    ("jpg", ImageFormat::Jpeg),
    ("jpeg", ImageFormat::Jpeg),
    ("webp", ImageFormat::WebP),
    ("tif", ImageFormat::Tiff),
    ("tiff", ImageFormat::Tiff),
    ("bmp", ImageFormat::Bmp),
    ("gif", ImageFormat::Gif),
];

/// Reads an image, rotated upright by its EXIF orientation.
pub fn read(path: &Path) -> Result<DynamicImage, Failure> {
    let unreadable =
        |reason: &str, hint: &str| Failure::input(format!("cannot read `{}`: {reason}", path.display()), hint);
    let bytes = read_bounded(path, MOST_BYTES).map_err(|error| match error {
        regard::Error::File { reason, .. } => unreadable(&reason, "is the path right?"),
        other => other.into(),
    })?;
    decode_image(&bytes).map_err(|reason| unreadable(&reason, "supported: png, jpeg, webp, tiff, bmp and gif"))
}

/// Largest file, in bytes.
const MOST_BYTES: u64 = 1 << 29;

/// The format for a path's extension; checks that its folder exists.
pub fn check_output(path: &Path) -> Result<ImageFormat, Failure> {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let known = WRITABLE.iter().find(|(known, _)| ending.as_deref() == Some(known));
    let Some((_, format)) = known else {
        let endings: Vec<_> = WRITABLE.iter().map(|(ending, _)| *ending).collect();
        return Err(Failure::input(
            format!("unknown output format: `{}`", path.display()),
            format!("end the name with one of {}", endings.join(", ")),
        ));
    };
    check_folder(path)?;
    Ok(*format)
}

/// Encodes an image and writes it atomically.
pub fn write(path: &Path, format: ImageFormat, image: &DynamicImage) -> Result<(), Failure> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).map_err(|error| {
        Failure::input(format!("cannot write `{}`: {error}", path.display()), "png supports every kind of image")
    })?;
    regard::file::replace(path, bytes.get_ref()).map_err(|error| {
        Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable?")
    })
}

/// An error if the folder of a path does not exist.
pub fn check_folder(path: &Path) -> Result<(), Failure> {
    let folder = folder_of(path);
    if folder.is_dir() {
        return Ok(());
    }
    Err(Failure::input(format!("no such folder: `{}`", folder.display()), "create it first"))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_is_in_the_current_folder() {
        assert_eq!(folder_of(Path::new("out.png")), Path::new("."));
        assert_eq!(folder_of(Path::new("a/out.png")), Path::new("a"));
    }

    #[test]
    fn every_listed_format_can_be_written() {
        for (ending, format) in WRITABLE {
            assert!(format.writing_enabled(), "{ending}");
        }
    }
}
