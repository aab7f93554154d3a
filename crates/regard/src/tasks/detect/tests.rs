use super::*;
use crate::device::cpu;
use crate::testing::runs::{assert_stops_change_nothing, assert_two_learn_as_one, train_until};
use crate::train::{SingleProcess, TrainEvent, TrainOptions, read_history};
use serde_json::json;
use std::fs;
use std::path::PathBuf;

/// The small detectors of every family.
const MODELS: [&str; 4] = ["detr-nano", "retinanet-nano", "retinanet-nano-attention", "faster-rcnn-nano"];

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// Two epochs of two steps of four scenes.
fn recipe(model: &str) -> Recipe {
    let text = format!(
        "
        task = 'detect'
        model = '{model}'
        data = 'scenes'
        pictures = 8
        test-pictures = 4
        batch = 4
        workers = 1
        epochs = 2
        clip = 0.1
        augment = {{ flip = 0.5, short-sides = [56, 64], longest = 64, crop = 0.5, crop-short-sides = [64], crop-sides = [48, 64] }}
        optimiser = {{ rule = 'adamw', rate = 1e-3 }}
        "
    );
    Recipe::from_toml(&text).unwrap()
}

/// The files of a run that are needed to use its weights.
const FILES: [&str; 6] =
    ["best.safetensors", "last.safetensors", "recipe.toml", "model.toml", "preprocess.toml", "classes.txt"];

#[test]
fn a_run_of_any_detector_that_was_stopped_ends_byte_for_byte_as_one_that_was_not() {
    let place = Place::new();
    for model in MODELS {
        assert_stops_change_nothing::<ObjectDetection>(place.0.path(), &recipe(model), &FILES, &[&[1, 3]]);
    }
}

#[test]
fn every_part_of_a_loss_is_in_the_history_and_the_test_has_all_twelve_numbers_that_exist() {
    let place = Place::new();
    for model in MODELS {
        let (recipe, folder) = (recipe(model), place.run(model));
        train_until::<ObjectDetection>(&folder, &recipe, None);
        let history = read_history(&folder).unwrap();
        let parts = ObjectDetection::of(&recipe).unwrap().config.loss_parts();
        assert!(parts.len() > 1);
        for step in &history.steps {
            assert_eq!(step.parts.len(), parts.len(), "{model}");
            assert!(parts.iter().all(|part| step.parts[*part].is_finite()), "{model}");
        }
        let test = history.test.unwrap();
        assert!((0.0..=1.0).contains(&test.metric("ap")) && (0.0..=1.0).contains(&test.metric("ar100")), "{model}");
    }
}

#[test]
fn two_processes_with_different_numbers_of_objects_learn_what_one_learns() {
    // Faster R-CNN averages over what each process drew, as torchvision does
    for model in ["detr-nano", "retinanet-nano"] {
        let place = Place::new();
        let mut recipe = recipe(model).with("augment.flip", "0.0").unwrap().with("augment.crop", "0.0").unwrap();
        if model == "detr-nano" {
            recipe = recipe.with("set.dropout", "0.0").unwrap();
        }
        // norms over a batch see the pictures of one process alone
        recipe = frozen_norms(recipe);
        // a convolution sees what is padded, and the pictures of each process may be padded otherwise
        recipe = recipe.with("augment.short-sides", "[64]").unwrap();
        let task = ObjectDetection::of(&recipe).unwrap();
        let objects = |rank| -> usize {
            let batches = task.steps(0, 0, Share { rank, ranks: 2 }).flat_map(Result::unwrap);
            batches.map(|batch| batch.objects.iter().map(Vec::len).sum::<usize>()).sum()
        };
        assert_ne!(objects(0), objects(1), "{model}");
        assert_two_learn_as_one::<ObjectDetection>(place.0.path(), &recipe);
    }
}

/// The same with norms that no batch moves.
fn frozen_norms(recipe: Recipe) -> Recipe {
    let trunk = if recipe.common.model.starts_with("detr") { "backbone" } else { "backbone.trunk" };
    let norm = "{ frozen = { epsilon = 1e-5 } }";
    let recipe = recipe.with(&format!("set.{trunk}.norm"), norm).unwrap();
    if trunk == "backbone" { recipe } else { recipe.with("set.backbone.pyramid.norm", "false").unwrap() }
}

