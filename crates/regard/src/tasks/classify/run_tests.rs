use super::*;
use crate::data::{Augment, Crop};
use crate::evaluate::History;
use crate::testing::noise_picture;
use crate::train::checkpoint::{self, RunProgress};
use crate::train::{
    Optimiser, Schedule, ScheduleShape, SingleProcess, TrainEvent, TrainOptions, TrainOutcome, Validation, read_history,
};
use crate::{device, file};
use std::path::{Path, PathBuf};

/// A folder with data of three classes of noise, and with runs.
struct Workspace(tempfile::TempDir);

impl Workspace {
    fn new() -> Self {
        let workspace = tempfile::tempdir().unwrap();
        for class in 0..3 {
            let folder = workspace.path().join("data").join(format!("class{class}"));
            std::fs::create_dir_all(&folder).unwrap();
            for number in 0..15 {
                let picture = noise_picture([12, 12], 100 * class + number);
                let pixels = image::RgbImage::from_raw(12, 12, picture.pixels().to_vec()).unwrap();
                pixels.save(folder.join(format!("{number}.png"))).unwrap();
            }
        }
        Self(workspace)
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// 33 training, 3 validation and 9 test pictures; 3 epochs of 4 steps.
    fn recipe(&self) -> Recipe {
        let text = "
            epochs = 3
            batch = 8
            workers = 1
            set = { image = [12, 12], dim = 16, depth = 2, heads = 2, mlp_dim = 32 }
            optimiser = { rule = 'adamw', rate = 3e-3, decay = 0.05 }
        ";
        let mut recipe = Recipe::from_toml(text).unwrap();
        recipe.common.data = self.run("data").display().to_string();
        recipe
    }

    /// With every option that has a state or draws random numbers.
    fn rich(&self) -> Recipe {
        let mut recipe = self.recipe();
        (recipe.common.accumulate, recipe.common.ema, recipe.common.clip) = (2, 0.9, 1.0);
        recipe.own.stochastic_depth = 0.2;
        recipe.own.mix = Mix { mixup: 0.8, cutmix: 1.0, ..Mix::default() };
        recipe.own.augment =
            Augment { crop: Crop::Random { padding: 2 }, flip: 0.5, erase: 0.25, ..Augment::default() };
        recipe
    }
}

/// Trains in one process.
fn train_with(
    folder: &Path,
    recipe: &Recipe,
    watch: &mut dyn FnMut(TrainEvent) -> bool,
) -> Result<TrainOutcome, Error> {
    train::train::<Classification>(folder, recipe, TrainOptions::default(), &device::cpu(), &SingleProcess, watch)
}

/// Trains up to a step, or to the end.
fn train_until(folder: &Path, recipe: &Recipe, stop: Option<usize>) -> TrainOutcome {
    let mut watch = |event: TrainEvent| match event {
        TrainEvent::Step(record) => Some(record.step) != stop,
        _ => true,
    };
    train_with(folder, recipe, &mut watch).unwrap()
}

/// All files of a run, without times.
fn remains(folder: &Path) -> (Vec<Vec<u8>>, weights::Tensors, RunProgress, History) {
    let files = ["best.safetensors", "last.safetensors", "recipe.toml", "task.json", "model.toml", "classes.txt"];
    let files = files.map(|name| std::fs::read(folder.join(name)).unwrap()).to_vec();
    let restored = checkpoint::restore(&folder.join("checkpoint")).unwrap().unwrap();
    let mut history = read_history(folder).unwrap();
    history.steps.iter_mut().for_each(|record| record.items_per_second = 0.0);
    history.epochs.iter_mut().for_each(|record| record.seconds = 0.0);
    (files, restored.tensors, restored.progress, history)
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_byte_for_byte_like_one_that_was_not() {
    let workspace = Workspace::new();
    for model in ["vit-nano", "resnet-nano"] {
        let mut recipe = workspace.rich();
        recipe.common.model = model.into();
        if model == "resnet-nano" {
            recipe.common.set = [("image".to_string(), toml::Value::from(vec![12, 12]))].into();
        }
        let straight = workspace.run(&format!("straight-{model}"));
        assert_eq!(train_until(&straight, &recipe, None), TrainOutcome::Finished);
        // in the middle of an epoch, at its end, and several times
        for stops in [vec![2], vec![4], vec![1, 5, 7]] {
            let resumed = workspace.run(&format!("resumed-{model}-{stops:?}"));
            for &stop in &stops {
                assert_eq!(train_until(&resumed, &recipe, Some(stop)), TrainOutcome::Stopped { step: stop });
            }
            assert_eq!(train_until(&resumed, &recipe, None), TrainOutcome::Finished);
            assert!(remains(&resumed) == remains(&straight), "{model} {stops:?}");
        }
    }
}

#[test]
fn the_mean_loss_of_an_epoch_does_not_depend_on_numbers_read_back_from_json() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    let (straight, resumed) = (workspace.run("straight"), workspace.run("resumed"));
    train_until(&straight, &recipe, None);
    // reading a number back may move its last bit; this one moves further
    assert_eq!(train_until(&resumed, &recipe, Some(2)), TrainOutcome::Stopped { step: 2 });
    let path = resumed.join("metrics.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    first["loss"] = 1e3.into();
    let rest: Vec<&str> = text.lines().skip(1).collect();
    std::fs::write(&path, format!("{first}\n{}\n", rest.join("\n"))).unwrap();
    train_until(&resumed, &recipe, None);
    let means = |run: &Path| -> Vec<u64> {
        read_history(run).unwrap().epochs.iter().map(|epoch| epoch.train_loss.to_bits()).collect()
    };
    assert_eq!(means(&resumed), means(&straight));
}

#[test]
fn the_numbers_of_workers_and_checkpoints_change_nothing() {
    let workspace = Workspace::new();
    let recipe = workspace.rich();
    train_until(&workspace.run("one"), &recipe, None);
    let mut other = recipe;
    (other.own.workers, other.common.save_every) = (3, 1);
    train_until(&workspace.run("three"), &other, None);
    let ((mut one, tensors, progress, history), (mut three, ..)) =
        (remains(&workspace.run("one")), remains(&workspace.run("three")));
    // the recipes differ in these two keys
    one.remove(2);
    three.remove(2);
    assert!(one == three);
    let (_, others, also, same) = remains(&workspace.run("three"));
    assert!(tensors == others && progress == also && history == same);
}

#[test]
fn another_seed_is_another_run() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    train_until(&workspace.run("one"), &recipe, None);
    let mut other = recipe;
    other.common.seed = 1;
    train_until(&workspace.run("two"), &other, None);
    assert!(remains(&workspace.run("one")).1 != remains(&workspace.run("two")).1);
}

#[test]
fn a_finished_run_does_nothing_more() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    train_until(&workspace.run("run"), &recipe, None);
    let before = remains(&workspace.run("run"));
    let mut steps = 0;
    let mut watch = |event: TrainEvent| {
        steps += usize::from(matches!(event, TrainEvent::Step(_)));
        true
    };
    let outcome = train_with(&workspace.run("run"), &recipe, &mut watch).unwrap();
    assert_eq!((outcome, steps), (TrainOutcome::Finished, 0));
    assert!(remains(&workspace.run("run")) == before);
}

