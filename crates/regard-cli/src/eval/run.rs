//! `regard eval` of models that are no classifiers: their task says what is measured.

use regard::tasks::AnyRecipe;
use regard::train::{EvalReport, read_recipe_text};
use std::io::{IsTerminal as _, Write, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::models::print_json;

/// The recipe of a run; none when the folder is something else.
pub fn recipe(folder: &Path) -> Option<AnyRecipe> {
    AnyRecipe::from_toml(&read_recipe_text(folder).ok()?).ok()
}

/// Whether the models of a recipe answer with classes, for whatever input.
pub const fn has_classes(recipe: &AnyRecipe) -> bool {
    matches!(recipe, AnyRecipe::Classify(_) | AnyRecipe::Detect(_) | AnyRecipe::Clips(_))
}

/// Whether the models of a recipe answer with classes, which more can be said about.
pub const fn is_classifier(recipe: &AnyRecipe) -> bool {
    matches!(recipe, AnyRecipe::Classify(_))
}

/// Where the results go.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    pub json: bool,
    /// The figure of what each class is taken for.
    pub confusion: Option<&'a Path>,
    /// A folder for all figures.
    pub folder: Option<&'a Path>,
}

/// Measures with a counter on stderr, prints the numbers and writes the figures.
pub fn print(
    evaluate: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Result<EvalReport, regard::Error>,
    outputs: &Outputs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let shown = stderr().is_terminal();
    let measured = evaluate(&mut |done, of| {
        if shown {
            // nobody reads it: measuring goes on
            let _ = write!(stderr(), "\rmeasured {done} of {of}");
        }
    });
    if shown {
        writeln!(stderr())?;
    }
    let EvalReport { lines, json, figures } = measured.map_err(|error| {
        let hint = match error {
            regard::Error::File { .. } => "`regard data check` lists everything that is wrong with data",
            _ => "`--data` takes what the model was trained on, or data like it",
        };
        Failure::input(error, hint)
    })?;
    let figures: Vec<(&str, String)> = figures.iter().map(|(name, figure)| (*name, figure.svg())).collect();
    write_figures(&figures, outputs)?;
    if outputs.json {
        return print_json(&json, out);
    }
    let width = lines.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0).max(11);
    for (name, value) in lines {
        writeln!(out, "{name:<width$} {value}")?;
    }
    Ok(())
}

/// Writes figures, which are SVG, to where they were asked for.
pub fn write_figures(figures: &[(&str, String)], outputs: &Outputs) -> Result<(), Failure> {
    let confusion = figures.iter().find(|(name, _)| *name == "confusion.svg");
    let mut files: Vec<(PathBuf, &str)> = Vec::new();
    files.extend(outputs.confusion.zip(confusion).map(|(path, (_, svg))| (path.to_path_buf(), svg.as_str())));
    if let Some(folder) = outputs.folder {
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::input(
                format!("cannot make `{}`: {error}", folder.display()),
                "does something else have this name?",
            )
        })?;
        files.extend(figures.iter().map(|(name, svg)| (folder.join(name), svg.as_str())));
    }
    for (path, svg) in files {
        regard::file::replace(&path, svg.as_bytes()).map_err(|error| {
            Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable?")
        })?;
        writeln!(stderr(), "wrote {}", path.display())?;
    }
    Ok(())
}
