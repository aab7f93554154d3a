//! The output of `regard eval`.

use regard::evaluate::{ClassificationMetrics, Robustness, Rotation};
use regard::report::classes::table;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

use crate::failure::Failure;
use crate::models::print_json;

/// The evaluation of one model.
#[derive(Debug)]
pub struct ClassificationReport<'a> {
    pub evaluation: &'a ClassificationMetrics,
    /// Names of the model's classes.
    pub classes: &'a [String],
    pub unreadable: usize,
    /// Pictures per second.
    pub speed: f64,
}

#[derive(Serialize)]
struct Json {
    pictures: usize,
    unreadable: usize,
    top1: f64,
    top5: f64,
    loss: f64,
    calibration_error: f64,
    pictures_per_second: f64,
    classes: Vec<OfClass>,
    calibration: Vec<Bin>,
    confusion: Vec<Cell>,
}

#[derive(Serialize)]
struct OfClass {
    class: usize,
    label: String,
    pictures: u64,
    top1: f64,
}

/// Pictures with about the same confidence.
#[derive(Serialize)]
struct Bin {
    pictures: u64,
    confidence: f64,
    accuracy: f64,
}

/// A cell of the confusion matrix that is not zero.
#[derive(Serialize)]
struct Cell {
    class: usize,
    answer: usize,
    pictures: u64,
}

impl ClassificationReport<'_> {
    pub fn text(&self, per_class: bool, out: &mut impl Write) -> Result<(), Failure> {
        let ClassificationMetrics { accuracy, confusion, calibration } = self.evaluation;
        writeln!(out, "pictures           {}", accuracy.pictures)?;
        writeln!(out, "unreadable         {}", self.unreadable)?;
        writeln!(out, "top-1              {:.2} %", 100.0 * accuracy.top1())?;
        writeln!(out, "top-5              {:.2} %", 100.0 * accuracy.top5())?;
        writeln!(out, "loss               {:.4}", accuracy.loss())?;
        writeln!(out, "calibration error  {:.2} %", 100.0 * calibration.error())?;
        writeln!(out, "speed              {:.1} pictures/s", self.speed)?;
        if per_class {
            write!(out, "\n{}", table(confusion, self.classes).text())?;
        }
        Ok(())
    }

    pub fn json(&self, out: &mut impl Write) -> Result<(), Failure> {
        let ClassificationMetrics { accuracy, confusion, calibration } = self.evaluation;
        let seen = (0..confusion.counts.len()).filter(|class| confusion.pictures(*class) > 0);
        let class = |class: usize| OfClass {
            class,
            label: self.classes[class].clone(),
            pictures: confusion.pictures(class),
            top1: confusion.accuracy(class),
        };
        let bins = calibration.bins.iter().filter(|bin| bin.pictures > 0);
        let bin = |bin: &regard::evaluate::Bin| Bin {
            pictures: bin.pictures,
            confidence: bin.confidence(),
            accuracy: bin.accuracy(),
        };
        let row = |(class, row): (usize, &Vec<u64>)| {
            let cell = move |(answer, &pictures): (usize, &u64)| Cell { class, answer, pictures };
            row.iter().enumerate().map(cell).filter(|cell| cell.pictures > 0).collect::<Vec<_>>()
        };
        let report = Json {
            pictures: accuracy.pictures,
            unreadable: self.unreadable,
            top1: accuracy.top1(),
            top5: accuracy.top5(),
            loss: accuracy.loss(),
            calibration_error: calibration.error(),
            pictures_per_second: self.speed,
            classes: seen.map(class).collect(),
            calibration: bins.map(bin).collect(),
            confusion: confusion.counts.iter().enumerate().flat_map(row).collect(),
        };
        print_json(&report, out)
    }
}

/// The table of rotated and flipped pictures, as JSON.
pub fn robustness_json(rows: &[Robustness], out: &mut impl Write) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct RobustnessRow<'a> {
        model: &'a str,
        pictures: usize,
        top1: BTreeMap<String, f64>,
        drop: BTreeMap<String, f64>,
    }
    let by_rotation = |value: &dyn Fn(Rotation) -> f64| {
        Rotation::ALL.map(|rotation| (rotation.name().to_string(), value(rotation))).into()
    };
    let rows = rows.iter().map(|row| RobustnessRow {
        model: &row.name,
        pictures: row.accuracy[0].pictures,
        top1: by_rotation(&|rotation| row.top1(rotation)),
        drop: by_rotation(&|rotation| row.drop(rotation)),
    });
    print_json(&rows.collect::<Vec<_>>(), out)
}
