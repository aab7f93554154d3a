//! Plain tables: a CSV file with a heading, or a file of JSON lines, of `image,text` (captions) or `image,question,answer`; a column
//! `part` or `split` may say which part a line is.
//!
//! Pictures are relative to the table. Lines of the same image and question are answers of several people.

use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::answers::vqa_scores;
use super::listing::{ListedPart, PictureEntry, TextEntry};
use super::{TextKind, TextSample};
use crate::data::Part;
use crate::data::dataset::entries;
use crate::data::detection::{Folders, part_of_name};
use crate::{Error, file};

const MOST_BYTES: u64 = 1 << 29;
const IMAGES: [&str; 7] = ["image", "filename", "file_name", "file", "path", "image_path", "picture"];
const TEXTS: [&str; 4] = ["text", "caption", "sentence", "description"];
const PARTS: [&str; 3] = ["part", "split", "set"];

/// Where columns are, or which names the values of a line have.
#[derive(Clone, Debug)]
struct Columns {
    image: String,
    text: String,
    /// None for captions.
    answer: Option<String>,
    part: Option<String>,
}

impl Columns {
    fn of(names: &[String]) -> Option<Self> {
        let find =
            |known: &[&str]| names.iter().find(|name| known.contains(&name.trim().to_lowercase().as_str())).cloned();
        let (image, part) = (find(&IMAGES)?, find(&PARTS));
        if let Some((text, answer)) = find(&["question"]).zip(find(&["answer", "answers"])) {
            return Some(Self { image, text, answer: Some(answer), part });
        }
        Some(Self { image, text: find(&TEXTS)?, answer: None, part })
    }
}

pub fn is_here(path: &Path) -> bool {
    !files(path).is_empty()
}

fn ending(path: &Path) -> String {
    path.extension().unwrap_or_default().to_string_lossy().to_lowercase()
}

fn is_table(path: &Path) -> bool {
    if !matches!(ending(path).as_str(), "csv" | "jsonl" | "ndjson") {
        return false;
    }
    let Ok(opened) = file::open_regular(path) else { return false };
    let mut start = Vec::new();
    let is_read = std::io::Read::read_to_end(&mut std::io::Read::take(opened, 1 << 16), &mut start).is_ok();
    let text = String::from_utf8_lossy(&start).into_owned();
    let first = text.trim_start_matches('\u{feff}').lines().next().unwrap_or_default();
    is_read && columns_of(path, first).is_some()
}

fn columns_of(path: &Path, line: &str) -> Option<Columns> {
    if ending(path) == "csv" {
        let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(line.as_bytes());
        let record = reader.records().next()?.ok()?;
        return Columns::of(&record.iter().map(String::from).collect::<Vec<_>>());
    }
    let Ok(Value::Object(fields)) = serde_json::from_str(line) else { return None };
    Columns::of(&fields.keys().cloned().collect::<Vec<_>>())
}

fn files(path: &Path) -> Vec<(Option<Part>, PathBuf)> {
    if !path.is_dir() {
        return if is_table(path) { vec![(None, path.into())] } else { Vec::new() };
    }
    let tables = entries(path).unwrap_or_default().into_iter().filter(|file| is_table(file));
    let part = |file: &PathBuf| part_of_name(&file.file_stem().unwrap_or_default().to_string_lossy());
    tables.map(|file| (part(&file), file)).collect()
}

