//! Parallel text: sentence pairs in a TSV file, or in two files with corresponding lines.
//!
//! A folder has a file per part: `train.tsv`, `dev.tsv` (or `valid.tsv`) and `test.tsv`, with a column per language; or
//! `train.en` and `train.it`, and so on.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, file};

/// Largest text file, in bytes.
const MOST_BYTES: u64 = 1 << 32;

/// A part of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TextPart {
    Train,
    Dev,
    Test,
}

impl TextPart {
    pub const ALL: [Self; 3] = [Self::Train, Self::Dev, Self::Test];

    /// File names of the part.
    pub(super) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::Train => &["train"],
            Self::Dev => &["dev", "valid", "val", "validation"],
            Self::Test => &["test"],
        }
    }
}

/// The languages of the data, and the direction of translation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Languages {
    /// Columns of a TSV file in order, or extensions of aligned files.
    pub columns: [String; 2],
    /// The source language.
    pub source: String,
}

impl Languages {
    /// The columns of source and target.
    ///
    /// # Errors
    /// When the source is not one of the columns.
    pub fn order(&self) -> Result<[usize; 2], Error> {
        let [first, second] = &self.columns;
        let place = self.columns.iter().position(|column| *column == self.source);
        let reason = || format!("`{}` is neither `{first}` nor `{second}`", self.source);
        place.map(|source| [source, 1 - source]).ok_or_else(|| Error::config("source", reason()))
    }

    /// The target language.
    pub fn target(&self) -> &str {
        let [first, second] = &self.columns;
        if *first == self.source { second } else { first }
    }
}

/// A sentence and its translation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SentencePair {
    pub source: String,
    pub target: String,
}

/// A sentence and all of its reference translations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Referenced {
    pub source: String,
    pub references: Vec<String>,
}

/// The pairs of a part, in the order of their file.
///
/// # Errors
/// When there is no such part, a line does not have two columns, or the files have different numbers of lines.
pub fn read(path: &Path, part: TextPart, languages: &Languages) -> Result<Vec<SentencePair>, Error> {
    let order = languages.order()?;
    let rows = match files(path, part, languages)? {
        Files::Columns(file) => columns(&file)?,
        Files::Aligned(files) => aligned(&files)?,
    };
    let pair = |row: [String; 2]| {
        let mut row = row.map(Some);
        let [source, target] = order.map(|column| row[column].take().unwrap_or_default());
        SentencePair { source, target }
    };
    let pairs: Vec<SentencePair> = rows.into_iter().map(pair).collect();
    if pairs.is_empty() {
        return Err(Error::file(path, format!("no sentence to {}", part.names()[0])));
    }
    Ok(pairs)
}

/// Whether a path has this part; a single file serves as every part.
pub fn has_part(path: &Path, part: TextPart, languages: &Languages) -> bool {
    files(path, part, languages).is_ok()
}

/// The two columns of parallel text: the extensions of aligned files, or `first` and `second` for a TSV file; none if the
/// path is something else.
pub fn columns_of(path: &Path) -> Option<[String; 2]> {
    let is_table = |path: &Path| path.extension().is_some_and(|ending| ending == "tsv");
    let unnamed = ["first".to_string(), "second".to_string()];
    if path.is_file() {
        return is_table(path).then_some(unnamed);
    }
    let train = TextPart::Train.names()[0];
    if path.join(format!("{train}.tsv")).is_file() {
        return Some(unnamed);
    }
    let entries = fs::read_dir(path).ok()?.flatten().map(|entry| entry.path());
    let train = entries.filter(|path| path.is_file() && path.file_stem().is_some_and(|stem| stem == train));
    let mut endings: Vec<String> =
        train.filter_map(|path| Some(path.extension()?.to_string_lossy().into_owned())).collect();
    endings.sort();
    endings.try_into().ok()
}

/// Groups pairs by source sentence, in the order of first appearance.
pub fn with_references(pairs: &[SentencePair]) -> Vec<Referenced> {
    let mut places: HashMap<&str, usize> = HashMap::new();
    let mut all: Vec<Referenced> = Vec::new();
    for SentencePair { source, target } in pairs {
        let place = *places.entry(source).or_insert_with(|| {
            all.push(Referenced { source: source.clone(), references: Vec::new() });
            all.len() - 1
        });
        if !all[place].references.contains(target) {
            all[place].references.push(target.clone());
        }
    }
    all
}

enum Files {
    Columns(PathBuf),
    Aligned([PathBuf; 2]),
}

