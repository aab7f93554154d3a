//! Line charts.

use serde::{Deserialize, Serialize};

use super::axis::{Axis, Scale, Tick};
use super::canvas::{
    Anchor, COLOURS, Canvas, Drawing, FADED, Font, GRID, INK, MARGIN, TEXT, draw, nothing, shorten, width,
};
use super::figure::Figure;

const WIDTH: f64 = 860.0;
/// Size of the plot area.
const HEIGHT: f64 = 280.0;

/// A chart of several named curves, with a legend above.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lines {
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// Scale of the vertical axis.
    pub scale: Scale,
    pub lines: Vec<Line>,
}

/// A curve through points, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line {
    pub name: String,
    /// `[x, y]`; non-finite values are gaps.
    pub points: Vec<[f64; 2]>,
    pub stroke: Stroke,
}

/// How a curve is drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stroke {
    /// With a dot at every point, if there are few.
    #[default]
    Strong,
    /// For noisy data behind a strong curve.
    Faint,
}

impl Figure for Lines {
    fn drawing(&self) -> Drawing {
        let shown = |point: &&[f64; 2]| Scale::Linear.shows(point[0]) && self.scale.shows(point[1]);
        let points = || self.lines.iter().flat_map(|line| &line.points).filter(shown);
        let x = Axis::around(points().map(|point| point[0]), Scale::Linear);
        let y = Axis::around(points().map(|point| point[1]), self.scale).map(Axis::with_room);
        let (Some(x), Some(y)) = (x, y) else { return nothing([WIDTH, 160.0], &self.title) };
        let legend = self.legend();
        let top = legend.last().map_or(MARGIN + 14.0, |entry| entry.at[1]) + 18.0;
        let marks = y.ticks(7);
        let widest = marks.iter().map(|tick| width(&tick.label, TEXT)).fold(0.0, f64::max);
        let (left, right, bottom) = (MARGIN + 26.0 + widest, WIDTH - MARGIN - 10.0, top + HEIGHT);
        let frame = PlotArea { left, right, top, bottom, x, y };
        draw([WIDTH, bottom + 56.0], &self.title, |canvas| {
            legend.iter().for_each(|entry| entry.draw(canvas));
            frame.axes(canvas, &marks);
            let font = Font::new(Anchor::Middle);
            canvas.text([f64::midpoint(left, right), bottom + 38.0], &shorten(&self.x, TEXT, right - left), font);
            let beside = shorten(&self.y, TEXT, HEIGHT);
            canvas.text([MARGIN + 4.0, f64::midpoint(top, bottom)], &beside, font.upwards());
            // faint curves behind the others
            for stroke in [Stroke::Faint, Stroke::Strong] {
                for (index, line) in self.lines.iter().enumerate().filter(|(_, line)| line.stroke == stroke) {
                    frame.curve(canvas, index, line);
                }
            }
        })
    }
}

impl Lines {
    /// The legend, in as many rows as needed; a curve without a name has no entry.
    fn legend(&self) -> Vec<LegendEntry> {
        let mut at = [MARGIN, MARGIN + 34.0];
        let mut entries = Vec::new();
        for (index, line) in self.lines.iter().enumerate().filter(|(_, line)| !line.name.is_empty()) {
            let empty = !line.points.iter().any(|[x, y]| Scale::Linear.shows(*x) && self.scale.shows(*y));
            let name = shorten(&line.name, TEXT, WIDTH / 2.0) + if empty { " (no data)" } else { "" };
            let room = 26.0 + width(&name, TEXT) + 18.0;
            if at[0] > MARGIN && at[0] + room > WIDTH - MARGIN {
                at = [MARGIN, at[1] + 20.0];
            }
            entries.push(LegendEntry { at, index, stroke: line.stroke, name });
            at[0] += room;
        }
        entries
    }
}

/// An entry of the legend.
struct LegendEntry {
    at: [f64; 2],
    index: usize,
    stroke: Stroke,
    name: String,
}

impl LegendEntry {
    fn draw(&self, canvas: &mut Canvas) {
        let [column, row] = self.at;
        let (colour, opacity, thickness) = look(self.index, self.stroke);
        canvas.path(&[[column, row], [column + 20.0, row]], colour, opacity, thickness.max(1.5));
        if ringed(self.index) {
            canvas.dot([column + 10.0, row], 3.5, colour);
        }
        canvas.text([column + 26.0, row], &self.name, Font::new(Anchor::Start));
    }
}

fn look(index: usize, stroke: Stroke) -> (plotters::style::RGBColor, f64, f64) {
    let colour = COLOURS[index % COLOURS.len()];
    match stroke {
        Stroke::Strong => (colour, 1.0, 2.0),
        Stroke::Faint => (colour, 0.6, 1.0),
    }
}

/// Whether a curve shares its colour with an earlier one and needs dots to be distinguished.
const fn ringed(index: usize) -> bool {
    (index / COLOURS.len()) % 2 == 1
}

/// The area of the curves.
struct PlotArea {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    x: Axis,
    y: Axis,
}

impl PlotArea {
    fn place(&self, [x, y]: [f64; 2]) -> Option<[f64; 2]> {
        let (x, y) = (self.x.share(x)?, self.y.share(y)?);
        Some([self.left + x * (self.right - self.left), self.bottom - y * (self.bottom - self.top)])
    }

