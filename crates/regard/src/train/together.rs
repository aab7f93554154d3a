//! Processes that begin together: the same recipe, as many pictures, and the state of the first one.
//!
//! Only the first reads the folder of the run, so that the machines need no file system in common.

use serde::{Deserialize, Serialize};
use std::path::Path;

use super::checkpoint::Progress;
use super::folder::difference;
use super::{Engine, Parts, Ranks, Recipe};
use crate::Error;
use crate::weights::{from_bytes, to_bytes};

/// What has to be the same in every process, or they would take different steps.
#[derive(Serialize, Deserialize)]
struct Common {
    recipe: String,
    pictures: usize,
    classes: Vec<String>,
}

/// # Errors
/// When this process has another recipe or other pictures than the first.
pub(super) fn agree(recipe: &Recipe, parts: &Parts, ranks: &dyn Ranks) -> Result<(), Error> {
    let classes = parts.train.classes().to_vec();
    let own = Common { recipe: recipe.to_toml(), pictures: parts.train.len(), classes };
    let bytes = ranks.share(serde_json::to_vec(&own).expect("plain data"))?;
    let other = |reason: String| Error::Rank { rank: ranks.rank(), reason };
    // another version of this program may know other keys
    let first: Common = serde_json::from_slice(&bytes).map_err(|error| other(format!("rank 0 is another: {error}")))?;
    let theirs = Recipe::from_toml(&first.recipe).map_err(|error| other(format!("the recipe of rank 0: {error}")))?;
    if let Some(key) = difference(&theirs, recipe) {
        return Err(other(format!("its recipe has another `{key}` than that of rank 0")));
    }
    if own.pictures != first.pictures {
        return Err(other(format!("has {} training pictures, rank 0 has {}", own.pictures, first.pictures)));
    }
    if own.classes != first.classes {
        return Err(other("its pictures have other classes than those of rank 0".into()));
    }
    Ok(())
}

/// Every process goes on from where the first one is.
///
/// # Errors
/// When another process is gone.
pub(super) fn begin(engine: &mut Engine, progress: &mut Progress, ranks: &dyn Ranks) -> Result<(), Error> {
    if ranks.count() == 1 {
        return Ok(());
    }
    let bytes = ranks.share(serde_json::to_vec(progress).expect("plain data"))?;
    let reason = |error: serde_json::Error| Error::Rank { rank: 0, reason: error.to_string() };
    *progress = serde_json::from_slice(&bytes).map_err(reason)?;
    // how an error names what comes from no file
    let sender = Path::new("state of rank 0");
    let own = if ranks.rank() == 0 { to_bytes(&engine.tensors(), sender)? } else { Vec::new() };
    let bytes = ranks.share(own)?;
    if ranks.rank() > 0 {
        engine.restore(&from_bytes(&bytes, sender)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second of two processes; the first said this.
    struct Second(Vec<u8>);

    impl Ranks for Second {
        fn rank(&self) -> usize {
            1
        }
        fn count(&self) -> usize {
            2
        }
        fn sum(&self, _: &mut [f32]) -> Result<(), Error> {
            Ok(())
        }
        fn share(&self, _: Vec<u8>) -> Result<Vec<u8>, Error> {
            Ok(self.0.clone())
        }
    }

    #[test]
    fn a_process_with_another_recipe_or_other_pictures_is_named() {
        let recipe = Recipe::default();
        let parts = Parts::of(&recipe).unwrap();
        let (pictures, classes) = (parts.train.len(), parts.train.classes().to_vec());
        let common = |recipe: &Recipe| Common { recipe: recipe.to_toml(), pictures, classes: classes.clone() };
        let told = |first: Common| agree(&recipe, &parts, &Second(serde_json::to_vec(&first).unwrap()));
        // neither changes what is learned
        assert!(told(common(&Recipe { workers: 7, save_every: 9, ..recipe.clone() })).is_ok());
        for (first, reason) in [
            (common(&Recipe { seed: 7, ..recipe.clone() }), "its recipe has another `seed` than that of rank 0"),
            (Common { pictures: 7, ..common(&recipe) }, "training pictures, rank 0 has 7"),
            (Common { classes: Vec::new(), ..common(&recipe) }, "its pictures have other classes than those of rank 0"),
        ] {
            let error = told(first).unwrap_err().to_string();
            assert!(error.starts_with("rank 1: ") && error.ends_with(reason), "{error}");
        }
    }
}
