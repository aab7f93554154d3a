//! Named values side by side, with their deviations.

use serde::{Deserialize, Serialize};

use super::axis::{Axis, Scale, Tick};
use super::canvas::{
    Anchor, COLOURS, Canvas, Drawing, FADED, Font, GRID, INK, MARGIN, TEXT, draw, nothing, shorten, width,
};
use super::figure::Figure;

const WIDTH: f64 = 860.0;
const ROW: f64 = 30.0;

/// Bars from zero, one below the other in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bars {
    pub title: String,
    /// What the values are.
    pub x: String,
    /// Decimals of the numbers beside the bars.
    pub decimals: usize,
    pub bars: Vec<Bar>,
}

/// A named value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bar {
    pub name: String,
    pub value: f64,
    /// Drawn to both sides of the end of the bar.
    pub deviation: Option<f64>,
}

impl Bar {
    /// The deviation, if there is one that can be drawn.
    fn spread(&self) -> f64 {
        self.deviation.filter(|deviation| Scale::Linear.shows(self.value + deviation)).map_or(0.0, f64::abs)
    }

    fn label(&self, decimals: usize) -> String {
        match self.deviation {
            _ if !Scale::Linear.shows(self.value) => "no value".into(),
            Some(deviation) if deviation.is_finite() => format!("{:.decimals$} ± {deviation:.decimals$}", self.value),
            _ => format!("{:.decimals$}", self.value),
        }
    }
}

impl Figure for Bars {
    fn drawing(&self) -> Drawing {
        let ends = self.bars.iter().filter(|bar| Scale::Linear.shows(bar.value));
        let mut ends: Vec<f64> = ends.flat_map(|bar| [bar.value - bar.spread(), bar.value + bar.spread()]).collect();
        if ends.is_empty() {
            return nothing([WIDTH, 160.0], &self.title);
        }
        ends.push(0.0);
        let Some(axis) = Axis::around(ends.into_iter(), Scale::Linear) else {
            return nothing([WIDTH, 160.0], &self.title);
        };
        let top = MARGIN + 30.0;
        let bottom = top + ROW * self.bars.len() as f64 + 6.0;
        draw([WIDTH, bottom + 52.0], &self.title, |canvas| {
            let longest = |texts: &mut dyn Iterator<Item = f64>| texts.fold(0.0, f64::max);
            let names = longest(&mut self.bars.iter().map(|bar| width(&bar.name, TEXT))).min(0.35 * WIDTH);
            let labels = longest(&mut self.bars.iter().map(|bar| width(&bar.label(self.decimals), TEXT)));
            let (left, right) = (MARGIN + names + 10.0, WIDTH - MARGIN - labels.min(0.3 * WIDTH) - 10.0);
            let column = |value: f64| left + axis.share(value).unwrap_or(0.0) * (right - left);
            for Tick { value, label } in axis.ticks(8) {
                canvas.line([column(value), top], [column(value), bottom], GRID, 1.0);
                canvas.text([column(value), bottom + 13.0], &label, Font::new(Anchor::Middle).colour(FADED));
            }
            for (index, bar) in self.bars.iter().enumerate() {
                let middle = top + ROW * (index as f64 + 0.5) + 3.0;
                canvas.text([left - 8.0, middle], &shorten(&bar.name, TEXT, names), Font::new(Anchor::End));
                let label = bar.label(self.decimals);
                if Scale::Linear.shows(bar.value) {
                    bar.draw(canvas, middle, &column);
                    let end = column((bar.value + bar.spread()).max(0.0));
                    canvas.text([end + 8.0, middle], &label, Font::new(Anchor::Start));
                } else {
                    canvas.text([column(0.0) + 8.0, middle], &label, Font::new(Anchor::Start).colour(FADED));
                }
            }
            canvas.line([column(0.0), top], [column(0.0), bottom], INK, 1.0);
            canvas.text([f64::midpoint(left, right), bottom + 34.0], &self.x, Font::new(Anchor::Middle));
        })
    }
}

impl Bar {
    fn draw(&self, canvas: &mut Canvas, middle: f64, column: &impl Fn(f64) -> f64) {
        let (from, to) = (column(self.value.min(0.0)), column(self.value.max(0.0)));
        canvas.rectangle([from, middle - 9.0], [to, middle + 9.0], COLOURS[5]);
        if self.spread() > 0.0 {
            let [low, high] = [self.value - self.spread(), self.value + self.spread()].map(column);
            canvas.line([low, middle], [high, middle], INK, 1.5);
            for end in [low, high] {
                canvas.line([end, middle - 5.0], [end, middle + 5.0], INK, 1.5);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, value: f64, deviation: Option<f64>) -> Bar {
        Bar { name: name.into(), value, deviation }
    }

    fn figure(bars: Vec<Bar>) -> Bars {
        Bars { title: "accuracy".into(), x: "top-1 %".into(), decimals: 1, bars }
    }

    /// Widths of the bars; the first rectangle is the card.
    fn widths(svg: &str) -> Vec<f64> {
        let width = |tag: &str| tag.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap();
        svg.split("<rect ").skip(2).map(width).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_start_at_zero() {
        let widths = widths(&figure(vec![bar("a", 80.0, None), bar("b", 40.0, None), bar("c", 0.0, None)]).svg());
        assert!((widths[0] / widths[1] - 2.0).abs() < 0.01 && widths[2] == 0.0, "{widths:?}");
    }

    #[test]
    fn deviations_are_whiskers_and_numbers() {
        let bare = figure(vec![bar("a", 80.0, None)]).svg();
        let spread = figure(vec![bar("a", 80.0, Some(2.25))]).svg();
        // other lines are one pixel, four units, wide
        let whiskers = |svg: &str| svg.matches("<line").count() - svg.matches("stroke-width=\"4\"").count();
        assert_eq!((whiskers(&bare), whiskers(&spread)), (0, 3));
        assert!(spread.contains("80.0 ± 2.2") && !bare.contains('±'));
    }

    #[test]
    fn a_value_that_is_not_finite_is_said_and_the_others_are_drawn() {
        let svg = figure(vec![bar("a", f64::NAN, None), bar("b", -3.0, Some(f64::INFINITY))]).svg();
        assert!(svg.contains("no value") && svg.contains("-3.0"));
        assert_eq!(widths(&svg).len(), 1);
        assert!(figure(vec![]).svg().contains("no data"));
        assert!(figure(vec![bar("a", f64::INFINITY, None)]).svg().contains("no data"));
        assert_eq!(widths(&figure(vec![bar("a", 0.0, None)]).svg()), [0.0]);
    }
}
