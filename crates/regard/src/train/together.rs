//! The start of a run in several processes: all check that they have the same recipe and data, and get the state of rank 0.
//!
//! Only rank 0 reads the run folder, so the machines need no shared file system.

use std::collections::BTreeMap;
use std::path::Path;

use super::checkpoint::RunProgress;
use super::folder::difference;
use super::recipe::Recipe;
use super::task::{Objective, Task};
use super::{Engine, Ranks};
use crate::Error;
use crate::weights::{from_bytes, to_bytes};

/// The values of rank 0, in every process.
///
/// # Errors
/// When another process has ended.
pub(super) fn from_rank_0(
    own: &BTreeMap<String, String>,
    ranks: &dyn Ranks,
) -> Result<BTreeMap<String, String>, Error> {
    let bytes = ranks.share(serde_json::to_vec(own).expect("plain data"))?;
    let reason = |error: serde_json::Error| Error::Rank { rank: ranks.rank(), reason: error.to_string() };
    serde_json::from_slice(&bytes).map_err(reason)
}

/// # Errors
/// When this process has another recipe or other data than rank 0.
pub(super) fn check_agreement<T: Task>(recipe: &Recipe<T::Section>, task: &T, ranks: &dyn Ranks) -> Result<(), Error> {
    const RECIPE: &str = "recipe";
    let mut own: BTreeMap<String, String> =
        task.agreement().into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    own.insert(RECIPE.into(), recipe.to_toml(T::NAME));
    let first = from_rank_0(&own, ranks)?;
    let other = |reason: String| Error::Rank { rank: ranks.rank(), reason };
    let text = first.get(RECIPE).map_or("", String::as_str);
    // another version of the program may have other keys
    let theirs = Recipe::from_toml(text).map_err(|error| other(format!("the recipe of rank 0: {error}")))?;
    if let Some(key) = difference(&theirs, recipe) {
        return Err(other(format!("its recipe has another `{key}` than that of rank 0")));
    }
    let differs = |(name, value): &(&String, &String)| name.as_str() != RECIPE && first.get(*name) != Some(value);
    match own.iter().find(differs) {
        Some((name, value)) => {
            let theirs = first.get(name).map_or("nothing", String::as_str);
            Err(other(format!("its {name}: {}; of rank 0: {}", shortened(value), shortened(theirs))))
        }
        None => Ok(()),
    }
}

/// The beginning of a long text.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    if text.chars().count() <= LONGEST { text.into() } else { text.chars().take(LONGEST).chain("..".chars()).collect() }
}

/// Copies the state of rank 0 to every process.
///
/// # Errors
/// When another process has ended.
pub(super) fn broadcast_state<O: Objective>(
    engine: &mut Engine<O>,
    progress: &mut RunProgress,
    ranks: &dyn Ranks,
) -> Result<(), Error> {
    if ranks.count() == 1 {
        return Ok(());
    }
    let bytes = ranks.share(serde_json::to_vec(progress).expect("plain data"))?;
    let reason = |error: serde_json::Error| Error::Rank { rank: 0, reason: error.to_string() };
    *progress = serde_json::from_slice(&bytes).map_err(reason)?;
    // stands for a file name in errors
    let sender = Path::new("state of rank 0");
    let own = if ranks.rank() == 0 { to_bytes(&engine.tensors(), sender)? } else { Vec::new() };
    let bytes = ranks.share(own)?;
    if ranks.rank() > 0 {
        engine.restore(&from_bytes(&bytes, sender)?)?;
    }
    Ok(())
}

/// The exact sums of counts over all processes. Each count is two digits to base 4096, because sums are in f32.
///
/// # Errors
/// When another process has ended.
pub(super) fn sum_counts(own: &[usize], ranks: &dyn Ranks) -> Result<Vec<f64>, Error> {
    if ranks.count() == 1 {
        return Ok(own.iter().map(|count| *count as f64).collect());
    }
    let mut digits: Vec<f32> = own.iter().flat_map(|count| [(count >> 12) as f32, (count & 0xfff) as f32]).collect();
    ranks.sum(&mut digits)?;
    Ok(digits.chunks_exact(2).map(|digits| f64::from(digits[0]) * 4096.0 + f64::from(digits[1])).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::classify::{Classification, ClassifySection};

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

    /// Two processes that bring the same.
    struct Alike;

    impl Ranks for Alike {
        fn rank(&self) -> usize {
            0
        }
        fn count(&self) -> usize {
            2
        }
        fn sum(&self, values: &mut [f32]) -> Result<(), Error> {
            values.iter_mut().for_each(|value| *value *= 2.0);
            Ok(())
        }
        fn share(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
            Ok(bytes)
        }
    }

    #[test]
    fn counts_that_single_precision_cannot_hold_are_summed_exactly() {
        let counts = [(1 << 30) + 1, 4095, 0];
        assert_eq!(sum_counts(&counts, &Alike).unwrap(), counts.map(|count| 2.0 * count as f64));
    }

    #[test]
    fn a_process_with_another_recipe_or_other_data_is_named() {
        let recipe = Recipe::default();
        let task = Classification::open(&recipe, &BTreeMap::new()).unwrap();
        let start = |first: &Recipe<ClassifySection>, change: Option<(&str, &str)>| {
            let mut said: BTreeMap<String, String> =
                task.agreement().into_iter().map(|(name, value)| (name.to_string(), value)).collect();
            said.insert("recipe".into(), first.to_toml("classify"));
            said.extend(change.map(|(name, value)| (name.to_string(), value.to_string())));
            check_agreement(&recipe, &task, &Second(serde_json::to_vec(&said).unwrap()))
        };
        // neither changes what is learned
        let mut harmless = recipe.clone();
        (harmless.own.workers, harmless.common.save_every) = (7, 9);
        assert!(start(&harmless, None).is_ok());
        let mut other = recipe.clone();
        other.common.seed = 7;
        for (first, change, reason) in [
            (&other, None, "its recipe has another `seed` than that of rank 0"),
            (&recipe, Some(("training pictures", "7")), "of rank 0: 7"),
            (&recipe, Some(("classes", "cat")), "of rank 0: cat"),
        ] {
            let error = start(first, change).unwrap_err().to_string();
            assert!(error.starts_with("rank 1: ") && error.ends_with(reason), "{error}");
        }
    }
}
