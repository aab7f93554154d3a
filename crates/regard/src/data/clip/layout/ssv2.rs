//! Something-Something v2: `labels.json` (`{"Putting something on a surface": "0"}`), `train.json` and `validation.json` (lists of
//! `{"id", "label", "template"}`), and `<id>.webm` or a folder of frames for each. A template has its nouns in brackets.

use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::places::Places;
use super::{ClipEntry, Contents, ListedPart};
use crate::data::Part;
use crate::data::dataset::entries;
use crate::data::detection::Issue;
use crate::{Error, file};

#[derive(Deserialize)]
struct ClipLine {
    id: String,
    template: String,
}

/// A file that ends so, in the folder or in its folder of labels.
fn find(root: &Path, ending: &str) -> Option<PathBuf> {
    let is_it = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name == ending || name.ends_with(&format!("-{ending}"))
    };
    let folders = [root.to_path_buf(), root.join("labels")];
    folders.iter().flat_map(|folder| entries(folder).unwrap_or_default()).find(is_it)
}

pub fn is_here(root: &Path) -> bool {
    root.is_dir() && find(root, "labels.json").is_some() && find(root, "train.json").is_some()
}

pub fn read(root: &Path) -> Result<Contents, Error> {
    let labels = find(root, "labels.json").unwrap_or_else(|| root.join("labels.json"));
    let numbers: BTreeMap<String, String> =
        serde_json::from_str(&file::read_text(&labels)?).map_err(|error| Error::file(&labels, error))?;
    let mut classes = Vec::new();
    for (name, number) in numbers {
        let wrong = || Error::file(&labels, format!("`{name}`: must be a number, got `{number}`"));
        classes.push((number.parse::<u32>().map_err(|_| wrong())?, name));
    }
    classes.sort();
    let classes: Vec<String> = classes.into_iter().map(|(_, name)| name).collect();
    let mut contents = Contents { classes: Some(classes), ..Contents::default() };
    let folders = ["", "videos", "20bn-something-something-v2", "frames"];
    let mut places = Places::new(folders.iter().map(|folder| root.join(folder)));
    // the test has no labels
    for (part, name) in
        [(Part::Train, "train.json"), (Part::Validation, "validation.json"), (Part::Validation, "val.json")]
    {
        let Some(list) = find(root, name) else { continue };
        let clips: Vec<ClipLine> =
            serde_json::from_str(&file::read_text(&list)?).map_err(|error| Error::file(&list, error))?;
        let mut section = ListedPart { part: Some(part), place: name.into(), entries: Vec::new() };
        for clip in clips {
            let class = clip.template.replace(['[', ']'], "");
            match places.find(&clip.id) {
                Ok(path) => section.entries.push(ClipEntry::new(root, path, class)),
                Err(reason) => contents.issues.push(Issue::error(&list, format!("id {}", clip.id), reason)),
            }
        }
        contents.sections.push(section);
    }
    Ok(contents)
}
