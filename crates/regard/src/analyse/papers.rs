//! The papers' tables of parameters and FLOPs beside our own counts, each under the paper's own convention.
//!
//! What the papers print is written down here; what we say is computed from the layers of the built model.

mod detection;
mod video;

use serde::Serialize;
use serde_json::{Value, json};

use crate::Error;
use crate::cost::{Convention, Work};
use crate::models::{ModelConfig, preset};

/// A table of a paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// SAN beside ResNet: arXiv:2004.13621.
    San,
    /// Stand-alone self-attention: arXiv:1906.05909.
    Sasa,
    /// ViT, DeiT, ResNet and RegNet as the decks list them.
    Vit,
    /// RetinaNet with convolution and attention, trunk and heads: arXiv:1906.05909.
    Retinanet,
    /// Detectors on COCO: arXiv:2005.12872, table 1.
    Detr,
    /// The schemes of TimeSformer: arXiv:2102.05095, table 1.
    Timesformer,
    /// C2D and I3D with and without non-local blocks: arXiv:1711.07971, by the code of its authors.
    NonLocal,
}

/// One row: what is printed, what we count, and whether they agree.
#[derive(Clone, Debug, Serialize)]
pub struct PaperRow {
    pub name: String,
    pub parameters: Cell,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flops: Option<Cell>,
    /// Ours, where the paper prints none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multiply_adds: Option<u64>,
    /// What is known of a cell that does not agree.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub note: &'static str,
}

/// A printed number beside ours.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Cell {
    /// As printed, in millions of parameters or billions of operations.
    pub printed: f64,
    pub ours: u64,
    pub verdict: Verdict,
}

/// How ours becomes the printed number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// By rounding.
    Agrees,
    /// Only by cutting digits off.
    Truncated,
    /// Not at all.
    Differs,
}

/// How a table rounds what it prints.
#[derive(Clone, Copy)]
enum Rounding {
    /// To so many decimals, half up.
    Once(i32),
    /// First to two decimals, then to one: the counting tool printed two.
    Twice,
}

impl Rounding {
    fn verdict(self, ours: u64, unit: f64, printed: f64) -> Verdict {
        let value = ours as f64 / unit;
        let round = |value: f64, decimals: i32| (value * 10f64.powi(decimals) + 0.5).floor() / 10f64.powi(decimals);
        let (rounded, decimals) = match self {
            Self::Once(decimals) => (round(value, decimals), decimals),
            Self::Twice => (round(round(value, 2) + 1e-9, 1), 1),
        };
        let cut = (value * 10f64.powi(decimals)).floor() / 10f64.powi(decimals);
        let same = |a: f64| (a - printed).abs() < 1e-6;
        if same(rounded) {
            Verdict::Agrees
        } else if same(cut) {
            Verdict::Truncated
        } else {
            Verdict::Differs
        }
    }
}

impl Table {
    /// Every row, counted now.
    ///
    /// # Errors
    /// When a configuration of the table cannot be built, which would be a bug.
    pub fn rows(self) -> Result<Vec<PaperRow>, Error> {
        match self {
            Self::San => san(),
            Self::Sasa => sasa(),
            Self::Vit => vit(),
            Self::Retinanet => detection::retinanet(),
            Self::Detr => detection::detr(),
            Self::Timesformer => video::timesformer(),
            Self::NonLocal => video::non_local(),
        }
    }
}

/// A preset with some fields changed.
fn config(name: &str, changes: &[(&str, Value)]) -> Result<ModelConfig, Error> {
    changes.iter().try_fold(preset(name)?.config, |config, (field, value)| config.with(field, value.clone()))
}