#[test]
fn patience_ends_a_run_that_no_longer_improves() {
    let workspace = Workspace::new();
    let still = Optimiser::Adamw { rate: 0.0, betas: [0.9, 0.999], epsilon: 1e-8, decay: 0.0 };
    let mut recipe = workspace.recipe();
    (recipe.common.optimiser, recipe.common.patience, recipe.common.epochs) = (still, 2, 9);
    assert_eq!(train_until(&workspace.run("run"), &recipe, None), TrainOutcome::Patience);
    assert_eq!(read_history(&workspace.run("run")).unwrap().epochs.len(), 3);
}

#[test]
fn a_loss_that_is_not_finite_names_the_step_the_learning_rate_and_the_last_good_checkpoint() {
    let workspace = Workspace::new();
    let wild = Optimiser::Sgd { rate: 1e3, momentum: 0.9, nesterov: false, decay: 1e3 };
    let schedule = Schedule { shape: ScheduleShape::Constant, ..Schedule::default() };
    let mut recipe = workspace.recipe();
    (recipe.common.optimiser, recipe.common.schedule) = (wild, schedule);
    (recipe.common.save_every, recipe.common.epochs) = (1, 50);
    let error = train_with(&workspace.run("run"), &recipe, &mut |_| true).unwrap_err();
    let Error::Diverged { step, rate, .. } = &error else { panic!("{error}") };
    let good = checkpoint::progress(&workspace.run("run").join("checkpoint")).unwrap().step;
    assert_eq!((*rate, good), (1e3, step - 1));
    let text = error.to_string();
    assert!(text.contains(&format!("the last good checkpoint is step {good} in ")), "{text}");
}

#[test]
fn weights_for_other_classes_and_another_size_start_a_run_with_a_new_head() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    train_until(&workspace.run("first"), &recipe, None);
    std::fs::remove_dir_all(workspace.run("data").join("class2")).unwrap();
    let mut finer = recipe;
    // a run folder is also a name of a model
    (finer.common.weights, finer.common.epochs) = (Some(workspace.run("first").display().to_string()), 1);
    finer.common.set.insert("image".into(), toml::Value::from(vec![16, 16]));
    finer.common.optimiser = Optimiser::Sgd { rate: 0.0, momentum: 0.9, nesterov: false, decay: 0.0 };
    train_until(&workspace.run("second"), &finer, None);
    let read = |name: &str| weights::read(&workspace.run(name).join("best.safetensors")).unwrap().tensors;
    let (first, second) = (read("first"), read("second"));
    assert_eq!(second["blocks.0.attn.qkv.weight"], first["blocks.0.attn.qkv.weight"]);
    assert_eq!(second["head.weight"].shape().to_vec(), [2, 16]);
    assert_eq!(second["pos_embed"].shape().to_vec(), [1, 17, 16]);
}

