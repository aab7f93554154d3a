//! Tiny ImageNet: 200 classes, `train/CLASS/images/*.JPEG`, and `val/images` with `val/val_annotations.txt`.
//!
//! Labels are in the order of the identifiers, as for a folder of classes. The first of a class's words is
//! its name. The pictures in `test/` have no labels and are skipped; those in `val/` are the test part.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use super::files::{LabelledFile, PictureFiles, pictures_below};
use super::split::split_train_files;
use super::{Opened, Part, bytes};
use crate::Error;

pub fn is_here(root: &Path) -> bool {
    root.join("wnids.txt").is_file() && root.join("val/val_annotations.txt").is_file()
}

pub fn open(root: &Path, part: Part) -> Result<Opened, Error> {
    let ids = identifiers(&root.join("wnids.txt"))?;
    let mut samples = Vec::new();
    if part.needs_train() {
        for (label, id) in ids.iter().enumerate() {
            let pictures = pictures_below(&root.join("train").join(id))?;
            samples.extend(pictures.into_iter().map(|path| LabelledFile { path, label }));
        }
    }
    let mut parts = split_train_files(&root.join("train"), &samples);
    if part.has_test() {
        samples.extend(annotated(root, &ids)?);
        parts.resize(samples.len(), Part::Test);
    }
    Ok(Opened { dataset: Arc::new(PictureFiles { classes: names(root, &ids)?, samples }), parts })
}

fn identifiers(path: &Path) -> Result<Vec<String>, Error> {
    let text = bytes::text(path)?;
    let ids: BTreeSet<&str> = text.lines().map(str::trim).filter(|id| !id.is_empty()).collect();
    match ids.iter().find(|id| !is_plain(id)) {
        Some(id) => Err(Error::file(path, format!("`{id}` is not the name of a folder"))),
        None if ids.is_empty() => Err(Error::file(path, "no classes in it")),
        None => Ok(ids.into_iter().map(String::from).collect()),
    }
}

/// Whether a name is a plain file name.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')) && !name.starts_with('.')
}

/// The pictures of `val`: each line has a file, its class and a box.
fn annotated(root: &Path, ids: &[String]) -> Result<Vec<LabelledFile>, Error> {
    let path = root.join("val/val_annotations.txt");
    let mut samples = Vec::new();
    for (number, line) in bytes::text(&path)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: String| Error::file(&path, format!("line {}: {reason}", number + 1));
        let mut cells = line.split('\t').map(str::trim);
        let (Some(file), Some(id)) = (cells.next(), cells.next()) else {
            return Err(wrong("not a file, a tab and a class".into()));
        };
        if !is_plain(file) {
            return Err(wrong(format!("`{file}` is not the name of a picture")));
        }
        let label = ids.binary_search_by(|known| known.as_str().cmp(id));
        let label = label.map_err(|_| wrong(format!("unknown class `{id}`")))?;
        samples.push(LabelledFile { path: root.join("val/images").join(file), label });
    }
    Ok(samples)
}

/// The first word of each class, with the identifier where two classes have the same word.
fn names(root: &Path, ids: &[String]) -> Result<Vec<String>, Error> {
    let path = root.join("words.txt");
    if !path.is_file() {
        return Ok(ids.to_vec());
    }
    let text = bytes::text(&path)?;
    let words: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    let first = |id: &String| {
        let word = words.get(id.as_str()).and_then(|words| words.split(',').next()).map(str::trim);
        word.filter(|word| !word.is_empty()).unwrap_or(id).to_string()
    };
    let names: Vec<String> = ids.iter().map(first).collect();
    let mut uses: HashMap<&str, usize> = HashMap::new();
    names.iter().for_each(|name| *uses.entry(name).or_default() += 1);
    let words = names.iter().zip(ids).map(|(name, id)| match uses[name.as_str()] {
        1 => name.clone(),
        _ => format!("{name} ({id})"),
    });
    Ok(words.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dataset::tests::{names as listed, paint};

    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(root.path().join(name), text).unwrap();
        for (level, picture) in
            ["train/n02/images/n02_0.JPEG", "train/n01/images/n01_0.JPEG", "train/n03/images/n03_0.JPEG"]
                .into_iter()
                .chain(["val/images/val_0.JPEG", "val/images/val_1.JPEG", "test/images/test_0.JPEG"])
                .enumerate()
        {
            paint(&root.path().join(picture), level as u8);
        }
        write("wnids.txt", "n02\nn01\nn03\n");
        write("words.txt", "n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane, bird\nn04\tother\n");
        write("val/val_annotations.txt", "val_0.JPEG\tn03\t0\t32\t44\t62\nval_1.JPEG\tn01\t0\t0\t1\t1\n");
        root
    }

    #[test]
    fn labels_are_in_the_order_of_the_identifiers_and_classes_are_words() {
        let root = root();
        assert!(is_here(root.path()));
        let part = |part| open(root.path(), part).unwrap().only(part);
        assert_eq!(part(Part::Train).classes(), ["goldfish", "crane (n02)", "crane (n03)"]);
        let train = ["train/n01/images/n01_0.JPEG 0", "train/n02/images/n02_0.JPEG 1", "train/n03/images/n03_0.JPEG 2"];
        let test = ["val/images/val_0.JPEG 2", "val/images/val_1.JPEG 0"];
        assert_eq!(listed(root.path(), &*part(Part::Train)), train);
        assert_eq!(listed(root.path(), &*part(Part::Test)), test);
        assert_eq!(listed(root.path(), &*part(Part::All)), [&train[..], &test[..]].concat());
        assert!(part(Part::Test).picture(0).is_ok());
        std::fs::remove_file(root.path().join("words.txt")).unwrap();
        assert_eq!(part(Part::Train).classes(), ["n01", "n02", "n03"]);
    }

    #[test]
    fn a_hostile_file_is_named_with_its_reason() {
        for (file, text, reason) in [
            ("wnids.txt", "n01\n../..\n", "`../..` is not the name of a folder"),
            ("wnids.txt", "\n", "no classes in it"),
            ("val/val_annotations.txt", "val_0.JPEG\tn01\nval_1.JPEG\n", "line 2: not a file"),
            ("val/val_annotations.txt", "val_0.JPEG\tn09\n", "line 1: unknown class `n09`"),
            ("val/val_annotations.txt", "/etc/passwd\tn01\n", "line 1: `/etc/passwd` is not the name of a picture"),
        ] {
            let root = root();
            std::fs::write(root.path().join(file), text).unwrap();
            let error = open(root.path(), Part::All).err().unwrap().to_string();
            assert!(error.contains(file) && error.contains(reason), "{error}");
        }
    }
}
