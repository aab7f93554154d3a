//! NLVR (one drawn picture with three boxes of shapes; Suhr et al. 2017) and NLVR2 (two photographs; Suhr et al. 2019,
//! arXiv:1811.00491): a line of JSON for each statement.
//!
//! Of NLVR, a line is one statement with six pictures (`dev-<identifier>-0.png` to `-5.png`: the three boxes in every order) or,
//! with `image`, one of them. `structured_rep` lists what is in the boxes of the first; in which order another picture has
//! them is found by its colours, so that all pictures have exact boxes.

use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::listing::{ListedPart, PictureBoxes, PictureEntry, TextEntry};
use super::vqa::glance;
use super::{GivenBox, TextKind, TextSample};
use crate::data::dataset::entries;
use crate::data::detection::{Folders, part_of_name};
use crate::data::{Bounds, Part, Picture};
use crate::{Error, file};

const MOST_BYTES: u64 = 1 << 28;
/// Pictures of a statement, at most.
const PERMUTATIONS: usize = 6;

pub fn is_here(path: &Path) -> bool {
    !files(path).is_empty()
}

fn is_nlvr(path: &Path) -> bool {
    let Some(text) = glance(path, 1 << 14) else { return false };
    let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    line.starts_with('{') && ["sentence", "label", "identifier"].iter().all(|key| line.contains(&format!("\"{key}\"")))
}

fn files(path: &Path) -> Vec<(Option<Part>, PathBuf)> {
    if !path.is_dir() {
        return if is_nlvr(path) { vec![(None, path.into())] } else { Vec::new() };
    }
    let part = |path: &Path| part_of_name(&path.file_stem().unwrap_or_default().to_string_lossy());
    let own: Vec<PathBuf> = entries(path).unwrap_or_default();
    let here = own.iter().filter(|file| is_nlvr(file));
    let mut found: Vec<(Option<Part>, PathBuf)> = here.map(|file| (part(file), file.clone())).collect();
    for folder in own.iter().filter(|entry| entry.is_dir()) {
        let below = entries(folder).unwrap_or_default().into_iter().filter(|file| is_nlvr(file));
        found.extend(below.map(|file| (part(&file).or_else(|| part(folder)), file)));
    }
    found
}

#[derive(Deserialize)]
struct Line {
    sentence: String,
    label: Label,
    identifier: String,
    #[serde(default)]
    image: Option<String>,
    #[serde(default)]
    structured_rep: Option<Vec<Vec<Shape>>>,
    #[serde(default)]
    directory: Option<Text>,
    #[serde(default)]
    left_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Label {
    Flag(bool),
    Word(String),
}

/// Numbers are written as such or as strings.
#[derive(Deserialize)]
#[serde(untagged)]
enum Text {
    Word(String),
    Number(u64),
}

#[derive(Clone, Debug, Deserialize)]
struct Shape {
    x_loc: f64,
    y_loc: f64,
    size: f64,
    #[serde(rename = "type")]
    kind: String,
    color: String,
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    files(path).into_iter().map(|(part, file)| section(root, part, &file)).collect()
}

fn section(root: &Path, part: Option<Part>, path: &Path) -> Result<ListedPart, Error> {
    let bytes = file::read_bounded(path, MOST_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| Error::file(path, "not a text in UTF-8"))?;
    let mut section = ListedPart::new(part, path, TextKind::Statements);
    section.classes = classes();
    let own = path.parent().unwrap_or(root);
    let mut folders = Folders::new(vec![own.join("images"), own.into(), root.join("images"), root.into()]);
    let mut lines = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |error: serde_json::Error| Error::file(path, format!("line {}: {error}", number + 1));
        lines.push((number + 1, serde_json::from_str::<Line>(line).map_err(wrong)?));
    }
    // a line may leave out what another of the same statement has
    let drawn: HashMap<&str, &Vec<Vec<Shape>>> =
        lines.iter().filter_map(|(_, line)| Some((line.identifier.as_str(), line.structured_rep.as_ref()?))).collect();
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    for (number, line) in &lines {
        let place = format!("line {number}");
        let label = match &line.label {
            Label::Flag(flag) => Some(*flag),
            Label::Word(word) => word.to_lowercase().parse().ok(),
        };
        let Some(label) = label else {
            section.error(place, "`label` must be true or false");
            continue;
        };
        if !section.check_text(&place, "sentence", &line.sentence) {
            continue;
        }
        let sample = TextSample {
            text: line.sentence.trim().into(),
            answers: vec![(label.to_string(), 1.0)],
            ..TextSample::default()
        };
        let is_drawn = line.image.is_some() || drawn.contains_key(line.identifier.as_str());
        let mut picture = |section: &mut ListedPart, name: &str, boxes| {
            let path = folders.find(name);
            section.check_present(|| place.clone(), "identifier", name, &path);
            // the same sentence is said of several pictures
            let series = line.identifier.rsplit_once('-').map_or(line.identifier.as_str(), |(sentence, _)| sentence);
            section.pictures.push(PictureEntry { path, series: series.into(), boxes });
            section.pictures.len() - 1
        };
        if !is_drawn || line.left_url.is_some() {
            // `dev-850-0-0` is about `dev-850-0-img0.png` and `-img1.png`
            let base = line.identifier.rsplit_once('-').map_or(line.identifier.as_str(), |(base, _)| base);
            let folder = line.directory.as_ref().map_or(String::new(), |folder| match folder {
                Text::Word(word) => format!("{word}/"),
                Text::Number(number) => format!("{number}/"),
            });
            let pictures: Vec<usize> =
                ["img0", "img1"].map(|end| picture(&mut section, &format!("{folder}{base}-{end}.png"), None)).to_vec();
            section.texts.push(TextEntry { pictures, place, sample });
            continue;
        }
        let shapes = drawn.get(line.identifier.as_str()).map(|shapes| Arc::new(Drawn((*shapes).clone())));
        let boxes = shapes.map(|shapes| shapes as Arc<dyn PictureBoxes>);
        let names = match &line.image {
            Some(name) => vec![name.clone()],
            None => (0..PERMUTATIONS).map(|order| format!("{stem}-{}-{order}.png", line.identifier)).collect(),
        };
        for name in names {
            let number = picture(&mut section, &name, boxes.clone());
            section.texts.push(TextEntry { pictures: vec![number], place: place.clone(), sample: sample.clone() });
        }
    }
    Ok(section)
}

