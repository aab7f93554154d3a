use super::*;
use rand::RngExt as _;
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::PathBuf;

use crate::random::{Purpose, generator};

/// Everything is decided by order and counts; only means of up to 24,240 values are summed in another order.
const TOLERANCE: f64 = 1e-12;

struct Case {
    config: Value,
    images: Vec<u64>,
    /// The ids of classes, rising.
    categories: Vec<u64>,
    truths: Vec<CocoTruth>,
    detections: Vec<CocoDetection>,
    tensors: Vec<u8>,
}

impl Case {
    fn load(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name);
        let json =
            |file: &str| -> Value { serde_json::from_slice(&std::fs::read(folder.join(file)).unwrap()).unwrap() };
        let (instances, found) = (json("instances.json"), json("detections.json"));
        let id = |value: &Value| value.as_u64().unwrap();
        let list = |value: &Value| value.as_array().unwrap().clone();
        let bounds = |value: &Value| serde_json::from_value::<[f64; 4]>(value["bbox"].clone()).unwrap();
        let mut categories: Vec<u64> = list(&instances["categories"]).iter().map(|one| id(&one["id"])).collect();
        categories.sort_unstable();
        let class = |value: &Value| categories.binary_search(&id(&value["category_id"])).unwrap();
        let truth = |one: &Value| CocoTruth {
            id: id(&one["id"]),
            image: id(&one["image_id"]),
            class: class(one),
            bounds: bounds(one),
            area: one["area"].as_f64().unwrap(),
            crowd: id(&one["iscrowd"]) == 1,
        };
        let detection = |one: &Value| CocoDetection {
            image: id(&one["image_id"]),
            class: class(one),
            bounds: bounds(one),
            score: one["score"].as_f64().unwrap(),
        };
        Self {
            config: json("config.json"),
            images: list(&instances["images"]).iter().map(|one| id(&one["id"])).collect(),
            truths: list(&instances["annotations"]).iter().map(truth).collect(),
            detections: list(&found).iter().map(detection).collect(),
            tensors: std::fs::read(folder.join("io.safetensors")).unwrap_or_default(),
            categories,
        }
    }

    fn evaluate(&self) -> CocoEvaluation {
        evaluate(&self.images, self.categories.len(), &self.truths, &self.detections).unwrap()
    }

    fn array(&self, name: &str) -> Vec<f64> {
        let tensors = SafeTensors::deserialize(&self.tensors).unwrap();
        let (numbers, _) = tensors.tensor(name).unwrap().data().as_chunks::<8>();
        numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect()
    }
}

#[track_caller]
fn assert_near(what: &str, actual: f64, expected: f64) {
    assert!((actual - expected).abs() <= TOLERANCE, "{what}: {actual} instead of {expected}");
}

const NAMES: [&str; 12] = ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl"];

#[test]
fn the_twelve_numbers_are_those_of_pycocotools() {
    for name in ["coco_ap", "coco_ap_full"] {
        let case = Case::load(name);
        for (name, number) in NAMES.iter().zip(case.evaluate().summary.numbers()) {
            assert_near(name, number, case.config[name].as_f64().unwrap());
        }
    }
}

#[test]
fn every_class_and_every_array_is_that_of_pycocotools() {
    let case = Case::load("coco_ap_full");
    let result = case.evaluate();
    for (category, score) in case.categories.iter().zip(&result.classes) {
        let expected = &case.config["per_class"][category.to_string()];
        let numbers = [score.ap, score.ap50, score.ap75, score.ap_small, score.ap_medium, score.ap_large, score.ar100];
        for (name, number) in ["AP", "AP50", "AP75", "APs", "APm", "APl", "AR100"].iter().zip(numbers) {
            assert_near(&format!("class {category} {name}"), number, expected[name].as_f64().unwrap());
        }
        assert_eq!(score.objects as u64, expected["objects"].as_u64().unwrap());
    }
    let [precision, scores, recall] = ["precision", "scores", "recall"].map(|name| case.array(name));
    let classes = case.categories.len();
    for class in 0..classes {
        for threshold in 0..THRESHOLDS {
            let curve = result.curve(class, threshold);
            for place in 0..RECALLS {
                let at = (threshold * RECALLS + place) * classes + class;
                let [own, score] = curve.get(place).map_or([-1.0; 2], |point| [point.precision, point.score]);
                assert_near("precision", own, precision[at]);
                assert_near("score", score, scores[at]);
            }
            for size in AreaRange::EACH {
                for most in 0..3 {
                    let at = ((threshold * classes + class) * 4 + size as usize) * 3 + most;
                    let own = result.recall(class, size, most).map_or(-1.0, |recall| recall[threshold]);
                    assert_near("recall", own, recall[at]);
                }
            }
        }
    }
}

