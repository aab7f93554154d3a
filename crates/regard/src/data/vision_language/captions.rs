//! COCO's captions: `images` with `file_name` and `annotations` with `caption`; and Karpathy's `dataset_coco.json`, where each
//! picture has its part and its sentences.

use serde::Deserialize;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::listing::{ListedPart, PictureEntry, TextEntry};
use super::vqa::{candidates, glance, read_json};
use super::{TextKind, TextSample};
use crate::Error;
use crate::data::Part;
use crate::data::detection::{Folders, part_of_name};

const MOST_BYTES: u64 = 1 << 29;
/// COCO lists pictures before captions: how far a file is read to see what it is.
const GLANCE: u64 = 1 << 26;

fn is_captions(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    // tables of boxes begin alike: only names of captions are read far
    let bytes = if name.contains("caption") { GLANCE } else { 1 << 14 };
    let Some(text) = glance(path, bytes) else { return false };
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    text.starts_with('{') && has("images") && (has("caption") || has("sentences"))
}

fn files(path: &Path) -> Vec<PathBuf> {
    candidates(path).into_iter().filter(|file| is_captions(file)).collect()
}

pub fn is_here(path: &Path) -> bool {
    !files(path).is_empty()
}

#[derive(Deserialize)]
struct CaptionFile {
    images: Vec<Image>,
    #[serde(default)]
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Image {
    #[serde(default)]
    id: Option<u64>,
    #[serde(alias = "filename")]
    file_name: String,
    #[serde(default)]
    filepath: Option<String>,
    #[serde(default)]
    split: Option<String>,
    #[serde(default)]
    sentences: Vec<Sentence>,
}

#[derive(Deserialize)]
struct Annotation {
    #[serde(default)]
    id: Option<u64>,
    image_id: u64,
    caption: String,
}

#[derive(Deserialize)]
struct Sentence {
    raw: String,
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    let root = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let mut sections = Vec::new();
    for file in files(path) {
        let read: CaptionFile = read_json(&file, MOST_BYTES)?;
        if read.images.iter().any(|image| image.split.is_some()) {
            sections.extend(karpathy(root, &file, read.images));
        } else {
            sections.push(coco(root, &file, read));
        }
    }
    Ok(sections)
}

fn folders(root: &Path, file: &Path) -> Folders {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    // captions_train2017.json
    let subset = stem.split('_').next_back().unwrap_or_default().to_string();
    let bases = [root.to_path_buf(), root.join("images"), root.parent().unwrap_or(root).into()];
    Folders::new(bases.iter().flat_map(|base| [base.join(&subset), base.clone(), base.join("images")]).collect())
}

fn coco(root: &Path, file: &Path, CaptionFile { images, annotations }: CaptionFile) -> ListedPart {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy();
    let mut section = ListedPart::new(part_of_name(&stem), file, TextKind::Captions);
    let mut folders = folders(root, file);
    let mut numbers: HashMap<u64, usize> = HashMap::new();
    for Image { id, file_name, .. } in images {
        let Some(id) = id else {
            section.error(format!("image `{file_name}`"), "`id` is missing");
            continue;
        };
        let path = folders.find(&file_name);
        section.check_present(|| format!("image {id}"), "file_name", &file_name, &path);
        section.pictures.push(PictureEntry::new(path));
        numbers.insert(id, section.pictures.len() - 1);
    }
    for (number, Annotation { id, image_id, caption }) in annotations.into_iter().enumerate() {
        let place = format!("annotation {}", id.unwrap_or(number as u64));
        let Some(picture) = numbers.get(&image_id).copied() else {
            section.error(place, format!("`image_id`: no image {image_id}"));
            continue;
        };
        if section.check_text(&place, "caption", &caption) {
            let sample = TextSample { text: caption.trim().into(), ..TextSample::default() };
            section.texts.push(TextEntry { pictures: vec![picture], place, sample });
        }
    }
    section
}

fn karpathy(root: &Path, file: &Path, images: Vec<Image>) -> Vec<ListedPart> {
    let mut folders = folders(root, file);
    let mut sections: Vec<ListedPart> = Vec::new();
    for (number, image) in images.into_iter().enumerate() {
        // `restval` are the rest of the validation pictures, which are learned from
        let part = match image.split.as_deref() {
            Some("restval") => Some(Part::Train),
            other => other.and_then(part_of_name),
        };
        let own = sections.iter().position(|section| section.part == part).unwrap_or_else(|| {
            sections.push(ListedPart::new(part, file, TextKind::Captions));
            sections.len() - 1
        });
        let section = &mut sections[own];
        let name = image.filepath.map_or_else(|| image.file_name.clone(), |path| format!("{path}/{}", image.file_name));
        let path = folders.find(&name);
        section.check_present(|| format!("image {number}"), "filename", &name, &path);
        section.pictures.push(PictureEntry::new(path));
        let picture = section.pictures.len() - 1;
        for (sentence, Sentence { raw }) in image.sentences.into_iter().enumerate() {
            let place = format!("image {number}, sentence {sentence}");
            if section.check_text(&place, "raw", &raw) {
                let sample = TextSample { text: raw.trim().into(), ..TextSample::default() };
                section.texts.push(TextEntry { pictures: vec![picture], place, sample });
            }
        }
    }
    sections
}
