use super::*;
use crate::data::clip::{ClipDataset, ClipLength, FrameSampling};
use crate::data::{Picture, Preprocess, SampleId, Samples};
use crate::device::cpu;
use crate::random::{Purpose, generator};
use crate::testing::noise_picture;
use crate::testing::runs::{assert_stops_change_nothing, assert_two_learn_as_one, train_until};
use crate::train::{SingleProcess, TrainEvent, TrainOptions, read_history};
use std::path::PathBuf;
use std::sync::Arc;

/// Two epochs of three steps of four clips.
fn recipe() -> Recipe {
    let text = "
        task = 'clips'
        model = 'timesformer-nano'
        data = 'clips:4x16'
        per-class = 2
        test-per-class = 1
        batch = 6
        workers = 1
        epochs = 2
        set = { depth = 2, dim = 24, mlp_dim = 48, frames = 4, image = [16, 16] }
        augment = { crop = { random = { padding = 2 } }, colour-jitter = 0.2 }
        optimiser = { rule = 'adamw', rate = 1e-3 }
    ";
    Recipe::from_toml(text).unwrap()
}

fn run(place: &tempfile::TempDir, name: &str) -> PathBuf {
    place.path().join(name)
}

const FILES: [&str; 7] = [
    "best.safetensors",
    "last.safetensors",
    "recipe.toml",
    "model.toml",
    "preprocess.toml",
    "sampling.toml",
    "classes.txt",
];

#[test]
fn a_run_that_was_stopped_ends_byte_for_byte_as_one_that_was_not() {
    let place = tempfile::tempdir().unwrap();
    assert_stops_change_nothing::<ClipClassification>(place.path(), &recipe(), &FILES, &[&[1, 4]]);
}

#[test]
fn two_processes_learn_what_one_learns() {
    let place = tempfile::tempdir().unwrap();
    assert_two_learn_as_one::<ClipClassification>(place.path(), &recipe());
}

#[test]
fn recomputed_blocks_learn_what_kept_ones_learn() {
    let place = tempfile::tempdir().unwrap();
    let recipe = recipe().with("stochastic-depth", "0.3").unwrap();
    train_until::<ClipClassification>(&run(&place, "kept"), &recipe, None);
    train_until::<ClipClassification>(&run(&place, "again"), &recipe.with("checkpoint", "true").unwrap(), None);
    let [kept, again] = ["kept", "again"].map(|name| read_history(&run(&place, name)).unwrap());
    for (kept, again) in kept.steps.iter().zip(&again.steps) {
        assert!((kept.loss - again.loss).abs() < 1e-4, "step {}: {} {}", kept.step, kept.loss, again.loss);
    }
}

#[test]
fn a_run_evaluated_on_its_test_gives_what_its_training_measured() {
    let place = tempfile::tempdir().unwrap();
    let (recipe, folder) = (recipe().with("test-per-class", "0").unwrap(), run(&place, "run"));
    // all test clips, hence small ones
    let changes = [("data", "clips:2x8"), ("set.frames", "2"), ("set.image", "[8, 8]"), ("epochs", "1")];
    let recipe = changes.iter().fold(recipe, |recipe, (key, value)| recipe.with(key, value).unwrap());
    train_until::<ClipClassification>(&folder, &recipe, None);
    let test = read_history(&folder).unwrap().test.unwrap();
    let request = EvalRequest { folder: &folder, data: "clips:2x8", part: Part::Test };
    let report = ClipClassification::evaluate(&recipe, &request, &cpu(), &mut |_, _| {}).unwrap();
    assert_eq!(report.json["top1"].as_f64(), Some(test.metric("top1")));
    assert_eq!(report.json["classes"].as_object().unwrap().len(), 10);
    assert!(report.figures.iter().any(|(name, _)| *name == "confusion.svg"));
    let named = ClipClassification::of(&recipe).unwrap().measure_named(&folder.display().to_string(), &cpu()).unwrap();
    assert_eq!(named.values["top1"], test.metric("top1"));
    // other classes are not those that it knows
    let request = EvalRequest { data: "clips-garment:2x8", ..request };
    let error = ClipClassification::evaluate(&recipe, &request, &cpu(), &mut |_, _| {}).unwrap_err().to_string();
    assert!(error.contains("does not know"), "{error}");
}