/// One line of a table.
struct Row {
    line: u64,
    image: String,
    text: String,
    answers: Vec<String>,
    part: Option<Part>,
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    let mut sections = Vec::new();
    for (part, table) in files(path) {
        let bytes = file::read_bounded(&table, MOST_BYTES)?;
        let text = String::from_utf8(bytes).map_err(|_| Error::file(&table, "not a text in UTF-8"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let columns = text.lines().next().and_then(|line| columns_of(&table, line));
        let columns = columns
            .ok_or_else(|| Error::file(&table, "line 1: no columns `image` and `text`, or `question` and `answer`"))?;
        let rows = if ending(&table) == "csv" {
            csv_rows(&table, text, &columns)?
        } else {
            json_rows(&table, text, &columns)?
        };
        sections.extend(tables_of(&table, part, &columns, rows));
    }
    Ok(sections)
}

fn csv_rows(table: &Path, text: &str, columns: &Columns) -> Result<Vec<Row>, Error> {
    let mut reader = csv::ReaderBuilder::new().flexible(true).trim(csv::Trim::All).from_reader(text.as_bytes());
    let wrong = |error: csv::Error| Error::file(table, error);
    let headings = reader.headers().map_err(wrong)?.clone();
    let place = |name: &String| headings.iter().position(|heading| heading == name.trim());
    let (image, text) = (place(&columns.image), place(&columns.text));
    let (answer, part) = (columns.answer.as_ref().and_then(place), columns.part.as_ref().and_then(place));
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(wrong)?;
        let cell = |column: Option<usize>| column.and_then(|column| record.get(column)).unwrap_or("").to_string();
        rows.push(Row {
            line: record.position().map_or(0, csv::Position::line),
            image: cell(image),
            text: cell(text),
            answers: Some(cell(answer)).filter(|answer| !answer.is_empty()).into_iter().collect(),
            part: part_of_name(&cell(part)),
        });
    }
    Ok(rows)
}

fn json_rows(table: &Path, text: &str, columns: &Columns) -> Result<Vec<Row>, Error> {
    let mut rows = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: String| Error::file(table, format!("line {}: {reason}", number + 1));
        let fields: Value = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let text = |name: &String| match &fields[name.as_str()] {
            Value::String(text) => Ok(text.clone()),
            Value::Number(number) => Ok(number.to_string()),
            Value::Bool(flag) => Ok(flag.to_string()),
            Value::Null => Ok(String::new()),
            _ => Err(wrong(format!("`{name}` must be a text"))),
        };
        let answers = match columns.answer.as_ref().map(|name| (name, &fields[name.as_str()])) {
            None => Vec::new(),
            Some((name, Value::Array(all))) => {
                let one = |value: &Value| value.as_str().map(String::from);
                let all: Option<Vec<String>> = all.iter().map(one).collect();
                all.ok_or_else(|| wrong(format!("`{name}` must be a list of texts")))?
            }
            Some((name, _)) => Some(text(name)?).filter(|answer| !answer.is_empty()).into_iter().collect(),
        };
        let part = columns.part.as_ref().map(&text).transpose()?.as_deref().and_then(part_of_name);
        rows.push(Row {
            line: number as u64 + 1,
            image: text(&columns.image)?,
            text: text(&columns.text)?,
            answers,
            part,
        });
    }
    Ok(rows)
}

/// Part, picture and question: which text, and what people said.
type Said = HashMap<(usize, usize, String), (usize, Vec<String>)>;

/// A section for each part that the lines of a table name.
fn tables_of(table: &Path, part: Option<Part>, columns: &Columns, rows: Vec<Row>) -> Vec<ListedPart> {
    let kind = if columns.answer.is_some() { TextKind::Questions } else { TextKind::Captions };
    let root = table.parent().unwrap_or(Path::new(""));
    let mut folders = Folders::new(vec![root.into(), root.join("images")]);
    let mut sections: Vec<ListedPart> = Vec::new();
    let mut pictures: HashMap<(usize, String), usize> = HashMap::new();
    let mut said = Said::new();
    for Row { line, image, text, answers, part: own } in rows {
        let (part, place) = (own.or(part), format!("line {line}"));
        let at = sections.iter().position(|section| section.part == part).unwrap_or_else(|| {
            sections.push(ListedPart::new(part, table, kind));
            sections.len() - 1
        });
        let section = &mut sections[at];
        if image.is_empty() {
            section.error(place, format!("`{}` is missing", columns.image));
            continue;
        }
        if !section.check_text(&place, &columns.text, &text) {
            continue;
        }
        if let Some(name) = columns.answer.as_ref().filter(|_| answers.is_empty()) {
            section.error(place, format!("`{name}` is missing"));
            continue;
        }
        let picture = *pictures.entry((at, image.clone())).or_insert_with(|| {
            let path = folders.find(&image);
            section.check_present(|| place.clone(), &columns.image, &image, &path);
            section.pictures.push(PictureEntry::new(path));
            section.pictures.len() - 1
        });
        let sample = TextSample { text: text.clone(), ..TextSample::default() };
        if kind == TextKind::Captions {
            section.texts.push(TextEntry { pictures: vec![picture], place, sample });
            continue;
        }
        let (_, people) = said.entry((at, picture, text)).or_insert_with(|| {
            section.texts.push(TextEntry { pictures: vec![picture], place, sample });
            (section.texts.len() - 1, Vec::new())
        });
        people.extend(answers);
    }
    for ((at, ..), (text, people)) in said {
        sections[at].texts[text].sample.answers = match &people[..] {
            [one] => vec![(one.clone(), 1.0)],
            many => vqa_scores(many.iter().map(String::as_str)),
        };
    }
    sections
}