#[test]
fn a_loss_that_is_not_finite_names_the_pictures_of_its_batch() {
    let place = Place::new();
    let mut recipe = recipe("retinanet-nano");
    let (_, fresh) = ObjectDetection::of(&recipe).unwrap().begin(false, &cpu()).unwrap();
    let mut huge = weights::tensors(&fresh);
    for (_, tensor) in huge.iter_mut().filter(|(name, _)| name.starts_with("head.")) {
        let values = tensor.iter::<f32>().map(|_| 1e30_f32).collect::<Vec<_>>();
        *tensor = burn::tensor::TensorData::new(values, tensor.shape());
    }
    let begin = place.run("huge.safetensors");
    fs::write(&begin, weights::to_bytes(&huge, &begin).unwrap()).unwrap();
    recipe.common.weights = Some(begin.display().to_string());
    let folder = place.run("run");
    let mut watch = |_: TrainEvent| true;
    let error =
        train::train::<ObjectDetection>(&folder, &recipe, TrainOptions::default(), &cpu(), &SingleProcess, &mut watch)
            .unwrap_err();
    let Error::Diverged { samples, .. } = &error else { panic!("{error}") };
    assert_eq!(samples.len(), 4, "{error}");
    assert!(samples.iter().all(|name| name.contains("scenes")), "{error}");
}

#[test]
fn a_trunk_takes_a_classifiers_weights_and_says_what_it_lacks() {
    let place = Place::new();
    let detector = ObjectDetection::of(&recipe("retinanet-nano")).unwrap();
    let (_, model) = detector.begin(false, &cpu()).unwrap();
    let prefix = model.trunk_prefix();
    let mut trunk = weights::tensors(&model);
    trunk.retain(|name, _| name.starts_with(prefix));
    let trunk: weights::Tensors =
        trunk.into_iter().map(|(name, tensor)| (name[prefix.len()..].to_string(), tensor)).collect();
    let path = place.run("trunk.safetensors");
    fs::write(&path, weights::to_bytes(&trunk, &path).unwrap()).unwrap();
    cpu().seed(7);
    let other = detector.config.init(&cpu()).unwrap();
    let filled = weights::tensors(&weights::fill_trunk(other, &path.display().to_string()).unwrap());
    assert!(trunk.iter().all(|(name, tensor)| filled[&format!("{prefix}{name}")] == *tensor));
    let mut less = trunk.clone();
    let lost = less.pop_first().unwrap().0;
    fs::write(&path, weights::to_bytes(&less, &path).unwrap()).unwrap();
    let error = weights::fill_trunk(detector.config.init(&cpu()).unwrap(), &path.display().to_string()).unwrap_err();
    assert!(error.to_string().contains(&lost), "{error}");
}

#[test]
fn weights_for_other_classes_keep_everything_but_the_layers_that_know_classes() {
    let place = Place::new();
    for model in MODELS {
        let config = ObjectDetection::of(&recipe(model)).unwrap().config;
        let own = config.init(&cpu()).unwrap();
        let other = config.with("classes", serde_json::json!(3)).unwrap().init(&cpu()).unwrap();
        let path = place.run(&format!("{model}.safetensors"));
        fs::write(&path, weights::to_bytes(&weights::tensors(&own), &path).unwrap()).unwrap();
        let began = weights::begin_detector(other, &path.display().to_string()).unwrap();
        let (own, began) = (weights::tensors(&own), weights::tensors(&began));
        let differ: Vec<&String> = began.keys().filter(|name| began[*name] != own[*name]).collect();
        assert!(!differ.is_empty(), "{model}");
        assert!(differ.iter().all(|name| crate::models::detect::knows_classes(name)), "{model} {differ:?}");
    }
}