#[test]
fn truth_against_itself_has_an_ap_of_one() {
    let mut case = Case::load("coco_ap_full");
    case.detections = perfect(&case.truths);
    // id 0 is an id like any other
    case.truths.iter_mut().for_each(|truth| truth.id -= 1);
    let summary = case.evaluate().summary;
    assert_near("AP", summary.ap, 1.0);
    assert_near("AR100", summary.ar100, 1.0);
}

#[test]
fn scenes_against_themselves_have_an_ap_of_one() {
    let scenes = crate::data::world::Scenes::open(crate::data::Part::Validation).unwrap();
    let (images, truths) = truths(&scenes).unwrap();
    let summary = evaluate(&images, 8, &truths, &perfect(&truths)).unwrap().summary;
    assert_near("AP", summary.ap, 1.0);
    assert_eq!((summary.ap_medium, images.len()), (-1.0, 1000), "all garments are small");
}

#[test]
fn no_detections_give_zeros_and_no_objects_give_minus_one() {
    let mut case = Case::load("coco_ap");
    case.detections.clear();
    assert_eq!(case.evaluate().summary.numbers(), [0.0; 12]);
    case.truths.clear();
    let nothing = case.evaluate();
    assert_eq!(nothing.summary.numbers(), [-1.0; 12]);
    assert!(nothing.summary.values().is_empty() && nothing.curve(0, 0).is_empty());
}

#[test]
fn the_order_of_pictures_and_classes_changes_nothing() {
    let mut case = Case::load("coco_ap_full");
    let before = case.evaluate();
    case.images.reverse();
    // whole pictures: within one, the order of annotations decides between equal overlaps
    case.truths.sort_by_key(|truth| std::cmp::Reverse(truth.image));
    case.detections.sort_by_key(|detection| std::cmp::Reverse(detection.image));
    assert_eq!(case.evaluate(), before);
}

#[test]
fn what_is_unknown_or_not_a_number_is_named() {
    let truth = CocoTruth { id: 7, image: 1, class: 0, bounds: [0.0, 0.0, 5.0, 5.0], area: 25.0, crowd: false };
    let detection = CocoDetection { image: 1, class: 0, bounds: [0.0, 0.0, 5.0, 5.0], score: 0.5 };
    let error =
        |truth: CocoTruth, detection: CocoDetection| evaluate(&[1], 1, &[truth], &[detection]).unwrap_err().to_string();
    for (error, expected) in [
        (error(truth, CocoDetection { image: 2, ..detection }), "detection 0: image 2 is not among the images"),
        (error(truth, CocoDetection { class: 1, ..detection }), "detection 0: class 1 is not among 1 classes"),
        (error(truth, CocoDetection { score: f64::NAN, ..detection }), "detection 0: `score` is not finite: [NaN]"),
        (error(CocoTruth { area: f64::INFINITY, ..truth }, detection), "annotation 7: `area` is not finite: [inf]"),
    ] {
        assert_eq!(error, expected);
    }
}

#[test]
fn the_best_threshold_has_the_best_f1_of_all_thresholds() {
    let case = Case::load("coco_ap_full");
    let result = case.evaluate();
    for (class, score) in result.classes.iter().enumerate() {
        let f1 = |least: f64| {
            let settings = DiagnosisOptions { score: least, worst: 0 };
            let found: Vec<CocoDetection> =
                case.detections.iter().copied().filter(|detection| detection.class == class).collect();
            let truths: Vec<CocoTruth> = case.truths.iter().copied().filter(|truth| truth.class == class).collect();
            let counts = diagnose(6, &truths, &found, settings).confusion.counts;
            let (hits, misses, alarms) = (counts[class][class], counts[class][6], counts[6][class]);
            2.0 * hits as f64 / (2 * hits + misses + alarms) as f64
        };
        let scores = case.detections.iter().map(|detection| detection.score);
        let most = scores.map(f1).fold(0.0, f64::max);
        match score.best {
            // picture 21 has 150 detections of class 2, of which the evaluation counts 100
            Some(best) if class != 2 => {
                assert_near("F1", best.f1, most);
                assert_near("F1 at the threshold", f1(best.score), most);
                let harmonic = 2.0 * best.precision * best.recall / (best.precision + best.recall);
                assert_near("F1 of precision and recall", best.f1, harmonic);
            }
            Some(_) => {}
            None => assert!(score.objects == 0 || most == 0.0),
        }
    }
}