fn row(
    name: &str,
    config: &ModelConfig,
    convention: Convention,
    (parameters, flops): (f64, f64),
    rounding: Rounding,
) -> Result<PaperRow, Error> {
    let ledger = config.ledger(config.image())?;
    let cell = |printed: f64, ours: u64, unit: f64, rounding: Rounding| Cell {
        printed,
        ours,
        verdict: rounding.verdict(ours, unit, printed),
    };
    Ok(PaperRow {
        name: name.into(),
        parameters: cell(parameters, ledger.parameters(), 1e6, Rounding::Once(1)),
        flops: Some(cell(flops, ledger.total(convention), 1e9, rounding)),
        multiply_adds: None,
        note: "",
    })
}

fn san() -> Result<Vec<PaperRow>, Error> {
    let pair = |relation: &str, position: &str| json!({"pairwise": {"relation": relation, "position": position}});
    let patch = |relation: &str| json!({"patchwise": {"relation": relation}});
    let footprints = |k: usize| json!([3, k, k, k, k]);
    let mut rows = Vec::new();
    let mut add = |name: &str, model: &str, changes: &[(&str, Value)], printed: (f64, f64)| -> Result<(), Error> {
        rows.push(row(name, &config(model, changes)?, Convention::San, printed, Rounding::Twice)?);
        Ok(())
    };
    for (name, model, printed) in [
        ("ResNet26", "resnet-26", (13.7, 2.4)),
        ("SAN10 pairwise", "san10-pairwise", (10.5, 2.2)),
        ("SAN10 patchwise", "san10-patchwise", (11.8, 1.9)),
        ("ResNet38", "resnet-38", (19.6, 3.2)),
        ("SAN15 pairwise", "san15-pairwise", (14.1, 3.0)),
        ("SAN15 patchwise", "san15-patchwise", (16.2, 2.6)),
        ("ResNet50", "resnet-50", (25.6, 4.1)),
        ("SAN19 pairwise", "san19-pairwise", (17.6, 3.8)),
        ("SAN19 patchwise", "san19-patchwise", (20.5, 3.3)),
        ("ResNet26 5x5", "resnet-26-5x5", (22.7, 4.0)),
        ("ResNet26 7x7", "resnet-26-7x7", (36.1, 6.5)),
    ] {
        add(name, model, &[], printed)?;
    }
    for (relation, printed) in [
        ("summation", (10.5, 2.2)),
        ("subtraction", (10.5, 2.2)),
        ("concatenation", (10.6, 2.5)),
        ("hadamard", (10.5, 2.2)),
        ("dot", (10.5, 1.8)),
    ] {
        let change = [("relation", pair(relation, "relative"))];
        add(&format!("SAN10 pairwise {relation}"), "san10-pairwise", &change, printed)?;
    }
    for (relation, printed) in [("star", (10.9, 1.7)), ("clique", (11.5, 1.9)), ("concatenation", (11.8, 1.9))] {
        add(&format!("SAN10 patchwise {relation}"), "san10-patchwise", &[("relation", patch(relation))], printed)?;
    }
    for (sharing, words, pairwise, patchwise) in [
        ("all-shared", "phi = psi = beta", (9.5, 3.0), (13.4, 2.2)),
        ("relation-shared", "phi = psi, beta", (10.0, 2.1), (11.3, 1.8)),
        ("all-different", "phi, psi, beta", (10.5, 2.2), (11.8, 1.9)),
    ] {
        let change = [("sharing", json!(sharing))];
        add(&format!("SAN10 pairwise, {words}"), "san10-pairwise", &change, pairwise)?;
        add(&format!("SAN10 patchwise, {words}"), "san10-patchwise", &change, patchwise)?;
    }
    for (k, pairwise, patchwise) in [
        (3, (10.5, 1.7), (10.7, 1.6)),
        (5, (10.5, 1.9), (11.2, 1.7)),
        (7, (10.5, 2.2), (11.8, 1.9)),
        (9, (10.5, 2.5), (12.7, 2.1)),
        (11, (10.5, 3.0), (13.8, 2.3)),
    ] {
        let change = [("footprints", footprints(k))];
        add(&format!("SAN10 pairwise, footprint {k}"), "san10-pairwise", &change, pairwise)?;
        add(&format!("SAN10 patchwise, footprint {k}"), "san10-patchwise", &change, patchwise)?;
    }
    for (position, printed) in [("none", (10.5, 2.1)), ("absolute", (10.5, 2.2)), ("relative", (10.5, 2.2))] {
        let change = [("relation", pair("subtraction", position))];
        add(&format!("SAN10 pairwise, position {position}"), "san10-pairwise", &change, printed)?;
    }
    Ok(rows)
}

