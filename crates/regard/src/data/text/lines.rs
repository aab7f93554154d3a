//! Text in one language, a sample a line: a file, or a folder with `train.txt`, `dev.txt` (or `valid.txt`, `validation.txt`)
//! and `test.txt`.

use std::path::{Path, PathBuf};

use super::TextPart;
use super::parallel::text;
use crate::Error;

/// The lines of a part that are not blank, in the order of their file; a single file is every part.
///
/// # Errors
/// When there is no such part, it is not UTF-8 or has no line.
pub fn read_lines(path: &Path, part: TextPart) -> Result<Vec<String>, Error> {
    let Some(file) = file_of(path, part) else {
        let reason =
            if path.exists() { format!("no {}.txt in it", part.names()[0]) } else { "no such file or folder".into() };
        return Err(Error::file(path, reason));
    };
    let text = text(&file)?;
    let lines: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect();
    if lines.is_empty() {
        return Err(Error::file(&file, "no line has any text"));
    }
    Ok(lines)
}

/// Whether a folder has such a part; a single file has none but itself.
pub fn has_lines(path: &Path, part: TextPart) -> bool {
    path.is_dir() && file_of(path, part).is_some()
}

fn file_of(path: &Path, part: TextPart) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.into());
    }
    part.names().iter().map(|name| path.join(format!("{name}.txt"))).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_folder_has_its_parts_by_name_and_a_file_is_all_of_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("train.txt"), "one\n\n  two \r\nthree").unwrap();
        fs::write(path.join("validation.txt"), "four\n").unwrap();
        assert_eq!(read_lines(path, TextPart::Train).unwrap(), ["one", "two", "three"]);
        assert_eq!(read_lines(path, TextPart::Dev).unwrap(), ["four"]);
        assert!(has_lines(path, TextPart::Dev) && !has_lines(path, TextPart::Test));
        let file = path.join("validation.txt");
        assert_eq!(read_lines(&file, TextPart::Test).unwrap(), ["four"]);
        assert!(!has_lines(&file, TextPart::Test));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        fs::write(path.join("train.txt"), b"one\n\xff\n").unwrap();
        fs::write(path.join("dev.txt"), " \n\n").unwrap();
        let error_of = |path: &Path, part| read_lines(path, part).unwrap_err().to_string();
        assert!(error_of(path, TextPart::Train).ends_with("train.txt: line 2 is not UTF-8"));
        assert!(error_of(path, TextPart::Dev).ends_with("dev.txt: no line has any text"));
        assert!(error_of(path, TextPart::Test).ends_with("no test.txt in it"));
        assert!(error_of(&path.join("none"), TextPart::Train).contains("no such file or folder"));
    }
}
