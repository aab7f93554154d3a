//! The report and figures of a run.

use regard::evaluate::TestRecord;
use regard::file::replace;
use regard::report::{Findings, RunReport};
use regard::tasks::AnyRecipe;
use regard::train::read_history;
use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::failure::Failure;

/// How a run was started and resumed.
#[derive(Serialize, Deserialize)]
struct Provenance {
    command: String,
    version: String,
    commit: Option<String>,
    seed: u64,
}

impl Provenance {
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

/// Writes the figures, `REPORT.html` and `run.json` of a run; `tested` is the test that ends it.
pub fn write_report(
    folder: &Path,
    recipe: &AnyRecipe,
    facts: &[(String, String)],
    tested: Option<(&TestRecord, &Findings)>,
) -> Result<(), Failure> {
    let put = put_in(folder);
    let common = recipe.common();
    let origin = origin(folder, common.seed, &put)?;
    let mut history = read_history(folder)?;
    let mut findings = Findings::default();
    if let Some((record, found)) = tested {
        history.test = Some(record.clone());
        findings = found.clone();
    }
    let mut all = vec![("model".to_string(), common.model.clone()), ("data".to_string(), common.data.clone())];
    all.extend_from_slice(facts);
    all.push(("version".into(), origin.version));
    let report = RunReport {
        title: format!("{} on {}", common.model, common.data),
        command: origin.command,
        seed: common.seed,
        commit: origin.commit,
        recipe: recipe.to_toml(),
        facts: all,
        task: recipe.info(),
        history,
        findings,
    };
    for (name, text) in report.figures() {
        put(&name, &text)?;
    }
    put("REPORT.html", &report.html())
}

/// Writes files of a folder.
fn put_in(folder: &Path) -> impl Fn(&str, &str) -> Result<(), Failure> + '_ {
    |name, text| {
        let path = folder.join(name);
        let failed = |error| Failure::ours(format!("{}: {error}", path.display()), "is the disk full?");
        replace(&path, text.as_bytes()).map_err(failed)
    }
}

/// How the run was started; written once.
fn origin(folder: &Path, seed: u64, put: &dyn Fn(&str, &str) -> Result<(), Failure>) -> Result<Provenance, Failure> {
    let there = std::fs::read(folder.join("run.json")).ok();
    if let Some(origin) = there.and_then(|bytes| serde_json::from_slice(&bytes).ok()) {
        return Ok(origin);
    }
    let origin = Provenance::here(seed);
    put("run.json", &serde_json::to_string_pretty(&origin).expect("plain data"))?;
    Ok(origin)
}