#[test]
fn a_loss_that_is_not_finite_names_the_clips_of_its_batch() {
    let place = tempfile::tempdir().unwrap();
    let mut recipe = recipe();
    let (_, fresh) = ClipClassification::of(&recipe).unwrap().begin(false, &cpu()).unwrap();
    let mut huge = weights::tensors(&fresh);
    for (_, tensor) in huge.iter_mut().filter(|(name, _)| name.starts_with("head.")) {
        let values = tensor.iter::<f32>().map(|_| 1e38_f32).collect::<Vec<_>>();
        *tensor = burn::tensor::TensorData::new(values, tensor.shape());
    }
    let begin = run(&place, "huge.safetensors");
    std::fs::write(&begin, weights::to_bytes(&huge, &begin).unwrap()).unwrap();
    recipe.common.weights = Some(begin.display().to_string());
    let mut watch = |_: TrainEvent| true;
    let (folder, start) = (run(&place, "run"), TrainOptions::default());
    let error = train::train::<ClipClassification>(&folder, &recipe, start, &cpu(), &SingleProcess, &mut watch);
    let Err(Error::Diverged { samples, .. }) = error else { panic!("{error:?}") };
    assert_eq!(samples.len(), 6);
    assert!(samples.iter().all(|name| name.contains("clips")), "{samples:?}");
}

#[test]
fn values_that_cannot_work_are_refused_by_name() {
    for (text, name) in [
        ("batch = 10\naccumulate = 3", "accumulate"),
        ("views = 0", "views"),
        ("crops = 2", "crops"),
        ("stochastic-depth = 1.0", "stochastic-depth"),
        ("model = 'timesformer-nanoo'", "timesformer-nano"),
        ("sampling = 'segment'", "segments"),
        ("augment = { crop = { short-side = { sides = [0, 4] } } }", "short-side"),
    ] {
        let error = Recipe::from_toml(text).unwrap_err().to_string();
        assert!(error.contains(name), "{text}: {error}");
    }
    let recipe = Recipe::default().with("set.classes", "5").unwrap();
    assert!(recipe.model(10).unwrap_err().to_string().contains("`set.classes`: the data has 10 classes, got 5"));
}

/// A clip whose frames are all the same noise, but for the first pixel, which counts them.
#[derive(Debug)]
struct Counted {
    classes: Vec<String>,
    size: [usize; 2],
}

impl ClipDataset for Counted {
    fn len(&self) -> usize {
        1
    }
    fn classes(&self) -> &[String] {
        &self.classes
    }
    fn class(&self, _: usize) -> usize {
        0
    }
    fn name(&self, _: usize) -> String {
        "counted".into()
    }
    fn length(&self, _: usize) -> Result<ClipLength, Error> {
        Ok(ClipLength { frames: 40, rate: 30.0 })
    }
    fn frames(&self, _: usize, wanted: &[usize]) -> Result<Vec<Picture>, Error> {
        assert!(wanted.is_sorted(), "{wanted:?}");
        let frame = |number: &usize| {
            let mut pixels = noise_picture(self.size, 1).pixels().to_vec();
            pixels[0] = *number as u8;
            Picture::new(self.size, pixels)
        };
        wanted.iter().map(frame).collect()
    }
}

fn counted(size: [usize; 2]) -> ClipPart {
    ClipPart::first_per_class(Arc::new(Counted { classes: vec!["one".into()], size }), 0)
}

/// Levels as they are.
const PLAIN: Preprocess = Preprocess { mean: [0.0; 3], std: [1.0; 3], ..Preprocess::WHOLE };

fn preparation(sampling: FrameSampling) -> ClipPreparation {
    ClipPreparation {
        frames: 4,
        image: [8, 8],
        channels: 3,
        preprocess: PLAIN,
        sampling,
        augment: Augment::default(),
        views: 1,
        crops: 1,
    }
}

