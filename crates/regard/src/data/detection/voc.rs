//! Pascal VOC's XML: one file for each picture.
//!
//! ```text
//! VOC2007/Annotations/000005.xml            data/train/1.xml
//! VOC2007/JPEGImages/000005.jpg             data/train/1.jpg
//! VOC2007/ImageSets/Main/train.txt          data/valid/2.xml
//! ```
//!
//! Pixels count from 1 and both corners are inside the box, so that it becomes `[xmin - 1, ymin - 1, xmax, ymax]` as in
//! detectron2. `filename` is often wrong: a picture with the name of the XML file comes first. Classes are in alphabetical
//! order, or in that of `classes.txt`. `<area>` and `<iscrowd>` are our own, written by [`super::convert`].

use quick_xml::events::Event;
use quick_xml::reader::Reader;
use rayon::prelude::*;
use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::listing::{Folders, Issue, ListedPart, ListedPicture, part_of_name};
use super::{Annotation, Part};
use crate::data::dataset::{entries, is_picture};
use crate::data::labels;
use crate::{Error, file};

/// The most bytes of a file.
const MOST_BYTES: u64 = 1 << 26;
/// Maximum nesting of elements.
const MOST_DEPTH: usize = 64;
/// The most pixels of a side; a larger one is a wrong number.
const MOST_SIDE: f64 = 1e6;

pub fn is_here(path: &Path) -> bool {
    path.is_dir() && folders(path).iter().any(|(_, folder)| !xml_files(folder).is_empty())
}

/// Candidate folders of XML files, with the part according to their names.
fn folders(root: &Path) -> Vec<(Option<Part>, PathBuf)> {
    if root.join("Annotations").is_dir() {
        return vec![(None, root.join("Annotations"))];
    }
    let mut found = vec![(None, root.to_path_buf())];
    for folder in entries(root).unwrap_or_default().into_iter().filter(|folder| folder.is_dir()) {
        let part = folder.file_name().and_then(|name| part_of_name(&name.to_string_lossy()));
        let annotations = folder.join("Annotations");
        found.extend(part.map(|part| (Some(part), if annotations.is_dir() { annotations } else { folder })));
    }
    found
}

fn is_xml(path: &Path) -> bool {
    path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("xml")) && path.is_file()
}

fn xml_files(folder: &Path) -> Vec<PathBuf> {
    entries(folder).unwrap_or_default().into_iter().filter(|path| is_xml(path)).collect()
}

pub fn read(root: &Path) -> Result<Vec<ListedPart>, Error> {
    let mut sections = Vec::new();
    for (part, folder) in folders(root) {
        let files = xml_files(&folder);
        if files.is_empty() {
            continue;
        }
        let parsed: Vec<(PathBuf, Result<Parsed, Error>)> =
            files.into_par_iter().map(|path| (path.clone(), parse(&path))).collect();
        let place = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        sections.push((ListedPart { part, place, ..ListedPart::default() }, folder, parsed));
    }
    let names = root.join("classes.txt");
    let classes: Vec<String> = if names.is_file() {
        labels::read(&names)?.into_iter().filter(|name| !name.is_empty()).collect()
    } else {
        let parsed = sections.iter().flat_map(|(_, _, parsed)| parsed).filter_map(|(_, parsed)| parsed.as_ref().ok());
        let named = parsed.flat_map(|parsed| &parsed.objects).map(|object| object.name.clone());
        named.filter(|name| !name.is_empty()).collect::<BTreeSet<_>>().into_iter().collect()
    };
    let mut next = 0;
    let mut filled = Vec::new();
    for (section, folder, parsed) in sections {
        filled.push(fill(section, root, &folder, parsed, &classes, &mut next));
    }
    match filled.len() {
        1 if filled[0].part.is_none() => by_image_sets(root, filled.remove(0)),
        _ => Ok(filled),
    }
}

/// The content of a file.
#[derive(Debug, Default)]
struct Parsed {
    file_name: String,
    /// Rows and columns.
    size: [f64; 2],
    objects: Vec<ParsedObject>,
}

#[derive(Debug)]
struct ParsedObject {
    name: String,
    /// `xmin`, `ymin`, `xmax` and `ymax`, or the text that is not a number.
    corners: [Result<f64, String>; 4],
    difficult: bool,
    crowd: bool,
    area: Option<f64>,
}

