//! COCO's JSON: `images`, `annotations` and `categories` in one file for each part.
//!
//! ```text
//! data/annotations/instances_train.json     data/train/_annotations.coco.json     boxes.json
//! data/train/1.jpg                          data/train/1.jpg                      1.jpg
//! ```
//!
//! Tolerates real files: ids with gaps or from 0 on, numbers as strings, no `area` (then that of the box), no `iscrowd`
//! (then 0), `file_name` with folders of another machine, `NaN` as written by Python. Masks are not read. Classes are in the
//! order of their ids; Roboflow's extra class that only groups the others is skipped.

use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, de::DeserializeOwned};
use std::collections::HashMap;
use std::fmt;
use std::io::{BufReader, Read as _};
use std::path::{Path, PathBuf};

use super::listing::{Folders, Issue, ListedPart, ListedPicture, part_of_name};
use super::{Annotation, Part};
use crate::data::dataset::entries;
use crate::{Error, file};

/// Maximum size of a file in bytes: that of COCO's training part has half a gigabyte.
const MOST_BYTES: u64 = 1 << 32;
/// Maximum size of a file that is repaired in memory, in bytes.
const MOST_REPAIRED: u64 = 1 << 29;
/// Number of bytes that are read to recognise a file.
const GLANCE: u64 = 1 << 16;
/// The most pixels of a side; a larger one is a wrong number.
const MOST_SIDE: f64 = 1e6;

pub fn is_here(path: &Path) -> bool {
    files(path).is_ok_and(|files| !files.is_empty())
}

/// The files of a source with their parts.
fn files(path: &Path) -> Result<Vec<(Option<Part>, PathBuf)>, Error> {
    if !path.is_dir() {
        return Ok(if is_coco(path) { vec![(None, path.into())] } else { Vec::new() });
    }
    let below = |folder: &Path| {
        let found = if folder.is_dir() { entries(folder)? } else { Vec::new() };
        let mut found: Vec<PathBuf> = found.into_iter().filter(|path| is_coco(path)).collect();
        // COCO also has captions and keypoints of the same pictures
        if found.iter().any(|path| name(path).starts_with("instances")) {
            found.retain(|path| name(path).starts_with("instances"));
        }
        Ok::<_, Error>(found)
    };
    for folder in [path.join("annotations"), path.into()] {
        let found = below(&folder)?;
        if !found.is_empty() {
            return Ok(found.into_iter().map(|path| (part_of_name(&name(&path)), path)).collect());
        }
    }
    let mut all = Vec::new();
    for folder in entries(path)?.into_iter().filter(|folder| folder.is_dir()) {
        if let Some(part) = part_of_name(&name(&folder)) {
            all.extend(below(&folder)?.into_iter().map(|path| (Some(part), path)));
        }
    }
    Ok(all)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().to_lowercase()
}

/// Whether a file begins like COCO's.
fn is_coco(path: &Path) -> bool {
    if !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json")) {
        return false;
    }
    let mut start = Vec::new();
    let Ok(opened) = file::open_regular(path) else { return false };
    if opened.take(GLANCE).read_to_end(&mut start).is_err() {
        return false;
    }
    let text = String::from_utf8_lossy(&start);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    // captions and questions about pictures begin alike
    let is_text =
        name(path).starts_with("captions") || ["\"sentences\"", "\"question_id\""].iter().any(|key| text.contains(key));
    !is_text
        && text.starts_with('{')
        && ["\"images\"", "\"annotations\"", "\"categories\""].iter().any(|key| text.contains(key))
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    let files = files(path)?;
    for (place, (part, file)) in files.iter().enumerate() {
        if let Some((_, other)) = files[..place].iter().find(|(other, _)| part.is_some() && other == part) {
            let reason = format!("both it and {} are for the same part", other.display());
            return Err(Error::file(file, reason));
        }
    }
    files.into_iter().map(|(part, file)| section(part, &file)).collect()
}

/// A number, or a string with one.
#[derive(Clone, Debug, Default)]
enum Number {
    #[default]
    Missing,
    Whole(u64),
    Real(f64),
    Wrong(Box<str>),
}

impl Number {
    fn id(&self) -> Result<u64, String> {
        match self {
            Self::Whole(id) => Ok(*id),
            Self::Missing => Err("is missing".into()),
            Self::Real(number) => Err(format!("must be a whole number, got {number}")),
            Self::Wrong(text) => Err(format!("must be a whole number, got `{text}`")),
        }
    }

    fn real(&self) -> f64 {
        match self {
            Self::Whole(number) => *number as f64,
            Self::Real(number) => *number,
            Self::Missing | Self::Wrong(_) => f64::NAN,
        }
    }

    fn side(&self) -> Option<usize> {
        Some(self.real()).filter(|side| (1.0..=MOST_SIDE).contains(side)).map(|side| side as usize)
    }

