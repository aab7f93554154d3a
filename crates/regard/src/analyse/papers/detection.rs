//! Tables of detectors: RetinaNet with convolution and attention in SASA's paper, and DETR's own.

use super::{Cell, PaperRow, Rounding};
use crate::Error;
use crate::cost::{Convention, Ledger, Work};
use crate::models::detect::{self, detr, retinanet};

/// The table of detectors of arXiv:1906.05909: 640 x 640 pixels.
pub(super) fn retinanet() -> Result<Vec<PaperRow>, Error> {
    const BELOW: &str = "nothing that the paper says explains the missing 0.6 %";
    const ABOVE: &str = "the paper has less than with a convolutional stem, though its own classifiers have more";
    let rows = [
        ("convolution, convolution", "retinanet-sasa-baseline", (33.4, 182.0), ""),
        ("conv-stem + attention, convolution", "retinanet-sasa-conv-stem", (25.9, 173.0), BELOW),
        ("attention, convolution", "retinanet-sasa", (25.9, 173.0), ""),
        ("conv-stem + attention, attention", "retinanet-sasa-conv-stem-attention", (22.0, 111.0), ""),
        ("attention, attention", "retinanet-sasa-attention", (22.0, 110.0), ABOVE),
    ];
    rows.into_iter()
        .map(|(name, preset, (millions, billions), note)| {
            let preset = retinanet::PRESETS.iter().find(|known| known.name == preset).expect("a preset of ours");
            let config = (preset.config)();
            let [rows, columns] = config.image;
            let ledger = Ledger::of(&config.init(&crate::device::cpu())?, [3, rows, columns]);
            let (parameters, flops) = (ledger.parameters(), products(&ledger));
            let flops =
                Cell { printed: billions, ours: flops, verdict: Rounding::Once(0).verdict(flops, 1e9, billions) };
            Ok(PaperRow {
                name: name.into(),
                parameters: millions_of(parameters, millions, 1),
                flops: Some(flops),
                multiply_adds: None,
                note,
            })
        })
        .collect()
}

/// Two for a multiply-add, plus relative positions and softmax; without norms, activations, sums and pools.
fn products(ledger: &Ledger) -> u64 {
    let counts = |work: Work| {
        !matches!(work, Work::Norm { .. } | Work::Activation { .. } | Work::Add { .. } | Work::Pool { .. })
    };
    let lines = ledger.lines().iter().filter(|line| counts(line.work));
    lines.map(|line| Convention::Sasa.count(line.work)).sum()
}

fn millions_of(ours: u64, printed: f64, decimals: i32) -> Cell {
    Cell { printed, ours, verdict: Rounding::Once(decimals).verdict(ours, 1e6, printed) }
}

/// Sizes of pictures and their fractions, for the mean over the first 100 pictures of COCO's val2017 that the paper counts:
/// most are 4:3, the others 3:2.
const COCO_SIZES: [([usize; 2], f64); 2] = [([800, 1066], 0.65), ([800, 1199], 0.35)];

/// Table 1 of arXiv:2005.12872; a row with `+` is the same network, trained longer.
pub(super) fn detr() -> Result<Vec<PaperRow>, Error> {
    const MIXED: &str = "the sizes of the paper's 100 pictures are not known; ours is 0.2 % above what is printed";
    const DC5: &str = "ours is 7.8 % above: it has 1000 regions for every picture, the most there can be; about 760 give what is printed";
    const FPN: &str =
        "ours is 0.9 % below; detectron2 also pads to a multiple of 32 pixels, which gives 180.8 G for our sizes";
    const R101: &str = "parameters: 60.42 M without the frozen stem and first stage; operations: ours is 0.5 % below, padding not counted";
    let mut rows = Vec::new();
    for (name, preset, printed, note) in [
        ("Faster RCNN-DC5", "faster-rcnn-detectron2-r50-dc5", (166.0, 320.0), DC5),
        ("Faster RCNN-FPN", "faster-rcnn-detectron2-r50-fpn", (42.0, 180.0), FPN),
        ("Faster RCNN-R101-FPN", "faster-rcnn-detectron2-r101-fpn", (60.0, 246.0), R101),
        ("Faster RCNN-DC5+", "faster-rcnn-detectron2-r50-dc5", (166.0, 320.0), DC5),
        ("Faster RCNN-FPN+", "faster-rcnn-detectron2-r50-fpn", (42.0, 180.0), FPN),
        ("Faster RCNN-R101-FPN+", "faster-rcnn-detectron2-r101-fpn", (60.0, 246.0), R101),
    ] {
        let config = detect::preset(preset)?.config;
        rows.push(detector(name, |image| config.ledger(image), |_| false, printed, note)?);
    }
    for (name, preset, printed, note) in [
        ("DETR", "detr-r50", (41.0, 86.0), ""),
        ("DETR-DC5", "detr-r50-dc5", (41.0, 187.0), ""),
        ("DETR-R101", "detr-r101", (60.0, 152.0), ""),
        ("DETR-DC5-R101", "detr-r101-dc5", (60.0, 253.0), MIXED),
    ] {
        let config = detr::preset(preset)?;
        // the paper does not count frozen parameters
        let is_frozen =
            |name: &str| name.starts_with("backbone.0.body.conv1") || name.starts_with("backbone.0.body.layer1.");
        rows.push(detector(name, |image| config.ledger(image), is_frozen, printed, note)?);
    }
    Ok(rows)
}

/// A row of a detector, counted for the mixture of sizes; parameters of `is_frozen` parts do not count.
fn detector(
    name: &str,
    ledger: impl Fn([usize; 2]) -> Result<Ledger, Error>,
    is_frozen: impl Fn(&str) -> bool,
    (parameters, flops): (f64, f64),
    note: &'static str,
) -> Result<PaperRow, Error> {
    let (mut mean, mut trained) = (0.0, 0);
    for (image, share) in COCO_SIZES {
        let ledger = ledger(image)?;
        mean += share * ledger.total(Convention::Detr) as f64;
        trained = ledger.lines().iter().filter(|line| !is_frozen(&line.name)).map(|line| line.parameters).sum();
    }
    let cell = |printed: f64, ours: u64, unit: f64| Cell {
        printed,
        ours,
        verdict: Rounding::Once(0).verdict(ours, unit, printed),
    };
    let (parameters, flops) = (cell(parameters, trained, 1e6), cell(flops, mean.round() as u64, 1e9));
    Ok(PaperRow { name: name.into(), parameters, flops: Some(flops), multiply_adds: None, note })
}