fn parse(path: &Path) -> Result<Parsed, Error> {
    let wrong = |reason: String| Error::file(path, reason);
    let bytes = file::read_bounded(path, MOST_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("not a text in UTF-8".into()))?;
    let mut reader = Reader::from_str(&text);
    let (mut parsed, mut names, mut content) = (Parsed::default(), Vec::<String>::new(), String::new());
    let mut is_annotation = false;
    loop {
        let event = reader.read_event().map_err(|error| {
            let line = 1 + text[..text.len().min(reader.error_position() as usize)].matches('\n').count();
            wrong(format!("line {line}: not XML: {error}"))
        })?;
        match event {
            Event::Start(start) => {
                if names.len() == MOST_DEPTH {
                    return Err(wrong(format!("more than {MOST_DEPTH} elements in each other")));
                }
                names.push(start.name().0.to_string());
                is_annotation |= names.len() == 1 && names[0] == "annotation";
                content.clear();
                if matches!(path_of(&names)[..], ["annotation", "object"]) {
                    let missing = || Err("missing".to_string());
                    let corners = [missing(), missing(), missing(), missing()];
                    let (name, difficult, crowd, area) = (String::new(), false, false, None);
                    parsed.objects.push(ParsedObject { name, corners, difficult, crowd, area });
                }
            }
            Event::Text(text) => content.push_str(&text),
            Event::CData(text) => content.push_str(&text),
            Event::GeneralRef(name) => {
                let reference = format!("&{};", &*name);
                content.push_str(&quick_xml::escape::unescape(&reference).map_err(|error| wrong(error.to_string()))?);
            }
            Event::End(_) => {
                parsed.take(&path_of(&names), content.trim());
                names.pop();
                content.clear();
            }
            Event::Eof if !names.is_empty() => return Err(wrong(format!("`{}` has no end", names.join("/")))),
            Event::Eof => break,
            _ => {}
        }
    }
    if is_annotation { Ok(parsed) } else { Err(wrong("no element `annotation`: not VOC's XML".into())) }
}

fn path_of(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).collect()
}

impl Parsed {
    /// The content of an element.
    fn take(&mut self, path: &[&str], text: &str) {
        let flag = |text: &str| !matches!(text, "" | "0" | "false" | "False" | "Unspecified");
        let number = |text: &str| text.parse::<f64>().map_err(|_| text.chars().take(60).collect::<String>());
        match (path, self.objects.last_mut()) {
            (["annotation", "filename"], _) => self.file_name = text.into(),
            (["annotation", "size", "height"], _) => self.size[0] = number(text).unwrap_or(0.0),
            (["annotation", "size", "width"], _) => self.size[1] = number(text).unwrap_or(0.0),
            (["annotation", "object", "name"], Some(object)) => object.name = text.into(),
            (["annotation", "object", "difficult"], Some(object)) => object.difficult = flag(text),
            (["annotation", "object", "iscrowd"], Some(object)) => object.crowd = flag(text),
            (["annotation", "object", "area"], Some(object)) => object.area = number(text).ok(),
            (["annotation", "object", "bndbox", side], Some(object)) => {
                if let Some(place) = ["xmin", "ymin", "xmax", "ymax"].iter().position(|name| name == side) {
                    object.corners[place] = number(text);
                }
            }
            _ => {}
        }
    }
}

