//! HMDB51 with its first split: `<class>_test_split1.txt` with lines of `clip.avi 1`, where 1 is training, 2 the test and 0
//! neither. A clip's name begins with the film's, up to its class: clips of a film stay together.

use std::path::{Path, PathBuf};

use super::places::Places;
use super::{ClipEntry, Contents, ListedPart};
use crate::data::Part;
use crate::data::dataset::entries;
use crate::data::detection::Issue;
use crate::{Error, file};

const FOLDERS: [&str; 4] = ["", "testTrainMulti_7030_splits", "test_train_splits", "splits"];
const ENDING: &str = "_test_split1.txt";

/// The lists with their classes.
fn lists(root: &Path) -> Vec<(String, PathBuf)> {
    let folders = FOLDERS.iter().map(|folder| root.join(folder)).filter(|folder| folder.is_dir());
    let in_folder = |folder: PathBuf| -> Vec<(String, PathBuf)> {
        let class = |path: PathBuf| {
            let name = path.file_name()?.to_str()?.strip_suffix(ENDING)?.to_string();
            Some((name, path))
        };
        entries(&folder).unwrap_or_default().into_iter().filter_map(class).collect()
    };
    folders.map(in_folder).find(|lists| !lists.is_empty()).unwrap_or_default()
}

pub fn is_here(root: &Path) -> bool {
    root.is_dir() && !lists(root).is_empty()
}

pub fn read(root: &Path) -> Result<Contents, Error> {
    let lists = lists(root);
    let classes = Some(lists.iter().map(|(class, _)| class.clone()).collect());
    let mut contents = Contents { classes, ..Contents::default() };
    let mut sections = [Part::Train, Part::Test].map(|part| ListedPart {
        part: Some(part),
        place: format!("the files *{ENDING}"),
        entries: Vec::new(),
    });
    for (class, list) in lists {
        let folders = ["", "hmdb51_org", "hmdb51", "videos", "HMDB51"];
        let mut places = Places::new(folders.iter().map(|folder| root.join(folder).join(&class)));
        for (number, line) in file::read_text(&list)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let mut wrong = |reason: String| {
                contents.issues.push(Issue::error(&list, format!("line {}", number + 1), reason));
            };
            let section = match line.trim().rsplit_once(char::is_whitespace) {
                Some((_, "0")) => continue,
                Some((clip, "1")) => Ok((clip, 0)),
                Some((clip, "2")) => Ok((clip, 1)),
                _ => Err("must be a clip and 0, 1 or 2"),
            };
            let (clip, section) = match section {
                Ok(found) => found,
                Err(reason) => {
                    wrong(reason.into());
                    continue;
                }
            };
            match places.find(clip.trim()) {
                Ok(path) => {
                    let mut entry = ClipEntry::new(root, path, class.clone());
                    if let Some((film, _)) = clip.split_once(&format!("_{class}_")) {
                        entry.group = film.into();
                    }
                    sections[section].entries.push(entry);
                }
                Err(reason) => wrong(reason),
            }
        }
    }
    contents.sections = sections.into();
    Ok(contents)
}
