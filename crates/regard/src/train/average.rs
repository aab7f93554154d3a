//! Checkpoint averaging: the mean of the parameters of the last epochs translates better than any one of them
//! (Vaswani et al. 2017).
//!
//! The weights of each of these epochs are saved in `epochs/`, so that a resumed run averages the same ones.

use std::fs;

use burn::tensor::TensorData;

use super::Folder;
use crate::Error;
use crate::weights::{self, Tensors};

/// Saves the weights of an epoch and removes those older than the last `count`.
pub(super) fn keep(folder: &Folder, epoch: usize, count: usize, tensors: &Tensors) -> Result<(), Error> {
    let place = folder.path().join("epochs");
    fs::create_dir_all(&place).map_err(|error| Error::file(&place, error))?;
    weights::write_tensors(&place.join(format!("{epoch:05}.safetensors")), tensors)?;
    for old in 1..=epoch.saturating_sub(count) {
        // it may be removed already
        let _ = fs::remove_file(place.join(format!("{old:05}.safetensors")));
    }
    Ok(())
}

/// The mean of the saved weights.
pub(super) fn mean(folder: &Folder) -> Result<Tensors, Error> {
    let place = folder.path().join("epochs");
    let entries = fs::read_dir(&place).map_err(|error| Error::file(&place, error))?;
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "safetensors"));
    // a fixed order, because floating-point sums depend on it
    paths.sort();
    let mut sums: Vec<(String, Vec<usize>, Vec<f64>)> = Vec::new();
    for path in &paths {
        for (name, tensor) in weights::read(path)?.tensors {
            let values = tensor.iter::<f32>().map(f64::from);
            match sums.iter_mut().find(|(known, ..)| *known == name) {
                Some((_, _, sum)) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
                None => sums.push((name, tensor.shape().to_vec(), values.collect())),
            }
        }
    }
    let count = paths.len() as f64;
    let mean = |sum: Vec<f64>| sum.into_iter().map(|sum| (sum / count) as f32).collect::<Vec<f32>>();
    Ok(sums.into_iter().map(|(name, shape, sum)| (name, TensorData::new(mean(sum), shape))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::classify::{Classification, Recipe};
    use crate::train::Task as _;

    #[test]
    fn the_last_epochs_are_kept_and_their_mean_is_the_mean() {
        let place = tempfile::tempdir().unwrap();
        let folder =
            Folder::open(&place.path().join("run"), &Recipe::default(), &Classification::info(), false).unwrap();
        for epoch in 1..=5 {
            let tensors = [("a".to_string(), TensorData::new(vec![epoch as f32, 1.0], [2]))].into();
            keep(&folder, epoch, 3, &tensors).unwrap();
        }
        assert_eq!(mean(&folder).unwrap()["a"].iter::<f32>().collect::<Vec<_>>(), [4.0, 1.0]);
        assert_eq!(fs::read_dir(folder.path().join("epochs")).unwrap().count(), 3);
    }
}
