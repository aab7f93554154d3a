//! Training runs and their curves, also while they run.

use axum::extract::{Path as Named, State};
use axum::response::Response;
use regard::evaluate::{EpochRecord, History, StepRecord, TaskInfo, TestRecord, Values};
use regard::train::{read_history, read_task};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::json_response;
use crate::app::App;
use crate::error::ApiError;

/// The records of a run.
const METRICS: &str = "metrics.jsonl";

/// Depth of the search for runs: those of a comparison are `COMPARISON/MODEL/seed0`.
const DEPTH: usize = 3;

/// Maximum number of listed runs.
const MOST: usize = 1000;

/// Maximum size of a run's records in bytes: a few million steps.
const LONGEST: u64 = 1 << 29;

/// Maximum number of points of a curve.
const POINTS: usize = 400;

#[derive(Serialize)]
struct Run {
    name: String,
    /// Seconds since the last write.
    age: u64,
}

#[derive(Serialize)]
struct Curves {
    name: String,
    age: u64,
    /// The text of its recipe.
    recipe: String,
    /// What its task reports; missing in runs of older versions.
    task: Option<TaskInfo>,
    /// The best epoch by the deciding metric.
    best: Option<usize>,
    steps: Vec<Point>,
    epochs: Vec<serde_json::Value>,
    /// The best weights on the test part, once the run is finished.
    test: Option<TestRecord>,
}

/// Several steps, averaged.
#[derive(Debug, PartialEq, Serialize)]
struct Point {
    step: usize,
    /// Their mean.
    loss: f64,
    /// Means of the parts of the loss, if it has several.
    #[serde(skip_serializing_if = "Values::is_empty")]
    parts: Values,
    rate: f64,
}

struct Found {
    run: Run,
    folder: PathBuf,
}

pub async fn list(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let runs: Vec<Run> = found(&app).await?.into_iter().map(|found| found.run).collect();
    Ok(json_response(&serde_json::json!({ "runs": runs })))
}

/// A name must be in the list: nothing else of a request reaches the file system.
pub async fn curves(State(app): State<Arc<App>>, Named(name): Named<String>) -> Result<Response, ApiError> {
    let run = found(&app).await?.into_iter().find(|found| found.run.name == name);
    let Found { run: Run { name, age }, folder } = run.ok_or_else(|| ApiError::NotFound(format!("/v1/runs/{name}")))?;
    let read = move || {
        let size = folder.join(METRICS).metadata().map_or(0, |file| file.len());
        if size > LONGEST {
            return Err(ApiError::Unprocessable(format!("the records of `{name}` are larger than {LONGEST} bytes")));
        }
        let unreadable = |_| ApiError::Unprocessable(format!("the records of `{name}` cannot be read"));
        let history = read_history(&folder).map_err(unreadable)?;
        let task = read_task(&folder).map_err(unreadable)?;
        let best = task.as_ref().and_then(|task| history.best(task.primary())).map(|epoch| epoch.epoch);
        let recipe = std::fs::read_to_string(folder.join("recipe.toml")).unwrap_or_default();
        let History { steps, epochs, test } = history;
        let epochs = epochs.iter().map(epoch_json).collect();
        Ok(Curves { name, age, recipe, task, best, steps: downsampled(&steps), epochs, test })
    };
    let curves = tokio::task::spawn_blocking(read).await.map_err(|_| ApiError::Internal)??;
    Ok(json_response(&curves))
}

/// An epoch with its metrics by name; older clients read the loss as `test_loss`.
fn epoch_json(record: &EpochRecord) -> serde_json::Value {
    let mut json = serde_json::to_value(record).expect("plain data");
    json["test_loss"] = json["loss"].clone();
    json
}

async fn found(app: &App) -> Result<Vec<Found>, ApiError> {
    let Some(root) = app.settings.runs.clone() else { return Ok(Vec::new()) };
    let look = move || {
        let mut all = Vec::new();
        collect(&root, "", DEPTH, &mut all);
        all.sort_by(|a: &Found, b: &Found| a.run.age.cmp(&b.run.age).then_with(|| a.run.name.cmp(&b.run.name)));
        all.truncate(MOST);
        all
    };
    tokio::task::spawn_blocking(look).await.map_err(|_| ApiError::Internal)
}

/// The runs below a folder; unreadable ones are skipped.
fn collect(folder: &Path, name: &str, depth: usize, all: &mut Vec<Found>) {
    if let Ok(metrics) = folder.join(METRICS).metadata() {
        let age = metrics.modified().ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        let name = if name.is_empty() { ".".to_string() } else { name.to_string() };
        let run = Run { name, age: age.map_or(0, |age| age.as_secs()) };
        all.push(Found { run, folder: folder.into() });
        return;
    }
    if depth == 0 {
        return;
    }
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let own = entry.file_name().to_string_lossy().into_owned();
        // links may form cycles; hidden folders belong to programs
        let plain = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if plain && !own.starts_with('.') {
            let name = if name.is_empty() { own } else { format!("{name}/{own}") };
            collect(&entry.path(), &name, depth - 1, all);
        }
    }
}

/// Averages groups of equally many steps.
fn downsampled(steps: &[StepRecord]) -> Vec<Point> {
    let together = steps.len().div_ceil(POINTS).max(1);
    let point = |steps: &[StepRecord]| {
        let last = &steps[steps.len() - 1];
        let loss = steps.iter().map(|step| step.loss).sum::<f64>() / steps.len() as f64;
        let mut parts = Values::new();
        for (name, value) in steps.iter().flat_map(|step| &step.parts) {
            *parts.entry(name.clone()).or_default() += value / steps.len() as f64;
        }
        Point { step: last.step, loss, parts, rate: last.rate }
    };
    steps.chunks(together).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize, loss: f64) -> StepRecord {
        StepRecord {
            step,
            epoch: 1,
            loss,
            parts: Values::from([("box".into(), loss / 2.0)]),
            rate: 0.5,
            gradient_norm: 1.0,
            items_per_second: 1.0,
        }
    }

    #[test]
    fn a_long_run_has_the_means_of_its_steps_and_a_short_one_every_step() {
        let steps: Vec<StepRecord> = (1..=2 * POINTS).map(|n| step(n, n as f64)).collect();
        let points = downsampled(&steps);
        assert_eq!(points.len(), POINTS);
        assert_eq!(points[1], Point { step: 4, loss: 3.5, parts: Values::from([("box".into(), 1.75)]), rate: 0.5 });
        assert_eq!(downsampled(&steps[..7]).len(), 7);
        assert!(downsampled(&[]).is_empty());
    }

    #[cfg(unix)]
    #[test]
    fn runs_are_found_below_comparisons_and_links_are_not_followed() {
        let root = tempfile::tempdir().unwrap();
        for name in ["one", "fashion/vit-nano/seed0", ".hidden", "too/deep/to/see"] {
            let folder = root.path().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(METRICS), "").unwrap();
        }
        std::os::unix::fs::symlink(root.path(), root.path().join("loop")).unwrap();
        let mut all = Vec::new();
        collect(root.path(), "", DEPTH, &mut all);
        let mut names: Vec<&str> = all.iter().map(|found| found.run.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, ["fashion/vit-nano/seed0", "one"]);
    }
}
