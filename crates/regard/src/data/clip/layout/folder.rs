//! A folder for each class, with videos or with a folder of frames for each clip.
//!
//! ```text
//! gestures/wave/1.mp4         gestures/train/wave/1.mp4      gestures/wave/clip1/000001.jpg
//! gestures/point/2.gif        gestures/val/wave/3.mp4        gestures/wave/clip1/000002.jpg
//! ```

use std::path::{Path, PathBuf};

use super::{ClipEntry, Contents, FRAMES, ListedPart, ends_with, is_clip_file, is_frame_folder};
use crate::Error;
use crate::data::Part;
use crate::data::dataset::{entries, is_hidden};
use crate::data::detection::{Issue, part_of_name};

pub fn is_here(root: &Path) -> bool {
    root.is_dir() && !sections(root).is_empty()
}

pub fn read(root: &Path) -> Result<Contents, Error> {
    let mut contents = Contents::default();
    for (part, folder) in sections(root) {
        let place = if part.is_some() { format!("{}/", name(&folder)) } else { String::new() };
        let mut section = ListedPart { part, place, entries: Vec::new() };
        for class in folders(&folder) {
            let clips = clips_below(&class)?;
            let stray = entries(&class)?.iter().filter(|path| ends_with(path, &FRAMES)).count();
            if stray > 0 {
                let reason = format!("{stray} pictures that are in no clip's folder are left out");
                contents.issues.push(Issue::warning(&class, "class", reason));
            }
            if clips.is_empty() {
                contents.issues.push(Issue::warning(&class, "class", "a folder without clips"));
                continue;
            }
            let class = name(&class);
            section.entries.extend(clips.into_iter().map(|path| ClipEntry::new(root, path, class.clone())));
        }
        contents.sections.push(section);
    }
    Ok(contents)
}

/// The folders of parts; or the folder itself.
fn sections(root: &Path) -> Vec<(Option<Part>, PathBuf)> {
    let holds_classes = |folder: &Path| folders(folder).iter().any(|class| any_clip_below(class));
    // a class called `train` holds clips itself
    let holds_clips = |folder: &Path| entries(folder).unwrap_or_default().iter().any(|path| is_clip_file(path));
    let part = |folder: PathBuf| {
        let is_plain = name(&folder).chars().all(|letter| letter.is_ascii_alphabetic());
        let part = part_of_name(&name(&folder)).filter(|_| is_plain)?;
        (holds_classes(&folder) && !holds_clips(&folder)).then_some((Some(part), folder))
    };
    let parts: Vec<_> = folders(root).into_iter().filter_map(part).collect();
    if parts.iter().any(|(part, _)| *part == Some(Part::Train)) {
        parts
    } else if holds_classes(root) {
        vec![(None, root.into())]
    } else {
        Vec::new()
    }
}

fn folders(root: &Path) -> Vec<PathBuf> {
    entries(root).unwrap_or_default().into_iter().filter(|path| path.is_dir() && !is_hidden(path)).collect()
}

fn name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Videos and folders of frames in a folder and its folders.
fn clips_below(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for path in entries(folder)? {
        if path.is_dir() {
            // links to folders could lead in circles
            if is_frame_folder(&path) {
                found.push(path);
            } else if !path.is_symlink() && !is_hidden(&path) {
                found.extend(clips_below(&path)?);
            }
        } else if is_clip_file(&path) {
            found.push(path);
        }
    }
    Ok(found)
}

fn any_clip_below(folder: &Path) -> bool {
    let paths = entries(folder).unwrap_or_default();
    paths.iter().any(|path| if path.is_dir() { is_frame_folder(path) } else { is_clip_file(path) })
        || paths.iter().any(|path| path.is_dir() && !path.is_symlink() && !is_hidden(path) && any_clip_below(path))
}
