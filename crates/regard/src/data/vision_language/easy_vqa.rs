//! easy-VQA: `questions.json` is a list of `[question, answer, image]`, pictures are `images/<image>.png`.
//!
//! ```text
//! data/train/questions.json     questions.json
//! data/train/images/0.png       images/0.png
//! ```

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::TextKind;
use super::TextSample;
use super::listing::{ListedPart, PictureEntry, TextEntry};
use crate::data::Part;
use crate::data::detection::part_of_name;
use crate::{Error, file};

const FILE: &str = "questions.json";

pub fn is_here(path: &Path) -> bool {
    !files(path).is_empty()
}

fn files(path: &Path) -> Vec<(Option<Part>, PathBuf)> {
    let is_one = |folder: &Path| folder.join(FILE).is_file() && folder.join("images").is_dir();
    if is_one(path) {
        return vec![(path.file_name().and_then(|name| part_of_name(&name.to_string_lossy())), path.join(FILE))];
    }
    let parts = ["train", "val", "valid", "validation", "dev", "test"];
    let folders = parts.iter().map(|name| (part_of_name(name), path.join(name)));
    folders.filter(|(_, folder)| is_one(folder)).map(|(part, folder)| (part, folder.join(FILE))).collect()
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    files(path).into_iter().map(|(part, file)| section(part, &file)).collect()
}

fn section(part: Option<Part>, path: &Path) -> Result<ListedPart, Error> {
    let text = file::read_text(path)?;
    let rows: Vec<(String, String, serde_json::Value)> = serde_json::from_str(&text)
        .map_err(|error| Error::file(path, format!("not a list of [question, answer, image]: {error}")))?;
    let folder = path.parent().unwrap_or(Path::new("")).join("images");
    let mut section = ListedPart::new(part, path, TextKind::Questions);
    section.answer_types = ANSWER_TYPES.map(String::from).to_vec();
    let mut by_name: HashMap<String, usize> = HashMap::new();
    for (number, (question, answer, image)) in rows.into_iter().enumerate() {
        let place = format!("question {number}");
        let image = image.as_str().map_or_else(|| image.to_string(), String::from);
        if !section.check_text(&place, "question", &question) || !section.check_text(&place, "answer", &answer) {
            continue;
        }
        let picture = *by_name.entry(image.clone()).or_insert_with(|| {
            let path = folder.join(format!("{image}.png"));
            section.check_present(|| place.clone(), "image", &image, &path);
            section.pictures.push(PictureEntry::new(path));
            section.pictures.len() - 1
        });
        let answer_type = Some(usize::from(!matches!(answer.as_str(), "yes" | "no")));
        let sample = TextSample { text: question, answers: vec![(answer, 1.0)], group: None, answer_type };
        section.texts.push(TextEntry { pictures: vec![picture], place, sample });
    }
    Ok(section)
}

const ANSWER_TYPES: [&str; 2] = ["yes/no", "other"];
