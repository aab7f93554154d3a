//! Lists of clips in text files: a file for each part (`train.csv`, `val.csv`, `test.csv`, also `.txt`), or one for all.
//!
//! | first line | meaning |
//! |---|---|
//! | `label,youtube_id,time_start,time_end,split` | Kinetics as published; files `<id>_<6 digits>_<6 digits>.mp4` |
//! | `path,label` or `path,label,part`, by these or similar names | a CSV table with a heading |
//! | `clips/a 1.mp4,wave` | the same without a heading; also with `;` or a tab between |
//! | `folder;wave;3` | a folder of frames, a class, and its number |
//! | `clips/a 1.mp4 7` | `PySlowFast`: the label is what follows the last space, so that paths may have spaces |
//!
//! `classes.txt`, `labels.txt` or `classnames.txt` beside the list gives names to numbers, a name a line.

use std::path::{Path, PathBuf};

use super::places::Places;
use super::{ClipEntry, Contents, ListedPart, is_surely_a_clip};
use crate::data::Part;
use crate::data::dataset::entries;
use crate::data::detection::{Issue, part_of_name};
use crate::{Error, file};

const PATHS: [&str; 10] =
    ["path", "file", "filename", "file_name", "video", "video_path", "clip", "folder", "id", "video_id"];
const LABELS: [&str; 5] = ["label", "class", "category", "target", "template"];
const PARTS: [&str; 3] = ["part", "split", "set"];
/// Lists of all parts in a folder.
const FILES: [&str; 4] = ["clips.csv", "labels.csv", "annotations.csv", "clips.txt"];
const NAMES: [&str; 3] = ["classes.txt", "labels.txt", "classnames.txt"];

/// How the lines of a list are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Kinetics {
        label: usize,
        id: usize,
        start: usize,
        end: usize,
        split: Option<usize>,
    },
    /// Fields between delimiters; the heading is a line of the file or not.
    Columns {
        delimiter: u8,
        path: usize,
        label: usize,
        part: Option<usize>,
        has_heading: bool,
    },
    LastSpace,
}

impl Dialect {
    fn of(line: &str) -> Self {
        let delimiter = [b',', b';', b'\t'].into_iter().find(|delimiter| line.as_bytes().contains(delimiter));
        let Some(delimiter) = delimiter else { return Self::LastSpace };
        let fields: Vec<String> =
            line.split(char::from(delimiter)).map(|field| field.trim().trim_matches('"').to_lowercase()).collect();
        let column = |names: &[&str]| fields.iter().position(|field| names.contains(&field.as_str()));
        let split = column(&PARTS);
        if let (Some(id), Some(start), Some(end), Some(label)) =
            (column(&["youtube_id"]), column(&["time_start"]), column(&["time_end"]), column(&["label"]))
        {
            return Self::Kinetics { label, id, start, end, split };
        }
        if let (Some(path), Some(label)) = (column(&PATHS), column(&LABELS)) {
            return Self::Columns { delimiter, path, label, part: split, has_heading: true };
        }
        let part = fields.get(2).filter(|field| part_of_name(field).is_some()).map(|_| 2);
        Self::Columns { delimiter, path: 0, label: 1, part, has_heading: false }
    }

    const fn has_heading(self) -> bool {
        matches!(self, Self::Kinetics { .. } | Self::Columns { has_heading: true, .. })
    }

