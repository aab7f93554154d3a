//! A detector on every picture of a part, measured as COCO does, and what a report shows of it.

use burn::tensor::Device;

use super::{DetectionPart, DetectionSamples, mistakes};
use crate::data::{DetectionPreprocess, Loader, Order};
use crate::evaluate::coco::{self, CocoDetection, CocoEvaluation, CocoTruth, Diagnosis};
use crate::models::detect::Detector;
use crate::report::{Figure as _, Findings, Line, Lines, Scale, Stroke, Table, classes};
use crate::train::EvalReport;
use crate::{Error, Pass};

/// Detections and annotations of the pictures of a part.
#[derive(Clone, Debug, Default)]
pub struct DetectionFindings {
    pub classes: Vec<String>,
    /// Ids of all pictures, also of those without objects.
    pub images: Vec<u64>,
    pub truths: Vec<CocoTruth>,
    pub detections: Vec<CocoDetection>,
}

impl DetectionFindings {
    /// # Errors
    /// As [`coco::evaluate`].
    pub fn evaluate(&self) -> Result<CocoEvaluation, Error> {
        coco::evaluate(&self.images, self.classes.len(), &self.truths, &self.detections)
    }

    /// The mistakes among the boxes above the threshold.
    #[must_use]
    pub fn diagnose(&self) -> Diagnosis {
        let settings = coco::DiagnosisOptions { score: SHOWN_SCORE, worst: WORST };
        coco::diagnose(self.classes.len(), &self.truths, &self.detections, settings)
    }
}

/// The numbers that a detector gives the classes of a dataset, by their names.
///
/// # Errors
/// When the dataset has a class that the detector does not know.
pub fn class_numbers(known: &[String], dataset: &[String]) -> Result<Vec<usize>, Error> {
    let number = |name: &String| {
        let exact = known.iter().position(|other| other == name);
        exact.or_else(|| known.iter().position(|other| other.eq_ignore_ascii_case(name))).ok_or_else(|| {
            let reason = format!("the detector does not know `{name}`; it knows {}", known.join(", "));
            Error::config("classes", reason)
        })
    };
    dataset.iter().map(number).collect()
}

/// Runs a detector that knows these classes over a part, `batch` pictures at a time; `watch` is told how many of how many are
/// done. Classes of the part are those of the detector by their names.
///
/// # Errors
/// When a picture cannot be read, or the part has a class that the detector does not know.
pub fn detect_all(
    (model, known): (&Detector, &[String]),
    part: &DetectionPart,
    preprocess: &DetectionPreprocess,
    batch: usize,
    device: &Device,
    watch: &mut dyn FnMut(usize, usize),
) -> Result<DetectionFindings, Error> {
    let numbers = class_numbers(known, part.dataset.classes())?;
    let samples = DetectionSamples {
        dataset: part.dataset.clone(),
        indices: part.indices.clone(),
        preprocess: *preprocess,
        augment: None,
        seed: 0,
    };
    let order = Order { samples: part.len(), batch, repeats: 1, seed: None, rank: 0, ranks: 1 };
    let mut found = DetectionFindings { classes: known.to_vec(), ..DetectionFindings::default() };
    let mut done = 0;
    for batch in (Loader { samples, order, workers: 1 }).epoch(0, 0) {
        let batch = batch?;
        let detections = model.detect(&batch.images.to_device(device), &mut Pass::silent());
        for ((index, size), detections) in batch.indices.iter().zip(&batch.sizes).zip(detections) {
            let image = part.dataset.image_id(*index);
            found.images.push(image);
            found.truths.extend(part.dataset.annotations(*index)?.iter().map(|one| CocoTruth {
                id: one.id,
                image,
                class: numbers[one.class],
                bounds: one.bounds,
                area: one.area,
                crowd: one.crowd,
            }));
            found.detections.extend(detections.iter().map(|one| CocoDetection {
                image,
                class: one.class,
                bounds: one.bounds.coco(*size),
                score: one.score,
            }));
        }
        done += batch.len();
        watch(done, part.len());
    }
    Ok(found)
}

/// Boxes of a lower score are not shown, in figures of mistakes either.
const SHOWN_SCORE: f64 = 0.5;

/// How many misses and how many false alarms are shown.
const WORST: usize = 20;

