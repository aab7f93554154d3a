//! Where the clips that a list names may be: beside the list, in folders as archives unpack, or as another machine had them.

use std::path::{Path, PathBuf};

use super::{ANIMATIONS, VIDEOS};

/// Folders to look into, the one that held the last clip first.
pub struct Places {
    folders: Vec<PathBuf>,
    last: usize,
    /// The ending of the last clip whose name had none.
    ending: Option<&'static str>,
}

impl Places {
    /// Those of the folders that are there.
    pub fn new(folders: impl IntoIterator<Item = PathBuf>) -> Self {
        let mut known: Vec<PathBuf> = Vec::new();
        for folder in folders {
            if folder.is_dir() && !known.contains(&folder) {
                known.push(folder);
            }
        }
        Self { folders: known, last: 0, ending: None }
    }

    /// The file or folder of a name, perhaps without its ending; an error says where it should be.
    pub fn find(&mut self, name: &str) -> Result<PathBuf, String> {
        let name = name.replace('\\', "/");
        let path = Path::new(&name);
        let order = std::iter::once(self.last).chain(0..self.folders.len());
        for index in order.filter(|index| *index < self.folders.len()).collect::<Vec<_>>() {
            let whole = self.folders[index].join(path);
            let alone = path.file_name().map_or_else(|| whole.clone(), |file| self.folders[index].join(file));
            for candidate in [whole, alone] {
                if let Some(found) = self.with_ending(candidate) {
                    self.last = index;
                    return Ok(found);
                }
            }
        }
        let folders: Vec<String> = self.folders.iter().take(3).map(|folder| folder.display().to_string()).collect();
        Err(format!("no clip `{}`, looked into {}", name.chars().take(200).collect::<String>(), folders.join(", ")))
    }

    fn with_ending(&mut self, path: PathBuf) -> Option<PathBuf> {
        if path.exists() {
            return Some(path);
        }
        let try_ending = |ending: &'static str| {
            let mut longer = path.clone().into_os_string();
            longer.push(format!(".{ending}"));
            Some((PathBuf::from(longer), ending)).filter(|(path, _)| path.is_file())
        };
        let all = self.ending.into_iter().chain(VIDEOS).chain(ANIMATIONS);
        let (found, ending) = all.into_iter().find_map(try_ending)?;
        self.ending = Some(ending);
        Some(found)
    }
}