/// Two objects of class 0, one of class 1 and a crowd of class 1 in picture 3.
fn small() -> Vec<CocoTruth> {
    let truth = |id, class, x, crowd| CocoTruth {
        id,
        image: 3,
        class,
        bounds: [x, 0.0, 10.0, 10.0 + id as f64],
        area: 10.0 * (10.0 + id as f64),
        crowd,
    };
    vec![truth(1, 0, 0.0, false), truth(2, 0, 20.0, false), truth(3, 1, 40.0, false), truth(4, 1, 60.0, true)]
}

#[test]
fn mistakes_are_told_apart_and_confusions_are_counted_once() {
    let found = |class, x, score| CocoDetection { image: 3, class, bounds: [x, 0.0, 10.0, 12.0], score };
    let detections = [
        found(0, 0.0, 0.9),   // right
        found(0, 1.0, 0.8),   // the same again
        found(0, 40.0, 0.7),  // class 1
        found(0, 26.0, 0.6),  // too far right of the second
        found(1, 61.0, 0.55), // in the crowd
        found(1, 100.0, 0.5), // nothing
        found(0, 20.0, 0.1),  // below the threshold
    ];
    let result = diagnose(2, &small(), &detections, DiagnosisOptions { score: 0.3, worst: 3 });
    assert_eq!(result.confusion.counts, [[1, 0, 1], [1, 0, 0], [2, 1, 0]]);
    assert_eq!((result.missed, result.alarms), (2, 4));
    let alarms: Vec<(f64, Mistake)> =
        result.false_alarms.iter().map(|alarm| (alarm.detection.score, alarm.mistake)).collect();
    assert_eq!(alarms, [(0.8, Mistake::Duplicate), (0.7, Mistake::WrongClass), (0.6, Mistake::WrongBox)]);
    let misses: Vec<(u64, Option<f64>)> =
        result.misses.iter().map(|miss| (miss.truth.id, miss.nearest.map(|nearest| nearest.score))).collect();
    assert_eq!(misses, [(3, Some(0.7)), (2, Some(0.6))], "the larger first, each with what is nearest");
    let all = diagnose(2, &small(), &detections, DiagnosisOptions { score: 0.3, worst: 9 });
    assert_eq!(all.false_alarms[3].mistake, Mistake::Background);
}

#[test]
fn an_object_is_a_hit_or_a_miss_and_a_detection_a_hit_or_an_alarm() {
    let mut random = generator(3, Purpose::Augment, [0, 0]);
    for _ in 0..50 {
        let bounds = |random: &mut _| -> [f64; 4] {
            let mut side = |most: f64| rand::RngExt::random_range(random, 1.0..most);
            [side(30.0), side(30.0), side(20.0), side(20.0)]
        };
        let truths: Vec<CocoTruth> = (0..20)
            .map(|id| {
                let bounds = bounds(&mut random);
                let (image, class) = (random.random_range(0..3), random.random_range(0..3));
                CocoTruth { id, image, class, bounds, area: bounds[2] * bounds[3], crowd: false }
            })
            .collect();
        let detections: Vec<CocoDetection> = (0..40)
            .map(|_| {
                let (image, class) = (random.random_range(0..3), random.random_range(0..3));
                CocoDetection { image, class, bounds: bounds(&mut random), score: random.random() }
            })
            .collect();
        let result = diagnose(3, &truths, &detections, DiagnosisOptions { score: 0.0, worst: 100 });
        let counts = &result.confusion.counts;
        for class in 0..3 {
            let of_class = truths.iter().filter(|truth| truth.class == class).count() as u64;
            assert_eq!(counts[class].iter().sum::<u64>(), of_class);
            let found = detections.iter().filter(|detection| detection.class == class).count() as u64;
            assert_eq!(counts.iter().map(|row| row[class]).sum::<u64>(), found);
        }
        let hits = (0..3).map(|class| counts[class][class]).sum::<u64>() as usize;
        assert_eq!((hits + result.missed, hits + result.alarms), (20, 40));
    }
}
