//! The folder of a run.
//!
//! | file | content |
//! |---|---|
//! | `recipe.toml` | the complete recipe |
//! | `task.json` | what the task reports: its metrics, and the one that decides |
//! | `model.toml`, `preprocess.toml`, `classes.txt`, `tokenizer.json` | what is needed to use the weights |
//! | `run.json` | command, commit, seed |
//! | `metrics.jsonl` | one record for every step and epoch, and one for the test |
//! | `best.safetensors`, `last.safetensors` | weights by the names of the model |
//! | `checkpoint/` | the state to resume from |

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::recipe::{Common, Recipe, Section};
use crate::Error;
use crate::evaluate::history::whole_lines;
use crate::evaluate::{History, Record, TaskInfo};
use crate::file::replace;

/// A run folder, locked by this process.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The lock, released when the process ends.
    _lock: File,
    metrics: Option<File>,
}

impl Folder {
    /// Creates the folder, or opens one with the same recipe; with `lengthen` also one with fewer epochs.
    ///
    /// # Errors
    /// When it cannot be created, another process uses it, or it belongs to a run of another recipe.
    pub fn open<S: Section>(path: &Path, recipe: &Recipe<S>, task: &TaskInfo, lengthen: bool) -> Result<Self, Error> {
        fs::create_dir_all(path).map_err(|error| Error::file(path, error))?;
        let lock = lock(path)?;
        let file = path.join("recipe.toml");
        if file.exists() {
            let there: Recipe<S> = read_recipe(path)?;
            let longer = lengthen && recipe.common.epochs > there.common.epochs;
            let there = if longer {
                Recipe { common: Common { epochs: recipe.common.epochs, ..there.common }, own: there.own }
            } else {
                there
            };
            if let Some(key) = difference(&there, recipe) {
                let reason = format!("the run there has another `{key}`; use another folder, or the same recipe");
                return Err(Error::file(&file, reason));
            }
        } else if !is_empty(path)? {
            return Err(Error::file(path, "the folder is not empty and not a run; use another folder"));
        }
        remove_partial(path);
        let folder = Self { path: path.into(), _lock: lock, metrics: None };
        folder.put("recipe.toml", recipe.to_toml(&task.task))?;
        folder.put("task.json", serde_json::to_string_pretty(task).expect("plain data"))?;
        Ok(folder)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of checkpoints.
    pub fn checkpoint(&self) -> PathBuf {
        self.path.join("checkpoint")
    }

    /// Writes a file atomically.
    pub(super) fn put(&self, name: &str, text: impl AsRef<[u8]>) -> Result<(), Error> {
        let path = self.path.join(name);
        replace(&path, text.as_ref()).map_err(|error| Error::file(&path, error))
    }

    /// Removes the records after a step, because those steps will be repeated, and returns the others. The test record is
    /// kept if the run is finished.
    ///
    /// # Errors
    /// When the file cannot be read or written, or is not a history.
    pub fn rewind(&mut self, step: usize, finished: bool) -> Result<History, Error> {
        let path = self.path.join("metrics.jsonl");
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(Error::file(&path, error)),
        };
        let history = History::parse(&text).map_err(|error| Error::file(&path, error))?;
        let is_kept = |line: &&str| match Record::parse(line) {
            Ok(Record::Step(record)) => record.step <= step,
            Ok(Record::Epoch(record)) => record.step <= step,
            // not finished: the best weights may still change
            Ok(Record::Test(_)) => finished,
            Err(_) => false,
        };
        // lines are copied unparsed, so that no digit changes
        let lines: String = whole_lines(&text).filter(is_kept).flat_map(|line| [line, "\n"]).collect();
        let history = if lines.len() == text.len() { history } else { History::parse(&lines)? };
        self.put("metrics.jsonl", lines)?;
        let file = OpenOptions::new().append(true).open(&path).map_err(|error| Error::file(&path, error))?;
        self.metrics = Some(file);
        Ok(history)
    }

    /// Appends a record.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn record(&mut self, record: &Record) -> Result<(), Error> {
        let path = self.path.join("metrics.jsonl");
        let file = self.metrics.as_mut().expect("`rewind` must be called first");
        file.write_all(record.line().as_bytes()).map_err(|error| Error::file(&path, error))
    }
}

/// The recipe of a run.
///
/// # Errors
/// When the folder has none, or one of another task.
pub fn read_recipe<S: Section>(folder: &Path) -> Result<Recipe<S>, Error> {
    let path = folder.join("recipe.toml");
    Recipe::from_toml(&read_recipe_text(folder)?).map_err(|error| Error::file(&path, error))
}

/// The text of a run's recipe. To a recipe from before there was a validation part, `validation = "test"` is added: those
/// runs chose the best epoch on the test part.
///
/// # Errors
/// When the folder has none.
pub fn read_recipe_text(folder: &Path) -> Result<String, Error> {
    let path = folder.join("recipe.toml");
    let text = fs::read_to_string(&path).map_err(|error| Error::file(&path, error))?;
    let table: toml::Table = toml::from_str(&text).map_err(|error| Error::file(&path, error.message()))?;
    // runs write every key; hand-written recipes are not read here
    let is_old = !table.contains_key("validation") && !folder.join("task.json").exists();
    Ok(if is_old { format!("validation = \"test\"\n{text}") } else { text })
}