/// Curves, the classes one by one, what is taken for what, and the worst mistakes.
///
/// # Errors
/// When the picture of a mistake cannot be read any more.
pub fn findings(
    found: &DetectionFindings,
    evaluation: &CocoEvaluation,
    diagnosis: &Diagnosis,
    part: &DetectionPart,
) -> Result<Findings, Error> {
    let mut names = found.classes.clone();
    names.push("background".into());
    let facts = vec![
        ("objects".to_string(), found.truths.iter().filter(|truth| !truth.crowd).count().to_string()),
        (format!("missed at a score of {SHOWN_SCORE}"), diagnosis.missed.to_string()),
        (format!("false alarms at a score of {SHOWN_SCORE}"), diagnosis.alarms.to_string()),
    ];
    let mut confusion = classes::confusion(&diagnosis.confusion, &names);
    confusion.title = format!("found at a score of {SHOWN_SCORE} and an IoU of 0.5, in percent of each class");
    let mut figures =
        vec![("precision-recall.svg", curves(found, evaluation).drawing()), ("confusion.svg", confusion.drawing())];
    figures.extend(mistakes::figures(found, diagnosis, part)?);
    Ok(Findings { facts, figures, tables: vec![class_table(found, evaluation)] })
}

/// Precision over recall of every class at an IoU of 0.5.
fn curves(found: &DetectionFindings, evaluation: &CocoEvaluation) -> Lines {
    let line = |(class, name): (usize, &String)| Line {
        name: name.clone(),
        points: evaluation
            .curve(class, 0)
            .iter()
            .map(|point| [100.0 * point.recall, 100.0 * point.precision])
            .collect(),
        stroke: Stroke::Strong,
    };
    Lines {
        title: "precision and recall at an IoU of 0.5".into(),
        x: "recall %".into(),
        y: "precision %".into(),
        scale: Scale::Linear,
        lines: found.classes.iter().enumerate().map(line).collect(),
    }
}

/// The metrics of each class, with its best score threshold.
#[must_use]
pub fn class_table(found: &DetectionFindings, evaluation: &CocoEvaluation) -> Table {
    let mut table = Table::new()
        .words("class")
        .numbers("objects")
        .numbers("AP %")
        .numbers("AP50 %")
        .numbers("AP75 %")
        .numbers("best threshold")
        .numbers("precision %")
        .numbers("recall %");
    let percent = |value: f64| if value < 0.0 { "-".to_string() } else { format!("{:.1}", 100.0 * value) };
    for (name, score) in found.classes.iter().zip(&evaluation.classes) {
        let best = score.best;
        table.row([
            name.clone(),
            score.objects.to_string(),
            percent(score.ap),
            percent(score.ap50),
            percent(score.ap75),
            best.map_or("-".into(), |best| format!("{:.2}", best.score)),
            percent(best.map_or(-1.0, |best| best.precision)),
            percent(best.map_or(-1.0, |best| best.recall)),
        ]);
    }
    table
}

/// What `regard eval` prints: the twelve numbers, the classes one by one, and how many mistakes there are; as data the worst of
/// them, too.
///
/// # Errors
/// As [`findings`].
pub(super) fn report(
    found: &DetectionFindings,
    evaluation: &CocoEvaluation,
    (part, measured_on): (&DetectionPart, &str),
) -> Result<EvalReport, Error> {
    let diagnosis = found.diagnose();
    let Findings { facts, figures, .. } = findings(found, evaluation, &diagnosis, part)?;
    let values = evaluation.summary.values();
    let measured = coco::METRICS.into_iter().filter_map(|metric| {
        let value = *values.get(metric.name.as_ref())?;
        Some((metric.label.to_string(), metric.show(value)))
    });
    let mut lines = vec![("measured on".to_string(), format!("{} pictures, {measured_on}", found.images.len()))];
    lines.extend(measured);
    lines.extend(facts);
    let percent = |value: f64| if value < 0.0 { "no objects".to_string() } else { format!("{:.2} %", 100.0 * value) };
    for (name, score) in found.classes.iter().zip(&evaluation.classes) {
        let best = score
            .best
            .map_or(String::new(), |best| format!(", best F1 {:.2} at a score of {:.2}", best.f1, best.score));
        let text = format!("AP {}, AP50 {}, {} objects{best}", percent(score.ap), percent(score.ap50), score.objects);
        lines.push((name.clone(), text));
    }
    let classes: serde_json::Map<String, serde_json::Value> = found
        .classes
        .iter()
        .zip(&evaluation.classes)
        .map(|(name, score)| (name.clone(), serde_json::to_value(score).expect("plain data")))
        .collect();
    let mut json = serde_json::to_value(&values).expect("plain data");
    json["pictures"] = found.images.len().into();
    json["classes"] = classes.into();
    json["mistakes"] =
        serde_json::json!({ "score": SHOWN_SCORE, "missed": diagnosis.missed, "alarms": diagnosis.alarms });
    [json["misses"], json["false_alarms"]] = mistakes::lists(found, &diagnosis, part);
    Ok(EvalReport { lines, json, figures })
}
