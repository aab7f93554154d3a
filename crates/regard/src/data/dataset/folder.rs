//! A folder for each class.
//!
//! ```text
//! flowers/rose/1.jpg          flowers/train/rose/1.jpg
//! flowers/rose/2.jpg          flowers/train/tulip/2.jpg
//! flowers/tulip/3.jpg         flowers/val/rose/3.jpg
//! ```
//!
//! Labels are in the order of the names of the folders. Pictures may be in folders below these. Where there are several
//! of `val`, `valid`, `validation` and `test`, the first of them is the test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{Files, Sample, any_picture_below, entries, is_hidden, is_picture, pictures_below};
use super::split::part_of;
use super::{Dataset, Part};
use crate::Error;

const TESTS: [&str; 4] = ["val", "valid", "validation", "test"];

/// Where the pictures of a folder are.
enum Parts {
    /// Folders of the training and of the test pictures.
    Two(PathBuf, PathBuf),
    /// A folder of both.
    One(PathBuf),
}

pub fn is_here(root: &Path) -> bool {
    class_folders(root).is_ok_and(|folders| folders.iter().any(|folder| any_picture_below(folder)))
}

pub fn open(root: &Path, part: Part) -> Result<Arc<dyn Dataset>, Error> {
    Ok(Arc::new(match parts(root)? {
        Parts::One(folder) => {
            let classes = class_names(&[&folder])?;
            let samples = part_of(&folder, samples(&folder, &classes)?, part);
            Files { classes, samples }
        }
        Parts::Two(train, test) => {
            // one list for both: a class may be missing on one side
            let classes = class_names(&[&train, &test])?;
            let mut found = Vec::new();
            if part.has_train() {
                found.extend(samples(&train, &classes)?);
            }
            if part.has_test() {
                found.extend(samples(&test, &classes)?);
            }
            Files { classes, samples: found }
        }
    }))
}

pub fn has_parts(root: &Path) -> Result<bool, Error> {
    Ok(matches!(parts(root)?, Parts::Two(..)))
}

fn parts(root: &Path) -> Result<Parts, Error> {
    let train = root.join("train");
    if !holds_classes(&train)? {
        return Ok(Parts::One(root.into()));
    }
    for test in TESTS {
        let test = root.join(test);
        if holds_classes(&test)? {
            return Ok(Parts::Two(train, test));
        }
    }
    Ok(Parts::One(train))
}

/// Whether a folder is one of classes; a class called `train` holds pictures instead.
fn holds_classes(folder: &Path) -> Result<bool, Error> {
    Ok(folder.is_dir() && is_here(folder) && !entries(folder)?.iter().any(|path| is_picture(path)))
}

fn class_folders(root: &Path) -> Result<Vec<PathBuf>, Error> {
    Ok(entries(root)?.into_iter().filter(|path| path.is_dir() && !is_hidden(path)).collect())
}

fn class_name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn class_names(roots: &[&Path]) -> Result<Vec<String>, Error> {
    let mut names = BTreeSet::new();
    for root in roots {
        names.extend(class_folders(root)?.iter().map(|folder| class_name(folder)));
    }
    Ok(names.into_iter().collect())
}

fn samples(root: &Path, classes: &[String]) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for folder in class_folders(root)? {
        // the names are those of these very folders, unless one appeared a moment ago
        let Ok(label) = classes.binary_search(&class_name(&folder)) else { continue };
        samples.extend(pictures_below(&folder)?.into_iter().map(|path| Sample { path, label }));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dataset::tests::{names, paint};

    fn root_with(pictures: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        pictures.iter().enumerate().for_each(|(level, name)| paint(&root.path().join(name), level as u8));
        root
    }

    #[test]
    fn parts_below_a_folder_are_taken_as_they_are() {
        for test in TESTS {
            let root = root_with(&["train/b/1.png", "train/c/deep/2.PNG", &format!("{test}/a/3.png")]);
            let part = |part| open(root.path(), part).unwrap();
            assert_eq!(names(root.path(), &*part(Part::Train)), ["train/b/1.png 1", "train/c/deep/2.PNG 2"]);
            assert_eq!(names(root.path(), &*part(Part::Test)), [format!("{test}/a/3.png 0")]);
            assert_eq!(part(Part::All).len(), 3);
            assert!(has_parts(root.path()).unwrap());
            assert_eq!(part(Part::Test).classes(), ["a", "b", "c"], "labels mean the same in both parts");
        }
    }

    #[test]
    fn a_folder_without_parts_is_split() {
        let pictures: Vec<String> = (0..10).map(|i| format!("{}/{i}.png", if i < 5 { "a" } else { "b" })).collect();
        let pictures: Vec<&str> = pictures.iter().map(String::as_str).collect();
        for (below, root) in [("", root_with(&pictures)), ("train", tempfile::tempdir().unwrap())] {
            for (level, name) in pictures.iter().enumerate() {
                paint(&root.path().join(below).join(name), level as u8);
            }
            let part = |part| names(root.path(), &*open(root.path(), part).unwrap());
            let (train, test) = (part(Part::Train), part(Part::Test));
            assert_eq!((train.len(), test.len()), (8, 2));
            assert!(!has_parts(root.path()).unwrap());
            let mut both = [train, test].concat();
            both.sort();
            assert_eq!(both, part(Part::All));
        }
    }

    #[test]
    fn a_class_called_train_is_a_class() {
        let root = root_with(&["plane/1.png", "train/2.png"]);
        assert_eq!(open(root.path(), Part::All).unwrap().classes(), ["plane", "train"]);
    }

    #[test]
    fn what_is_no_picture_is_left_out() {
        let root = root_with(&["a/1.png", "a/.2.png", ".hidden/3.png", "4.png"]);
        std::fs::write(root.path().join("a/notes.txt"), "").unwrap();
        std::fs::create_dir(root.path().join("a/folder.png")).unwrap();
        assert_eq!(names(root.path(), &*open(root.path(), Part::All).unwrap()), ["a/1.png 0"]);
    }

    #[cfg(unix)]
    #[test]
    fn folders_that_lead_in_circles_end() {
        let root = root_with(&["a/1.png"]);
        std::os::unix::fs::symlink(root.path(), root.path().join("a/again")).unwrap();
        assert_eq!(open(root.path(), Part::All).unwrap().len(), 1);
    }

    #[test]
    fn a_file_that_is_no_picture_is_named_when_it_is_read() {
        let root = root_with(&["a/1.png"]);
        std::fs::write(root.path().join("a/2.png"), "no picture").unwrap();
        let all = open(root.path(), Part::All).unwrap();
        assert!(all.picture(0).is_ok());
        let error = all.picture(1).unwrap_err().to_string();
        assert!(error.contains("a/2.png: not a JPEG"), "{error}");
    }
}
