//! Files that are either the old ones or the new ones, never half of each.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

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
    written
}

#[cfg(test)]
mod tests {
    use super::*;

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
