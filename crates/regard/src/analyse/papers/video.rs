//! The table of the schemes of TimeSformer (arXiv:2102.05095, table 1), and what non-local blocks (arXiv:1711.07971) cost.

use super::{Cell, PaperRow, Rounding};
use crate::Error;
use crate::attention::SpaceTime;
use crate::cost::{Convention, Costed, Ledger};
use crate::models::i3d::{FIVE_NON_LOCAL, I3dConfig, I3dKind};
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
            Ok(row(name, &ledger, (printed, Rounding::Once(1))))
        })
        .collect()
}

/// ResNet-50 over 8 frames of 224 x 224 pixels, with the 400 classes of Kinetics; parameters of facebookresearch/SlowFast.
pub(super) fn non_local() -> Result<Vec<PaperRow>, Error> {
    let rows = [
        ("C2D", I3dKind::C2d, &[][..], true, 24.33),
        ("C2D + 5 non-local", I3dKind::C2d, FIVE_NON_LOCAL, true, 31.69),
        ("C2D + 5 non-local, all keys", I3dKind::C2d, FIVE_NON_LOCAL, false, 31.69),
        ("I3D", I3dKind::I3d, &[][..], true, 28.04),
        ("I3D + 5 non-local", I3dKind::I3d, FIVE_NON_LOCAL, true, 35.40),
    ];
    rows.into_iter()
        .map(|(name, kind, places, sub_sample, printed)| {
            let config = I3dConfig { sub_sample, ..I3dConfig::resnet50(kind, places) };
            let model = config.init(&crate::device::cpu())?;
            let ledger = of_clip(&model, [config.channels, config.frames], config.image);
            Ok(row(name, &ledger, (printed, Rounding::Once(2))))
        })
        .collect()
}

/// Millions of parameters as printed beside ours, and our multiply-adds.
fn row(name: &str, ledger: &Ledger, (printed, rounding): (f64, Rounding)) -> PaperRow {
    let ours = ledger.parameters();
    PaperRow {
        name: name.into(),
        parameters: Cell { printed, ours, verdict: rounding.verdict(ours, 1e6, printed) },
        flops: None,
        multiply_adds: Some(ledger.total(Convention::MultiplyAdds)),
        note: "",
    }
}

fn ledger(config: &TimesformerConfig) -> Result<Ledger, Error> {
    Ok(of_clip(&config.init(&crate::device::cpu())?, [config.channels, config.frames], config.image))
}

fn of_clip(model: &impl Costed, [channels, frames]: [usize; 2], [rows, columns]: [usize; 2]) -> Ledger {
    Ledger::of(model, [channels, frames, rows, columns])
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
    fn every_cell_of_the_table_of_non_local_networks_agrees_and_so_do_their_multiply_adds() {
        let rows = non_local().unwrap();
        let exact = [24_327_632, 31_686_096, 31_686_096, 28_043_472, 35_401_936];
        assert_eq!(rows.iter().map(|row| row.parameters.ours).collect::<Vec<_>>(), exact);
        assert!(rows.iter().all(|row| row.parameters.verdict == Verdict::Agrees), "{rows:?}");
        let billions = rows.iter().map(|row| format!("{:.2}", row.multiply_adds.unwrap() as f64 / 1e9));
        assert_eq!(billions.collect::<Vec<_>>(), ["19.49", "27.62", "39.67", "28.41", "36.54"]);
    }

    #[test]
    fn ten_clips_of_three_crops_of_i3d_cost_what_the_paper_of_timesformer_prints() {
        let config = I3dConfig { image: [256; 2], ..I3dConfig::resnet50(I3dKind::I3d, &[]) };
        let ledger = of_clip(&config.init(&crate::device::cpu()).unwrap(), [3, config.frames], config.image);
        assert_eq!(format!("{:.2}", 30.0 * ledger.total(Convention::MultiplyAdds) as f64 / 1e12), "1.11");
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
