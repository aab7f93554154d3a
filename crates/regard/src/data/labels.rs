//! Names of classes.

use std::path::Path;

use crate::{Error, file};

/// The thousand classes of ImageNet-1k, in the order of their indices.
pub fn imagenet() -> Vec<String> {
    include_str!("imagenet.txt").lines().map(String::from).collect()
}

/// One name a line, in the order of their indices.
///
/// # Errors
/// When the file cannot be read, is larger than [`file::MOST_TEXT`], or is a device or a pipe.
pub fn read(path: &Path) -> Result<Vec<String>, Error> {
    let text = file::read_text(path)?;
    Ok(text.lines().map(|line| line.trim().to_string()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_a_thousand_different_classes_and_the_first_is_a_fish() {
        let names = imagenet();
        assert_eq!((names.len(), names[0].as_str()), (1000, "tench"));
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 1000);
    }

    #[test]
    fn a_missing_file_is_named() {
        assert!(read(Path::new("no/such/labels.txt")).unwrap_err().to_string().contains("no/such/labels.txt"));
    }
}
