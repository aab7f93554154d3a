//! The folder of a run, which explains itself.
//!
//! | file | what |
//! |---|---|
//! | `recipe.toml` | everything that the run depends on |
//! | `model.toml`, `preprocess.toml`, `classes.txt` | what is needed to use the weights |
//! | `run.json` | command, commit, seed |
//! | `metrics.jsonl` | one record for every step and epoch |
//! | `best.safetensors`, `last.safetensors` | weights by the names of the model |
//! | `checkpoint/` | what the next step depends on |

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::Recipe;
use super::recipe::Written;
use crate::Error;
use crate::data::Preprocess;
use crate::evaluate::{History, Record};
use crate::file::replace;
use crate::models::ModelConfig;

/// A folder that this process alone writes to.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held until the process ends, however it ends.
    _lock: File,
    metrics: Option<File>,
}

impl Folder {
    /// Makes the folder, or takes up one with the same recipe.
    ///
    /// # Errors
    /// When it cannot be made, another process writes to it, or it holds a run of another recipe.
    pub fn open(path: &Path, recipe: &impl Written) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(|error| Error::file(path, error))?;
        let lock = lock(path)?;
        let file = path.join("recipe.toml");
        if file.exists() {
            if let Some(key) = difference(&read_written(path)?, recipe) {
                let reason =
                    format!("the run there has another `{key}`; name another folder, or go on with it as it is");
                return Err(Error::file(&file, reason));
            }
        } else if !is_empty(path)? {
            return Err(Error::file(path, "there is something here that is no run; name another folder"));
        }
        let folder = Self { path: path.into(), _lock: lock, metrics: None };
        folder.put("recipe.toml", recipe.to_toml())?;
        Ok(folder)
    }

    /// Writes what is needed to use the weights.
    pub fn describe(&self, config: &ModelConfig, preprocess: &Preprocess, classes: &[String]) -> Result<(), Error> {
        self.put("model.toml", config.to_toml())?;
        self.put("preprocess.toml", toml::to_string(preprocess).expect("plain data"))?;
        self.put("classes.txt", classes.join("\n") + "\n")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where checkpoints are.
    pub fn checkpoint(&self) -> PathBuf {
        self.path.join("checkpoint")
    }

    /// Writes a file whole.
    pub(super) fn put(&self, name: &str, text: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = self.path.join(name);
        replace(&path, text.as_ref()).map_err(|error| Error::file(&path, error))
    }

    /// Drops the records after a step, which will be made again, and gives those before.
    ///
    /// # Errors
    /// When the file cannot be read or written, or holds something else.
    pub fn rewind(&mut self, step: usize) -> Result<History, Error> {
        let path = self.path.join("metrics.jsonl");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::file(&path, error)),
        };
        let mut history = History::parse(&text).map_err(|error| Error::file(&path, error))?;
        history.steps.retain(|record| record.step <= step);
        history.epochs.retain(|record| record.step <= step);
        let mut records: Vec<Record> = history.steps.iter().cloned().map(Record::Step).collect();
        records.extend(history.epochs.iter().cloned().map(Record::Epoch));
        // an epoch's record follows that of its last step: the sort is stable
        records.sort_by_key(|record| match record {
            Record::Step(record) => record.step,
            Record::Epoch(record) => record.step,
        });
        self.put("metrics.jsonl", records.iter().map(Record::line).collect::<String>())?;
        let file = OpenOptions::new().append(true).open(&path).map_err(|error| Error::file(&path, error))?;
        self.metrics = Some(file);
        Ok(history)
    }

    /// Adds a record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&mut self, record: &Record) -> Result<(), Error> {
        let path = self.path.join("metrics.jsonl");
        let file = self.metrics.as_mut().expect("`rewind` comes first");
        file.write_all(record.line().as_bytes()).map_err(|error| Error::file(&path, error))
    }
}

