//! Heat maps of matrices.

use plotters::style::RGBColor;
use serde::{Deserialize, Serialize};

use super::axis::Scale;
use super::canvas::{
    Anchor, CARD, Canvas, Drawing, FADED, Font, GAP, GRID, INK, MARGIN, TEXT, draw, nothing, shorten, width,
};
use super::figure::Figure;

/// Largest width of the matrix, and of the row names.
const MOST: f64 = 960.0;
const NAMES: f64 = 120.0;

/// A matrix of values from light to dark, with the numbers in its cells when they fit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    pub title: String,
    /// Label of the rows.
    pub row_label: String,
    /// Label of the columns.
    pub column_label: String,
    pub rows: Vec<String>,
    pub columns: Vec<String>,
    /// `[row][column]`; missing or non-finite values are gray.
    pub values: Vec<Vec<f64>>,
    /// Decimals of the numbers, fewer when they do not fit.
    pub decimals: usize,
    pub shades: ColourScale,
}

/// How values map to darkness.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColourScale {
    /// Proportional.
    #[default]
    Even,
    /// The square root, so that small values are visible next to large ones.
    Root,
}

impl ColourScale {
    fn darkness(self, share: f64) -> f64 {
        match self {
            Self::Even => share,
            Self::Root => share.sqrt(),
        }
    }

    /// The reverse of [`darkness`](Self::darkness).
    fn share(self, darkness: f64) -> f64 {
        match self {
            Self::Even => darkness,
            Self::Root => darkness * darkness,
        }
    }
}

impl Figure for HeatMap {
    fn drawing(&self) -> Drawing {
        let shown = || self.values.iter().flatten().copied().filter(|value| Scale::Linear.shows(*value));
        if self.rows.is_empty() || self.columns.is_empty() || shown().next().is_none() {
            return nothing([480.0, 160.0], &self.title);
        }
        let (low, high) = shown().fold((0.0f64, 0.0f64), |(low, high), value| (low.min(value), high.max(value)));
        let high = if high > low { high } else { low + 1.0 };
        HeatMapLayout::new(self, low, high).drawing()
    }
}

impl HeatMap {
    fn value(&self, row: usize, column: usize) -> Option<f64> {
        self.values.get(row)?.get(column).copied().filter(|value| Scale::Linear.shows(*value))
    }
}

/// The positions of all parts of the figure.
struct HeatMapLayout<'a> {
    map: &'a HeatMap,
    low: f64,
    high: f64,
    cell: f64,
    left: f64,
    top: f64,
}

impl<'a> HeatMapLayout<'a> {
    fn new(map: &'a HeatMap, low: f64, high: f64) -> Self {
        let most = map.rows.len().max(map.columns.len()) as f64;
        let cell = (MOST / most).min(48.0);
        // the same size in quarter pixels for all cells, unless they are tiny
        let cell = if cell > 2.0 { (4.0 * cell).floor() / 4.0 } else { cell };
        let names = |names: &[String]| names.iter().map(|name| width(name, TEXT)).fold(0.0, f64::max).min(NAMES);
        Self { map, low, high, cell, left: MARGIN + 28.0 + names(&map.rows), top: MARGIN + 56.0 + names(&map.columns) }
    }

    fn drawing(&self) -> Drawing {
        let [rows, columns] = [self.map.rows.len() as f64, self.map.columns.len() as f64];
        let (right, bottom) = (self.left + columns * self.cell, self.top + rows * self.cell);
        let size =
            [(right + 92.0).max(width(&self.map.title, 15.0) + 2.0 * MARGIN), bottom.max(self.top + 130.0) + MARGIN];
        draw(size, &self.map.title, |canvas| {
            let above = Font::new(Anchor::Middle);
            canvas.text([f64::midpoint(self.left, right), MARGIN + 32.0], &self.map.column_label, above);
            let room = bottom - self.top;
            let beside = shorten(&self.map.row_label, TEXT, room.max(60.0));
            canvas.text([MARGIN + 4.0, f64::midpoint(self.top, bottom)], &beside, above.upwards());
            self.names(canvas);
            self.cells(canvas, right, bottom);
            self.scale(canvas, right + 24.0);
        })
    }

