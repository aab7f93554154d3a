//! Laws that the runs of every task must obey.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::ranks::ThreadRanks;
use crate::device::cpu;
use crate::train::{
    Recipe, SingleProcess, Task, TrainEvent, TrainOptions, TrainOutcome, checkpoint, read_history, train,
};
use crate::weights::{Tensors, tensors, to_bytes};

/// Trains up to a step, or to the end.
pub fn train_until<T: Task>(folder: &Path, recipe: &Recipe<T::Section>, stop: Option<usize>) -> TrainOutcome {
    let mut watch = |event: TrainEvent| match event {
        TrainEvent::Step(record) => Some(record.step) != stop,
        _ => true,
    };
    train::<T>(folder, recipe, TrainOptions::default(), &cpu(), &SingleProcess, &mut watch).unwrap()
}

/// All output of a run except times: files, the checkpoint, and the history to the last digit.
pub fn remains(folder: &Path, files: &[&str]) -> (Vec<Vec<u8>>, Tensors, Vec<String>) {
    let files = files.iter().map(|name| fs::read(folder.join(name)).unwrap()).collect();
    let tensors = checkpoint::restore(&folder.join("checkpoint")).unwrap().unwrap().tensors;
    let is_timed = |field: &&str| field.contains("\"seconds\"") || field.contains("_per_second\"");
    let timeless = |line: &str| line.split(',').filter(|field| !is_timed(field)).collect::<Vec<_>>().join(",");
    let text = fs::read_to_string(folder.join("metrics.jsonl")).unwrap();
    (files, tensors, text.lines().map(timeless).collect())
}

/// A run that was stopped after these steps ends byte for byte like one that was not.
#[track_caller]
pub fn assert_stops_change_nothing<T: Task>(
    place: &Path,
    recipe: &Recipe<T::Section>,
    files: &[&str],
    stops: &[&[usize]],
) {
    let model = &recipe.common.model;
    let straight = place.join(format!("straight-{model}"));
    assert_eq!(train_until::<T>(&straight, recipe, None), TrainOutcome::Finished);
    for stops in stops {
        let resumed = place.join(format!("resumed-{model}-{stops:?}"));
        for &stop in *stops {
            assert_eq!(train_until::<T>(&resumed, recipe, Some(stop)), TrainOutcome::Stopped { step: stop });
        }
        assert_eq!(train_until::<T>(&resumed, recipe, None), TrainOutcome::Finished);
        assert!(remains(&resumed, files) == remains(&straight, files), "{model} {stops:?}");
    }
}

/// Two processes learn what one learns, within rounding.
#[track_caller]
pub fn assert_two_learn_as_one<T: Task>(place: &Path, recipe: &Recipe<T::Section>)
where
    T::Section: Sync,
{
    // both start with weights of a file: random ones come from a generator that two threads would share
    let (_, fresh) = T::open(recipe, &BTreeMap::new()).unwrap().begin(false, &cpu()).unwrap();
    let begin = place.join("begin.safetensors");
    fs::write(&begin, to_bytes(&tensors(&fresh), &begin).unwrap()).unwrap();
    let mut recipe = recipe.clone();
    recipe.common.weights = Some(begin.display().to_string());
    let recipe = &recipe;
    train_until::<T>(&place.join("one"), recipe, None);
    std::thread::scope(|scope| {
        for ranks in ThreadRanks::pair() {
            let folder = place.join("two");
            scope.spawn(move || {
                train::<T>(&folder, recipe, TrainOptions::default(), &cpu(), &ranks, &mut |_| true).unwrap()
            });
        }
    });
    let [one, two] = ["one", "two"].map(|name| read_history(&place.join(name)).unwrap());
    assert_eq!(one.steps.len(), two.steps.len());
    for (one, two) in one.steps.iter().zip(&two.steps) {
        assert!((one.loss - two.loss).abs() < 1e-4, "step {}: {} {}", one.step, one.loss, two.loss);
    }
    let primary = &T::METRICS[0].name;
    let [one, two] = [one, two].map(|history| history.test.unwrap().metric(primary));
    assert!((one - two).abs() < 1e-4, "{one} {two}");
}
