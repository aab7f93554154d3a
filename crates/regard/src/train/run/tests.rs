use super::*;
use crate::data::{Augment, Crop, Mix};
use crate::testing::noise_picture;
use crate::train::{Alone, Optimiser, Schedule, Shape, read_history};
use crate::{device, file};
use std::path::PathBuf;

/// A folder of three classes of noise, and room for runs.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        for class in 0..3 {
            let folder = place.path().join("data").join(format!("class{class}"));
            std::fs::create_dir_all(&folder).unwrap();
            for number in 0..15 {
                let picture = noise_picture([12, 12], 100 * class + number);
                let pixels = image::RgbImage::from_raw(12, 12, picture.pixels().to_vec()).unwrap();
                pixels.save(folder.join(format!("{number}.png"))).unwrap();
            }
        }
        Self(place)
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// 36 training pictures, 9 of the test; 3 epochs of 4 steps.
    fn recipe(&self) -> Recipe {
        let text = "
            epochs = 3
            batch = 8
            workers = 1
            set = { image = [12, 12], dim = 16, depth = 2, heads = 2, mlp_dim = 32 }
            optimiser = { rule = 'adamw', rate = 3e-3, decay = 0.05 }
        ";
        Recipe { data: self.run("data").display().to_string(), ..Recipe::from_toml(text).unwrap() }
    }

    /// With everything on that has a state or draws numbers.
    fn rich(&self) -> Recipe {
        Recipe {
            accumulate: 2,
            ema: 0.9,
            clip: 1.0,
            stochastic_depth: 0.2,
            mix: Mix { mixup: 0.8, cutmix: 1.0, ..Mix::default() },
            augment: Augment { crop: Crop::Random { padding: 2 }, flip: 0.5, erase: 0.25, ..Augment::default() },
            ..self.recipe()
        }
    }
}

/// Trains until a step, or to the end.
fn train_until(folder: &Path, recipe: &Recipe, stop: Option<usize>) -> Outcome {
    let mut watch = |event: Event| match event {
        Event::Step(record) => Some(record.step) != stop,
        _ => true,
    };
    train(folder, recipe, &device::cpu(), &Alone, &mut watch).unwrap()
}