    /// All names, or every n-th if they would overlap.
    fn names(&self, canvas: &mut Canvas) {
        let size = (0.85 * self.cell).clamp(8.0, TEXT);
        let stride = ((size + 0.5) / self.cell).ceil().max(1.0) as usize;
        for (index, name) in self.map.rows.iter().enumerate().step_by(stride) {
            let at = [self.left - 6.0, self.top + (index as f64 + 0.5) * self.cell];
            canvas.text(at, &shorten(name, size, NAMES), Font::new(Anchor::End).size(size));
        }
        for (index, name) in self.map.columns.iter().enumerate().step_by(stride) {
            let at = [self.left + (index as f64 + 0.5) * self.cell, self.top - 6.0];
            canvas.text(at, &shorten(name, size, NAMES), Font::new(Anchor::Start).size(size).upwards());
        }
    }

    fn cells(&self, canvas: &mut Canvas, right: f64, bottom: f64) {
        canvas.rectangle([self.left, self.top], [right, bottom], shade(0.0));
        let (size, decimals) = self.numbers();
        for row in 0..self.map.rows.len() {
            for column in 0..self.map.columns.len() {
                let from = [self.left + column as f64 * self.cell, self.top + row as f64 * self.cell];
                let to = [from[0] + self.cell, from[1] + self.cell];
                let Some(value) = self.map.value(row, column) else {
                    canvas.rectangle(from, to, GAP);
                    continue;
                };
                let share = self.map.shades.darkness((value - self.low) / (self.high - self.low));
                // zeros have the colour of the background
                if share > 0.0 {
                    canvas.rectangle(from, to, shade(share));
                }
                if let Some(decimals) = decimals.filter(|_| value != 0.0) {
                    let ink = if share > 0.5 { CARD } else { INK };
                    let middle = [f64::midpoint(from[0], to[0]), f64::midpoint(from[1], to[1])];
                    canvas.text(
                        middle,
                        &format!("{value:.decimals$}"),
                        Font::new(Anchor::Middle).size(size).colour(ink),
                    );
                }
            }
        }
        // lines between cells, if these are large enough
        if self.cell >= 6.0 {
            for row in 0..=self.map.rows.len() {
                let height = self.top + row as f64 * self.cell;
                canvas.line([self.left, height], [right, height], GRID, 0.5);
            }
            for column in 0..=self.map.columns.len() {
                let at = self.left + column as f64 * self.cell;
                canvas.line([at, self.top], [at, bottom], GRID, 0.5);
            }
        }
    }

    /// Height and decimals of the numbers: the most that fit into every cell.
    fn numbers(&self) -> (f64, Option<usize>) {
        let values = || self.map.values.iter().flatten().filter(|value| Scale::Linear.shows(**value));
        let fits = |size: f64, decimals: usize| {
            values().all(|value| width(&format!("{value:.decimals$}"), size) + 2.0 <= self.cell)
        };
        let sizes = [TEXT, 11.0, 10.0, 9.0];
        let choices = (0..=self.map.decimals).rev().flat_map(|decimals| sizes.map(|size| (size, decimals)));
        choices
            .into_iter()
            .find(|&(size, decimals)| fits(size, decimals))
            .map_or((TEXT, None), |(size, decimals)| (size, Some(decimals)))
    }

