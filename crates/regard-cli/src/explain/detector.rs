//! `regard explain` for detectors: the evidence for each box.
//!
//! DETR: the cross-attention of the box's query, and the self-attention of one point in the encoder;
//! detectors with anchors: Grad-CAM of the box's score.

use burn::tensor::Device;
use regard::Pass;
use regard::analyse::{
    BoxCam, Check, PictureMap, PicturePoint, box_cam, cross_attention, point_attention, share_inside,
};
use regard::data::{Bounds, Detection, Images, Picture};
use regard::models::detect::detr::Detr;
use regard::models::detect::{BoxScore, Detector};
use regard::report::figure::{Panel, Sheet};
use regard::report::overlay::{fitted, overlay_cells};
use regard::report::{LabelledBox, Table, draw_boxes};
use serde::Serialize;
use serde_json::json;
use std::io::{Write, stderr};

use super::{Args, check_page};
use crate::detect::load_detector;
use crate::failure::Failure;
use crate::findings::{Findings, Part};
use crate::model::class_names;

/// Side of a panel, and of the picture with all boxes.
const PANEL: usize = 160;
const LARGE: usize = 384;

/// Maximum number of heads per row.
const MOST_HEADS: usize = 8;

/// A box and its evidence.
#[derive(Serialize)]
struct ExplainedBox {
    class: usize,
    name: String,
    score: f64,
    /// Left, top, width and height in pixels.
    bbox: [f64; 4],
    /// The object query of a DETR.
    query: Option<usize>,
    /// The layer that the map is of.
    layer: String,
    /// Rows and columns of the map.
    size: [usize; 2],
    /// Height and width of a cell as fractions of the picture.
    cell: [f64; 2],
    values: Vec<f32>,
    /// By head; empty for Grad-CAM.
    heads: Vec<Vec<f32>>,
    /// The fraction of the map inside the box; `None` if the map is zero.
    inside: Option<f64>,
    #[serde(skip)]
    bounds: Bounds,
}

/// All results.
struct Explained {
    boxes: Vec<ExplainedBox>,
    /// The attention of the point at `--at`.
    point: Option<PictureMap>,
    checks: Vec<Check>,
}

pub fn run(args: &Args, model: &str, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(page) = &args.output {
        check_page(page)?;
    }
    refuse_arguments_of_classifiers(args, model)?;
    let picture = Picture::open(&args.picture)?;
    let detector = load_detector(model, device)?;
    let names = class_names(args.labels.as_ref(), detector.labels.as_ref(), detector.config.classes())?;
    let prepared = detector.preprocess.prepare(&picture);
    let images = detector.preprocess.batch(&[prepared])?.to_device(device);
    let found = match &detector.model {
        Detector::Detr(detr) => by_queries(args, detr, &images, &picture, &names)?,
        Detector::Retinanet(model) => by_gradients(args, model, &images, &picture, &names)?,
        Detector::FasterRcnn(model) => by_gradients(args, model, &images, &picture, &names)?,
    };
    if found.boxes.is_empty() {
        writeln!(stderr(), "note: no box has a score of {} or more; `--threshold` lowers it", args.threshold)?;
    }
    let findings = found.findings(args, &detector.name, &picture);
    if !args.json {
        writeln!(out, "{} under {}", args.picture.display(), detector.name)?;
    }
    findings.print(args.json, out)?;
    if let Some(page) = &args.output {
        findings.write(page, &page.with_extension(""))?;
    }
    findings.hold()
}

/// Refuses options that only classifiers have.
fn refuse_arguments_of_classifiers(args: &Args, model: &str) -> Result<(), Failure> {
    let changes = &args.model.changes;
    let given = [
        ("--class", args.class.is_some()),
        ("--set", !changes.set.is_empty()),
        ("--from", changes.from.is_some()),
        ("--discard", args.discard != 0.0),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        Some((argument, _)) => {
            let message = format!("`{model}` is a detector, and `{argument}` is for classifiers");
            Err(Failure::input(message, "`--threshold` and `--top` choose the boxes that are explained"))
        }
        None => Ok(()),
    }
}