fn sasa() -> Result<Vec<PaperRow>, Error> {
    let six_maps = json!({"attention": {"heads": 4, "block": 4, "maps": 6}});
    let mut rows = Vec::new();
    for (name, model, printed) in [
        ("ResNet-26", "resnet-26", (13.7, 4.7)),
        ("ResNet-38", "resnet-38", (19.6, 6.5)),
        ("ResNet-50", "resnet-50", (25.6, 8.2)),
        ("ResNet-26 conv-stem + attention", "sasa-resnet26-conv-stem", (10.3, 4.5)),
        ("ResNet-38 conv-stem + attention", "sasa-resnet38-conv-stem", (14.1, 5.7)),
        ("ResNet-50 conv-stem + attention", "sasa-resnet50-conv-stem", (18.0, 7.0)),
        ("ResNet-26 full attention", "sasa-resnet26", (10.3, 4.7)),
        ("ResNet-38 full attention", "sasa-resnet38", (14.1, 6.0)),
        ("ResNet-50 full attention", "sasa-resnet50", (18.0, 7.2)),
    ] {
        // the number of value maps in the stem is not published; six is the one that gives all three cells
        let changes = if name.contains("full") { vec![("stem", six_maps.clone())] } else { Vec::new() };
        let mut row = row(name, &config(model, &changes)?, Convention::Sasa, printed, Rounding::Once(1))?;
        if row.parameters.verdict != Verdict::Agrees {
            row.note = "no way of counting rounds to the printed parameters; the row looks truncated";
        }
        rows.push(row);
    }
    Ok(rows)
}

fn vit() -> Result<Vec<PaperRow>, Error> {
    const CUT: &str = "printed without its decimals";
    const LARGE: &str = "the printed number is that of patch 32 with a head for 1000 classes";
    let parameters = |name: &str, model: &str, printed: f64, note: &'static str| -> Result<PaperRow, Error> {
        let ours = preset(model)?.ledger()?.parameters();
        let verdict = Rounding::Once(0).verdict(ours, 1e6, printed);
        let parameters = Cell { printed, ours, verdict };
        Ok(PaperRow { name: name.into(), parameters, flops: None, multiply_adds: None, note })
    };
    let with_flops = |row: PaperRow, model: &str, printed: f64| -> Result<PaperRow, Error> {
        let ours = patches_only(&preset(model)?.config)?;
        let verdict = Rounding::Once(1).verdict(ours, 1e9, printed);
        Ok(PaperRow { flops: Some(Cell { printed, ours, verdict }), ..row })
    };
    Ok(vec![
        parameters("ResNet-18", "resnet-18", 12.0, "")?,
        parameters("ResNet-50", "resnet-50", 25.0, CUT)?,
        parameters("ResNet-101", "resnet-101", 45.0, "")?,
        parameters("ResNet-152", "resnet-152", 60.0, "")?,
        parameters("RegNetY-4GF", "regnety-4gf", 21.0, "")?,
        parameters("RegNetY-8GF", "regnety-8gf", 39.0, "")?,
        parameters("RegNetY-16GF", "regnety-16gf", 84.0, "")?,
        parameters("DeiT-Ti", "deit-tiny", 5.0, CUT)?,
        with_flops(parameters("DeiT-S", "deit-small", 22.0, "")?, "vit-small-patch16-224", 4.6)?,
        with_flops(parameters("DeiT-B", "deit-base", 86.0, CUT)?, "vit-base-patch16-224", 17.5)?,
        with_flops(parameters("ViT-B/16 at 384", "vit-base-patch16-384", 86.0, CUT)?, "vit-base-patch16-384", 55.4)?,
        with_flops(
            parameters("ViT-L/16 at 384", "vit-large-patch16-384", 307.0, LARGE)?,
            "vit-large-patch16-384",
            190.7,
        )?,
        parameters("ViT-L/32", "vit-large-patch32-224", 307.0, "")?,
        parameters("ViT-H/14", "vit-huge-patch14-224", 632.0, "")?,
    ])
}

