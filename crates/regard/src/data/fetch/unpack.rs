//! Unpacks archives into a folder, never outside it.

use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use crate::Error;

/// Limits of an unpacked archive: several times the largest public dataset.
const MOST_BYTES: u64 = 1 << 32;
const MOST_FILES: usize = 1 << 20;

pub fn is_archive(path: &Path) -> bool {
    kind(path).is_some()
}

#[derive(Clone, Copy)]
enum Kind {
    TarGz,
    Zip,
}

fn kind(path: &Path) -> Option<Kind> {
    let name = path.file_name()?.to_str()?;
    match name {
        _ if name.ends_with(".tar.gz") => Some(Kind::TarGz),
        _ if Path::new(name).extension().is_some_and(|ending| ending == "zip") => Some(Kind::Zip),
        _ => None,
    }
}

/// Writes the files of an archive below a folder; `tick` gets the number of files so far.
///
/// # Errors
/// When the archive is broken, holds anything but files and folders, or names a place outside the folder.
pub fn unpack(archive: &Path, folder: &Path, tick: &mut dyn FnMut(usize)) -> Result<(), Error> {
    let wrong = |reason: String| Error::file(archive, reason);
    let file = File::open(archive).map_err(|error| wrong(error.to_string()))?;
    let mut target = Target { folder, bytes: 0, files: 0, tick };
    match kind(archive) {
        Some(Kind::TarGz) => untar(file, &mut target),
        Some(Kind::Zip) => unzip(file, &mut target),
        None => Err("not an archive".into()),
    }
    .map_err(wrong)
}

fn untar(file: File, target: &mut Target<'_>) -> Result<(), String> {
    let mut archive = tar::Archive::new(MultiGzDecoder::new(BufReader::new(file)));
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let mut entry = entry.map_err(|error| error.to_string())?;
        let path = entry.path().map_err(|error| error.to_string())?.into_owned();
        match entry.header().entry_type() {
            tar::EntryType::Regular => target.write(&path, &mut entry)?,
            tar::EntryType::Directory => {}
            kind => return Err(format!("`{}` is neither a file nor a folder but {kind:?}", path.display())),
        }
    }
    Ok(())
}

fn unzip(file: File, target: &mut Target<'_>) -> Result<(), String> {
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| error.to_string())?;
        let path = PathBuf::from(&*entry.name().map_err(|error| error.to_string())?);
        if entry.is_file() {
            target.write(&path, &mut entry)?;
        } else if !entry.is_dir() {
            return Err(format!("`{}` is neither a file nor a folder", path.display()));
        }
    }
    Ok(())
}

/// The folder of the files, and how much was written.
struct Target<'a> {
    folder: &'a Path,
    bytes: u64,
    files: usize,
    tick: &'a mut dyn FnMut(usize),
}

impl Target<'_> {
    fn write(&mut self, name: &Path, content: &mut dyn Read) -> Result<(), String> {
        let inside = inside(name).ok_or_else(|| format!("`{}` is outside the folder", name.display()))?;
        let path = self.folder.join(inside);
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        self.files += 1;
        if self.files > MOST_FILES {
            return Err(format!("more than {MOST_FILES} files"));
        }
        std::fs::create_dir_all(path.parent().unwrap_or(self.folder)).map_err(wrong)?;
        let left = MOST_BYTES - self.bytes;
        let written = File::create(&path).and_then(|mut file| io::copy(&mut content.take(left + 1), &mut file));
        let written = written.map_err(wrong)?;
        if written > left {
            return Err(format!("more than {MOST_BYTES} bytes"));
        }
        self.bytes += written;
        (self.tick)(self.files);
        Ok(())
    }
}

/// The path, if it stays inside the folder.
fn inside(path: &Path) -> Option<PathBuf> {
    let mut inside = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => inside.push(name),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    (!inside.as_os_str().is_empty()).then_some(inside)
}
