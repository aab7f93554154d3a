//! A folder for each class.
//!
//! ```text
//! flowers/rose/1.jpg          flowers/train/rose/1.jpg
//! flowers/rose/2.jpg          flowers/train/tulip/2.jpg
//! flowers/tulip/3.jpg         flowers/val/rose/3.jpg
//! ```
//!
//! Labels are in the order of the folders' names. Pictures may be in subfolders.
//!
//! With `train/`, `val/` and `test/` each part has its folder; `val` may also be `valid`, `validation` or `dev`.
//! With `train/` and `val/` alone, as in ImageNet, `val/` is the test part, measured once at the end, and
//! validation is a tenth of `train/`, as it is with `train/` and `test/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{LabelledFile, PictureFiles, any_picture_below, entries, is_hidden, is_picture, pictures_below};
use super::split::{split_files, split_train_files};
use super::{Opened, Origin, Origins, Part};
use crate::Error;

const VALIDATION: [&str; 4] = ["val", "valid", "validation", "dev"];

/// Where the pictures of a folder are.
enum FolderLayout {
    /// All in one folder.
    Whole(PathBuf),
    /// In a folder per part; validation may have none.
    Parts { train: PathBuf, validation: Option<PathBuf>, test: PathBuf },
}

pub fn is_here(root: &Path) -> bool {
    class_folders(root).is_ok_and(|folders| folders.iter().any(|folder| any_picture_below(folder)))
}

pub fn open(root: &Path, part: Part) -> Result<Opened, Error> {
    let (train, validation, test) = match folders(root)? {
        FolderLayout::Whole(folder) => {
            let classes = class_names(&[&folder])?;
            let samples = samples(&folder, &classes)?;
            let parts = split_files(&folder, &samples);
            return Ok(Opened { dataset: Arc::new(PictureFiles { classes, samples }), parts });
        }
        FolderLayout::Parts { train, validation, test } => (train, validation, test),
    };
    // one list for all: a class may be missing in a part
    let folders: Vec<&Path> = [&train, &test].into_iter().chain(&validation).map(PathBuf::as_path).collect();
    let classes = class_names(&folders)?;
    let (mut found, mut parts) = (Vec::new(), Vec::new());
    if part.needs_train() {
        found = samples(&train, &classes)?;
        parts = if validation.is_some() { vec![Part::Train; found.len()] } else { split_train_files(&train, &found) };
    }
    let others = [(validation, Part::Validation), (Some(test), Part::Test)];
    for (folder, own) in others.into_iter().filter(|(_, own)| part.contains(*own)) {
        let Some(folder) = folder else { continue };
        found.extend(samples(&folder, &classes)?);
        parts.resize(found.len(), own);
    }
    Ok(Opened { dataset: Arc::new(PictureFiles { classes, samples: found }), parts })
}

pub fn origins(root: &Path) -> Result<Origins, Error> {
    let own = |folder: &Path| Origin::Own(class_name(folder) + "/");
    Ok(match folders(root)? {
        FolderLayout::Whole(_) => Origins { validation: Origin::TenthOfTrain, test: Origin::Fifth },
        FolderLayout::Parts { validation, test, .. } => {
            Origins { validation: validation.as_deref().map_or(Origin::TenthOfTrain, own), test: own(&test) }
        }
    })
}

fn folders(root: &Path) -> Result<FolderLayout, Error> {
    let train = root.join("train");
    if !holds_classes(&train)? {
        return Ok(FolderLayout::Whole(root.into()));
    }
    let mut validation = None;
    for name in VALIDATION {
        let folder = root.join(name);
        if holds_classes(&folder)?
            && let Some(other) = validation.replace(folder)
        {
            let reason = format!("both {}/ and {name}/ are names of the validation part", class_name(&other));
            return Err(Error::file(root, reason));
        }
    }
    let test = root.join("test");
    Ok(match (holds_classes(&test)?, validation) {
        (true, validation) => FolderLayout::Parts { train, validation, test },
        (false, Some(test)) => FolderLayout::Parts { train, validation: None, test },
        (false, None) => FolderLayout::Whole(train),
    })
}

/// Whether a folder holds classes; a class called `train` holds pictures instead.
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