    fn is_set(&self) -> bool {
        self.real() != 0.0 && !self.real().is_nan()
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Number;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Number, E> {
                Ok(Number::Whole(u64::from(value)))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Number, E> {
                Ok(Number::Whole(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Number, E> {
                Ok(Number::Real(value as f64))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Number, E> {
                let is_whole = value >= 0.0 && value.fract() == 0.0 && value < (1u64 << 53) as f64;
                Ok(if is_whole { Number::Whole(value as u64) } else { Number::Real(value) })
            }
            fn visit_unit<E>(self) -> Result<Number, E> {
                Ok(Number::Missing)
            }
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Number, E> {
                let value = value.trim();
                match (value.parse(), value.parse::<f64>()) {
                    (Ok(whole), _) => Ok(Number::Whole(whole)),
                    (_, Ok(real)) => self.visit_f64(real),
                    _ => Ok(Number::Wrong(value.chars().take(60).collect::<String>().into())),
                }
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// Four numbers; further ones are only counted.
#[derive(Clone, Debug)]
struct Numbers {
    first: [f64; 4],
    count: usize,
}

impl<'de> Deserialize<'de> for Numbers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Numbers;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of four numbers")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Numbers, A::Error> {
                let mut numbers = Numbers { first: [f64::NAN; 4], count: 0 };
                while numbers.count < 4 {
                    let Some(number) = list.next_element::<Number>()? else { return Ok(numbers) };
                    numbers.first[numbers.count] = number.real();
                    numbers.count += 1;
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    numbers.count += 1;
                }
                Ok(numbers)
            }
        }
        deserializer.deserialize_seq(Read)
    }
}

#[derive(Deserialize)]
struct CocoFile {
    images: Option<Vec<CocoImage>>,
    #[serde(default)]
    annotations: Vec<CocoAnnotation>,
    #[serde(default)]
    categories: Vec<CocoCategory>,
}

#[derive(Deserialize)]
struct CocoImage {
    #[serde(default)]
    id: Number,
    file_name: Option<String>,
    #[serde(default)]
    width: Number,
    #[serde(default)]
    height: Number,
}

#[derive(Deserialize)]
struct CocoAnnotation {
    #[serde(default)]
    id: Number,
    #[serde(default)]
    image_id: Number,
    #[serde(default)]
    category_id: Number,
    bbox: Option<Numbers>,
    #[serde(default)]
    area: Number,
    #[serde(default)]
    iscrowd: Number,
    #[serde(default)]
    difficult: Number,
}

#[derive(Deserialize)]
struct CocoCategory {
    #[serde(default)]
    id: Number,
    name: Option<String>,
    supercategory: Option<String>,
}

/// Reads JSON without keeping its text; `NaN` and `Infinity`, which Python writes, become numbers that are missing.
fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let opened = file::open_regular(path)?;
    let length = opened.metadata().map_err(|error| Error::file(path, error))?.len();
    if length > MOST_BYTES {
        return Err(Error::file(path, format!("larger than {MOST_BYTES} bytes")));
    }
    let error = match serde_json::from_reader(BufReader::with_capacity(1 << 16, opened.take(MOST_BYTES))) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    if length <= MOST_REPAIRED {
        let mut bytes = file::read_bounded(path, MOST_REPAIRED)?;
        if repair(&mut bytes)
            && let Ok(value) = serde_json::from_slice(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes))
        {
            return Ok(value);
        }
    }
    Err(Error::file(path, format!("not COCO's JSON: {error}")))
}

/// Replaces numbers that JSON does not have; returns whether there were any.
fn repair(bytes: &mut [u8]) -> bool {
    let (mut at, mut in_text, mut changed) = (0, false, bytes.starts_with(b"\xef\xbb\xbf"));
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if in_text => at += 1,
            b'"' => in_text = !in_text,
            b'N' | b'I' | b'-' if !in_text => {
                for word in [&b"-Infinity"[..], b"Infinity", b"NaN"] {
                    if bytes[at..].starts_with(word) {
                        // any string that is not a number, of three letters
                        bytes[at..at + word.len()].fill(b' ');
                        bytes[at..at + 3].copy_from_slice(b"\"?\"");
                        (at, changed) = (at + word.len() - 1, true);
                        break;
                    }
                }
            }
            _ => {}
        }
        at += 1;
    }
    changed
}

/// Candidate folders of a file's pictures.
fn folders(file: &Path) -> Folders {
    let own = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above =
        own.parent().filter(|parent| !parent.as_os_str().is_empty()).map_or_else(|| own.join(".."), Path::to_path_buf);
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // `train2017` of `instances_train2017`
    let end = stem.rsplit('_').next().unwrap_or(&stem).to_string();
    let mut all = Vec::new();
    for root in [own, &above] {
        for name in [&end, &stem] {
            all.extend([root.join(name), root.join("images").join(name), root.join(name).join("images")]);
        }
        all.extend([root.to_path_buf(), root.join("images"), root.join("JPEGImages")]);
    }
    Folders::new(all)
}