#[test]
fn views_are_the_sampled_frames_with_their_crops_one_after_the_other() {
    let part = counted([8, 12]);
    let sampling = FrameSampling::Dense { rate: 2 };
    let preparation = ClipPreparation { views: 5, crops: 3, ..preparation(sampling) };
    let samples = ClipSamples { part: part.clone(), preparation, seed: None };
    let id = SampleId { index: 0, epoch: 0, draw_id: 0 };
    let (views, _) = samples.load(id).unwrap();
    assert_eq!((views.count, views.indices.len()), (15, 5));
    let length = part.dataset.length(0).unwrap();
    for (view, indices) in views.indices.iter().enumerate() {
        assert_eq!(*indices, sampling.view(length, 4, view, 5));
        // the first crop begins at the left, so that its first pixel counts the frames
        let clip = &views.pixels[view * 3 * 3 * 4 * 64..];
        let counted: Vec<usize> = (0..4).map(|frame| (255.0 * clip[frame * 64]).round() as usize).collect();
        assert_eq!(counted, *indices);
    }
    let batch = samples.collate(vec![samples.load(id).unwrap(), samples.load(id).unwrap()]).unwrap();
    assert_eq!((batch.len(), batch.views, batch.clips(&cpu()).pixels.dims()), (2, 15, [30, 3, 4, 8, 8]));
}

#[test]
fn all_frames_of_a_clip_change_alike_and_the_next_epoch_changes_them_otherwise() {
    let augment: Augment =
        toml::from_str("crop = { random-resized = { area = [0.3, 1.0], aspect = [0.75, 1.3333] } }\nflip = 0.5")
            .unwrap();
    let preparation = ClipPreparation { augment, ..preparation(FrameSampling::Segments) };
    let samples = ClipSamples { part: counted([16, 20]), preparation, seed: Some(1) };
    let mut seen = Vec::new();
    for epoch in 0..4 {
        let (clip, _) = samples.load(SampleId { index: 0, epoch, draw_id: 0 }).unwrap();
        for channel in 1..3 {
            let frames: Vec<&[f32]> = clip.pixels[channel * 4 * 64..][..4 * 64].chunks(64).collect();
            assert!(frames.iter().all(|frame| frame == &frames[0]), "frames differ by their first red pixel alone");
        }
        assert!(!seen.contains(&clip.pixels));
        seen.push(clip.pixels);
    }
}

#[test]
fn frames_of_different_sizes_are_an_error_that_names_the_clip() {
    let preparation = preparation(FrameSampling::Uniform);
    let length = ClipLength { frames: 4, rate: 1.0 };
    let read = |wanted: &[usize]| Ok(wanted.iter().map(|frame| noise_picture([8 + frame / 3, 8], 0)).collect());
    let error = preparation.views(length, read).unwrap_err().to_string();
    assert!(error.contains("frame 3 has 8 x 9 pixels"), "{error}");
    let mut random = generator(0, Purpose::Augment, [0, 0]);
    assert!(preparation.augmented(length, read, &mut random).is_err());
}

#[test]
fn recomputing_needs_less_memory_and_a_longer_clip_more() {
    let bytes = |recipe: &Recipe| training_bytes(&recipe.model(10).unwrap().config, recipe).unwrap();
    let recipe = recipe().with("batch", "64").unwrap();
    let kept = bytes(&recipe);
    assert!(bytes(&recipe.with("checkpoint", "true").unwrap()) < kept);
    assert!(bytes(&recipe.with("set.frames", "16").unwrap()) > kept);
    assert!(bytes(&recipe.with("accumulate", "4").unwrap()) < kept);
}

#[test]
fn the_embedded_models_know_most_motions_of_test_clips() {
    for embedded in weights::EMBEDDED_VIDEOS {
        let video = weights::resolve_video(embedded.name, &mut |_| {}).unwrap().load(&cpu()).unwrap();
        let part = ClipPart::first_per_class(clip::open("clips", Part::Test).unwrap(), 4);
        let data = ClipData { name: "clips", part: Part::Test, is_own: true, batch: 8, views: [1, 1] };
        let evaluation = measure_on(&video, &part, &data, &cpu(), &mut |_, _| {}).unwrap();
        assert!(evaluation.accuracy.top1() > 0.6, "{}: {}", embedded.name, evaluation.accuracy.top1());
    }
}