/// Everything that a run leaves, but for its times.
fn remains(folder: &Path) -> (Vec<Vec<u8>>, weights::Tensors, Progress, History) {
    let files = ["best.safetensors", "last.safetensors", "recipe.toml", "model.toml", "classes.txt"];
    let files = files.map(|name| std::fs::read(folder.join(name)).unwrap()).to_vec();
    let restored = checkpoint::restore(&folder.join("checkpoint")).unwrap().unwrap();
    let mut history = read_history(folder).unwrap();
    history.steps.iter_mut().for_each(|record| record.pictures_per_second = 0.0);
    history.epochs.iter_mut().for_each(|record| record.seconds = 0.0);
    (files, restored.tensors, restored.progress, history)
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_byte_for_byte_as_one_that_was_not() {
    let place = Place::new();
    for model in ["vit-nano", "resnet-nano"] {
        let mut recipe = Recipe { model: model.into(), ..place.rich() };
        if model == "resnet-nano" {
            recipe.set = [("image".to_string(), toml::Value::from(vec![12, 12]))].into();
        }
        let straight = place.run(&format!("straight-{model}"));
        assert_eq!(train_until(&straight, &recipe, None), Outcome::Finished);
        // in the middle of an epoch, at its end, and several times
        for stops in [vec![2], vec![4], vec![1, 5, 7]] {
            let resumed = place.run(&format!("resumed-{model}-{stops:?}"));
            for &stop in &stops {
                assert_eq!(train_until(&resumed, &recipe, Some(stop)), Outcome::Stopped { step: stop });
            }
            assert_eq!(train_until(&resumed, &recipe, None), Outcome::Finished);
            assert!(remains(&resumed) == remains(&straight), "{model} {stops:?}");
        }
    }
}

#[test]
fn the_number_of_workers_and_the_times_of_checkpoints_change_nothing() {
    let place = Place::new();
    let recipe = place.rich();
    train_until(&place.run("one"), &recipe, None);
    train_until(&place.run("three"), &Recipe { workers: 3, save_every: 1, ..recipe }, None);
    let ((mut one, tensors, progress, history), (mut three, ..)) =
        (remains(&place.run("one")), remains(&place.run("three")));
    // the recipes differ in these two keys
    one.remove(2);
    three.remove(2);
    assert!(one == three);
    let (_, others, also, same) = remains(&place.run("three"));
    assert!(tensors == others && progress == also && history == same);
}

#[test]
fn another_seed_is_another_run() {
    let place = Place::new();
    let recipe = place.recipe();
    train_until(&place.run("one"), &recipe, None);
    train_until(&place.run("two"), &Recipe { seed: 1, ..recipe }, None);
    assert!(remains(&place.run("one")).1 != remains(&place.run("two")).1);
}

#[test]
fn a_finished_run_does_nothing_more() {
    let place = Place::new();
    let recipe = place.recipe();
    train_until(&place.run("run"), &recipe, None);
    let before = remains(&place.run("run"));
    let mut steps = 0;
    let mut watch = |event: Event| {
        steps += usize::from(matches!(event, Event::Step(_)));
        true
    };
    let outcome = train(&place.run("run"), &recipe, &device::cpu(), &Alone, &mut watch).unwrap();
    assert_eq!((outcome, steps), (Outcome::Finished, 0));
    assert!(remains(&place.run("run")) == before);
}

#[test]
fn patience_ends_a_run_that_does_not_get_better() {
    let place = Place::new();
    let still = Optimiser::Adamw { rate: 0.0, betas: [0.9, 0.999], epsilon: 1e-8, decay: 0.0 };
    let recipe = Recipe { optimiser: still, patience: 2, epochs: 9, ..place.recipe() };
    assert_eq!(train_until(&place.run("run"), &recipe, None), Outcome::Patience);
    assert_eq!(read_history(&place.run("run")).unwrap().epochs.len(), 3);
}

#[test]
fn a_loss_that_is_not_finite_names_the_step_the_rate_and_the_last_good_checkpoint() {
    let place = Place::new();
    let wild = Optimiser::Sgd { rate: 1e3, momentum: 0.9, nesterov: false, decay: 1e3 };
    let schedule = Schedule { shape: Shape::Constant, ..Schedule::default() };
    let recipe = Recipe { optimiser: wild, schedule, save_every: 1, epochs: 50, ..place.recipe() };
    let error = train(&place.run("run"), &recipe, &device::cpu(), &Alone, &mut |_| true).unwrap_err();
    let Error::Diverged { step, rate, .. } = &error else { panic!("{error}") };
    let good = checkpoint::progress(&place.run("run").join("checkpoint")).unwrap().step;
    assert_eq!((*rate, good), (1e3, step - 1));
    let text = error.to_string();
    assert!(text.contains(&format!("the last good checkpoint is step {good} in ")), "{text}");
}

#[test]
fn weights_of_other_classes_and_another_size_begin_a_run_with_a_new_head() {
    let place = Place::new();
    let recipe = place.recipe();
    train_until(&place.run("first"), &recipe, None);
    let weights = Some(place.run("first").join("best.safetensors").display().to_string());
    std::fs::remove_dir_all(place.run("data").join("class2")).unwrap();
    let mut finer = Recipe { weights, epochs: 1, schedule: Schedule::default(), ..recipe };
    finer.set.insert("image".into(), toml::Value::from(vec![16, 16]));
    finer.optimiser = Optimiser::Sgd { rate: 0.0, momentum: 0.9, nesterov: false, decay: 0.0 };
    train_until(&place.run("second"), &finer, None);
    let read = |name: &str| weights::read(&place.run(name).join("best.safetensors")).unwrap().tensors;
    let (first, second) = (read("first"), read("second"));
    assert_eq!(second["blocks.0.attn.qkv.weight"], first["blocks.0.attn.qkv.weight"]);
    assert_eq!(second["head.weight"].shape().to_vec(), [2, 16]);
    assert_eq!(second["pos_embed"].shape().to_vec(), [1, 17, 16]);
}

#[test]
fn fewer_pictures_than_a_batch_and_a_folder_of_something_else_are_told() {
    let place = Place::new();
    let told = |recipe: &Recipe, name: &str| {
        train(&place.run(name), recipe, &device::cpu(), &Alone, &mut |_| true).unwrap_err().to_string()
    };
    assert!(told(&Recipe { batch: 1000, ..place.recipe() }, "run").contains("batch"));
    file::replace(&place.run("data").join("notes.txt"), b"mine").unwrap();
    assert!(told(&place.recipe(), "data").contains("no run"));
}
