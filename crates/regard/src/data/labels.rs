//! Names of classes.

use std::path::Path;

use crate::{Error, file};

/// The thousand classes of ImageNet-1k, in the order of their indices.
pub fn imagenet() -> Vec<String> {
    include_str!("imagenet.txt").lines().map(String::from).collect()
}

/// The `WordNet` identifiers of ImageNet-1k's classes (`n01440764`), in the order of their indices.
pub fn imagenet_synsets() -> impl ExactSizeIterator<Item = &'static str> {
    include_str!("imagenet_synsets.txt").lines().collect::<Vec<_>>().into_iter()
}

/// The class of a text: its number, its name in any case with `_` for spaces, or for ImageNet's thousand classes its
/// `WordNet` identifier.
#[must_use]
pub fn find(text: &str, names: &[String]) -> Option<usize> {
    let plain = |name: &str| name.trim().replace('_', " ").to_lowercase();
    let number = || text.parse().ok().filter(|class| *class < names.len());
    let exact = || names.iter().position(|name| name == text);
    let alike = || {
        let mut alike = names.iter().enumerate().filter(|(_, name)| plain(name) == plain(text));
        // `Cardigan` is a dog and `cardigan` is a garment: ambiguous names are unknown
        alike.next().filter(|_| alike.next().is_none()).map(|(class, _)| class)
    };
    let synset = || imagenet_synsets().position(|synset| synset == text).filter(|_| names.len() == 1000);
    number().or_else(exact).or_else(alike).or_else(synset)
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
    fn a_class_is_found_by_number_name_or_synset() {
        let names = imagenet();
        assert_eq!(imagenet_synsets().len(), 1000);
        for text in ["0", "tench", "Tench", "n01440764"] {
            assert_eq!(find(text, &names), Some(0), "{text}");
        }
        assert_eq!(find("great_white_shark", &names), Some(2));
        assert_eq!((find("Cardigan", &names), find("cardigan", &names)), (Some(264), Some(474)));
        assert_eq!(find("CARDIGAN", &names), None, "two are spelled so");
        assert_eq!((find("n15075141", &names), find("1000", &names)), (Some(999), None));
        assert_eq!(find("n01440764", &["cat".to_string(), "dog".to_string()]), None);
    }

    #[test]
    fn a_missing_file_is_named() {
        assert!(read(Path::new("no/such/labels.txt")).unwrap_err().to_string().contains("no/such/labels.txt"));
    }

    #[cfg(unix)]
    #[test]
    fn a_device_without_an_end_is_refused() {
        let error = read(Path::new("/dev/zero")).unwrap_err().to_string();
        assert_eq!(error, "/dev/zero: not a regular file but a device");
    }
}