#[test]
fn too_few_pictures_and_a_folder_that_is_not_a_run_are_errors() {
    let workspace = Workspace::new();
    let error_of =
        |recipe: &Recipe, name: &str| train_with(&workspace.run(name), recipe, &mut |_| true).unwrap_err().to_string();
    let mut large = workspace.recipe();
    large.own.batch = 1000;
    assert!(error_of(&large, "run").contains("batch"));
    file::replace(&workspace.run("data").join("notes.txt"), b"mine").unwrap();
    assert!(error_of(&workspace.recipe(), "data").contains("not a run"));
}

#[test]
fn the_teacher_may_be_a_run_folder_and_its_loss_is_reported_by_name() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe();
    recipe.common.epochs = 1;
    train_until(&workspace.run("teacher"), &recipe, None);
    let mut student = recipe.clone();
    let teacher = workspace.run("teacher").display().to_string();
    student.own.distillation = Some(Distillation { teacher, weights: None, kind: DistillationKind::Hard, share: 0.25 });
    train_until(&workspace.run("student"), &student, None);
    for step in read_history(&workspace.run("student")).unwrap().steps {
        assert!((0.75 * step.parts["class"] + 0.25 * step.parts["teacher"] - step.loss).abs() < 1e-5, "{step:?}");
    }
    student.own.distillation.as_mut().unwrap().teacher = "vit-nano".into();
    let error = train_with(&workspace.run("none"), &student, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("`distillation.teacher`: `vit-nano` has no weights"), "{error}");
}

#[test]
fn the_test_part_is_measured_once_with_the_best_weights_and_chooses_nothing() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    let mut tested = 0;
    let mut watch = |event: TrainEvent| {
        tested += usize::from(matches!(event, TrainEvent::Tested { .. }));
        true
    };
    train_with(&workspace.run("run"), &recipe, &mut watch).unwrap();
    train_with(&workspace.run("run"), &recipe, &mut watch).unwrap();
    assert_eq!(tested, 1);
    let history = read_history(&workspace.run("run")).unwrap();
    let test = history.test.clone().unwrap();
    assert_eq!(test.epoch, history.best(&Classification::METRICS[0]).unwrap().epoch);
    let task = Classification::of(&recipe).unwrap();
    assert_eq!([task.train.len(), task.validation.len(), task.test.len()].iter().sum::<usize>(), 45);
    let names = |part: &Arc<dyn Dataset>| (0..part.len()).map(|index| part.name(index)).collect::<Vec<_>>();
    let (train, validation, test) = (names(&task.train), names(&task.validation), names(&task.test));
    assert!(validation.iter().all(|name| !train.contains(name) && !test.contains(name)));
}

#[test]
fn a_start_that_failed_for_missing_weights_does_not_block_the_next() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe();
    recipe.common.weights = Some(workspace.run("no.safetensors").display().to_string());
    assert!(train_with(&workspace.run("run"), &recipe, &mut |_| true).is_err());
    recipe.common.weights = None;
    assert_eq!(train_with(&workspace.run("run"), &recipe, &mut |_| true).unwrap(), TrainOutcome::Finished);
}

#[test]
fn a_finished_run_with_missing_weights_is_an_error() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    train_until(&workspace.run("run"), &recipe, None);
    std::fs::remove_file(workspace.run("run").join("best.safetensors")).unwrap();
    let error = train_with(&workspace.run("run"), &recipe, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("best.safetensors: the run is finished, but its best weights are missing"), "{error}");
}

#[test]
fn a_run_with_missing_manifests_does_not_silently_start_again() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    train_until(&workspace.run("run"), &recipe, Some(6));
    for name in ["last.json", "previous.json"] {
        let _ = std::fs::remove_file(workspace.run("run").join("checkpoint").join(name));
    }
    let error = train_with(&workspace.run("run"), &recipe, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("checkpoint") && error.contains("last.json"), "{error}");
}

#[test]
fn a_resumed_run_may_become_longer_but_nothing_else() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe();
    train_until(&workspace.run("run"), &recipe, None);
    recipe.common.epochs = 5;
    let error = train_with(&workspace.run("run"), &recipe, &mut |_| true).unwrap_err().to_string();
    assert!(error.contains("`epochs`"), "{error}");
    let longer = TrainOptions { lengthen: true };
    let folder = workspace.run("run");
    train::train::<Classification>(&folder, &recipe, longer, &device::cpu(), &SingleProcess, &mut |_| true).unwrap();
    let history = read_history(&folder).unwrap();
    assert_eq!((history.epochs.len(), history.test.is_some()), (5, true));
}