fn by_queries(
    args: &Args,
    detr: &Detr,
    images: &Images,
    picture: &Picture,
    names: &[String],
) -> Result<Explained, Failure> {
    let attention = cross_attention(detr, images, None)?;
    let (mut boxes, mut checks) = (Vec::new(), Vec::new());
    for query in attention.detected(args.threshold).into_iter().take(args.top) {
        let map = attention.map(query)?;
        checks.push(map.check.clone());
        let one = ExplainedBox::of(&attention.detections[query], picture, names);
        boxes.push(ExplainedBox { query: Some(query), ..one.with_attention(&map) });
    }
    let [rows, columns] = picture.size();
    // the last row and column have the last point
    let [y, x] =
        [(args.at[0], rows), (args.at[1], columns)].map(|(share, side)| (share * side as f64).min(side as f64 - 0.5));
    let point = point_attention(detr, images, PicturePoint { x, y, size: [rows, columns] }, None)?;
    checks.push(point.check.clone());
    Ok(Explained { boxes, point: Some(point), checks: Check::worst(checks).into_iter().collect() })
}

fn by_gradients<D: BoxScore>(
    args: &Args,
    model: &D,
    images: &Images,
    picture: &Picture,
    names: &[String],
) -> Result<Explained, Failure> {
    let mut sources = model.sources(images, &mut Pass::silent());
    sources.retain(|source| source.detection.score >= args.threshold);
    sources.sort_by(|a, b| b.detection.score.total_cmp(&a.detection.score));
    let (mut boxes, mut checks) = (Vec::new(), Vec::new());
    for source in sources.iter().take(args.top) {
        let cam = box_cam(model, images, source)?;
        checks.push(cam.check.clone());
        boxes.push(ExplainedBox::of(&cam.detection, picture, names).with_gradients(cam));
    }
    Ok(Explained { boxes, point: None, checks: Check::worst(checks).into_iter().collect() })
}

impl ExplainedBox {
    /// A box without its map.
    fn of(detection: &Detection, picture: &Picture, names: &[String]) -> Self {
        let rounded = |x: f64| (x * 100.0).round() / 100.0;
        Self {
            class: detection.class,
            name: names[detection.class].clone(),
            score: detection.score,
            bbox: detection.bounds.coco(picture.size()).map(rounded),
            query: None,
            layer: String::new(),
            size: [0; 2],
            cell: [0.0; 2],
            values: Vec::new(),
            heads: Vec::new(),
            inside: None,
            bounds: detection.bounds,
        }
    }

    fn with_attention(self, map: &PictureMap) -> Self {
        Self {
            layer: map.layer.clone(),
            size: map.size,
            cell: map.cell,
            values: map.mean(),
            heads: map.heads.clone(),
            inside: map.share_inside(&self.bounds),
            ..self
        }
    }

    fn with_gradients(self, BoxCam { layer, size, cell, values, .. }: BoxCam) -> Self {
        let inside = share_inside(size, cell, &values, &self.bounds);
        Self { layer, size, cell, values, inside, ..self }
    }

    fn label(&self) -> String {
        format!("{} {:.2}", self.name, self.score)
    }

    /// Top, left, bottom and right as fractions.
    fn frame(&self) -> [f64; 4] {
        let [left, top, right, bottom] = self.bounds.corners().map(|corner| corner.clamp(0.0, 1.0));
        [top, left, bottom, right]
    }
}