const KINDS: [&str; 3] = ["square", "circle", "triangle"];
/// Names and levels.
const COLOURS: [(&str, [u8; 3]); 3] = [("yellow", [255, 255, 0]), ("black", [0, 0, 0]), ("blue", [0, 153, 255])];

/// `yellow square` and so on.
fn classes() -> Vec<String> {
    COLOURS.iter().flat_map(|(colour, _)| KINDS.map(|kind| format!("{colour} {kind}"))).collect()
}

fn colour(name: &str) -> Option<usize> {
    match name.to_lowercase().as_str() {
        "#0099ff" => Some(2),
        other => COLOURS.iter().position(|(known, _)| *known == other),
    }
}

/// Pixels of a picture, of a box, and from one box to the next.
const SIZE: [usize; 2] = [100, 400];
const STEP: f64 = 150.0;

/// In which order a picture may have the boxes.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// What is in the three boxes of a statement's first picture.
#[derive(Debug)]
struct Drawn(Vec<Vec<Shape>>);

impl PictureBoxes for Drawn {
    fn boxes(&self, picture: &Picture) -> Result<Vec<GivenBox>, String> {
        let [rows, columns] = picture.size();
        if picture.size() != SIZE {
            return Err(format!("{columns} x {rows} pixels, where `structured_rep` is for {} x {}", SIZE[1], SIZE[0]));
        }
        if self.0.len() != 3 {
            return Err(format!("`structured_rep` has {} boxes, not 3", self.0.len()));
        }
        let misses = |order: &[usize; 3]| -> usize {
            let shapes = |place: usize| self.0[order[place]].iter();
            (0..3).map(|place| shapes(place).filter(|shape| !is_there(picture, place, shape)).count()).sum()
        };
        // of orders that fit equally well the first: then the boxes are alike
        let order = ORDERS.iter().min_by_key(|order| misses(order)).unwrap_or(&ORDERS[0]);
        let mut found = Vec::new();
        for (place, own) in order.iter().enumerate() {
            for Shape { x_loc, y_loc, size, kind, color } in &self.0[*own] {
                let left = STEP * place as f64 + x_loc;
                let bounds = Bounds::from_pixel_corners([left, *y_loc, left + size, y_loc + size], SIZE);
                let kind = KINDS.iter().position(|known| known == kind);
                let class = colour(color).zip(kind).map(|(colour, kind)| KINDS.len() * colour + kind);
                found.push(GivenBox { bounds, class });
            }
        }
        Ok(found)
    }
}

/// Whether the middle of a shape has its colour in a picture that has its box at some place.
fn is_there(picture: &Picture, place: usize, shape: &Shape) -> bool {
    let Some(colour) = colour(&shape.color) else { return false };
    let (x, y) = (STEP * place as f64 + shape.x_loc + shape.size / 2.0, shape.y_loc + shape.size / 2.0);
    let (row, column) = ((y as usize).min(SIZE[0] - 1), (x as usize).min(SIZE[1] - 1));
    let pixel = &picture.pixels()[3 * (SIZE[1] * row + column)..][..3];
    pixel.iter().zip(COLOURS[colour].1).all(|(level, wanted)| level.abs_diff(wanted) < 40)
}
