//! Picture files that are read on access.

use std::path::{Path, PathBuf};

use super::{Dataset, Picture};
use crate::Error;

/// A picture file and its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelledFile {
    pub path: PathBuf,
    pub label: usize,
}

/// Picture files and their classes.
#[derive(Debug)]
pub struct PictureFiles {
    pub classes: Vec<String>,
    pub samples: Vec<LabelledFile>,
}

impl Dataset for PictureFiles {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> usize {
        self.samples[index].label
    }

    fn picture(&self, index: usize) -> Result<Picture, Error> {
        Picture::open(&self.samples[index].path)
    }

    fn name(&self, index: usize) -> String {
        self.samples[index].path.display().to_string()
    }
}

/// Whether a path has the extension of a picture.
pub fn is_picture(path: &Path) -> bool {
    const ENDINGS: [&str; 6] = ["jpg", "jpeg", "png", "webp", "gif", "bmp"];
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str())) && !is_hidden(path)
}

/// Whether a name begins with a dot.
pub fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

/// The entries of a folder, sorted.
pub fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let wrong = |error| Error::file(folder, error);
    let entries = std::fs::read_dir(folder).map_err(wrong)?;
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>().map_err(wrong)?;
    paths.sort();
    Ok(paths)
}

/// The pictures below a folder, sorted.
pub fn pictures_below(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        // links to folders could lead in circles
        if path.is_dir() && !path.is_symlink() && !is_hidden(&path) {
            found.extend(pictures_below(&path)?);
        } else if is_picture(&path) && !path.is_dir() {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether there is a picture below a folder.
pub fn any_picture_below(folder: &Path) -> bool {
    let paths = entries(folder).unwrap_or_default();
    paths.iter().any(|path| is_picture(path) && !path.is_dir())
        || paths.iter().any(|path| path.is_dir() && !path.is_symlink() && !is_hidden(path) && any_picture_below(path))
}