    fn axes(&self, canvas: &mut Canvas, marks: &[Tick]) {
        for Tick { value, label } in marks {
            let height = self.bottom - self.y.share(*value).unwrap_or(0.0) * (self.bottom - self.top);
            canvas.line([self.left, height], [self.right, height], GRID, 1.0);
            canvas.text([self.left - 8.0, height], label, Font::new(Anchor::End).colour(FADED));
        }
        for Tick { value, label } in self.x.ticks(9) {
            let column = self.left + self.x.share(value).unwrap_or(0.0) * (self.right - self.left);
            canvas.line([column, self.bottom], [column, self.bottom + 4.0], INK, 1.0);
            canvas.text([column, self.bottom + 15.0], &label, Font::new(Anchor::Middle).colour(FADED));
        }
        canvas.line([self.left, self.bottom], [self.right, self.bottom], INK, 1.0);
    }

    fn curve(&self, canvas: &mut Canvas, index: usize, line: &Line) {
        let (colour, opacity, thickness) = look(index, line.stroke);
        let places: Vec<Option<[f64; 2]>> = line.points.iter().map(|point| self.place(*point)).collect();
        let few = line.stroke == Stroke::Strong && places.len() <= 40;
        for run in places.split(Option::is_none) {
            let run: Vec<[f64; 2]> = run.iter().copied().flatten().collect();
            let run = thinned(&run);
            if run.len() > 1 {
                canvas.path(&run, colour, opacity, thickness);
            }
            // a point between two gaps would be invisible
            if few || run.len() == 1 {
                run.iter().for_each(|at| canvas.dot(*at, 2.5, colour));
            } else if ringed(index) {
                run.iter().step_by(run.len().div_ceil(12).max(1)).for_each(|at| canvas.dot(*at, 3.5, colour));
            }
        }
    }
}

/// Reduces a curve to a few points per pixel column: first, last, minimum and maximum.
fn thinned(points: &[[f64; 2]]) -> Vec<[f64; 2]> {
    const PARTS: usize = 500;
    if points.len() <= 4 * PARTS {
        return points.to_vec();
    }
    let extremes = |part: &[[f64; 2]]| {
        let by_height = |a: &usize, b: &usize| part[*a][1].total_cmp(&part[*b][1]);
        let mut kept: Vec<usize> = vec![0, part.len() - 1];
        kept.extend((0..part.len()).min_by(by_height));
        kept.extend((0..part.len()).max_by(by_height));
        kept.sort_unstable();
        kept.dedup();
        kept.into_iter().map(|index| part[index]).collect::<Vec<_>>()
    };
    points.chunks(points.len().div_ceil(PARTS)).flat_map(extremes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[[f64; 2]]) -> Line {
        Line { name: name.into(), points: points.to_vec(), stroke: Stroke::Strong }
    }

    fn figure(lines: Vec<Line>) -> Lines {
        Lines { title: "loss".into(), x: "epoch".into(), y: "loss".into(), scale: Scale::Linear, lines }
    }

    #[test]
    fn a_value_that_is_not_finite_breaks_the_curve() {
        let whole = figure(vec![line("a", &[[0.0, 1.0], [1.0, 2.0], [2.0, 1.5], [3.0, 1.2]])]).svg();
        let broken = figure(vec![line("a", &[[0.0, 1.0], [1.0, 2.0], [2.0, f64::NAN], [3.0, 1.2], [4.0, 1.0]])]).svg();
        // one path is the legend's
        assert_eq!((whole.matches("<polyline").count(), broken.matches("<polyline").count()), (2, 3));
        assert!(!broken.contains("NaN"));
    }

    #[test]
    fn gaps_break_curves_of_a_colour_that_was_used_before_too() {
        let gaps: Vec<[f64; 2]> = (0..60).map(|i| [f64::from(i), if i % 9 < 2 { f64::NAN } else { 1.0 }]).collect();
        let names: Vec<String> = (0..=COLOURS.len()).map(|i| format!("curve {i}")).collect();
        let svg = figure(names.iter().map(|name| line(name, &gaps)).collect()).svg();
        assert!(svg.contains("<circle") && !svg.contains("NaN"));
    }

    #[test]
    fn what_a_logarithm_cannot_show_is_a_gap() {
        let mut lines = figure(vec![line("a", &[[0.0, 1.0], [1.0, 0.0], [2.0, 0.1], [3.0, 0.01]])]);
        assert_eq!(lines.svg().matches("<polyline").count(), 2);
        lines.scale = Scale::Logarithmic;
        let svg = lines.svg();
        assert_eq!((svg.matches("<polyline").count(), svg.contains("0.01")), (2, true));
        assert_eq!(svg.matches("<circle").count(), 3, "the lone point and the pair");
    }

    #[test]
    fn nothing_to_show_is_said() {
        for lines in [vec![], vec![line("a", &[])], vec![line("a", &[[0.0, f64::NAN], [f64::INFINITY, 1.0]])]] {
            assert!(figure(lines).svg().contains("no data"));
        }
        let svg = figure(vec![line("a", &[[0.0, 1.0]]), line("b", &[])]).svg();
        assert!(svg.contains("b (no data)") && svg.matches("<circle").count() == 1);
    }

    #[test]
    fn thinning_keeps_ends_and_extremes() {
        let mut points: Vec<[f64; 2]> = (0..50_000).map(|i| [f64::from(i), (f64::from(i) * 0.1).sin()]).collect();
        points[31_234][1] = 7.0;
        points[11_111][1] = -7.0;
        let kept = thinned(&points);
        assert!(kept.len() <= 2000 && kept.is_sorted_by(|a, b| a[0] < b[0]));
        for index in [0, 31_234, 11_111, 49_999] {
            assert!(kept.contains(&points[index]), "{index}");
        }
    }
}