    /// Path, label and part of a line; an error says what is missing.
    fn row(self, line: &str) -> Result<(String, String, Option<Part>), String> {
        let fields = |delimiter: u8| {
            let mut reader = csv::ReaderBuilder::new()
                .has_headers(false)
                .delimiter(delimiter)
                .trim(csv::Trim::All)
                .from_reader(line.as_bytes());
            reader.records().next().and_then(Result::ok).unwrap_or_default()
        };
        let part_of = |name: Option<&str>| match name.filter(|name| !name.is_empty()) {
            Some(name) => part_of_name(name)
                .map(Some)
                .ok_or_else(|| format!("`part` must be train, validation or test, got `{name}`")),
            None => Ok(None),
        };
        let (path, label, part) = match self {
            Self::LastSpace => {
                let (path, label) = line.trim().rsplit_once(char::is_whitespace).unwrap_or((line, ""));
                (path.trim().to_string(), label.to_string(), None)
            }
            Self::Columns { delimiter, path, label, part, .. } => {
                let fields = fields(delimiter);
                let field = |place: usize| fields.get(place).unwrap_or("").to_string();
                (field(path), field(label), part_of(part.and_then(|part| fields.get(part)))?)
            }
            Self::Kinetics { label, id, start, end, split } => {
                let fields = fields(b',');
                let second = |place: usize, name: &str| {
                    let text = fields.get(place).unwrap_or("");
                    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..1e6).contains(seconds));
                    seconds
                        .map(|seconds| seconds as u32)
                        .ok_or_else(|| format!("`{name}` must be seconds, got `{text}`"))
                };
                let (from, to) = (second(start, "time_start")?, second(end, "time_end")?);
                let id = fields.get(id).unwrap_or("");
                let path = if id.is_empty() { String::new() } else { format!("{id}_{from:06}_{to:06}") };
                (path, fields.get(label).unwrap_or("").to_string(), part_of(split.and_then(|split| fields.get(split)))?)
            }
        };
        match (path.is_empty(), label.is_empty()) {
            (true, _) => Err("`path` is missing".into()),
            (false, true) => Err("`label` is missing".into()),
            (false, false) => Ok((path, label, part)),
        }
    }
}

/// The lists of a source, each with its part.
fn lists(path: &Path) -> Vec<(Option<Part>, PathBuf)> {
    let is_list = |path: &Path| {
        path.extension().is_some_and(|ending| ["csv", "txt", "tsv"].iter().any(|own| ending.eq_ignore_ascii_case(own)))
    };
    if path.is_file() {
        return if is_list(path) { vec![(None, path.into())] } else { Vec::new() };
    }
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let part = |path: PathBuf| {
        let part = part_of_name(&stem(&path)).filter(|_| path.is_file() && is_list(&path))?;
        Some((Some(part), path))
    };
    let parts: Vec<_> = entries(path).unwrap_or_default().into_iter().filter_map(part).collect();
    if parts.iter().any(|(part, _)| *part == Some(Part::Train)) {
        return parts;
    }
    let whole = FILES.iter().map(|name| path.join(name)).find(|path| path.is_file());
    whole.into_iter().map(|path| (None, path)).collect()
}

/// Folders in which clips of a list may be.
fn places(root: &Path, list: &Path) -> Vec<PathBuf> {
    let beside = list.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut folders = Vec::new();
    for folder in [root, beside] {
        for name in ["", "videos", "clips", "frames", "train", "val", "validation", "test", "20bn-jester-v1"] {
            folders.push(folder.join(name));
        }
    }
    folders.push(PathBuf::from("/"));
    folders
}

pub fn is_here(path: &Path) -> bool {
    let Some((_, list)) = lists(path).into_iter().next() else { return false };
    let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let Ok(text) = file::read_text(&list) else { return false };
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let Some(first) = lines.next() else { return false };
    let dialect = Dialect::of(first);
    if let Dialect::Kinetics { .. } = dialect {
        return true;
    }
    let rows = std::iter::once(first).chain(lines).skip(usize::from(dialect.has_heading())).take(20);
    let mut places = Places::new(places(root, &list));
    // tables of pictures and of sentences look alike
    let mut found = rows.filter_map(|row| Some(places.find(&dialect.row(row).ok()?.0)));
    found.any(|found| found.is_ok_and(|path| is_surely_a_clip(&path) || path.is_dir()))
}

