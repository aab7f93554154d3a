//! A CSV table of pictures: `file,label` or `file,label,part`, with a heading or not.
//!
//! Paths are relative to the table. Labels are numbers, or names in alphabetical order; `classes.txt` next to the
//! table, one name per line, sets another order, or names for numbers.
//!
//! A part is `train`, `test`, or one of `validation`, `val`, `valid` and `dev`. As for folders, `val` without `test` is the
//! test part, and a missing validation part is a tenth of train; without parts a fifth of every class is the test part.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{LabelledFile, PictureFiles, is_picture};
use super::split::{draw, path_below, split_files, tenth};
use super::{Opened, Origin, Origins, Part, bytes};
use crate::Error;
use crate::data::labels;

const FILES: [&str; 6] = ["file", "filename", "file_name", "path", "image", "picture"];
const LABELS: [&str; 4] = ["label", "class", "category", "target"];
const PARTS: [&str; 3] = ["part", "split", "set"];

/// Larger numbers are not labels.
const MOST_CLASSES: usize = 100_000;

/// One line of the table.
struct ManifestRow {
    line: u64,
    file: String,
    label: String,
    part: Option<Part>,
    /// The part as written in the table.
    part_name: Option<String>,
}

pub fn is_here(path: &Path) -> bool {
    table(path).is_file()
}

/// The table in a folder, or the table itself.
fn table(path: &Path) -> PathBuf {
    let is_table = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv")) && !path.is_dir();
    if is_table { path.into() } else { path.join("labels.csv") }
}

pub fn open(path: &Path, _: Part) -> Result<Opened, Error> {
    let table = table(path);
    let folder = table.parent().unwrap_or(Path::new(""));
    let rows = rows(&table)?;
    if rows.is_empty() {
        return Err(Error::file(&table, "no pictures in it"));
    }
    let classes = classes(folder, &rows)?;
    let by_name: HashMap<&str, usize> =
        classes.iter().enumerate().map(|(class, name)| (name.as_str(), class)).collect();
    let mut samples = Vec::with_capacity(rows.len());
    for row in &rows {
        // names first: `7` may be a name
        let name = by_name.get(row.label.as_str()).copied();
        let label = name.or_else(|| row.label.parse().ok().filter(|class| *class < classes.len()));
        let label = label.ok_or_else(|| {
            let reason = format!("line {}: unknown label `{}`, of {} classes", row.line, row.label, classes.len());
            Error::file(&table, reason)
        })?;
        samples.push(LabelledFile { path: folder.join(&row.file), label });
    }
    if rows.iter().all(|row| row.part.is_none()) {
        let parts = split_files(folder, &samples);
        return Ok(Opened { dataset: Arc::new(PictureFiles { classes, samples }), parts });
    }
    if let Some(row) = rows.iter().find(|row| row.part.is_none()) {
        return Err(Error::file(&table, format!("line {}: no part, where other lines have one", row.line)));
    }
    // the training pictures first
    let mut all: Vec<(Part, LabelledFile)> = rows.iter().filter_map(|row| row.part).zip(samples).collect();
    all.sort_by_key(|(part, _)| [Part::Train, Part::Validation, Part::Test].iter().position(|one| one == part));
    let (mut parts, samples): (Vec<Part>, Vec<LabelledFile>) = all.into_iter().unzip();
    if !parts.contains(&Part::Test) {
        parts.iter_mut().filter(|part| **part == Part::Validation).for_each(|part| *part = Part::Test);
    }
    if !parts.contains(&Part::Validation) {
        let label = |index: usize| samples[index].label;
        draw(&mut parts, Part::Validation, tenth, label, |index| path_below(folder, &samples[index]));
    }
    Ok(Opened { dataset: Arc::new(PictureFiles { classes, samples }), parts })
}

pub fn origins(path: &Path) -> Result<Origins, Error> {
    let rows = rows(&table(path))?;
    let own = |part: Part| {
        let name = rows.iter().find(|row| row.part == Some(part))?.part_name.as_ref()?;
        Some(Origin::Own(format!("rows of `{name}`")))
    };
    let (validation, test) = (own(Part::Validation), own(Part::Test));
    if rows.iter().all(|row| row.part.is_none()) {
        return Ok(Origins { validation: Origin::TenthOfTrain, test: Origin::Fifth });
    }
    Ok(match (validation, test) {
        (validation, Some(test)) => Origins { validation: validation.unwrap_or(Origin::TenthOfTrain), test },
        (test, None) => Origins { validation: Origin::TenthOfTrain, test: test.unwrap_or(Origin::None) },
    })
}

