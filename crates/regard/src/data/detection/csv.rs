//! A CSV table with one line per box: `image,x1,y1,x2,y2,class`.
//!
//! With a heading, columns may have other names and any order, and may also be `width`, `height`, `area`, `iscrowd`,
//! `difficult` and `part`, as in TensorFlow's and our own tables. Without one, it is the format of keras-retinanet.
//! A line with an empty box is a picture without objects. Paths are relative to the table. Classes are in alphabetical
//! order, or in that of `classes.txt` (one name per line) or `classes.csv` (`name,number`) next to the table.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::listing::{Folders, Issue, ListedPart, ListedPicture, part_of_name};
use super::{Annotation, Part};
use crate::data::dataset::entries;
use crate::data::labels;
use crate::{Error, file};

const IMAGES: [&str; 8] = ["image", "filename", "file_name", "file", "path", "image_path", "img", "picture"];
const CORNERS: [[&str; 4]; 4] = [
    ["x1", "xmin", "x_min", "left"],
    ["y1", "ymin", "y_min", "top"],
    ["x2", "xmax", "x_max", "right"],
    ["y2", "ymax", "y_max", "bottom"],
];
const CLASSES: [&str; 5] = ["class", "label", "class_name", "category", "name"];
const PARTS: [&str; 3] = ["part", "split", "set"];
/// Tables in a folder.
const FILES: [&str; 4] = ["boxes.csv", "annotations.csv", "_annotations.csv", "labels.csv"];

/// The indices of the columns.
#[derive(Clone, Debug)]
struct Columns {
    image: usize,
    corners: [usize; 4],
    class: usize,
    /// `[height, width]`
    size: Option<[usize; 2]>,
    area: Option<usize>,
    crowd: Option<usize>,
    difficult: Option<usize>,
    part: Option<usize>,
    has_heading: bool,
}

impl Columns {
    /// From the first line of a table; `None` if it is not a table of boxes.
    fn of(record: &csv::StringRecord) -> Option<Self> {
        let column =
            |names: &[&str]| record.iter().position(|cell| names.contains(&cell.trim().to_lowercase().as_str()));
        let corners = CORNERS.map(|names| column(&names));
        if let ([Some(x1), Some(y1), Some(x2), Some(y2)], Some(image), Some(class)) =
            (corners, column(&IMAGES), column(&CLASSES))
        {
            return Some(Self {
                image,
                corners: [x1, y1, x2, y2],
                class,
                size: column(&["height"]).zip(column(&["width"])).map(|(rows, columns)| [rows, columns]),
                area: column(&["area"]),
                crowd: column(&["iscrowd", "crowd"]),
                difficult: column(&["difficult"]),
                part: column(&PARTS),
                has_heading: true,
            });
        }
        let is_number = |place: usize| record.get(place).is_some_and(|cell| cell.trim().parse::<f64>().is_ok());
        let is_empty = |place: usize| record.get(place).is_some_and(|cell| cell.trim().is_empty());
        let is_box = record.len() == 6 && ((1..5).all(is_number) || (1..6).all(is_empty));
        is_box.then_some(Self {
            image: 0,
            corners: [1, 2, 3, 4],
            class: 5,
            size: None,
            area: None,
            crowd: None,
            difficult: None,
            part: None,
            has_heading: false,
        })
    }
}

pub fn is_here(path: &Path) -> bool {
    tables(path).iter().any(|(_, table)| is_table(table))
}