#[test]
fn other_data_is_measured_by_the_names_of_its_classes() {
    let known = ["cat", "dog", "owl"].map(String::from);
    let numbers = |names: &[&str]| class_numbers(&known, &names.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(numbers(&["owl", "Cat"]).unwrap(), [2, 0]);
    let error = numbers(&["cow"]).unwrap_err().to_string();
    assert!(error.contains("`cow`") && error.contains("cat, dog, owl"), "{error}");
}

#[test]
fn a_run_evaluated_on_its_test_gives_what_its_training_measured() {
    let place = Place::new();
    let (recipe, folder) = (recipe("retinanet-nano"), place.run("run"));
    let recipe = recipe.with("test-pictures", "0").unwrap().with("data", &tiny_data(&place)).unwrap();
    train_until::<ObjectDetection>(&folder, &recipe, None);
    let test = read_history(&folder).unwrap().test.unwrap();
    let request = EvalRequest { folder: &folder, data: &recipe.common.data, part: Part::Test };
    let report = ObjectDetection::evaluate(&recipe, &request, &cpu(), &mut |_, _| {}).unwrap();
    assert_eq!(report.json["ap"].as_f64(), Some(test.metric("ap")));
    assert_eq!(report.json["classes"].as_object().unwrap().len(), 8);
    // hardly trained, it misses nearly everything
    let misses = report.json["misses"].as_array().unwrap();
    let missed = report.json["mistakes"]["missed"].as_u64().unwrap();
    assert!(!misses.is_empty() && misses.len() as u64 == missed.min(20), "{missed}");
    assert!(misses[0]["picture"].as_str().unwrap().contains(".png") && misses[0]["bbox"][3].is_number());
    let names: Vec<&str> = report.figures.iter().map(|(name, _)| *name).collect();
    assert!(names.contains(&"misses.svg") && names.contains(&"confusion.svg"), "{names:?}");
    // data without parts that it was not trained on is taken as a whole
    let data = DetectorData { name: &recipe.common.data, part: Part::Test, is_own: false, batch: 4 };
    let detector = weights::resolve_detector(&folder.display().to_string(), &mut |_| {}).unwrap().load(&cpu()).unwrap();
    let whole = evaluate_detector(&detector, &data, &cpu(), &mut |_, _| {}).unwrap();
    assert_eq!((report.json["pictures"].as_u64() < Some(40), whole.json["pictures"].as_u64()), (true, Some(40)));
}

#[test]
fn every_mistake_is_drawn_with_its_boxes_and_said_in_words() {
    let dataset = detection::open("scenes", Part::Test).unwrap();
    let part = DetectionPart::first(dataset.clone(), 3);
    let class = |name: usize| (name + 1) % 8;
    let mut found = DetectionFindings { classes: dataset.classes().to_vec(), ..DetectionFindings::default() };
    for index in 0..3 {
        let image = dataset.image_id(index);
        found.images.push(image);
        for one in dataset.annotations(index).unwrap() {
            let detection = |class, bounds, score| coco::CocoDetection { image, class, bounds, score };
            let [x, y, w, h] = one.bounds;
            let truth = coco::CocoTruth {
                id: one.id,
                image,
                class: one.class,
                bounds: one.bounds,
                area: one.area,
                crowd: one.crowd,
            };
            found.truths.push(truth);
            match index {
                // found twice; of another class; beside the object
                0 => found.detections.extend([0.9, 0.8].map(|score| detection(one.class, one.bounds, score))),
                1 => found.detections.push(detection(class(one.class), one.bounds, 0.7)),
                _ => found.detections.push(detection(one.class, [x + w / 2.0, y, w, h], 0.6)),
            }
        }
    }
    let diagnosis = found.diagnose();
    let figures = mistakes::figures(&found, &diagnosis, &part).unwrap();
    assert_eq!(figures.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["misses.svg", "false-alarms.svg"]);
    let alarms = figures[1].1.svg();
    assert!(
        alarms.contains("was found already") && alarms.contains("is ") && alarms.contains("box is off"),
        "{alarms}"
    );
    assert_eq!(alarms.matches("<image").count(), diagnosis.false_alarms.len());
    let [misses, false_alarms] = mistakes::lists(&found, &diagnosis, &part);
    assert_eq!(misses.as_array().unwrap().len(), diagnosis.misses.len());
    assert_eq!(false_alarms[0]["mistake"], "duplicate");
}

/// Forty scenes as COCO files.
fn tiny_data(place: &Place) -> String {
    let folder = place.run("data");
    let scenes = detection::open("scenes", Part::Validation).unwrap();
    let names: Vec<_> =
        scenes.classes().iter().enumerate().map(|(id, name)| json!({"id": id + 1, "name": name})).collect();
    let (mut images, mut annotations) = (Vec::new(), Vec::new());
    fs::create_dir_all(&folder).unwrap();
    for index in 0..40 {
        let (picture, boxes) = scenes.sample(index).unwrap();
        let [rows, columns] = picture.size();
        let pixels = image::RgbImage::from_raw(columns as u32, rows as u32, picture.pixels().to_vec()).unwrap();
        pixels.save(folder.join(format!("{index}.png"))).unwrap();
        images.push(json!({"id": index + 1, "file_name": format!("{index}.png"), "width": columns, "height": rows}));
        for one in boxes {
            let id = annotations.len() + 1;
            annotations.push(json!({"id": id, "image_id": index + 1, "category_id": one.class + 1, "bbox": one.bounds,
                "area": one.area, "iscrowd": 0}));
        }
    }
    let text = json!({"images": images, "annotations": annotations, "categories": names}).to_string();
    fs::write(folder.join("annotations.json"), text).unwrap();
    folder.display().to_string()
}