fn section(part: Option<Part>, file: &Path) -> Result<ListedPart, Error> {
    let parsed: CocoFile = parse(file)?;
    let images = parsed.images.ok_or_else(|| Error::file(file, "`images` is missing"))?;
    let place = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut section = ListedPart { part, place, ..ListedPart::default() };
    let classes = classes(file, &parsed.categories, &parsed.annotations, &mut section);
    let mut folders = folders(file);
    let mut by_id: HashMap<u64, usize> = HashMap::with_capacity(images.len());
    for (number, image) in images.into_iter().enumerate() {
        let wrong = |reason: String| Issue::error(file, format!("image {number} of `images`"), reason);
        let id = match image.id.id() {
            Ok(id) => id,
            Err(reason) => {
                section.issues.push(wrong(format!("`id` {reason}")));
                continue;
            }
        };
        let Some(name) = image.file_name.filter(|name| !name.is_empty()) else {
            section.issues.push(Issue::error(file, format!("image {id}"), "`file_name` is missing"));
            continue;
        };
        if by_id.contains_key(&id) {
            section.issues.push(Issue::error(file, format!("image {id}"), "`id` is that of two images"));
            continue;
        }
        by_id.insert(id, section.entries.len());
        let path = folders.find(&name);
        section.check_present(file, || format!("image {id}"), "file_name", &name, &path);
        let size = image.height.side().zip(image.width.side()).map(|(rows, columns)| [rows, columns]);
        section.entries.push(ListedPicture { path, id, size, annotations: Vec::new(), relative: false });
    }
    // ids of annotations are for messages: missing ones are numbered consecutively
    let mut next = parsed.annotations.iter().filter_map(|one| one.id.id().ok()).max().unwrap_or(0);
    for annotation in parsed.annotations {
        let id = annotation.id.id().unwrap_or_else(|_| {
            next = next.saturating_add(1);
            next
        });
        let place = || format!("annotation {id}");
        let picture = annotation.image_id.id().map_err(|reason| format!("`image_id` {reason}")).and_then(|image| {
            by_id.get(&image).copied().ok_or_else(|| format!("`image_id`: there is no image {image}"))
        });
        let class = annotation.category_id.id().map_err(|reason| format!("`category_id` {reason}")).and_then(|class| {
            classes.get(&class).copied().ok_or_else(|| format!("`category_id`: there is no category {class}"))
        });
        let (picture, class) = match (picture, class) {
            (Ok(picture), Ok(class)) => (picture, class),
            (Err(reason), _) | (_, Err(reason)) => {
                section.issues.push(Issue::error(file, place(), reason));
                continue;
            }
        };
        let Some(bounds) = annotation.bbox.filter(|numbers| numbers.count == 4).map(|numbers| numbers.first) else {
            section.issues.push(Issue::error(file, place(), "`bbox` must be four numbers"));
            continue;
        };
        if !section.check_bounds(file, place, "bbox", bounds) {
            continue;
        }
        let area = Some(annotation.area.real()).filter(|area| area.is_finite()).unwrap_or(bounds[2] * bounds[3]);
        let (crowd, difficult) = (annotation.iscrowd.is_set(), annotation.difficult.is_set());
        section.entries[picture].annotations.push(Annotation { id, class, bounds, area, crowd, difficult });
    }
    Ok(section)
}

/// The class of each id; names go to the section in the order of ids.
fn classes(
    file: &Path,
    categories: &[CocoCategory],
    annotations: &[CocoAnnotation],
    section: &mut ListedPart,
) -> HashMap<u64, usize> {
    let mut known: Vec<(u64, &CocoCategory)> = Vec::new();
    for (number, category) in categories.iter().enumerate() {
        match category.id.id() {
            Ok(id) => known.push((id, category)),
            Err(reason) => section.issues.push(Issue::error(
                file,
                format!("category {number} of `categories`"),
                format!("`id` {reason}"),
            )),
        }
    }
    known.sort_by_key(|(id, _)| *id);
    let is_used = |id: u64| annotations.iter().any(|one| one.category_id.id() == Ok(id));
    let mut classes = HashMap::new();
    for (id, category) in &known {
        let Some(name) = category.name.as_ref().filter(|name| !name.trim().is_empty()) else {
            section.issues.push(Issue::error(file, format!("category {id}"), "`name` is missing"));
            continue;
        };
        let groups = |other: &CocoCategory| other.supercategory.as_ref() == Some(name);
        if *id == 0 && known.iter().any(|(other, category)| *other != 0 && groups(category)) && !is_used(0) {
            let reason = format!("`{name}` only groups the others, as Roboflow writes it, and is left out");
            section.issues.push(Issue::warning(file, "category 0", reason));
            continue;
        }
        if classes.contains_key(id) {
            section.issues.push(Issue::error(file, format!("category {id}"), "`id` is that of two categories"));
            continue;
        }
        let class = section.classes.iter().position(|known| known == name).unwrap_or_else(|| {
            section.classes.push(name.clone());
            section.classes.len() - 1
        });
        classes.insert(*id, class);
    }
    classes
}
