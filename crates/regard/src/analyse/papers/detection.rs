//! Tables of detectors: RetinaNet with convolution and attention in SASA's paper.

use super::{Cell, PaperRow, Rounding};
use crate::Error;
use crate::cost::{Convention, Ledger, Work};
use crate::models::detect::retinanet;

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
