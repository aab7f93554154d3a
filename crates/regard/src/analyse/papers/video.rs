//! The table of the schemes of TimeSformer: arXiv:2102.05095, table 1.

use super::{Cell, PaperRow, Rounding};
use crate::Error;
use crate::attention::SpaceTime;
use crate::cost::{Convention, Ledger};
use crate::models::timesformer::TimesformerConfig;

/// ViT-B/16 over 8 frames of 224 x 224 pixels, with the 174 classes of Something-Something.
pub(super) fn timesformer() -> Result<Vec<PaperRow>, Error> {
    let rows = [
        ("Space", SpaceTime::Space, 85.9),
        ("Joint Space-Time", SpaceTime::Joint, 85.9),
        ("Divided Space-Time", SpaceTime::Divided, 121.4),
        ("Sparse Local Global", SpaceTime::SparseLocalGlobal, 121.4),
        ("Axial", SpaceTime::Axial, 156.8),
    ];
    rows.into_iter()
        .map(|(name, scheme, printed)| {
            let ledger = ledger(&TimesformerConfig { classes: 174, ..TimesformerConfig::base(scheme) })?;
            let ours = ledger.parameters();
            let verdict = Rounding::Once(1).verdict(ours, 1e6, printed);
            Ok(PaperRow {
                name: name.into(),
                parameters: Cell { printed, ours, verdict },
                flops: None,
                multiply_adds: Some(ledger.total(Convention::MultiplyAdds)),
                note: "",
            })
        })
        .collect()
}

fn ledger(config: &TimesformerConfig) -> Result<Ledger, Error> {
    let [rows, columns] = config.image;
    Ok(Ledger::of(&config.init(&crate::device::cpu())?, [config.channels, config.frames, rows, columns]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::papers::Verdict;

    #[test]
    fn every_cell_of_the_table_of_timesformer_agrees() {
        let rows = timesformer().unwrap();
        let exact = [85_932_462, 85_938_606, 121_392_558, 121_392_558, 156_846_510];
        assert_eq!(rows.iter().map(|row| row.parameters.ours).collect::<Vec<_>>(), exact);
        assert!(rows.iter().all(|row| row.parameters.verdict == Verdict::Agrees), "{rows:?}");
    }

    #[test]
    fn three_crops_of_the_timesformers_of_the_paper_cost_what_it_prints() {
        for (config, trillions) in [
            (TimesformerConfig::base(SpaceTime::Divided), "0.59"),
            (TimesformerConfig::high_resolution(), "5.11"),
            (TimesformerConfig::long(), "7.14"),
        ] {
            let width = config.dim as u64;
            // the released code projects a class token for every frame in space, and none in time
            let [copies, without] = [(config.frames as u64 - 1) * 4 * width * width, 5 * width * width + 2 * width];
            let ours = ledger(&config).unwrap().total(Convention::MultiplyAdds);
            let released = ours + config.depth as u64 * copies - config.depth as u64 * without;
            assert_eq!(format!("{:.2}", 3.0 * released as f64 / 1e12), trillions);
        }
    }
}