fn files(path: &Path, part: TextPart, languages: &Languages) -> Result<Files, Error> {
    if path.is_file() {
        return Ok(Files::Columns(path.into()));
    }
    for name in part.names() {
        let table = path.join(format!("{name}.tsv"));
        if table.is_file() {
            return Ok(Files::Columns(table));
        }
        let files = languages.columns.each_ref().map(|ending| path.join(format!("{name}.{ending}")));
        if files.iter().all(|file| file.is_file()) {
            return Ok(Files::Aligned(files));
        }
    }
    let name = part.names()[0];
    let [first, second] = &languages.columns;
    let reason = if path.exists() {
        format!("neither {name}.tsv nor {name}.{first} and {name}.{second}")
    } else {
        "no such file or folder".to_string()
    };
    Err(Error::file(path, reason))
}

/// The text of a file; an error names the first line that is not UTF-8.
pub(super) fn text(path: &Path) -> Result<String, Error> {
    let bytes = file::read_bounded(path, MOST_BYTES)?;
    String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.split(|byte| *byte == b'\n').count();
        Error::file(path, format!("line {line} is not UTF-8"))
    })
}

fn columns(path: &Path) -> Result<Vec<[String; 2]>, Error> {
    let text = text(path)?;
    let row = |(number, line): (usize, &str)| {
        let parts: Vec<&str> = line.split('\t').collect();
        let [first, second] = parts[..] else {
            let reason = format!("line {} must have two columns, got {}", number + 1, parts.len());
            return Err(Error::file(path, reason));
        };
        Ok([first.trim().to_string(), second.trim().to_string()])
    };
    text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).map(row).collect()
}

fn aligned(paths: &[PathBuf; 2]) -> Result<Vec<[String; 2]>, Error> {
    let [first, second] = [text(&paths[0])?, text(&paths[1])?];
    let counts = [first.lines().count(), second.lines().count()];
    if counts[0] != counts[1] {
        let reason = format!("{} lines, and {} has {}", counts[0], paths[1].display(), counts[1]);
        return Err(Error::file(&paths[0], reason));
    }
    Ok(first.lines().zip(second.lines()).map(|(a, b)| [a.trim().to_string(), b.trim().to_string()]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn languages(source: &str) -> Languages {
        Languages { columns: ["en".into(), "it".into()], source: source.into() }
    }

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        folder
    }

    fn pair(source: &str, target: &str) -> SentencePair {
        SentencePair { source: source.into(), target: target.into() }
    }

    #[test]
    fn a_table_and_two_files_are_read_alike_in_either_direction() {
        let table = folder(&[("train.tsv", "\"I\" go\tVado\nGo!\tVai!\n")]);
        let files = folder(&[("train.en", "\"I\" go\nGo!\n"), ("train.it", "Vado\nVai!\n")]);
        for place in [&table, &files] {
            let read = |source: &str| read(place.path(), TextPart::Train, &languages(source)).unwrap();
            assert_eq!(read("it"), [pair("Vado", "\"I\" go"), pair("Vai!", "Go!")]);
            assert_eq!(read("en")[1], pair("Go!", "Vai!"));
        }
        assert_eq!(columns_of(table.path()), Some(["first".into(), "second".into()]));
        assert_eq!(columns_of(files.path()), Some(["en".into(), "it".into()]));
        assert_eq!(columns_of(files.path().join("none").as_path()), None);
    }

    #[test]
    fn translations_of_one_sentence_are_its_references() {
        let pairs = [pair("a", "1"), pair("b", "2"), pair("a", "3"), pair("a", "1")];
        let all = with_references(&pairs);
        assert_eq!(all.iter().map(|one| one.references.len()).collect::<Vec<_>>(), [2, 1]);
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_with_its_line() {
        let place = folder(&[("train.tsv", "a\tb\nc\n"), ("dev.en", "a\nb\n"), ("dev.it", "a\n")]);
        fs::write(place.path().join("test.tsv"), b"a\tb\n\xff\tc\n").unwrap();
        let error_of = |part| read(place.path(), part, &languages("it")).unwrap_err().to_string();
        assert!(error_of(TextPart::Train).contains("line 2 must have two columns, got 1"));
        assert!(error_of(TextPart::Dev).contains("2 lines"));
        assert!(error_of(TextPart::Test).contains("line 2 is not UTF-8"));
        let error = read(place.path(), TextPart::Train, &languages("de")).unwrap_err().to_string();
        assert_eq!(error, "`source`: `de` is neither `en` nor `it`");
        let error = read(&place.path().join("none"), TextPart::Train, &languages("it")).unwrap_err().to_string();
        assert!(error.contains("no such file or folder"), "{error}");
    }
}
