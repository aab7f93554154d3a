//! The worst mistakes of a detector: as crops of pictures to look at, and as data.

use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

use super::{DetectionFindings, DetectionPart};
use crate::Error;
use crate::data::Picture;
use crate::evaluate::coco::{Diagnosis, FalseAlarm, Miss, Mistake};
use crate::report::{BoxOrigin, CropSheet, Drawing, Figure as _, LabelledCrop};

/// Crops in a row, and the pixels of one.
const COLUMNS: usize = 5;
const SIDE: usize = 200;

/// The overlap from which on a box is that of an object.
const RIGHT: f64 = 0.5;

/// A box that is near a mistake.
#[derive(Serialize)]
struct Nearest<'a> {
    class: &'a str,
    bbox: [f64; 4],
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    iou: f64,
}

/// Pictures of a part by their ids.
struct Pictures<'a> {
    part: &'a DetectionPart,
    indices: BTreeMap<u64, usize>,
}

impl<'a> Pictures<'a> {
    fn of(part: &'a DetectionPart) -> Self {
        let indices = part.indices.iter().map(|index| (part.dataset.image_id(*index), *index)).collect();
        Self { part, indices }
    }

    fn name(&self, id: u64) -> String {
        self.indices.get(&id).map_or_else(|| id.to_string(), |index| self.part.dataset.name(*index))
    }

    fn read(&self, id: u64) -> Result<Picture, Error> {
        let index =
            self.indices.get(&id).ok_or_else(|| Error::config("image_id", format!("no picture has id {id}")))?;
        self.part.dataset.picture(*index)
    }
}

/// Figures of what was missed and of what was found where nothing is; those without a mistake are left out.
///
/// # Errors
/// When a picture cannot be read any more.
pub(super) fn figures(
    found: &DetectionFindings,
    diagnosis: &Diagnosis,
    part: &DetectionPart,
) -> Result<Vec<(&'static str, Drawing)>, Error> {
    let pictures = Pictures::of(part);
    let score = diagnosis.settings.score;
    let misses: Vec<LabelledCrop> =
        diagnosis.misses.iter().map(|miss| missed(found, miss, &pictures)).collect::<Result<_, _>>()?;
    let alarms: Vec<LabelledCrop> =
        diagnosis.false_alarms.iter().map(|alarm| invented(found, alarm, &pictures)).collect::<Result<_, _>>()?;
    let (missed, invented) = (diagnosis.missed, diagnosis.alarms);
    let sheets = [
        ("misses.svg", missed_title(misses.len(), missed, score), misses),
        ("false-alarms.svg", alarm_title(alarms.len(), invented, score), alarms),
    ];
    let drawn = sheets
        .into_iter()
        .filter(|(_, _, crops)| !crops.is_empty())
        .map(|(file, title, crops)| (file, CropSheet { title, columns: COLUMNS, side: SIDE as f64, crops }.drawing()));
    Ok(drawn.collect())
}

fn missed_title(shown: usize, all: usize, score: f64) -> String {
    if shown < all {
        format!("misses: the {shown} largest of {all} objects that no box of a score of {score} or more found")
    } else {
        format!("misses: objects that no box of a score of {score} or more found, the largest first")
    }
}

fn alarm_title(shown: usize, all: usize, score: f64) -> String {
    if shown < all {
        format!("false alarms: the {shown} surest of {all} wrong boxes of a score of {score} or more")
    } else {
        format!("false alarms: wrong boxes of a score of {score} or more, the surest first")
    }
}

fn missed(found: &DetectionFindings, miss: &Miss, pictures: &Pictures) -> Result<LabelledCrop, Error> {
    let Miss { truth, nearest, overlap } = miss;
    let near = nearest.map_or("no box is near".into(), |near| {
        let (class, score) = (&found.classes[near.class], near.score);
        if *overlap >= RIGHT {
            format!("taken for {class} {score:.2}")
        } else {
            format!("nearest: {class} {score:.2}, IoU {overlap:.2}")
        }
    });
    let mut boxes = vec![(BoxOrigin::Annotation, truth.bounds)];
    boxes.extend(nearest.map(|near| (BoxOrigin::Detector, near.bounds)));
    let lines = vec![found.classes[truth.class].clone(), near, pictures.name(truth.image)];
    Ok(LabelledCrop::around(&pictures.read(truth.image)?, &boxes, SIDE, lines))
}

fn invented(found: &DetectionFindings, alarm: &FalseAlarm, pictures: &Pictures) -> Result<LabelledCrop, Error> {
    let FalseAlarm { detection, mistake, nearest, overlap } = alarm;
    let reason = match (mistake, nearest) {
        (Mistake::Duplicate, _) => "was found already".into(),
        (Mistake::WrongClass, Some(truth)) => format!("is {}, IoU {overlap:.2}", found.classes[truth.class]),
        (Mistake::WrongBox, _) => format!("box is off, IoU {overlap:.2}"),
        (Mistake::WrongClass | Mistake::Background, _) => "nothing is there".into(),
    };
    let mut boxes: Vec<(BoxOrigin, [f64; 4])> =
        nearest.iter().map(|truth| (BoxOrigin::Annotation, truth.bounds)).collect();
    boxes.push((BoxOrigin::Detector, detection.bounds));
    let title = format!("{} {:.2}", found.classes[detection.class], detection.score);
    let lines = vec![title, reason, pictures.name(detection.image)];
    Ok(LabelledCrop::around(&pictures.read(detection.image)?, &boxes, SIDE, lines))
}

/// The lists of misses and of false alarms.
pub(super) fn lists(found: &DetectionFindings, diagnosis: &Diagnosis, part: &DetectionPart) -> [Value; 2] {
    let pictures = Pictures::of(part);
    let class = |class: usize| found.classes[class].as_str();
    let misses = diagnosis.misses.iter().map(|miss| {
        let nearest = miss.nearest.map(|near| Nearest {
            class: class(near.class),
            bbox: near.bounds,
            score: Some(near.score),
            iou: miss.overlap,
        });
        json!({
            "picture": pictures.name(miss.truth.image),
            "image_id": miss.truth.image,
            "class": class(miss.truth.class),
            "bbox": miss.truth.bounds,
            "nearest": nearest,
        })
    });
    let alarms = diagnosis.false_alarms.iter().map(|alarm| {
        let nearest = alarm.nearest.map(|near| Nearest {
            class: class(near.class),
            bbox: near.bounds,
            score: None,
            iou: alarm.overlap,
        });
        json!({
            "picture": pictures.name(alarm.detection.image),
            "image_id": alarm.detection.image,
            "class": class(alarm.detection.class),
            "bbox": alarm.detection.bounds,
            "score": alarm.detection.score,
            "mistake": alarm.mistake,
            "nearest": nearest,
        })
    });
    [misses.collect(), alarms.collect()]
}
