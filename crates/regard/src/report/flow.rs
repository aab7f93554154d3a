//! Flows from names on the left to names on the right, such as a transport plan from words to regions.

use serde::{Deserialize, Serialize};

use super::axis::Scale;
use super::canvas::{Anchor, COLOURS, Canvas, Drawing, FADED, Font, INK, MARGIN, TEXT, draw, nothing, shorten, width};
use super::figure::Figure;

/// Width between both sides, and the largest width of a name.
const SPAN: f64 = 380.0;
const NAMES: f64 = 160.0;
/// Height of a name's share, and the gap to the next.
const SIDE: f64 = 26.0;
const GAP: f64 = 7.0;
/// Width of the bars beside the names.
const BAR: f64 = 6.0;
/// Flows that are thinner than this are not drawn.
const THINNEST: f64 = 0.2;
/// Points of a curve.
const POINTS: usize = 24;

/// Bands whose width is what flows. Everything on the left has the same amount; colours are those of the right side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    pub title: String,
    /// What the sides are.
    pub sides: [String; 2],
    pub left: Vec<String>,
    pub right: Vec<String>,
    /// `[left][right]`: shares of each on the left; missing, negative and non-finite ones are not drawn.
    pub shares: Vec<Vec<f64>>,
}

impl Flow {
    fn share(&self, left: usize, right: usize) -> f64 {
        let share = self.shares.get(left).and_then(|row| row.get(right)).copied().unwrap_or(0.0);
        if Scale::Linear.shows(share) { share.max(0.0) } else { 0.0 }
    }

    /// What arrives at each on the right.
    fn arriving(&self) -> Vec<f64> {
        let sum = |right: usize| (0..self.left.len()).map(|left| self.share(left, right)).sum();
        (0..self.right.len()).map(sum).collect()
    }

    fn band(canvas: &mut Canvas, from: [f64; 2], to: [f64; 2], thickness: f64, colour: usize) {
        let point = |step: usize| {
            let along = step as f64 / (POINTS - 1) as f64;
            let bend = along * along * (3.0 - 2.0 * along);
            [from[0] + along * (to[0] - from[0]), from[1] + bend * (to[1] - from[1])]
        };
        let points: Vec<[f64; 2]> = (0..POINTS).map(point).collect();
        canvas.path(&points, COLOURS[colour % COLOURS.len()], 0.55, thickness);
    }
}

impl Figure for Flow {
    fn drawing(&self) -> Drawing {
        if self.left.is_empty() || self.right.is_empty() {
            return nothing([480.0, 160.0], &self.title);
        }
        let arriving = self.arriving();
        let names = |all: &[String]| all.iter().map(|name| width(name, TEXT)).fold(40.0, f64::max).min(NAMES);
        let (before, after) = (names(&self.left), names(&self.right));
        let [start, end] = [MARGIN + before + 8.0, MARGIN + before + 8.0 + SPAN];
        let top = MARGIN + 48.0;
        let heights = |amounts: &[f64]| amounts.iter().map(|amount| amount * SIDE + GAP).sum::<f64>();
        let high = heights(&vec![1.0; self.left.len()]).max(heights(&arriving));
        draw([end + 8.0 + after + MARGIN, top + high + MARGIN], &self.title, |canvas| {
            let label = |anchor| Font::new(anchor).colour(FADED);
            canvas.text([start, top - 14.0], &self.sides[0], label(Anchor::End));
            canvas.text([end, top - 14.0], &self.sides[1], label(Anchor::Start));
            // the next free height of each on the right
            let mut free = Vec::new();
            let mut at = top;
            for (right, amount) in arriving.iter().enumerate() {
                free.push(at);
                let colour = COLOURS[right % COLOURS.len()];
                canvas.rectangle([end - BAR, at], [end, at + amount * SIDE], colour);
                let name = shorten(&self.right[right], TEXT, NAMES);
                canvas.text([end + 8.0, at + amount * SIDE / 2.0], &name, Font::new(Anchor::Start));
                at += amount * SIDE + GAP;
            }
            for left in 0..self.left.len() {
                let mut at = top + left as f64 * (SIDE + GAP);
                canvas.rectangle([start, at], [start + BAR, at + SIDE], INK);
                let name = shorten(&self.left[left], TEXT, NAMES);
                canvas.text([start - 8.0, at + SIDE / 2.0], &name, Font::new(Anchor::End));
                for (right, free) in free.iter_mut().enumerate() {
                    let thickness = self.share(left, right) * SIDE;
                    let (from, to) = ([start + BAR, at + thickness / 2.0], [end - BAR, *free + thickness / 2.0]);
                    if thickness >= THINNEST {
                        Self::band(canvas, from, to, thickness, right);
                    }
                    (at, *free) = (at + thickness, *free + thickness);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(shares: Vec<Vec<f64>>) -> Flow {
        let names = |letters: &str, count: usize| (1..=count).map(|number| format!("{letters}{number}")).collect();
        let right = shares.first().map_or(0, Vec::len);
        let sides = ["word".to_string(), "region".to_string()];
        Flow { title: "plan".into(), sides, left: names("w", shares.len()), right: names("r", right), shares }
    }

    #[test]
    fn a_band_for_each_share_that_can_be_seen_and_a_name_on_each_side() {
        let drawn = flow(vec![vec![0.5, 0.5, 0.0], vec![1.0, 0.001, f64::NAN]]);
        assert_eq!(drawn.arriving(), [1.5, 0.501, 0.0]);
        let svg = drawn.svg();
        assert_eq!(svg.matches("<polyline").count(), 3);
        for name in ["w1", "w2", "r1", "r3", "word", "region", "plan"] {
            assert!(svg.contains(name), "{name}");
        }
        assert!(drawn.png().starts_with(b"\x89PNG"));
    }

    #[test]
    fn without_names_there_is_no_data() {
        assert!(flow(Vec::new()).svg().contains("no data"));
        assert!(Flow { left: vec!["a".into()], right: vec!["b".into()], ..Flow::default() }.svg().contains(">\na"));
    }
}
