//! Files that are read within bounds, and files that are either the old ones or the new ones, never half of each.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use crate::Error;

/// The most bytes of a text: labels, a recipe, a model's configuration.
pub const MOST_TEXT: u64 = 1 << 26;

/// A file to read, if it is a regular one: a device has no end, and a pipe may never begin.
///
/// # Errors
/// When it cannot be opened, or is a folder, a device, a pipe or a socket; the error names it.
pub fn open_regular(path: &Path) -> Result<File, Error> {
    let wrong = |error: io::Error| Error::file(path, error);
    let refuse = |kind: fs::FileType| Err(Error::file(path, format!("not a regular file but {}", name_of(kind))));
    // before it is opened, since opening a pipe waits for somebody who writes into it
    let kind = fs::metadata(path).map_err(wrong)?.file_type();
    if !kind.is_file() {
        return refuse(kind);
    }
    let file = File::open(path).map_err(wrong)?;
    match file.metadata().map_err(wrong)?.file_type() {
        kind if kind.is_file() => Ok(file),
        kind => refuse(kind),
    }
}

/// The content of a regular file of at most `most` bytes.
///
/// # Errors
/// When it cannot be read, is not a regular file, or is larger; the error names it.
pub fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let file = open_regular(path)?;
    let too_large = || Error::file(path, format!("larger than {most} bytes"));
    let length = file.metadata().map_err(|error| Error::file(path, error))?.len();
    if length > most {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // one more than allowed: a file may grow while it is read, and those of /proc say that they are empty
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(|error| Error::file(path, error))?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

/// The text of a regular file of at most [`MOST_TEXT`] bytes.
///
/// # Errors
/// When it cannot be read, is not a regular file, is larger, or not in UTF-8; the error names it.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let bytes = read_bounded(path, MOST_TEXT)?;
    String::from_utf8(bytes).map_err(|_| Error::file(path, "not a text in UTF-8"))
}

fn name_of(kind: fs::FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_socket() {
            return "a socket";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a folder" } else { "something else" }
}

/// Writes beside `path`, then renames over it: a reader sees the old file or the new, never half.
///
/// # Errors
/// When it cannot be written; and when something is there that is not a file, such as a device or a folder, which
/// would be lost. A link is followed.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let there = fs::metadata(path);
    if there.as_ref().is_ok_and(|there| !there.is_file()) {
        return Err(io::Error::other("there is something here that is not a file"));
    }
    let path = if there.is_ok() { fs::canonicalize(path)? } else { path.to_path_buf() };
    let mut beside = path.clone().into_os_string();
    beside.push(format!(".{}.partial", std::process::id()));
    let written = File::create(&beside)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        // the error to report is the first one
        let _ = fs::remove_file(&beside);
    }
    // the new name is safe when its folder is; not every system can say so
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_a_larger_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("labels.txt");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
        assert_eq!(read_text(&path).unwrap(), "12345");
        let error = read_bounded(&path, 4).unwrap_err().to_string();
        assert!(error.ends_with("labels.txt: larger than 4 bytes"), "{error}");
        fs::write(&path, b"\xff").unwrap();
        assert!(read_text(&path).unwrap_err().to_string().ends_with("labels.txt: not a text in UTF-8"));
    }

    #[cfg(unix)]
    #[test]
    fn a_device_a_pipe_and_a_folder_are_refused_before_anything_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let (pipe, link) = (folder.path().join("pipe"), folder.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
        for (path, kind) in
            [(Path::new("/dev/zero"), "a device"), (&link, "a device"), (&pipe, "a pipe"), (folder.path(), "a folder")]
        {
            let error = read_bounded(path, 10).unwrap_err().to_string();
            assert_eq!(error, format!("{}: not a regular file but {kind}", path.display()));
        }
        // a link to a file is that file
        fs::write(folder.path().join("file"), b"content").unwrap();
        let link = folder.path().join("good");
        std::os::unix::fs::symlink(folder.path().join("file"), &link).unwrap();
        assert_eq!(read_bounded(&link, 10).unwrap(), b"content");
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        replace(&path, b"old").unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_folder_or_a_device_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        assert!(replace(folder.path(), b"new").unwrap_err().to_string().contains("not a file"));
        #[cfg(unix)]
        assert!(replace(Path::new("/dev/null"), b"new").is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        fs::write(&target, b"old").unwrap();
        std::os::unix::fs::symlink(&target, &link).unwrap();
        replace(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&target).unwrap(), b"new");
    }
}