fn samples(root: &Path, classes: &[String]) -> Result<Vec<LabelledFile>, Error> {
    let mut samples = Vec::new();
    for folder in class_folders(root)? {
        // every folder was listed, unless it appeared a moment ago
        let Ok(label) = classes.binary_search(&class_name(&folder)) else { continue };
        samples.extend(pictures_below(&folder)?.into_iter().map(|path| LabelledFile { path, label }));
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dataset::Dataset;
    use crate::data::dataset::tests::{names, paint};

    fn root_with(pictures: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        pictures.iter().enumerate().for_each(|(level, name)| paint(&root.path().join(name), level as u8));
        root
    }

    fn part(root: &Path, part: Part) -> Arc<dyn Dataset> {
        open(root, part).unwrap().only(part)
    }

    fn origin(root: &Path) -> [String; 2] {
        let Origins { validation, test } = origins(root).unwrap();
        [validation.to_string(), test.to_string()]
    }

    /// Twelve training pictures, and one of each of the other folders.
    fn parted(others: &[&str]) -> tempfile::TempDir {
        let train = (0..12).map(|i| format!("train/{}/{i}.png", if i < 6 { "b" } else { "c" }));
        let all: Vec<String> = train.chain(others.iter().map(|other| format!("{other}/a/{other}.png"))).collect();
        root_with(&all.iter().map(String::as_str).collect::<Vec<_>>())
    }

    #[test]
    fn train_val_and_test_are_each_themselves() {
        for validation in VALIDATION {
            let root = parted(&[validation, "test"]);
            let part = |own| part(root.path(), own);
            assert_eq!(part(Part::Train).len(), 12);
            assert_eq!(names(root.path(), &*part(Part::Validation)), [format!("{validation}/a/{validation}.png 0")]);
            assert_eq!(names(root.path(), &*part(Part::Test)), ["test/a/test.png 0"]);
            assert_eq!((part(Part::TrainAndValidation).len(), part(Part::All).len()), (13, 14));
            assert_eq!(origin(root.path()), [format!("{validation}/"), "test/".into()]);
            for own in [Part::Train, Part::Validation, Part::Test] {
                assert_eq!(part(own).classes(), ["a", "b", "c"], "labels mean the same in all parts");
            }
        }
    }

    #[test]
    fn without_a_second_part_that_is_the_test_and_a_tenth_of_train_is_validation() {
        for test in VALIDATION.into_iter().chain(["test"]) {
            let root = parted(&[test]);
            let part = |own| part(root.path(), own);
            assert_eq!(names(root.path(), &*part(Part::Test)), [format!("{test}/a/{test}.png 0")]);
            let (train, validation) = (part(Part::Train), part(Part::Validation));
            assert_eq!((train.len(), validation.len(), part(Part::All).len()), (10, 2, 13));
            assert_eq!((validation.label(0), validation.label(1)), (1, 2));
            let mut both = [names(root.path(), &*train), names(root.path(), &*validation)].concat();
            both.sort();
            let mut all = names(root.path(), &*part(Part::TrainAndValidation));
            all.sort();
            assert_eq!(both, all);
            assert_eq!(origin(root.path()), ["a tenth of train".into(), format!("{test}/")]);
        }
    }

    #[test]
    fn two_folders_of_validation_are_named() {
        let error = open(parted(&["val", "dev"]).path(), Part::Train).err().unwrap().to_string();
        assert!(error.ends_with("both val/ and dev/ are names of the validation part"), "{error}");
    }

    #[test]
    fn a_folder_without_parts_is_split() {
        let pictures: Vec<String> = (0..20).map(|i| format!("{}/{i}.png", if i < 10 { "a" } else { "b" })).collect();
        let pictures: Vec<&str> = pictures.iter().map(String::as_str).collect();
        for (below, root) in [("", root_with(&pictures)), ("train", tempfile::tempdir().unwrap())] {
            for (level, name) in pictures.iter().enumerate() {
                paint(&root.path().join(below).join(name), level as u8);
            }
            let part = |own| names(root.path(), &*part(root.path(), own));
            let [train, validation, test] = [Part::Train, Part::Validation, Part::Test].map(part);
            assert_eq!((train.len(), validation.len(), test.len()), (14, 2, 4));
            assert_eq!(origin(root.path()), ["a tenth of train", "a fifth of every class"]);
            let mut all = [train, validation, test].concat();
            all.sort();
            let mut expected = part(Part::All);
            expected.sort();
            assert_eq!(all, expected);
        }
    }

    #[test]
    fn a_class_called_train_is_a_class() {
        let root = root_with(&["plane/1.png", "train/2.png"]);
        assert_eq!(part(root.path(), Part::All).classes(), ["plane", "train"]);
    }

    #[test]
    fn what_is_no_picture_is_left_out() {
        let root = root_with(&["a/1.png", "a/.2.png", ".hidden/3.png", "4.png"]);
        std::fs::write(root.path().join("a/notes.txt"), "").unwrap();
        std::fs::create_dir(root.path().join("a/folder.png")).unwrap();
        assert_eq!(names(root.path(), &*part(root.path(), Part::All)), ["a/1.png 0"]);
    }

    #[cfg(unix)]
    #[test]
    fn folders_that_lead_in_circles_end() {
        let root = root_with(&["a/1.png"]);
        std::os::unix::fs::symlink(root.path(), root.path().join("a/again")).unwrap();
        assert_eq!(part(root.path(), Part::All).len(), 1);
    }

    #[test]
    fn a_file_that_is_no_picture_is_named_when_it_is_read() {
        let root = root_with(&["a/1.png"]);
        std::fs::write(root.path().join("a/2.png"), "no picture").unwrap();
        let all = part(root.path(), Part::All);
        assert!(all.picture(0).is_ok());
        let error = all.picture(1).unwrap_err().to_string();
        assert!(error.contains("a/2.png: not a JPEG"), "{error}");
    }
}