/// The recipe of a run.
///
/// # Errors
/// When the folder holds none, or one of another kind.
pub fn read_recipe(folder: &Path) -> Result<Recipe, Error> {
    read_written(folder)
}

/// The same for a recipe of any kind.
///
/// # Errors
/// When the folder holds none, or one of another kind.
pub fn read_written<R: Written>(folder: &Path) -> Result<R, Error> {
    let path = folder.join("recipe.toml");
    let text = fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
    R::from_toml(&text).map_err(|error| Error::file(&path, error))
}

/// Every record of a run.
///
/// # Errors
/// When the folder holds none.
pub fn read_history(folder: &Path) -> Result<History, Error> {
    let path = folder.join("metrics.jsonl");
    let text = fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
    History::parse(&text).map_err(|error| Error::file(&path, error))
}

fn lock(folder: &Path) -> Result<File, Error> {
    let path = folder.join(".lock");
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
    let file = file.map_err(|error| Error::file(&path, error))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(Error::file(folder, "another process is training here")),
        // an error is a file system without locks
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Whether nothing is there but what a run leaves that was killed before it had a recipe.
fn is_empty(folder: &Path) -> Result<bool, Error> {
    let mut entries = fs::read_dir(folder).map_err(|error| Error::file(folder, error))?;
    Ok(entries.all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name == ".lock" || (name.starts_with("recipe.toml.") && name.ends_with(".partial"))
        })
    }))
}

/// The first key that differs, of those that change what is learned.
pub(super) fn difference<R: Written>(there: &R, here: &R) -> Option<String> {
    const HARMLESS: [&str; 2] = ["workers", "save-every"];
    let [left, right] = [there, here].map(|recipe| toml::Table::try_from(recipe).expect("a recipe is plain data"));
    let mut keys = left.keys().chain(right.keys());
    keys.find(|key| !HARMLESS.contains(&key.as_str()) && left.get(*key) != right.get(*key)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::StepRecord;

    fn step(step: usize) -> Record {
        Record::Step(StepRecord { step, epoch: 0, loss: 0.1, rate: 1.0, gradient_norm: 1.0, pictures_per_second: 1.0 })
    }

    #[test]
    fn a_folder_takes_the_same_recipe_again_and_refuses_another_one_by_its_key() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        drop(Folder::open(&path, &Recipe::default()).unwrap());
        drop(Folder::open(&path, &Recipe { workers: 7, ..Recipe::default() }).unwrap());
        let error = Folder::open(&path, &Recipe { batch: 7, ..Recipe::default() }).unwrap_err().to_string();
        assert!(error.contains("`batch`"), "{error}");
    }

    #[test]
    fn a_run_that_was_killed_before_it_had_a_recipe_begins_again() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("recipe.toml.4711.partial"), "half").unwrap();
        assert!(Folder::open(place.path(), &Recipe::default()).is_ok());
    }

    #[test]
    fn two_processes_do_not_write_to_one_folder_nor_over_something_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        let first = Folder::open(&path, &Recipe::default()).unwrap();
        assert!(Folder::open(&path, &Recipe::default()).unwrap_err().to_string().contains("another process"));
        drop(first);
        assert!(Folder::open(&path, &Recipe::default()).is_ok());
        let error = Folder::open(place.path(), &Recipe::default()).unwrap_err().to_string();
        assert!(error.contains("no run"), "{error}");
    }

    #[test]
    fn records_after_the_checkpoint_are_dropped_and_made_again() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = Folder::open(&place.path().join("run"), &Recipe::default()).unwrap();
        assert!(folder.rewind(0).unwrap().steps.is_empty());
        (1..=5).for_each(|number| folder.record(&step(number)).unwrap());
        assert_eq!(folder.rewind(3).unwrap().steps.len(), 3);
        folder.record(&step(4)).unwrap();
        assert_eq!(read_history(folder.path()).unwrap().steps.len(), 4);
    }
}
