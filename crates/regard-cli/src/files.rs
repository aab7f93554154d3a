//! Images in, images out.

use image::{DynamicImage, ImageDecoder as _, ImageFormat, ImageReader};
use std::fs::{self, File};
use std::io::{Cursor, Write as _};
use std::path::Path;

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

/// Reads an image, upright as its camera held it.
pub fn read(path: &Path) -> Result<DynamicImage, Failure> {
    let unreadable = |reason: &dyn std::fmt::Display, hint: &str| {
        Failure::input(format!("cannot read `{}`: {reason}", path.display()), hint)
    };
    let not_an_image = |error: image::ImageError| unreadable(&error, "png, jpeg, webp, tiff, bmp and gif are read");
    let file = ImageReader::open(path).map_err(|error| unreadable(&error, "is the path right?"))?;
    // the content decides, not the name
    let file = file.with_guessed_format().map_err(|error| unreadable(&error, "is it a file?"))?;
    let mut decoder = file.into_decoder().map_err(not_an_image)?;
    let orientation = decoder.orientation().map_err(not_an_image)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(not_an_image)?;
    image.apply_orientation(orientation);
    Ok(image)
}

/// The format that the ending of a path names, and that its folder is there.
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
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(Failure::input(format!("no such folder: `{}`", folder.display()), "make it first"));
    }
    Ok(*format)
}

/// Encodes an image and writes it whole.
pub fn write(path: &Path, format: ImageFormat, image: &DynamicImage) -> Result<(), Failure> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).map_err(|error| {
        Failure::input(format!("cannot write `{}`: {error}", path.display()), "png holds every kind of image")
    })?;
    write_bytes(path, bytes.get_ref()).map_err(|error| {
        Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable?")
    })
}

/// Writes beside `path`, then renames over it: a reader sees the old file or the new, never half.
fn write_bytes(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let partial = folder_of(path).join(format!(".{name}.{}.partial", std::process::id()));
    let written = File::create(&partial)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&partial, path));
    if written.is_err() {
        // the error to report is the first one
        let _ = fs::remove_file(&partial);
    }
    written
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
    fn a_failed_write_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        // a folder cannot be renamed over
        let path = folder.path().join("out.png");
        fs::create_dir(&path).unwrap();
        assert!(write_bytes(&path, b"new").is_err());
        let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["out.png"]);
    }

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