/// The tables of a source with their parts.
fn tables(path: &Path) -> Vec<(Option<Part>, PathBuf)> {
    if !path.is_dir() {
        let is_csv = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
        return if is_csv { vec![(None, path.into())] } else { Vec::new() };
    }
    let first = |folder: &Path| FILES.iter().map(|name| folder.join(name)).find(|path| path.is_file());
    if let Some(table) = first(path) {
        return vec![(None, table)];
    }
    let part = |path: &Path| part_of_name(&path.file_stem().unwrap_or_default().to_string_lossy());
    let mut found = Vec::new();
    for entry in entries(path).unwrap_or_default() {
        let table = if entry.is_dir() { first(&entry) } else { Some(entry.clone()) };
        let table = table.filter(|table| table.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv")));
        found.extend(part(&entry).zip(table).map(|(part, table)| (Some(part), table)));
    }
    found
}

fn is_table(path: &Path) -> bool {
    let Ok(opened) = file::open_regular(path) else { return false };
    let mut start = Vec::new();
    let is_read = std::io::Read::read_to_end(&mut std::io::Read::take(opened, 1 << 14), &mut start).is_ok();
    let mut reader = reader(&start);
    is_read && reader.records().next().and_then(Result::ok).and_then(|record| Columns::of(&record)).is_some()
}

fn reader(bytes: &[u8]) -> csv::Reader<&[u8]> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    csv::ReaderBuilder::new().has_headers(false).flexible(true).trim(csv::Trim::All).from_reader(bytes)
}

/// One line of a table.
struct BoxRow {
    line: u64,
    image: String,
    /// `None` for a picture without objects.
    corners: Option<[f64; 4]>,
    class: String,
    size: Option<[usize; 2]>,
    area: Option<f64>,
    crowd: bool,
    difficult: bool,
    part: Option<Part>,
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let mut tables_read = Vec::new();
    for (part, table) in tables(path) {
        let mut issues = Vec::new();
        let rows = rows(&table, &mut issues)?;
        tables_read.push((part, table, rows, issues));
    }
    let named = tables_read.iter().flat_map(|(_, _, rows, _)| rows).filter(|row| row.corners.is_some());
    let classes = match given_classes(root)? {
        Some(classes) => classes,
        None => named.map(|row| row.class.clone()).collect::<BTreeSet<_>>().into_iter().collect(),
    };
    let mut next = 0;
    let mut sections = Vec::new();
    for (part, table, rows, issues) in tables_read {
        let parts: BTreeSet<Option<usize>> = rows.iter().map(|row| row.part.map(|part| part as usize)).collect();
        let first = sections.len();
        for own in parts {
            let rows: Vec<&BoxRow> = rows.iter().filter(|row| row.part.map(|part| part as usize) == own).collect();
            let row_part = rows.first().and_then(|row| row.part);
            sections.push(section(&table, part.or(row_part), &rows, &classes, &mut next));
        }
        if sections.len() == first {
            sections.push(section(&table, part, &[], &classes, &mut next));
        }
        sections[first].issues.splice(0..0, issues);
    }
    Ok(sections)
}

fn rows(table: &Path, issues: &mut Vec<Issue>) -> Result<Vec<BoxRow>, Error> {
    let text = file::read_text(table)?;
    let mut columns: Option<Columns> = None;
    let mut rows = Vec::new();
    for record in reader(text.as_bytes()).records() {
        let record = record.map_err(|error| Error::file(table, error))?;
        let line = record.position().map_or(0, csv::Position::line);
        if columns.is_none() {
            let wrong = || Error::file(table, format!("line {line}: must be `image,x1,y1,x2,y2,class`"));
            let found = Columns::of(&record).ok_or_else(wrong)?;
            let has_heading = found.has_heading;
            columns = Some(found);
            if has_heading {
                continue;
            }
        }
        let columns = columns.as_ref().expect("the first line has them");
        let cell = |column: usize| record.get(column).unwrap_or("");
        let mut wrong = |reason: String| issues.push(Issue::error(table, format!("line {line}"), reason));
        if cell(columns.image).is_empty() {
            wrong("`image` is missing".into());
            continue;
        }
        let is_empty = columns.corners.iter().all(|&column| cell(column).is_empty());
        let parsed: Vec<Result<f64, String>> = columns
            .corners
            .iter()
            .zip(["x1", "y1", "x2", "y2"])
            .map(|(&column, name)| {
                let text = cell(column);
                text.parse().map_err(|_| {
                    format!("`{name}` must be a number, got `{}`", text.chars().take(60).collect::<String>())
                })
            })
            .collect();
        let corners = match (is_empty, parsed.into_iter().collect::<Result<Vec<f64>, String>>()) {
            (true, _) => None,
            (false, Ok(corners)) => Some([corners[0], corners[1], corners[2], corners[3]]),
            (false, Err(reason)) => {
                wrong(reason);
                continue;
            }
        };
        if corners.is_some() && cell(columns.class).is_empty() {
            wrong("`class` is missing".into());
            continue;
        }
        let part_name = columns.part.map(cell).filter(|name| !name.is_empty());
        let part = part_name.and_then(part_of_name);
        if let (Some(name), None) = (part_name, part) {
            wrong(format!("`part` must be train, validation or test, got `{name}`"));
            continue;
        }
        let side = |column: usize| cell(column).parse::<f64>().ok().filter(|side| (1.0..=1e6).contains(side));
        let flag =
            |column: Option<usize>| column.is_some_and(|column| !matches!(cell(column), "" | "0" | "false" | "False"));
        rows.push(BoxRow {
            line,
            image: cell(columns.image).into(),
            corners,
            class: cell(columns.class).into(),
            size: columns.size.and_then(|[rows, columns]| Some([side(rows)? as usize, side(columns)? as usize])),
            area: columns.area.and_then(|column| cell(column).parse().ok()).filter(|area: &f64| area.is_finite()),
            crowd: flag(columns.crowd),
            difficult: flag(columns.difficult),
            part,
        });
    }
    Ok(rows)
}

