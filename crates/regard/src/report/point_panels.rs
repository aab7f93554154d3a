//! Many small panels of points, as figure 7 of DETR's paper: where each query puts the centres of its boxes.

use super::canvas::{Anchor, COLOURS, Drawing, FADED, Font, GRID, MARGIN, draw, nothing, shorten, width};
use super::figure::Figure;

const GAP: f64 = 10.0;
/// Height of a name, and of its letters.
const NAME: f64 = 15.0;
const LETTERS: f64 = 11.0;
/// Where the first row begins, below title and legend.
const TOP: f64 = MARGIN + 48.0;
/// More points than this in a panel hide each other; they are thinned out evenly.
const MOST: usize = 400;

/// Panels of points in the unit square.
#[derive(Clone, Debug, Default)]
pub struct PointPanels {
    pub title: String,
    /// Panels per row.
    pub columns: usize,
    /// Side of a panel in pixels.
    pub side: f64,
    /// Names of the kinds of points, in the order of their colours.
    pub kinds: Vec<String>,
    pub panels: Vec<PointPanel>,
}

/// One panel.
#[derive(Clone, Debug, Default)]
pub struct PointPanel {
    pub name: String,
    pub points: Vec<PanelPoint>,
}

/// A point of the unit square, from the left and from the top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PanelPoint {
    pub at: [f64; 2],
    pub kind: usize,
    /// Drawn larger, and above the others.
    pub strong: bool,
}

impl Figure for PointPanels {
    fn drawing(&self) -> Drawing {
        if self.panels.is_empty() || self.columns == 0 {
            return nothing([480.0, 160.0], &self.title);
        }
        let columns = self.columns.min(self.panels.len());
        let rows = self.panels.len().div_ceil(columns);
        let (wide, high) = (self.side + GAP, self.side + NAME + GAP);
        let size = [2.0 * MARGIN + columns as f64 * wide - GAP, TOP + rows as f64 * high - GAP + MARGIN];
        draw([size[0].max(420.0), size[1]], &self.title, |canvas| {
            let mut left = MARGIN;
            for (kind, name) in self.kinds.iter().enumerate() {
                canvas.dot([left + 4.0, MARGIN + 30.0], 4.0, COLOURS[kind % COLOURS.len()]);
                canvas.text([left + 14.0, MARGIN + 30.0], name, Font::new(Anchor::Start).size(LETTERS).colour(FADED));
                left += 32.0 + width(name, LETTERS);
            }
            for (index, panel) in self.panels.iter().enumerate() {
                let left = MARGIN + (index % columns) as f64 * wide;
                let top = TOP + (index / columns) as f64 * high;
                let font = Font::new(Anchor::Start).size(LETTERS).colour(FADED);
                canvas.text([left, top + NAME / 2.0 - 1.0], &shorten(&panel.name, LETTERS, self.side), font);
                let (from, to) = ([left, top + NAME], [left + self.side, top + NAME + self.side]);
                canvas.path(&[from, [to[0], from[1]], to, [from[0], to[1]], from], GRID, 1.0, 1.0);
                for strong in [false, true] {
                    for point in panel.thinned().filter(|point| point.strong == strong) {
                        let at = [0, 1].map(|axis| from[axis] + self.side * point.at[axis].clamp(0.0, 1.0));
                        canvas.dot(at, if strong { 2.25 } else { 1.0 }, COLOURS[point.kind % COLOURS.len()]);
                    }
                }
            }
        })
    }
}

impl PointPanel {
    fn thinned(&self) -> impl Iterator<Item = &PanelPoint> {
        let finite = |point: &&PanelPoint| point.at.iter().all(|side| side.is_finite());
        self.points.iter().step_by(self.points.len().div_ceil(MOST).max(1)).filter(finite)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panel(points: usize) -> PointPanel {
        let point =
            |index: usize| PanelPoint { at: [0.5, index as f64 / points as f64], kind: index % 3, strong: false };
        PointPanel { name: "query 1".into(), points: (0..points).map(point).collect() }
    }

    fn figure(panels: Vec<PointPanel>) -> PointPanels {
        let kinds = ["small", "wide", "tall"].map(String::from).into();
        PointPanels { title: "queries".into(), columns: 2, side: 80.0, kinds, panels }
    }

    #[test]
    fn every_point_is_drawn_until_there_are_too_many() {
        let dots = |panels| figure(panels).svg().matches("<circle").count();
        // the legend has three
        assert_eq!(dots(vec![panel(7), panel(5), panel(0)]), 3 + 12);
        assert!((MOST / 2..=MOST + 3).contains(&dots(vec![panel(10 * MOST + 1)])));
        assert!(image::load_from_memory(&figure(vec![panel(3)]).png()).is_ok());
        assert!(figure(Vec::new()).svg().contains("no data"));
    }

    #[test]
    fn what_is_not_finite_or_outside_stays_in_its_panel() {
        let point = |at| PanelPoint { at, kind: 9, strong: true };
        let points = vec![point([f64::NAN, 0.5]), point([7.0, -7.0])];
        let svg = figure(vec![PointPanel { name: String::new(), points }]).svg();
        assert_eq!(svg.matches("<circle").count(), 3 + 1);
        assert!(!svg.contains("NaN"));
    }
}
