//! `regard eval` of models that are not classifiers: their task evaluates them.

use regard::models::ModelConfig;
use regard::tasks::AnyRecipe;
use regard::train::{EvalReport, read_recipe_text};
use std::io::{IsTerminal as _, Write, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::models::print_json;

/// The recipe of a run; `None` if the folder is not a run.
pub fn recipe(folder: &Path) -> Option<AnyRecipe> {
    AnyRecipe::from_toml(&read_recipe_text(folder).ok()?).ok()
}

/// Whether the model of a run is a classifier of pictures, which this command evaluates in more respects than its task.
pub fn is_classifier(folder: &Path) -> bool {
    let text = regard::file::read_text(&folder.join("model.toml"));
    text.is_ok_and(|text| ModelConfig::from_toml(&text).is_ok())
}

/// Whether the model of a run answers with classes, for any input.
pub fn has_classes(folder: &Path) -> bool {
    folder.join("classes.txt").is_file()
}

/// The output of an evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    pub json: bool,
    /// The file of the confusion matrix.
    pub confusion: Option<&'a Path>,
    /// A folder for all figures.
    pub folder: Option<&'a Path>,
}

/// Evaluates with a counter on stderr, prints the numbers and writes the figures.
pub fn print(
    evaluate: impl FnOnce(&mut dyn FnMut(usize, usize)) -> Result<EvalReport, regard::Error>,
    outputs: &Outputs,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let shown = stderr().is_terminal();
    let measured = evaluate(&mut |done, of| {
        if shown {
            // stderr is closed: the evaluation continues
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

/// Writes the requested figures as SVG.
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
