//! YOLO's text files: one per picture, with a line `class cx cy w h` per object, as fractions of the picture.
//!
//! ```text
//! data/data.yaml              data/train/images/1.jpg       data/images/train/1.jpg      data/images/1.jpg
//!                             data/train/labels/1.txt       data/labels/train/1.txt      data/labels/1.txt
//! ```
//!
//! Names are in `data.yaml` (a list or a map) or, one per line, in `classes.txt`. A picture without a text file, or with an
//! empty one, has no objects. More than four numbers are a polygon, which becomes its bounding box.

use rayon::prelude::*;
use std::path::{Path, PathBuf};

use super::listing::{Issue, ListedPart, ListedPicture, part_of_name};
use super::{Annotation, Part};
use crate::data::dataset::{entries, pictures_below};
use crate::data::labels;
use crate::{Error, file};

mod yaml;

/// Maximum number of classes; a larger number is an error.
const MOST_CLASSES: usize = 100_000;

pub fn is_here(path: &Path) -> bool {
    let is_yaml = |path: &Path| path.extension().is_some_and(|ending| ending == "yaml" || ending == "yml");
    if path.is_file() {
        return is_yaml(path) && yaml::read(path).is_ok_and(|yaml| yaml.list("names").is_some());
    }
    yaml_of(path).is_some() || !folders(path).is_empty()
}

fn yaml_of(root: &Path) -> Option<PathBuf> {
    let names = ["data.yaml", "data.yml", "dataset.yaml"].map(|name| root.join(name));
    names.into_iter().find(|path| path.is_file() && yaml::read(path).is_ok_and(|yaml| yaml.list("names").is_some()))
}

/// Folders of pictures that have a folder of labels next to them.
fn folders(root: &Path) -> Vec<(Option<Part>, PathBuf)> {
    let part = |path: &Path| part_of_name(&path.file_name().unwrap_or_default().to_string_lossy());
    let folders_in = |folder: &Path| {
        let found = entries(folder).unwrap_or_default().into_iter().filter(|path| path.is_dir());
        found.filter_map(|path| Some((Some(part(&path)?), path))).collect::<Vec<_>>()
    };
    let images = root.join("images");
    if images.is_dir() && root.join("labels").is_dir() {
        let parts = folders_in(&images);
        return if parts.is_empty() { vec![(None, images)] } else { parts };
    }
    let parts = folders_in(root).into_iter().map(|(part, folder)| (part, folder.join("images"), folder.join("labels")));
    parts
        .filter(|(_, images, labels)| images.is_dir() && labels.is_dir())
        .map(|(part, images, _)| (part, images))
        .collect()
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    let yaml = if path.is_file() { Some(path.to_path_buf()) } else { yaml_of(path) };
    let root = if path.is_file() { path.parent().unwrap_or(Path::new("")) } else { path };
    let (mut found, mut classes) = (folders(root), None);
    if let Some(file) = &yaml {
        let yaml = yaml::read(file)?;
        classes = yaml.list("names").map(<[String]>::to_vec);
        let listed = from_yaml(file, root, &yaml)?;
        if !listed.is_empty() {
            found = listed;
        }
    }
    if found.is_empty() {
        return Err(Error::file(path, "no folder of pictures; `train` and `val` of data.yaml name them"));
    }
    if classes.is_none() {
        let names = [root.join("classes.txt"), root.join("labels").join("classes.txt")];
        if let Some(file) = names.iter().find(|path| path.is_file()) {
            classes = Some(labels::read(file)?.into_iter().filter(|name| !name.is_empty()).collect());
        }
    }
    let mut next = 0;
    let mut sections = Vec::new();
    for (part, folder) in found {
        sections.push(section(part, &folder, &mut next)?);
    }
    let all = sections.iter().flat_map(|section| &section.entries).flat_map(|entry| &entry.annotations);
    let most = all.map(|annotation| annotation.class + 1).max().unwrap_or(0);
    let given = classes.unwrap_or_else(|| (0..most).map(|class| class.to_string()).collect());
    for section in &mut sections {
        let mut issues = Vec::new();
        for entry in &mut section.entries {
            entry.annotations.retain(|annotation| {
                let is_known = annotation.class < given.len();
                if !is_known {
                    let reason = format!("class {} has no name, of {} names", annotation.class, given.len());
                    issues.push(Issue::error(&label_file(&entry.path), "a line", reason));
                }
                is_known
            });
        }
        section.issues.extend(issues);
        section.classes.clone_from(&given);
    }
    Ok(sections)
}