fn rows(table: &Path) -> Result<Vec<ManifestRow>, Error> {
    let text = bytes::text(table)?;
    let mut reader =
        csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    // file, label, part
    let mut columns = [Some(0), Some(1), Some(2)];
    let mut rows = Vec::new();
    for (number, record) in reader.records().enumerate() {
        let record = record.map_err(|error| Error::file(table, error))?;
        if number == 0
            && let Some(named) = heading(&record)
        {
            columns = named;
            continue;
        }
        let line = record.position().map_or(0, csv::Position::line);
        let wrong = |reason: String| Error::file(table, format!("line {line}: {reason}"));
        let cell = |column: Option<usize>| column.and_then(|column| record.get(column)).filter(|cell| !cell.is_empty());
        let (Some(file), Some(label)) = (cell(columns[0]), cell(columns[1])) else {
            return Err(wrong("not `file,label`".into()));
        };
        let part_name = cell(columns[2]);
        let part = part_name.map(|name| {
            parse_part(name).ok_or_else(|| wrong(format!("unknown part `{name}`; known: train, validation, val, test")))
        });
        let (file, label, part_name) = (file.into(), label.into(), part_name.map(String::from));
        rows.push(ManifestRow { line, file, label, part: part.transpose()?, part_name });
    }
    Ok(rows)
}

/// The columns of file, label and part according to the heading; `None` if the first line is not a heading.
fn heading(record: &csv::StringRecord) -> Option<[Option<usize>; 3]> {
    let column = |names: &[&str]| record.iter().position(|cell| names.contains(&cell.to_lowercase().as_str()));
    match (column(&FILES), column(&LABELS)) {
        (Some(file), Some(label)) => Some([Some(file), Some(label), column(&PARTS)]),
        // unknown headings: the usual order
        _ if !is_picture(Path::new(record.get(0)?)) => Some([Some(0), Some(1), Some(2)]),
        _ => None,
    }
}

fn parse_part(name: &str) -> Option<Part> {
    match name.to_lowercase().as_str() {
        "train" | "training" => Some(Part::Train),
        "val" | "valid" | "validation" | "dev" => Some(Part::Validation),
        "test" | "testing" => Some(Part::Test),
        _ => None,
    }
}