/// What a run reports, if it has `task.json`.
///
/// # Errors
/// When the file cannot be read.
pub fn read_task(folder: &Path) -> Result<Option<TaskInfo>, Error> {
    let path = folder.join("task.json");
    match fs::read_to_string(&path) {
        Ok(text) => TaskInfo::read(&text).map(Some).map_err(|reason| Error::file(&path, reason)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::file(&path, error)),
    }
}

/// Those of the named files that a run has, by name.
pub(super) fn kept(folder: &Path, names: &[&str]) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    for name in names {
        let path = folder.join(name);
        match fs::read_to_string(&path) {
            Ok(text) => drop(found.insert((*name).to_string(), text)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(Error::file(&path, error)),
        }
    }
    Ok(found)
}

/// Removes partial files of a killed process; the lock ensures that no other process is writing.
fn remove_partial(folder: &Path) {
    for place in [folder.to_path_buf(), folder.join("checkpoint"), folder.join("epochs")] {
        for entry in fs::read_dir(place).into_iter().flatten().flatten() {
            if entry.path().extension().is_some_and(|ending| ending == "partial") {
                // errors are ignored: leftover files do no harm
                let _ = fs::remove_file(entry.path());
            }
        }
    }
}

/// Every record of a run.
///
/// # Errors
/// When the folder has none.
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
        // the file system does not support locks
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Whether the folder is empty, up to files of a run that was killed before it wrote its recipe.
fn is_empty(folder: &Path) -> Result<bool, Error> {
    let mut entries = fs::read_dir(folder).map_err(|error| Error::file(folder, error))?;
    Ok(entries.all(|entry| {
        entry.is_ok_and(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            name == ".lock" || (name.starts_with("recipe.toml.") && name.ends_with(".partial"))
        })
    }))
}

/// The first differing key that affects the result.
pub(super) fn difference<S: Section>(there: &Recipe<S>, here: &Recipe<S>) -> Option<String> {
    const HARMLESS: [&str; 2] = ["workers", "save-every"];
    let (left, right) = (there.table(), here.table());
    let mut keys = left.keys().chain(right.keys());
    keys.find(|key| !HARMLESS.contains(&key.as_str()) && left.get(*key) != right.get(*key)).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::{StepRecord, TestRecord, Values};
    use crate::tasks::classify::{Classification, Recipe};
    use crate::train::Task as _;

    fn open(path: &Path, recipe: &Recipe) -> Result<Folder, Error> {
        Folder::open(path, recipe, &Classification::info(), false)
    }

    fn step(step: usize) -> Record {
        let parts = Values::new();
        Record::Step(StepRecord {
            step,
            epoch: 0,
            loss: 0.1,
            parts,
            rate: 1.0,
            gradient_norm: 1.0,
            items_per_second: 1.0,
        })
    }

    #[test]
    fn a_folder_takes_the_same_recipe_again_and_refuses_another_one_by_its_key() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        drop(open(&path, &Recipe::default()).unwrap());
        let mut other = Recipe::default();
        other.own.workers = 7;
        drop(open(&path, &other).unwrap());
        let error = open(&path, &{
            other.own.batch = 7;
            other
        })
        .unwrap_err()
        .to_string();
        assert!(error.contains("`batch`"), "{error}");
    }

    #[test]
    fn a_run_that_was_killed_before_it_had_a_recipe_begins_again() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("recipe.toml.4711.partial"), "half").unwrap();
        assert!(open(place.path(), &Recipe::default()).is_ok());
    }

    #[test]
    fn two_processes_do_not_write_to_one_folder_nor_over_something_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        let first = open(&path, &Recipe::default()).unwrap();
        assert!(open(&path, &Recipe::default()).unwrap_err().to_string().contains("another process"));
        drop(first);
        assert!(open(&path, &Recipe::default()).is_ok());
        let error = open(place.path(), &Recipe::default()).unwrap_err().to_string();
        assert!(error.contains("not a run"), "{error}");
    }

    #[test]
    fn records_after_the_checkpoint_are_dropped_and_made_again() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = open(&place.path().join("run"), &Recipe::default()).unwrap();
        assert!(folder.rewind(0, false).unwrap().steps.is_empty());
        (1..=5).for_each(|number| folder.record(&step(number)).unwrap());
        assert_eq!(folder.rewind(3, false).unwrap().steps.len(), 3);
        folder.record(&step(4)).unwrap();
        assert_eq!(read_history(folder.path()).unwrap().steps.len(), 4);
    }

    #[test]
    fn lines_that_are_kept_stay_as_they_are_to_the_last_digit() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = open(&place.path().join("run"), &Recipe::default()).unwrap();
        let line = r#"{"kind":"step","step":1,"epoch":1,"loss":2.50,"rate":54.245293557643890,"gradient_norm":1e-3,"pictures_per_second":9.0}"#;
        let metrics = folder.path().join("metrics.jsonl");
        fs::write(&metrics, format!("{line}\n")).unwrap();
        folder.rewind(1, false).unwrap();
        assert_eq!(fs::read_to_string(&metrics).unwrap(), format!("{line}\n"));
    }

    #[test]
    fn the_test_of_a_run_that_goes_on_is_dropped_and_that_of_a_finished_one_kept() {
        let place = tempfile::tempdir().unwrap();
        let mut folder = open(&place.path().join("run"), &Recipe::default()).unwrap();
        folder.rewind(0, false).unwrap();
        folder.record(&Record::Test(TestRecord { epoch: 1, metrics: Values::new() })).unwrap();
        assert!(folder.rewind(0, true).unwrap().test.is_some());
        assert!(folder.rewind(0, false).unwrap().test.is_none());
    }
}