    /// The colour bar.
    fn scale(&self, canvas: &mut Canvas, left: f64) {
        const STEPS: usize = 24;
        let height = 120.0;
        for step in 0..STEPS {
            let [from, to] = [step, step + 1].map(|step| self.top + height * (1.0 - step as f64 / STEPS as f64));
            canvas.rectangle([left, to], [left + 12.0, from], shade((step as f64 + 0.5) / STEPS as f64));
        }
        let decimals = self.map.decimals;
        let font = Font::new(Anchor::Start).size(11.0).colour(FADED);
        for darkness in [0.0, 0.5, 1.0] {
            let value = self.low + self.map.shades.share(darkness) * (self.high - self.low);
            // keep the labels at the ends next to the bar
            let at = self.top + 5.0 + (height - 10.0) * (1.0 - darkness);
            canvas.text([left + 18.0, at], &format!("{value:.decimals$}"), font);
        }
    }
}

/// From nearly white to dark blue: one hue, so that lightness shows the value.
fn shade(share: f64) -> RGBColor {
    const ENDS: [[f64; 3]; 3] = [[247.0, 250.0, 253.0], [86.0, 160.0, 211.0], [8.0, 48.0, 107.0]];
    let share = share.clamp(0.0, 1.0);
    let (from, to, part) = if share < 0.5 { (0, 1, 2.0 * share) } else { (1, 2, 2.0 * share - 1.0) };
    let [red, green, blue] = [0, 1, 2].map(|i| (ENDS[from][i] + part * (ENDS[to][i] - ENDS[from][i])).round() as u8);
    RGBColor(red, green, blue)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(classes: usize, value: impl Fn(usize, usize) -> f64) -> HeatMap {
        let names: Vec<String> = (0..classes).map(|class| format!("class {class}")).collect();
        HeatMap {
            title: "confusion".into(),
            row_label: "true class".into(),
            column_label: "answer".into(),
            rows: names.clone(),
            columns: names,
            values: (0..classes).map(|row| (0..classes).map(|column| value(row, column)).collect()).collect(),
            decimals: 1,
            shades: ColourScale::Even,
        }
    }

    #[test]
    fn numbers_are_in_cells_where_they_fit() {
        let diagonal = |row, column| if row == column { 93.5 } else { 0.0 };
        assert_eq!(map(10, diagonal).svg().matches("93.5").count(), 11, "ten cells and the scale");
        let many = map(100, diagonal).svg();
        assert_eq!(many.matches("93.5").count(), 1, "the scale alone");
        assert!(many.contains("class 99"), "every name is there");
        assert!(map(1000, diagonal).svg().len() < 400_000, "cells of zero take no space");
    }

    #[test]
    fn a_darker_cell_is_a_larger_value() {
        let lightness = |share: f64| {
            let RGBColor(red, green, blue) = shade(share);
            u32::from(red) + u32::from(green) + u32::from(blue)
        };
        assert!((0..20).all(|i| lightness(f64::from(i) / 20.0) > lightness(f64::from(i + 1) / 20.0)));
    }

    #[test]
    fn the_strip_says_what_half_dark_means() {
        for (shades, half) in [(ColourScale::Even, "40.0"), (ColourScale::Root, "20.0")] {
            let svg = HeatMap { shades, ..map(100, |row, column| if row == column { 80.0 } else { 0.0 }) }.svg();
            let numbers: Vec<&str> = svg.lines().filter(|line| line.ends_with(".0")).collect();
            assert_eq!(numbers, ["0.0", half, "80.0"]);
        }
    }

    #[test]
    fn gaps_are_gray_and_nothing_is_said() {
        let gap = "#CCCCCC";
        let mut figure = map(3, |row, column| if row == column { f64::NAN } else { 1.0 });
        assert_eq!(figure.svg().matches(gap).count(), 3);
        figure.values.pop();
        assert_eq!(figure.svg().matches(gap).count(), 5, "a missing row is gray too");
        assert!(map(2, |_, _| f64::NAN).svg().contains("no data"));
        assert!(HeatMap::default().svg().contains("no data"));
        assert!(!map(2, |_, _| 0.0).svg().contains("no data"), "zeros are data");
    }
}