#[test]
fn a_huge_number_of_epochs_is_refused_and_does_not_wrap() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe();
    for epochs in [i64::MAX as usize, usize::MAX] {
        recipe.common.epochs = epochs;
        let error = train_with(&workspace.run("run"), &recipe, &mut |_| true).unwrap_err().to_string();
        assert!(error.contains("`epochs`"), "{error}");
    }
}

#[test]
fn partial_files_of_a_killed_process_are_removed() {
    let workspace = Workspace::new();
    let recipe = workspace.recipe();
    train_until(&workspace.run("run"), &recipe, Some(2));
    let left = [workspace.run("run").join("model.toml.77.partial"), workspace.run("run/checkpoint/last.json.partial")];
    left.iter().for_each(|path| std::fs::write(path, "half").unwrap());
    train_until(&workspace.run("run"), &recipe, None);
    assert!(left.iter().all(|path| !path.exists()));
}

#[cfg(unix)]
#[test]
fn a_run_folder_may_have_a_name_that_is_not_utf_8() {
    use std::os::unix::ffi::OsStrExt as _;
    let workspace = Workspace::new();
    let folder = workspace.run("data").parent().unwrap().join(std::ffi::OsStr::from_bytes(b"run-\xff"));
    assert_eq!(train_until(&folder, &workspace.recipe(), None), TrainOutcome::Finished);
    assert!(folder.join("checkpoint").join("last.json").is_file());
}

#[test]
fn a_run_without_a_validation_part_continues_as_it_was() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe();
    recipe.common.validation = Validation::Test;
    train_until(&workspace.run("run"), &recipe, Some(4));
    // as older versions wrote such runs
    let path = workspace.run("run").join("recipe.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let old: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("validation") && !line.starts_with("task")).collect();
    std::fs::write(&path, old.join("\n")).unwrap();
    std::fs::remove_file(workspace.run("run").join("task.json")).unwrap();
    let recipe: Recipe = train::read_recipe(&workspace.run("run")).unwrap();
    assert_eq!(recipe.common.validation, Validation::Test);
    assert_eq!(train_until(&workspace.run("run"), &recipe, None), TrainOutcome::Finished);
}

#[test]
fn a_run_of_a_non_local_network_from_before_its_layers_were_out_in_ends_like_one_of_today() {
    let workspace = Workspace::new();
    let mut recipe = workspace.rich();
    recipe.common.model = "non-local-resnet-nano".into();
    let set = "image = [12, 12]\nwidths = [4, 8, 12, 8]\nlayers = [1, 2, 2, 1]";
    recipe.common.set = toml::from_str(set).unwrap();
    recipe.common.average = 2;
    let [today, before] = ["today", "before"].map(|name| workspace.run(name));
    for run in [&today, &before] {
        assert_eq!(train_until(run, &recipe, Some(10)), TrainOutcome::Stopped { step: 10 });
        // the first epoch stays the best, so that the test reads the weights that are there already
        let place = run.join("checkpoint");
        let checkpoint::Restored { mut tensors, progress, .. } = checkpoint::restore(&place).unwrap().unwrap();
        let progress = RunProgress { best: Some(f64::INFINITY.to_bits()), best_epoch: 1, ..progress };
        if run == &before {
            for path in ["best.safetensors", "epochs/00001.safetensors", "epochs/00002.safetensors"] {
                let path = run.join(path);
                let weights = weights::read(&path).unwrap().tensors;
                weights::write_tensors(&path, &weights::as_before(weights)).unwrap();
            }
            let moments = tensors.iter().filter(|(name, _)| name.starts_with("second.non_local"));
            assert!(moments.count() > 0);
            tensors = weights::as_before(tensors);
        }
        checkpoint::save(&place, &tensors, progress, &mut checkpoint::RealDisk).unwrap();
        assert_eq!(train_until(run, &recipe, None), TrainOutcome::Finished);
    }
    let best = |run: &Path| std::fs::read(run.join("best.safetensors")).unwrap();
    assert_ne!(best(&before), best(&today), "it is as it was");
    let [(mut files, tensors, progress, history), (mut others, others_tensors, others_progress, others_history)] =
        [&today, &before].map(|run| remains(run));
    (files[0], others[0]) = (Vec::new(), Vec::new());
    files.push(std::fs::read(today.join("average.safetensors")).unwrap());
    others.push(std::fs::read(before.join("average.safetensors")).unwrap());
    assert!(files == others && tensors == others_tensors && progress == others_progress);
    assert!(history.test.is_some() && history == others_history);
}
