//! UCF101 with its first split: `classInd.txt` (`1 ApplyEyeMakeup`), `trainlist01.txt` (`Class/v_Class_g08_c01.avi 1`) and
//! `testlist01.txt` (without labels). Clips of a group are from one recording, so that groups stay together.

use std::path::{Path, PathBuf};

use super::places::Places;
use super::{ClipEntry, Contents, ListedPart};
use crate::data::Part;
use crate::data::detection::Issue;
use crate::{Error, file};

const FOLDERS: [&str; 4] =
    ["", "ucfTrainTestlist", "UCF101TrainTestSplits-RecognitionTask/ucfTrainTestlist", "annotations"];

fn lists(root: &Path) -> Option<PathBuf> {
    let has = |folder: &PathBuf| ["classInd.txt", "trainlist01.txt"].iter().all(|name| folder.join(name).is_file());
    FOLDERS.iter().map(|folder| root.join(folder)).find(has)
}

pub fn is_here(root: &Path) -> bool {
    lists(root).is_some()
}

pub fn read(root: &Path) -> Result<Contents, Error> {
    let lists = lists(root).unwrap_or_else(|| root.into());
    let mut contents = Contents { classes: Some(classes(&lists.join("classInd.txt"))?), ..Contents::default() };
    let above = |name: &str| [root.join(name), lists.join("..").join(name)];
    let mut places = Places::new(["", "UCF-101", "UCF101", "videos"].into_iter().flat_map(above));
    for (part, name) in [(Part::Train, "trainlist01.txt"), (Part::Test, "testlist01.txt")] {
        let list = lists.join(name);
        if !list.is_file() {
            continue;
        }
        let mut section = ListedPart { part: Some(part), place: name.into(), entries: Vec::new() };
        for (number, line) in file::read_text(&list)?.lines().enumerate() {
            let Some(clip) = line.split_whitespace().next() else { continue };
            let place = || format!("line {}", number + 1);
            let Some((class, _)) = clip.split_once('/') else {
                contents.issues.push(Issue::error(&list, place(), "must be `Class/clip.avi`, perhaps with a label"));
                continue;
            };
            match places.find(clip) {
                Ok(path) => section.entries.push(ClipEntry::new(root, path, class.into())),
                Err(reason) => contents.issues.push(Issue::error(&list, place(), reason)),
            }
        }
        contents.sections.push(section);
    }
    Ok(contents)
}

/// Names by their numbers from 1 on.
fn classes(path: &Path) -> Result<Vec<String>, Error> {
    let text = file::read_text(path)?;
    let mut classes = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = || Error::file(path, format!("line {}: must be a number and a name", number + 1));
        let (label, name) = line.trim().split_once(char::is_whitespace).ok_or_else(wrong)?;
        classes.push((label.parse::<u32>().map_err(|_| wrong())?, name.trim().to_string()));
    }
    classes.sort();
    Ok(classes.into_iter().map(|(_, name)| name).collect())
}