/// The folders of `train`, `val` and `test`.
fn from_yaml(file: &Path, root: &Path, yaml: &yaml::Yaml) -> Result<Vec<(Option<Part>, PathBuf)>, Error> {
    let base = yaml.text("path").map_or_else(|| root.to_path_buf(), |path| root.join(path));
    let mut found = Vec::new();
    let keys = [("train", Part::Train), ("val", Part::Validation), ("valid", Part::Validation), ("test", Part::Test)];
    for (key, part) in keys {
        for name in yaml.list(key).unwrap_or(&[]).iter().filter(|name| !name.is_empty()) {
            // Roboflow writes `../train/images` for a folder next to the file
            let plain = name.trim_start_matches("../").trim_start_matches("./");
            let mut places = [base.join(name), root.join(plain)];
            if name.starts_with("../") && yaml.text("path").is_none() {
                places.reverse();
            }
            let Some(folder) = places.iter().find(|path| path.exists()) else {
                return Err(Error::file(
                    file,
                    format!("`{key}`: no folder `{name}`, looked for {}", places[0].display()),
                ));
            };
            if folder.is_file() {
                return Err(Error::file(file, format!("`{key}`: `{name}` is a list of files; a folder is needed")));
            }
            let images = folder.join("images");
            found.push((Some(part), if images.is_dir() { images } else { folder.clone() }));
        }
    }
    Ok(found)
}

/// `labels/1.txt` for `images/1.jpg`: the last folder `images` is replaced.
fn label_file(picture: &Path) -> PathBuf {
    let mut parts: Vec<_> = picture.iter().map(std::ffi::OsStr::to_os_string).collect();
    if let Some(place) = parts.iter().rposition(|part| part == "images") {
        parts[place] = "labels".into();
    }
    parts.iter().collect::<PathBuf>().with_extension("txt")
}

fn section(part: Option<Part>, folder: &Path, next: &mut u64) -> Result<ListedPart, Error> {
    let pictures = pictures_below(folder)?;
    let place = folder.iter().rev().take(2).map(|part| part.to_string_lossy()).collect::<Vec<_>>();
    let place = place.into_iter().rev().collect::<Vec<_>>().join("/");
    let mut section = ListedPart { part, place, ..ListedPart::default() };
    let texts: Vec<Result<Option<String>, Error>> = pictures
        .par_iter()
        .map(|picture| {
            let labels = label_file(picture);
            if labels.is_file() { file::read_text(&labels).map(Some) } else { Ok(None) }
        })
        .collect();
    for (number, (path, text)) in pictures.into_iter().zip(texts).enumerate() {
        let labels = label_file(&path);
        let mut annotations = Vec::new();
        for (line, content) in text?.unwrap_or_default().lines().enumerate().filter(|(_, line)| !line.trim().is_empty())
        {
            let place = || format!("line {}", line + 1);
            match object(content) {
                Ok((class, bounds)) => {
                    if section.check_bounds(&labels, place, "cx cy w h", bounds) {
                        *next += 1;
                        annotations.push(Annotation::new(*next, class, bounds));
                    }
                }
                Err(reason) => section.issues.push(Issue::error(&labels, place(), reason)),
            }
        }
        section.entries.push(ListedPicture { path, id: number as u64 + 1, size: None, annotations, relative: true });
    }
    Ok(section)
}

/// The class and left, top, width and height as fractions.
fn object(line: &str) -> Result<(usize, [f64; 4]), String> {
    let mut words = line.split_whitespace();
    let class = words.next().unwrap_or("");
    // some tools write 3.0
    let number =
        class.parse::<f64>().ok().filter(|class| class.fract() == 0.0 && (0.0..MOST_CLASSES as f64).contains(class));
    let class =
        number.ok_or_else(|| format!("`class` must be a whole number below {MOST_CLASSES}, got `{}`", short(class)))?;
    let numbers: Vec<f64> = words
        .map(|word| word.parse::<f64>().map_err(|_| format!("must be a number, got `{}`", short(word))))
        .collect::<Result<_, _>>()?;
    let bounds = match numbers[..] {
        [cx, cy, w, h] => [cx - w / 2.0, cy - h / 2.0, w, h],
        ref points if points.len() >= 6 && points.len().is_multiple_of(2) => {
            let ends = |axis: usize| {
                let places = points.iter().skip(axis).step_by(2);
                places.fold([f64::INFINITY, f64::NEG_INFINITY], |[least, most], place| {
                    [least.min(*place), most.max(*place)]
                })
            };
            let ([x1, x2], [y1, y2]) = (ends(0), ends(1));
            [x1, y1, x2 - x1, y2 - y1]
        }
        _ => return Err(format!("must be `class cx cy w h` or a polygon, got {} numbers", numbers.len() + 1)),
    };
    if bounds.iter().any(|side| side.abs() > 100.0) {
        return Err(format!("must be shares of the picture, got `{}`", short(line)));
    }
    Ok((class as usize, bounds))
}

fn short(text: &str) -> String {
    text.chars().take(60).collect()
}