/// Pictures with boxes from files; ids continue from `next`.
fn fill(
    mut section: ListedPart,
    root: &Path,
    folder: &Path,
    parsed: Vec<(PathBuf, Result<Parsed, Error>)>,
    classes: &[String],
    next: &mut u64,
) -> ListedPart {
    let by_name: HashMap<&str, usize> =
        classes.iter().enumerate().map(|(class, name)| (name.as_str(), class)).collect();
    section.classes = classes.to_vec();
    let above = folder.parent().unwrap_or(Path::new(".."));
    let near = ["JPEGImages", "images", "train", "val", "valid", "test"].map(|name| above.join(name));
    let near = [folder.to_path_buf(), root.to_path_buf()].into_iter().chain(near);
    let mut pictures = Pictures::new(near.collect());
    for (place, (path, parsed)) in parsed.into_iter().enumerate() {
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(error) => {
                let text = error.to_string();
                let reason = text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_string();
                section.issues.push(Issue::error(&path, "the file", reason));
                continue;
            }
        };
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let picture = pictures.find(&stem, &parsed.file_name);
        section.check_present(&path, || "annotation".into(), "filename", &parsed.file_name, &picture);
        let has_size = parsed.size.iter().all(|side| (1.0..=MOST_SIDE).contains(side));
        let mut annotations = Vec::with_capacity(parsed.objects.len());
        for (number, object) in parsed.objects.iter().enumerate() {
            let place = || format!("object {}", number + 1);
            let Some(&class) = by_name.get(object.name.as_str()) else {
                let reason = match object.name.as_str() {
                    "" => "`name` is missing".to_string(),
                    name => format!("`name`: `{name}` is not in classes.txt"),
                };
                section.issues.push(Issue::error(&path, place(), reason));
                continue;
            };
            let names = ["xmin", "ymin", "xmax", "ymax"];
            if let Some((name, Err(text))) = names.iter().zip(&object.corners).find(|(_, corner)| corner.is_err()) {
                section.issues.push(Issue::error(&path, place(), format!("`{name}` must be a number, got `{text}`")));
                continue;
            }
            let [x1, y1, x2, y2] = [0, 1, 2, 3].map(|side| *object.corners[side].as_ref().unwrap_or(&f64::NAN));
            let bounds = [x1 - 1.0, y1 - 1.0, x2 - (x1 - 1.0), y2 - (y1 - 1.0)];
            // equal corners are a click in an annotation tool, not an object of one pixel
            let drawn = if [x1, y1] == [x2, y2] { [bounds[0], bounds[1], 0.0, 0.0] } else { bounds };
            if section.check_bounds(&path, place, "bndbox", drawn) {
                *next += 1;
                let area = object.area.filter(|area| area.is_finite()).unwrap_or(bounds[2] * bounds[3]);
                let (crowd, difficult) = (object.crowd, object.difficult);
                annotations.push(Annotation { id: *next, class, bounds, area, crowd, difficult });
            }
        }
        let size = has_size.then(|| parsed.size.map(|side| side as usize));
        section.entries.push(ListedPicture { path: picture, id: place as u64 + 1, size, annotations, relative: false });
    }
    section
}

/// Pictures by their file names without extensions.
struct Pictures {
    by_stem: HashMap<String, PathBuf>,
    folders: Folders,
}

impl Pictures {
    fn new(folders: Vec<PathBuf>) -> Self {
        let mut by_stem = HashMap::new();
        for path in folders.iter().flat_map(|folder| entries(folder).unwrap_or_default()) {
            if is_picture(&path) {
                let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                by_stem.entry(stem).or_insert(path);
            }
        }
        Self { by_stem, folders: Folders::new(folders) }
    }

    fn find(&mut self, stem: &str, file_name: &str) -> PathBuf {
        self.by_stem.get(stem).cloned().unwrap_or_else(|| self.folders.find(file_name))
    }
}

/// The parts according to `ImageSets/Main/{train,val,test}.txt`.
fn by_image_sets(root: &Path, whole: ListedPart) -> Result<Vec<ListedPart>, Error> {
    let folder = root.join("ImageSets").join("Main");
    let list = |name: &str| {
        let path = folder.join(format!("{name}.txt"));
        if !path.is_file() {
            return Ok(None);
        }
        let text = file::read_text(&path)?;
        // some lists have a second column
        let names = text.lines().filter_map(|line| line.split_whitespace().next()).map(String::from);
        Ok::<_, Error>(Some((path.clone(), names.collect::<Vec<_>>())))
    };
    let (train, val, test) = (list("train")?, list("val")?, list("test")?);
    let train = if train.is_none() { list("trainval")? } else { train };
    let lists = [(Part::Train, train), (Part::Validation, val), (Part::Test, test)];
    let lists: Vec<(Part, (PathBuf, Vec<String>))> =
        lists.into_iter().filter_map(|(part, list)| Some((part, list?))).collect();
    if lists.is_empty() {
        return Ok(vec![whole]);
    }
    let stem = |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let mut by_stem: HashMap<String, ListedPicture> =
        whole.entries.into_iter().map(|entry| (stem(&entry.path), entry)).collect();
    let mut issues = whole.issues;
    let mut sections = Vec::new();
    for (part, (path, names)) in lists {
        let place = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let mut section =
            ListedPart { part: Some(part), place, classes: whole.classes.clone(), ..ListedPart::default() };
        for name in names {
            match by_stem.remove(&name) {
                Some(entry) => section.entries.push(entry),
                None => issues.push(Issue::error(&path, name, "no annotation of this name, or it is in two lists")),
            }
        }
        sections.push(section);
    }
    if !by_stem.is_empty() {
        let reason = format!("{} annotations are in no list and left out", by_stem.len());
        issues.push(Issue::warning(&folder, "lists", reason));
    }
    sections[0].issues = issues;
    Ok(sections)
}