pub fn read(path: &Path) -> Result<Contents, Error> {
    let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let mut contents = Contents::default();
    for (own, list) in lists(path) {
        let text = file::read_text(&list)?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).peekable();
        let Some((_, first)) = lines.peek() else { continue };
        let dialect = Dialect::of(first);
        let mut places = Places::new(places(root, &list));
        let name = list.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut sections: Vec<ListedPart> = Vec::new();
        for (number, line) in lines.skip(usize::from(dialect.has_heading())) {
            let place = || format!("line {}", number + 1);
            let row = dialect.row(line).and_then(|(clip, class, part)| {
                let mut found = places.find(&clip);
                // Kinetics' clips may be in folders of their classes
                if found.is_err() && matches!(dialect, Dialect::Kinetics { .. }) {
                    found = places.find(&format!("{class}/{clip}")).or(found);
                }
                Ok((found?, class, part))
            });
            match row {
                Ok((path, class, part)) => {
                    let part = own.or(part);
                    let index = sections.iter().position(|section| section.part == part).unwrap_or_else(|| {
                        sections.push(ListedPart { part, place: name.clone(), entries: Vec::new() });
                        sections.len() - 1
                    });
                    sections[index].entries.push(ClipEntry::new(root, path, class));
                }
                Err(reason) => contents.issues.push(Issue::error(&list, place(), reason)),
            }
        }
        contents.sections.extend(sections);
        contents.classes = contents.classes.or(names(&list)?);
    }
    name_numbers(&mut contents);
    Ok(contents)
}

/// Names of numbers beside a list.
fn names(list: &Path) -> Result<Option<Vec<String>>, Error> {
    let beside = NAMES.iter().map(|name| list.with_file_name(name)).find(|path| path.is_file() && path != list);
    let Some(path) = beside else { return Ok(None) };
    let text = file::read_text(&path)?;
    Ok(Some(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect()))
}

/// Labels that are numbers become the names with these numbers, where there are names.
fn name_numbers(contents: &mut Contents) {
    let Some(classes) = &contents.classes else { return };
    for entry in contents.sections.iter_mut().flat_map(|section| &mut section.entries) {
        let named = entry.class.parse::<usize>().ok().and_then(|number| classes.get(number));
        if let Some(name) = named.filter(|_| !classes.contains(&entry.class)) {
            entry.class.clone_from(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(first: &str, line: &str) -> Result<Row, String> {
        Dialect::of(first).row(line)
    }

    type Row = (String, String, Option<Part>);

    fn right(path: &str, label: &str, part: Option<Part>) -> Row {
        (path.into(), label.into(), part)
    }

    #[test]
    fn lines_of_every_dialect_are_read() {
        let slow = "videos/a clip.mp4 7";
        assert_eq!(row(slow, slow), Ok(right("videos/a clip.mp4", "7", None)));
        let plain = "a.mp4,wave";
        assert_eq!(row(plain, plain), Ok(right("a.mp4", "wave", None)));
        assert_eq!(row("a;wave;3", "b 1;point;4"), Ok(right("b 1", "point", None)));
        assert_eq!(row("a.gif,wave,val", "b.gif,wave,train"), Ok(right("b.gif", "wave", Some(Part::Train))));
        let heading = "label,Path,split";
        assert_eq!(row(heading, "wave,\"a, b.mp4\",test"), Ok(right("a, b.mp4", "wave", Some(Part::Test))));
        let kinetics = "label,youtube_id,time_start,time_end,split,is_cc";
        let line = "\"playing, badly\",---QUuC4vJs,84,94,validate,0";
        assert!(row(kinetics, line).unwrap_err().contains("got `validate`"));
        let line = "archery,---QUuC4vJs,84,94,val,0";
        assert_eq!(row(kinetics, line), Ok(right("---QUuC4vJs_000084_000094", "archery", Some(Part::Validation))));
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(row("a.mp4,wave", "a.mp4,"), Err("`label` is missing".into()));
        assert_eq!(row("a.mp4,wave", ",wave"), Err("`path` is missing".into()));
        assert_eq!(row("a.mp4 1", "a.mp4"), Err("`label` is missing".into()));
        let error = row("label,youtube_id,time_start,time_end", "a,b,soon,9").unwrap_err();
        assert_eq!(error, "`time_start` must be seconds, got `soon`");
        let error = row("path,label,part", "a,b,some").unwrap_err();
        assert_eq!(error, "`part` must be train, validation or test, got `some`");
    }
}
