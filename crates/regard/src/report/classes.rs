//! Figures and tables of predictions by class.

use super::figure::{ColourScale, HeatMap, Line, Lines, Scale, Stroke};
use super::table::Table;
use crate::evaluate::{Calibration, Confusion};

/// The name of a class, or its number when it has none.
fn name(names: &[String], class: usize) -> String {
    names.get(class).cloned().unwrap_or_else(|| class.to_string())
}

/// The confusion matrix in percent of each true class.
#[must_use]
pub fn confusion(confusion: &Confusion, names: &[String]) -> HeatMap {
    let names: Vec<String> = (0..confusion.counts.len()).map(|class| name(names, class)).collect();
    let percent = |row: Vec<f64>| row.into_iter().map(|share| 100.0 * share).collect();
    HeatMap {
        title: "answers in percent of each class".into(),
        row_label: "true class".into(),
        column_label: "answer".into(),
        rows: names.clone(),
        columns: names,
        values: confusion.shares().into_iter().map(percent).collect(),
        decimals: 1,
        // small percentages should be visible
        shades: ColourScale::Root,
    }
}

/// Recall and most frequent mistake of each class; classes without pictures are skipped.
#[must_use]
pub fn table(confusion: &Confusion, names: &[String]) -> Table {
    let mut table = Table::new().words("class").numbers("pictures").numbers("right %").words("mostly taken for");
    for class in (0..confusion.counts.len()).filter(|class| confusion.pictures(*class) > 0) {
        let taken_for = confusion.taken_for(class).map(|(other, count)| format!("{} ({count})", name(names, other)));
        table.row([
            name(names, class),
            confusion.pictures(class).to_string(),
            format!("{:.1}", 100.0 * confusion.accuracy(class)),
            taken_for.unwrap_or_default(),
        ]);
    }
    table
}

/// Reliability diagram: accuracy over confidence.
#[must_use]
pub fn calibration(calibration: &Calibration) -> Lines {
    let bins = calibration.bins.iter().filter(|bin| bin.pictures > 0);
    let points: Vec<[f64; 2]> = bins.map(|bin| [100.0 * bin.confidence(), 100.0 * bin.accuracy()]).collect();
    let ideal = if points.is_empty() { vec![] } else { vec![[0.0, 0.0], [100.0, 100.0]] };
    Lines {
        title: format!("calibration: expected error {:.2} %", 100.0 * calibration.error()),
        x: "% sure".into(),
        y: "% right".into(),
        scale: Scale::Linear,
        lines: vec![
            Line { name: "the model".into(), points, stroke: Stroke::Strong },
            Line { name: "as sure as right".into(), points: ideal, stroke: Stroke::Faint },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_with_pictures_has_a_row_that_names_its_rival() {
        let counts = vec![vec![3, 0, 1], vec![0, 2, 0], vec![0, 0, 0]];
        let names = ["cat", "dog"].map(String::from);
        let text = table(&Confusion { counts: counts.clone() }, &names).text();
        let expected =
            "class  pictures  right %  mostly taken for\ncat           4     75.0  2 (1)\ndog           2    100.0\n";
        assert_eq!(text, expected);
        let map = confusion(&Confusion { counts }, &names);
        assert_eq!((map.rows[2].as_str(), &map.values[0]), ("2", &vec![75.0, 0.0, 25.0]));
    }

    #[test]
    fn nothing_measured_is_no_curve() {
        use crate::report::Figure as _;
        assert!(calibration(&Calibration::default()).svg().contains("no data"));
    }
}