fn classes(folder: &Path, rows: &[ManifestRow]) -> Result<Vec<String>, Error> {
    let names = folder.join("classes.txt");
    if names.is_file() {
        return Ok(labels::read(&names)?.into_iter().filter(|name| !name.is_empty()).collect());
    }
    let numbers: Option<Vec<usize>> = rows.iter().map(|row| row.label.parse().ok()).collect();
    let most = numbers.and_then(|numbers| numbers.into_iter().max());
    Ok(match most {
        // a larger number has no class: its line is reported
        Some(most) => (0..=most.min(MOST_CLASSES - 1)).map(|number| number.to_string()).collect(),
        None => rows.iter().map(|row| row.label.clone()).collect::<BTreeSet<_>>().into_iter().collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::dataset::tests::names;

    fn opened(text: &str, part: Part) -> Result<(Vec<String>, Vec<String>), String> {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("labels.csv");
        std::fs::write(&table, text).unwrap();
        let dataset = open(folder.path(), part).map_err(|error| error.to_string())?.only(part);
        assert_eq!(names(folder.path(), &*dataset), names(folder.path(), &*open(&table, part).unwrap().only(part)));
        Ok((names(folder.path(), &*dataset), dataset.classes().to_vec()))
    }

    #[test]
    fn labels_are_numbers_or_names_with_a_heading_or_without() {
        for heading in ["", "file,label\n", "File, Class\n", "photo,what it is\n", "\u{feff}file,label\n"] {
            let (names, classes) = opened(&format!("{heading}a.png, 2\nb/c.jpg,0\n\n"), Part::All).unwrap();
            assert_eq!((names, classes.len()), (vec!["a.png 2".to_string(), "b/c.jpg 0".into()], 3), "{heading}");
            let (names, classes) = opened(&format!("{heading}a.png,rose\n\"b,c.jpg\",elm"), Part::All).unwrap();
            assert_eq!(names, ["a.png 1", "b,c.jpg 0"]);
            assert_eq!(classes, ["elm", "rose"]);
        }
    }

    #[test]
    fn a_number_among_names_is_a_name() {
        let (names, classes) = opened("a.png,cat\nb.png,1\nc.png,2\n", Part::All).unwrap();
        assert_eq!(
            (names, classes),
            (
                vec!["a.png 2".to_string(), "b.png 0".into(), "c.png 1".into()],
                vec!["1".into(), "2".into(), "cat".into()]
            )
        );
    }

    #[test]
    fn columns_are_found_by_their_names() {
        let text = "id,label,split,path\n1,x,val,a.png\n2,y,train,b.png\n";
        assert_eq!(opened(text, Part::Train).unwrap().0, ["b.png 1"]);
        assert_eq!(opened(text, Part::Test).unwrap().0, ["a.png 0"]);
        assert_eq!(opened(text, Part::All).unwrap().0, ["b.png 1", "a.png 0"]);
    }

    #[test]
    fn without_parts_a_fifth_is_the_test_and_a_tenth_of_the_rest_validation() {
        let text = (0..20).map(|i| format!("{i}.png,{}", i % 2)).collect::<Vec<_>>().join("\n");
        let counts = [Part::Train, Part::Validation, Part::Test].map(|part| opened(&text, part).unwrap().0.len());
        assert_eq!(counts, [14, 2, 4]);
    }

    #[test]
    fn every_part_of_a_table_is_itself_and_what_is_missing_is_drawn_from_train() {
        let origins = |text: &str| {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("labels.csv"), text).unwrap();
            let Origins { validation, test } = origins(folder.path()).unwrap();
            [validation.to_string(), test.to_string()]
        };
        let train = (0..20).map(|i| format!("{i}.png,0,train\n")).collect::<Vec<_>>().concat();
        for validation in ["validation", "val", "Valid", "dev"] {
            let three = format!("{train}v.png,0,{validation}\nt.png,0,test\n");
            assert_eq!(opened(&three, Part::Validation).unwrap().0, ["v.png 0"]);
            assert_eq!(opened(&three, Part::Test).unwrap().0, ["t.png 0"]);
            assert_eq!(opened(&three, Part::Train).unwrap().0.len(), 20);
            assert_eq!(origins(&three), [format!("rows of `{validation}`"), "rows of `test`".into()]);
            // as in ImageNet
            let two = format!("{train}v.png,0,{validation}\n");
            assert_eq!(opened(&two, Part::Test).unwrap().0, ["v.png 0"]);
            assert_eq!(opened(&two, Part::Validation).unwrap().0.len(), 2);
            assert_eq!(origins(&two), ["a tenth of train".into(), format!("rows of `{validation}`")]);
        }
        let other = format!("{train}t.png,0,test\n");
        assert_eq!(opened(&other, Part::Train).unwrap().0.len(), 18);
        assert_eq!(origins(&other), ["a tenth of train", "rows of `test`"]);
        assert_eq!(origins(&train), ["a tenth of train", "none"]);
    }

    #[test]
    fn names_of_classes_come_from_the_file_beside() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("labels.csv"), "a.png,1\nb.png,zoo\n").unwrap();
        std::fs::write(folder.path().join("classes.txt"), "zoo\nbar\n").unwrap();
        let dataset = open(folder.path(), Part::All).unwrap().dataset;
        assert_eq!(dataset.classes(), ["zoo", "bar"]);
        assert_eq!(names(folder.path(), &*dataset), ["a.png 1", "b.png 0"]);
    }

    #[test]
    fn a_bad_line_is_named_with_its_reason() {
        for (text, reason) in [
            ("a.png,1\nb.png\n", "labels.csv: line 2: not `file,label`"),
            ("a.png,1,train\nb.png,1,exam\n", "labels.csv: line 2: unknown part `exam`"),
            ("a.png,1,train\nb.png,1\n", "labels.csv: line 2: no part"),
            ("a.png,1\nb.png,99999999999\n", "labels.csv: line 2: unknown label `99999999999`"),
            ("", "labels.csv: no pictures"),
            ("file,label\n", "labels.csv: no pictures"),
        ] {
            let error = opened(text, Part::All).unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("labels.csv"), [b'a', 0xff, b',']).unwrap();
        assert!(open(folder.path(), Part::All).err().unwrap().to_string().contains("labels.csv: not a text"));
    }
}
