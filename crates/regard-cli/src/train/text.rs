//! Training a translator, as a person sees it.

use burn::tensor::Device;
use regard::report::RunReport;
use regard::train::{Event, Outcome, TextRecipe, Written as _, read_history, train_text};
use std::io::{Write, stderr};
use std::path::Path;

use super::report::{origin, put_in};
use super::training_failure;
use super::watch::{Interrupt, Units, Watch};
use crate::failure::Failure;

/// Trains to the end, from wherever the run is, and reports.
pub fn run(
    recipe: &TextRecipe,
    folder: &Path,
    device: &Device,
    interrupt: &Interrupt,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let languages = recipe.languages();
    writeln!(
        stderr(),
        "training    {} on {}, {} to {}",
        recipe.model,
        recipe.data,
        languages.source,
        languages.target()
    )?;
    writeln!(stderr(), "run folder  {}", folder.display())?;
    let mut watch = Watch::of(recipe.epochs, Units::Tokens, interrupt.clone());
    let outcome = train_text(folder, recipe, device, &mut |event| {
        // a page of a run that goes on is a convenience
        if matches!(event, Event::Saved { .. }) {
            let _ = write_report(folder, recipe);
        }
        watch.tell(&event)
    });
    watch.finish();
    let outcome = outcome.map_err(|error| training_failure(error, folder))?;
    if let Outcome::Stopped { step } = outcome {
        let message = format!("stopped after step {step}, which is saved");
        return Err(Failure::Stopped {
            message,
            hint: format!("`regard train --resume {}` goes on", folder.display()),
        });
    }
    write_report(folder, recipe)?;
    let history = read_history(folder)?;
    if let Some(best) = history.epochs.iter().min_by(|a, b| a.test_loss.total_cmp(&b.test_loss)) {
        writeln!(out, "perplexity  {:.3} (epoch {})", best.test_loss.exp(), best.epoch)?;
        writeln!(out, "foreseen    {:.2} % of tokens", 100.0 * best.top1)?;
    }
    if let Some(bleu) = history.epochs.iter().rev().find_map(|epoch| epoch.bleu) {
        writeln!(out, "dev BLEU    {bleu:.2} (greedy)")?;
    }
    writeln!(out, "time        {:.0} s", history.seconds())?;
    writeln!(out, "weights     {}", folder.join("best.safetensors").display())?;
    writeln!(out, "translate   regard translate --run {}", folder.display())?;
    Ok(())
}

/// Writes the figures, `REPORT.html` and `run.json` of a run.
fn write_report(folder: &Path, recipe: &TextRecipe) -> Result<(), Failure> {
    let put = put_in(folder);
    let origin = origin(folder, recipe.seed, &put)?;
    let report = RunReport {
        title: format!("{} on {}, from {}", recipe.model, recipe.data, recipe.source),
        command: origin.command,
        seed: recipe.seed,
        commit: origin.commit,
        recipe: recipe.to_toml(),
        facts: vec![
            ("model".into(), recipe.model.clone()),
            ("data".into(), recipe.data.clone()),
            ("top-1".into(), "share of tokens of the dev part that were foreseen".into()),
            ("version".into(), origin.version),
        ],
        history: read_history(folder)?,
        classes: Vec::new(),
        evaluation: None,
        pictures: Vec::new(),
    };
    for (name, text) in report.figures() {
        put(name, &text)?;
    }
    put("REPORT.html", &report.html())
}