fn given_classes(root: &Path) -> Result<Option<Vec<String>>, Error> {
    let (text, table) = (root.join("classes.txt"), root.join("classes.csv"));
    if text.is_file() {
        return Ok(Some(labels::read(&text)?.into_iter().filter(|name| !name.is_empty()).collect()));
    }
    if !table.is_file() {
        return Ok(None);
    }
    let content = file::read_text(&table)?;
    let mut named = Vec::new();
    for record in reader(content.as_bytes()).records() {
        let record = record.map_err(|error| Error::file(&table, error))?;
        let number = record.get(1).and_then(|cell| cell.parse::<usize>().ok());
        let line = record.position().map_or(0, csv::Position::line);
        match (record.get(0), number) {
            (Some(name), Some(number)) => named.push((number, name.to_string())),
            // a heading
            _ if line <= 1 => {}
            _ => return Err(Error::file(&table, format!("line {line}: must be `name,number`"))),
        }
    }
    named.sort();
    Ok(Some(named.into_iter().map(|(_, name)| name).collect()))
}

fn section(table: &Path, part: Option<Part>, rows: &[&BoxRow], classes: &[String], next: &mut u64) -> ListedPart {
    let by_name: HashMap<&str, usize> =
        classes.iter().enumerate().map(|(class, name)| (name.as_str(), class)).collect();
    let own = table.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let stem = table.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut folders = Folders::new(vec![own.into(), own.join("images"), own.join(stem), own.join("..").join("images")]);
    let place = table.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut section = ListedPart { part, place, classes: classes.to_vec(), ..ListedPart::default() };
    let mut by_image: HashMap<&str, usize> = HashMap::new();
    for row in rows {
        let place = || format!("line {}", row.line);
        let entry = *by_image.entry(row.image.as_str()).or_insert_with(|| {
            let path = folders.find(&row.image);
            section.check_present(table, place, "image", &row.image, &path);
            let id = section.entries.len() as u64 + 1;
            section.entries.push(ListedPicture { path, id, size: row.size, annotations: Vec::new(), relative: false });
            section.entries.len() - 1
        });
        let Some([x1, y1, x2, y2]) = row.corners else { continue };
        let Some(&class) = by_name.get(row.class.as_str()) else {
            let reason = format!("`class`: `{}` is not in the list of classes", row.class);
            section.issues.push(Issue::error(table, place(), reason));
            continue;
        };
        let bounds = [x1, y1, x2 - x1, y2 - y1];
        if section.check_bounds(table, place, "x1,y1,x2,y2", bounds) {
            *next += 1;
            let area = row.area.unwrap_or(bounds[2] * bounds[3]);
            let (crowd, difficult) = (row.crowd, row.difficult);
            let annotation = Annotation { id: *next, class, bounds, area, crowd, difficult };
            section.entries[entry].annotations.push(annotation);
        }
    }
    section
}
