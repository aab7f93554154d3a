//! The pictures and pages of a run.

use burn::tensor::Device;
use regard::evaluate::Evaluation;
use regard::file::replace;
use regard::report::RunReport;
use regard::train::{Parts, Recipe, read_history, test};
use regard::weights::{self, LoadOptions};
use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::failure::Failure;

/// How a run was begun, and taken up.
#[derive(Serialize, Deserialize)]
pub(super) struct Origin {
    pub command: String,
    pub version: String,
    pub commit: Option<String>,
    seed: u64,
}

impl Origin {
    fn here(seed: u64) -> Self {
        let quoted = |word: String| if word.contains(' ') { format!("'{word}'") } else { word };
        Self {
            command: std::env::args().map(quoted).collect::<Vec<_>>().join(" "),
            version: env!("CARGO_PKG_VERSION").into(),
            commit: Some(env!("REGARD_COMMIT").to_string()).filter(|commit| !commit.is_empty()),
            seed,
        }
    }
}

/// Writes the figures, `REPORT.html` and `run.json` of a run; with `tested`, its best weights are tested for it.
pub fn write_report(folder: &Path, recipe: &Recipe, device: &Device, tested: bool) -> Result<(), Failure> {
    let put = put_in(folder);
    let origin = origin(folder, recipe.seed, &put)?;
    let parts = Parts::of(recipe)?;
    let mut facts = vec![
        ("model".to_string(), recipe.model.clone()),
        ("parameters".to_string(), parts.config.ledger(parts.config.image())?.parameters().to_string()),
        ("data".to_string(), recipe.data.clone()),
        ("training pictures".to_string(), parts.train.len().to_string()),
        ("test pictures".to_string(), parts.test.len().to_string()),
    ];
    facts.push(("version".into(), origin.version));
    let best = folder.join("best.safetensors");
    let evaluation = if tested && best.is_file() { Some(evaluate(&best, &parts, recipe, device)?) } else { None };
    let report = RunReport {
        title: format!("{} on {}", recipe.model, recipe.data),
        command: origin.command,
        seed: recipe.seed,
        commit: origin.commit,
        recipe: recipe.to_toml(),
        facts,
        history: read_history(folder)?,
        classes: parts.train.classes().to_vec(),
        evaluation,
        pictures: Vec::new(),
    };
    for (name, text) in report.figures() {
        put(name, &text)?;
    }
    put("REPORT.html", &report.html())
}

/// Writes files of a folder.
pub(super) fn put_in(folder: &Path) -> impl Fn(&str, &str) -> Result<(), Failure> + '_ {
    |name, text| {
        let path = folder.join(name);
        let failed = |error| Failure::ours(format!("{}: {error}", path.display()), "is the disk full?");
        replace(&path, text.as_bytes()).map_err(failed)
    }
}

/// How the run was begun: written once.
pub(super) fn origin(
    folder: &Path,
    seed: u64,
    put: &dyn Fn(&str, &str) -> Result<(), Failure>,
) -> Result<Origin, Failure> {
    let there = std::fs::read(folder.join("run.json")).ok();
    if let Some(origin) = there.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        return Ok(origin);
    }
    let origin = Origin::here(seed);
    put("run.json", &serde_json::to_string_pretty(&origin).expect("plain data"))?;
    Ok(origin)
}

fn evaluate(best: &Path, parts: &Parts, recipe: &Recipe, device: &Device) -> Result<Evaluation, Failure> {
    let model = weights::load(parts.config.init(device)?, best, &LoadOptions::default())?.model;
    Ok(test(&model, &parts.testing(recipe), device, &mut |_| {})?)
}
