//! `regard recipes`: the built-in recipes.

use regard::tasks::{AnyRecipe, classify};
use std::io::Write;
use std::path::Path;

use crate::failure::Failure;

/// List the built-in recipes, or print one
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print this recipe, as a start for your own
    name: Option<String>,
}

macro_rules! recipes {
    ($($name:literal)*) => {
        /// Names and texts.
        pub const RECIPES: &[(&str, &str)] = &[$(($name, include_str!(concat!("../../../recipes/", $name, ".toml")))),*];
    };
}

recipes! {
    "quickstart" "quickstart-vit" "quickstart-window" "fashion" "cifar" "finetune"
    "san" "sasa" "deit" "deit3" "deit3-finetune" "rsb-a1" "rsb-a2" "rsb-a3"
    "translate-it-en" "translate-en-it" "translate-rnn" "language-masked" "language-causal"
    "scenes" "scenes-retinanet" "scenes-faster-rcnn" "detr" "retinanet" "faster-rcnn" "bccd" "bccd-detr"
    "clips" "clips-garment" "timesformer" "i3d"
    "questions" "captions" "easy-vqa" "nlvr"
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(name) = &args.name {
        let text = named(name).ok_or_else(|| unknown(name))?;
        return Ok(out.write_all(text.as_bytes())?);
    }
    for (name, text) in RECIPES {
        writeln!(out, "{name:<20} {}", summary(text))?;
    }
    Ok(())
}

/// The first line of a recipe describes it.
fn summary(text: &str) -> &str {
    text.lines().next().unwrap_or_default().trim_start_matches(['#', ' '])
}

fn named(name: &str) -> Option<&'static str> {
    RECIPES.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

fn unknown(name: &str) -> Failure {
    let near = RECIPES
        .iter()
        .map(|(known, _)| *known)
        .max_by(|a, b| strsim::jaro_winkler(a, name).total_cmp(&strsim::jaro_winkler(b, name)));
    let near = near.filter(|near| strsim::jaro_winkler(near, name) > 0.8);
    let near = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
    Failure::input(format!("no recipe `{name}`"), format!("{near}`regard recipes` lists the built-in ones"))
}

/// The same, only for recipes of classification.
pub fn read_classify(name: &str) -> Result<classify::Recipe, Failure> {
    match read_any(name)? {
        (AnyRecipe::Classify(recipe), _) => Ok(recipe),
        (other, _) => {
            let message = format!("`{name}` is a recipe for the task `{}`", other.info().task);
            Err(Failure::input(message, "this command needs a `classify` recipe; `regard train` takes every recipe"))
        }
    }
}

/// A recipe by its file or built-in name, and its display name.
pub fn read_any(name: &str) -> Result<(AnyRecipe, String), Failure> {
    let path = Path::new(name);
    let (text, called) = match named(name) {
        Some(text) => (text.to_string(), name.to_string()),
        None if path.extension().is_none() && !path.exists() => return Err(unknown(name)),
        None => {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::input(format!("cannot read `{name}`: {error}"), "`regard recipes` lists the built-in ones")
            })?;
            (text, path.file_stem().unwrap_or_default().to_string_lossy().into_owned())
        }
    };
    let recipe = AnyRecipe::from_toml(&text)
        .map_err(|error| Failure::input(format!("`{name}`, {error}"), "`regard recipes NAME` prints one that works"))?;
    Ok((recipe, called))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recipe_of_the_folder_is_embedded_and_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../recipes");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "toml"))
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        files.sort();
        let mut known: Vec<&str> = RECIPES.iter().map(|(name, _)| *name).collect();
        known.sort_unstable();
        assert_eq!(files, known);
        for (name, text) in RECIPES {
            read_any(name).unwrap_or_else(|failure| panic!("{name}: {failure}"));
            assert!(text.starts_with("# ") && summary(text).len() > 10, "{name} begins with what it is");
        }
    }

    #[test]
    fn an_unknown_recipe_is_named() {
        let error = read_any("fashon").unwrap_err().to_string();
        assert!(error.contains("`fashon`") && error.contains("did you mean `fashion`?"), "{error}");
        assert!(read_any("no/such.toml").unwrap_err().to_string().contains("no/such.toml"));
        assert!(read_classify("translate-it-en").unwrap_err().to_string().contains("`translate`"));
    }
}