/// Multiply-adds as the decks have them for transformers: of the patches alone, without class token and head.
fn patches_only(config: &ModelConfig) -> Result<u64, Error> {
    let config = config.with("pool", json!("average"))?;
    let ledger = config.ledger(config.image())?;
    let body = ledger.lines().iter().filter(|line| !matches!(line.work, Work::Head { .. }));
    Ok(body.map(|line| Convention::MultiplyAdds.count(line.work)).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_twice_is_not_rounding_once() {
        assert_eq!(Rounding::Twice.verdict(2_045_828_494, 1e9, 2.1), Verdict::Agrees);
        assert_eq!(Rounding::Once(1).verdict(2_045_828_494, 1e9, 2.1), Verdict::Differs);
        assert_eq!(Rounding::Once(1).verdict(14_191_000, 1e6, 14.1), Verdict::Truncated);
    }

    #[test]
    fn every_cell_of_the_tables_of_san_agrees() {
        let rows = Table::San.rows().unwrap();
        assert_eq!(rows.len(), 38);
        for row in rows {
            assert_eq!(row.parameters.verdict, Verdict::Agrees, "{row:?}");
            assert_eq!(row.flops.unwrap().verdict, Verdict::Agrees, "{row:?}");
        }
    }

    #[test]
    fn the_table_of_sasa_agrees_but_for_the_parameters_of_38_layers() {
        let rows = Table::Sasa.rows().unwrap();
        assert_eq!(rows.len(), 9);
        for row in rows {
            let expected = if row.name.contains("38") && row.name.contains("attention") {
                Verdict::Truncated
            } else {
                Verdict::Agrees
            };
            assert_eq!(row.parameters.verdict, expected, "{row:?}");
            assert_eq!(row.flops.unwrap().verdict, Verdict::Agrees, "{row:?}");
            assert_eq!(row.note.is_empty(), expected == Verdict::Agrees);
        }
    }

    #[test]
    fn detectors_of_sasa_agree_or_say_why_not() {
        let rows = Table::Retinanet.rows().unwrap();
        assert_eq!(rows.len(), 5);
        for row in rows {
            assert_eq!(row.parameters.verdict, Verdict::Agrees, "{row:?}");
            assert_eq!(row.note.is_empty(), row.flops.unwrap().verdict == Verdict::Agrees, "{row:?}");
        }
    }

    #[test]
    fn transformers_agree_or_say_why_not() {
        for row in Table::Vit.rows().unwrap() {
            assert_eq!(row.note.is_empty(), row.parameters.verdict == Verdict::Agrees, "{row:?}");
            if let Some(flops) = row.flops {
                assert_eq!(flops.verdict, Verdict::Agrees, "{row:?}");
            }
        }
    }

    #[test]
    fn the_table_of_detr_agrees_or_says_why_not() {
        let rows = Table::Detr.rows().unwrap();
        let gigas = [345.1, 178.4, 244.9, 345.1, 178.4, 244.9, 85.7, 187.2, 152.1, 253.6];
        assert_eq!(rows.len(), gigas.len());
        for (row, gigas) in rows.iter().zip(gigas) {
            let flops = row.flops.unwrap();
            assert!((flops.ours as f64 / 1e9 - gigas).abs() < 0.1, "{row:?}");
            let agrees = row.parameters.verdict == Verdict::Agrees && flops.verdict == Verdict::Agrees;
            assert_eq!(row.note.is_empty(), agrees, "{row:?}");
        }
    }
}