impl Explained {
    fn findings(&self, args: &Args, model: &str, picture: &Picture) -> Findings {
        let small = fitted(picture, PANEL);
        let mut parts = vec![Part::new("boxes", "").figure("boxes", self.drawn(model, picture)).table(self.table())];
        let is_detr = self.point.is_some();
        if !self.boxes.is_empty() {
            let (title, text) = if is_detr {
                let text = "The cross-attention of the query that found each box, in the last decoder layer: first the mean \
                            over heads, then the heads. The box is framed; each map is scaled from its lowest to its \
                            highest value.";
                ("where the queries look", text)
            } else {
                let text = "Which cells of the level that a box was read from support its score (Grad-CAM with the gradient of \
                            each cell, as in ODAM). The box is framed.";
                ("evidence for the boxes", text)
            };
            parts.push(Part::new(title, text).figure("box-maps", self.maps(title, &small)));
        }
        if let Some(point) = &self.point {
            let text = "Encoder self-attention of the framed cell in the last layer: first the mean over heads, then the heads.";
            let title =
                format!("where the point at {:.2} of the height and {:.2} of the width looks", args.at[0], args.at[1]);
            parts.push(Part::new(title.clone(), text).figure("point", point_sheet(&title, point, &small)));
        }
        Findings {
            title: format!("{} under {model}", args.picture.file_name().unwrap_or_default().display()),
            lead: "the boxes that it found, and what each was read from".into(),
            parts,
            checks: self.checks.clone(),
            data: json!({
                "picture": args.picture.display().to_string(),
                "model": model,
                "threshold": args.threshold,
                "boxes": self.boxes,
                "at": args.at,
                "point": self.point,
            }),
        }
    }

    /// The picture with all boxes.
    fn drawn(&self, model: &str, picture: &Picture) -> Sheet {
        let boxes: Vec<LabelledBox> = self
            .boxes
            .iter()
            .map(|one| LabelledBox { bounds: one.bounds, label: one.label(), colour: one.class })
            .collect();
        let picture = draw_boxes(&fitted(picture, LARGE), &boxes);
        let panel = Panel { name: String::new(), picture, frame: None };
        Sheet { title: model.into(), columns: 1, side: LARGE as f64, panels: vec![panel] }
    }

    fn table(&self) -> Table {
        let mut table = Table::new().numbers("score").words("class").numbers("x").numbers("y").numbers("width");
        table = table.numbers("height").numbers("inside the box, %").words("read from");
        for one in &self.boxes {
            let [x, y, w, h] = one.bbox.map(|pixels| format!("{pixels:.0}"));
            let source = one.query.map_or_else(|| one.layer.clone(), |query| format!("query {query}"));
            let inside = one.inside.map_or_else(String::new, |share| format!("{:.1}", 100.0 * share));
            table.row([format!("{:.2}", one.score), one.name.clone(), x, y, w, h, inside, source]);
        }
        table
    }

    /// Queries have a row each, with their heads; gradients have one map for each box.
    fn maps(&self, title: &str, picture: &Picture) -> Sheet {
        let heads = self.boxes.iter().map(|one| one.heads.len()).max().unwrap_or(0).min(MOST_HEADS);
        let columns = if heads == 0 { self.boxes.len().min(4) } else { 1 + heads };
        let mut panels = Vec::new();
        for one in &self.boxes {
            let panel = |name: String, values: &[f32]| Panel {
                name,
                picture: overlay_cells(picture, one.size, one.cell, values),
                frame: Some(one.frame()),
            };
            panels.push(panel(one.label(), &one.values));
            panels.extend(
                one.heads.iter().take(heads).enumerate().map(|(head, values)| panel(format!("head {head}"), values)),
            );
        }
        Sheet { title: title.into(), columns, side: PANEL as f64, panels }
    }
}

fn point_sheet(title: &str, map: &PictureMap, picture: &Picture) -> Sheet {
    let frame = map.query.map(|[row, column]| {
        let side = |at: usize, axis: usize| (at as f64 * map.cell[axis]).min(1.0);
        [side(row, 0), side(column, 1), side(row + 1, 0), side(column + 1, 1)]
    });
    let panel = |name: String, values: &[f32]| Panel {
        name,
        picture: overlay_cells(picture, map.size, map.cell, values),
        frame,
    };
    let mut panels = vec![panel("mean".into(), &map.mean())];
    panels.extend(
        map.heads.iter().take(MOST_HEADS).enumerate().map(|(head, values)| panel(format!("head {head}"), values)),
    );
    Sheet { title: title.into(), columns: panels.len(), side: PANEL as f64, panels }
}
