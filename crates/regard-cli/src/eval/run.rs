//! `regard eval` of a run whose task is not classification: the task says what is measured.

use burn::tensor::Device;
use regard::tasks::AnyRecipe;
use regard::train::{EvalReport, EvalRequest, read_recipe_text};
use std::io::{IsTerminal as _, Write, stderr};
use std::path::Path;

use crate::failure::Failure;
use crate::models::print_json;

/// The recipe of a run; none when the folder is something else.
pub fn recipe(folder: &Path) -> Option<AnyRecipe> {
    AnyRecipe::from_toml(&read_recipe_text(folder).ok()?).ok()
}

/// Whether the models of a recipe answer with classes, which more can be said about.
pub const fn is_classifier(recipe: &AnyRecipe) -> bool {
    matches!(recipe, AnyRecipe::Classify(_))
}

pub fn print(
    recipe: &AnyRecipe,
    request: &EvalRequest,
    json: bool,
    device: &Device,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let shown = stderr().is_terminal();
    let measured = recipe.evaluate(request, device, &mut |done, of| {
        if shown {
            // nobody reads it: measuring goes on
            let _ = write!(stderr(), "\rmeasured {done} of {of}");
        }
    });
    if shown {
        writeln!(stderr())?;
    }
    let hint = "`--data` takes what the run was trained on, or data like it";
    let EvalReport { lines, json: data } = measured.map_err(|error| Failure::input(error, hint))?;
    if json {
        return print_json(&data, out);
    }
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(11);
    for (name, value) in lines {
        writeln!(out, "{name:<width$} {value}")?;
    }
    Ok(())
}
