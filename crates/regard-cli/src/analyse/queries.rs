//! `regard analyse queries`: the boxes of each query of a DETR, figure 7 of its paper.

use burn::tensor::Device;
use regard::Pass;
use regard::analyse::{BoxKind, QueryBox, QueryBoxes, QueryProfile, Specialisation, SpecialiseOptions, UsualBox};
use regard::data::Bounds;
use regard::models::detect::Detector;
use regard::models::detect::detr::Detr;
use regard::report::{PanelPoint, PointPanel, PointPanels, Table};
use regard::weights::LoadedDetector;
use serde_json::json;

use super::pictures::Pictures;
use crate::detect::load_detector;
use crate::failure::Failure;
use crate::findings::{Findings, Part};

/// The paper's colours are green, red and blue; ours of these indices are green, orange and blue.
const KINDS: [(BoxKind, usize); 3] = [(BoxKind::Small, 2), (BoxKind::Wide, 1), (BoxKind::Tall, 0)];

pub fn run(models: &[String], pictures: &Pictures, threshold: f64, device: &Device) -> Result<Findings, Failure> {
    let options = SpecialiseOptions { threshold, ..SpecialiseOptions::default() };
    let (mut parts, mut checks, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for (index, name) in models.iter().enumerate() {
        let detector = load_detector(name, device)?;
        let found = specialisation(&detector, pictures, options, device)?;
        let part = Part::new(&detector.name, lead(&found));
        parts.push(part.figure(format!("queries-{index}"), figure(&detector.name, &found)).table(table(&found)));
        checks.extend(found.checks.iter().cloned());
        data.push(json!({ "model": detector.name, "specialisation": found }));
    }
    Ok(Findings {
        title: "what queries answer for".into(),
        lead: format!("centres of the boxes of each query over {} pictures", pictures.len()),
        parts,
        checks,
        data: json!({ "analysis": "queries", "pictures": pictures.len(), "models": data }),
    })
}

fn detr(detector: &LoadedDetector) -> Result<&Detr, Failure> {
    match &detector.model {
        Detector::Detr(model) => Ok(model),
        Detector::Retinanet(_) | Detector::FasterRcnn(_) => Err(Failure::input(
            format!("`{}` has no queries: it is a {}, which has anchors", detector.name, detector.config.family()),
            "queries are those of a DETR, such as `detr-r50=WEIGHTS`",
        )),
    }
}

fn specialisation(
    detector: &LoadedDetector,
    pictures: &Pictures,
    options: SpecialiseOptions,
    device: &Device,
) -> Result<Specialisation, Failure> {
    let model = detr(detector)?;
    let mut boxes = QueryBoxes::new(options);
    pictures.visit(1, &detector.name, |batch, _| {
        let prepared: Vec<_> = batch.iter().map(|picture| detector.preprocess.prepare(picture)).collect();
        let images = detector.preprocess.batch(&prepared)?.to_device(device);
        let detections = model.forward(&images, &mut Pass::silent()).detections();
        for (detections, picture) in detections.iter().zip(batch) {
            boxes.add(detections, picture.size())?;
        }
        Ok(())
    })?;
    Ok(boxes.finish()?)
}

fn lead(found: &Specialisation) -> String {
    let fired = found.queries.iter().filter(|query| query.fired > 0).count();
    let between = found.between.map_or(String::new(), |share| {
        format!("; {:.0} % of the variance of their centres is between queries", 100.0 * share)
    });
    format!(
        "{fired} of {} queries fire, with a score of {} or more{between}. A point is the centre of a box in its picture, a large \
         one of a box with that score. Small boxes cover less than 1/{:.0} of the picture.",
        found.queries.len(),
        found.options.threshold,
        1.0 / found.options.small
    )
}

fn figure(name: &str, found: &Specialisation) -> PointPanels {
    let point = |one: &QueryBox| PanelPoint {
        at: [one.bounds.cx, one.bounds.cy],
        kind: KINDS.iter().find(|(kind, _)| *kind == one.kind).map_or(0, |(_, colour)| *colour),
        strong: one.score >= found.options.threshold,
    };
    let panel = |query: &QueryProfile| PointPanel {
        name: format!("{}: {}", query.query, query.fired),
        points: query.boxes.iter().map(point).collect(),
    };
    PointPanels {
        title: format!("centres of boxes by query (number: times it fired), {name}"),
        columns: if found.queries.len() > 16 { 10 } else { 8 },
        side: 92.0,
        kinds: ["tall", "wide", "small"].map(String::from).into(),
        panels: found.queries.iter().map(panel).collect(),
    }
}

/// The queries that fire, the busiest first.
fn table(found: &Specialisation) -> Table {
    let mut table = ["query", "fired", "x %", "y %", "width %", "height %", "spread %", "small %", "wide %", "tall %"]
        .into_iter()
        .fold(Table::new(), Table::numbers);
    let mut queries: Vec<&QueryProfile> = found.queries.iter().collect();
    queries.sort_by_key(|query| std::cmp::Reverse(query.fired));
    let percent = |share: f64| format!("{:.0}", 100.0 * share);
    for query in queries {
        let Some(UsualBox { mean: Bounds { cx, cy, w, h }, deviation, kinds }) = query.usual else { continue };
        let spread = deviation[0].hypot(deviation[1]);
        let mut row = vec![query.query.to_string(), query.fired.to_string()];
        row.extend([cx, cy, w, h, spread].into_iter().chain(kinds).map(percent));
        table.row(row);
    }
    table
}
