//! Position encodings of the cells of a feature map, which attention adds to queries and keys.
//! Carion et al. 2020, "End-to-End Object Detection with Transformers", arXiv:2005.12872, section 3.2 and appendix A.4.
//!
//! Sine: a cell's position is the number of cells of the picture up to it, itself included, down and to the right; padding does
//! not count. Normalised, the last cell of a picture is at 2 pi whatever its size. Sine and cosine alternate, rows first.
//! Learned: a table of 50 rows and one of 50 columns, columns first, padding or not.

use burn::module::{Initializer, Module};
use burn::tensor::{Bool, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

use super::Embedding;

/// The kinds of position encoding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GridPositionKind {
    /// Sine and cosine of positions from 0 to 2 pi.
    #[default]
    Sine,
    /// Sine and cosine of the number of the cell.
    SineOfCells,
    /// Tables for at most 50 rows and columns.
    Learned,
}

/// Rows and columns that are learned.
const LEARNED: usize = 50;
const TEMPERATURE: f64 = 10_000.0;

/// Positions of the cells of a map; names are those of facebookresearch/detr.
#[derive(Module, Debug)]
pub struct GridPosition {
    pub row_embed: Option<Embedding>,
    pub col_embed: Option<Embedding>,
    #[module(skip)]
    kind: GridPositionKind,
    dim: usize,
}

/// A map's size, and which cells are padding.
#[derive(Clone, Debug)]
pub struct Cells {
    pub batch: usize,
    /// Rows and columns.
    pub size: [usize; 2],
    /// `[B, H, W]`, true for padding; `None` without padding.
    pub padding: Option<Tensor<3, Bool>>,
}

impl GridPosition {
    /// Half of `dim`, which is even, is for rows and half for columns.
    pub fn new(kind: GridPositionKind, dim: usize, device: &Device) -> Self {
        let start = Initializer::Uniform { min: 0.0, max: 1.0 };
        let table = || Embedding { weight: start.init([LEARNED, dim / 2], device) };
        let learned = kind == GridPositionKind::Learned;
        Self { row_embed: learned.then(table), col_embed: learned.then(table), kind, dim }
    }

    /// `[B or 1, H*W, D]`, row by row; 1 if it is the same for all pictures.
    ///
    /// # Panics
    /// When there are more rows or columns than were learned.
    pub fn forward(&self, cells: &Cells, device: &Device) -> Tensor<3> {
        let [rows, columns] = cells.size;
        match (&self.row_embed, &self.col_embed) {
            (Some(row), Some(column)) => {
                let largest = rows.max(columns);
                assert!(largest <= LEARNED, "positions: a map of {rows} x {columns}, {LEARNED} rows are learned");
                let half = self.dim / 2;
                let row = row.weight.val().narrow(0, 0, rows).reshape([rows, 1, half]).expand([rows, columns, half]);
                let column =
                    column.weight.val().narrow(0, 0, columns).reshape([1, columns, half]).expand([rows, columns, half]);
                Tensor::cat(vec![column, row], 2).reshape([1, rows * columns, self.dim])
            }
            _ => self.sines(cells, device),
        }
    }

    fn sines(&self, cells: &Cells, device: &Device) -> Tensor<3> {
        let (places, tokens) = (cells.places(self.kind == GridPositionKind::Sine), cells.size[0] * cells.size[1]);
        let batch = places.len() / tokens;
        let scale = if self.kind == GridPositionKind::Sine { TAU } else { 1.0 };
        let values: Vec<f32> =
            places.iter().flat_map(|place| place.map(|at| at * scale)).flat_map(|at| sine(at, self.dim / 2)).collect();
        Tensor::from_data(TensorData::new(values, [batch, tokens, self.dim]), device)
    }
}

/// Alternating sine and cosine of a position, `width` numbers: frequencies fall from 1 to 1/10000.
fn sine(place: f64, width: usize) -> impl Iterator<Item = f32> {
    (0..width).map(move |feature| {
        let angle = place / TEMPERATURE.powf((2 * (feature / 2)) as f64 / width as f64);
        (if feature.is_multiple_of(2) { angle.sin() } else { angle.cos() }) as f32
    })
}

/// The same positions for points in a picture, `[N, 2]` of x and y from 0 to 1, with their gradient: `[N, D]`.
pub fn sine_of_points(points: Tensor<2>, dim: usize) -> Tensor<2> {
    let half = dim / 2;
    let (count, device) = (points.dims()[0], points.device());
    let frequency = |feature: usize| (TAU / TEMPERATURE.powf((2 * (feature / 2)) as f64 / half as f64)) as f32;
    // cos a = sin(a + pi/2)
    let phase = |feature: usize| if feature.is_multiple_of(2) { 0.0 } else { std::f32::consts::FRAC_PI_2 };
    let row = |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, [1, half]), &device);
    let [frequencies, phases] = [row((0..half).map(frequency).collect()), row((0..half).map(phase).collect())];
    let of = |axis: usize| {
        let place = points.clone().narrow(1, axis, 1).expand([count, half]);
        (place * frequencies.clone() + phases.clone()).sin()
    };
    Tensor::cat(vec![of(1), of(0)], 1)
}

impl Cells {
    /// Row and column of every cell in its picture, counted without padding from 1; as fractions of the last if normalised.
    ///
    /// Without padding one picture is enough for the whole batch.
    fn places(&self, normalised: bool) -> Vec<[f64; 2]> {
        const EPSILON: f64 = 1e-6;
        let [rows, columns] = self.size;
        let inside = match &self.padding {
            Some(padding) => padding.clone().into_data().iter::<bool>().map(|padded| !padded).collect(),
            None => vec![true; rows * columns],
        };
        let mut places = Vec::with_capacity(inside.len());
        for picture in inside.chunks_exact(rows * columns) {
            let mut above = vec![0.0; columns];
            let start = places.len();
            for row in picture.chunks_exact(columns) {
                let mut left = 0.0;
                for (above, inside) in above.iter_mut().zip(row) {
                    let step = f64::from(u8::from(*inside));
                    *above += step;
                    left += step;
                    places.push([*above, left]);
                }
            }
            if normalised {
                let heights = above;
                for row in places[start..].chunks_exact_mut(columns) {
                    let width = row[columns - 1][1];
                    for (place, height) in row.iter_mut().zip(&heights) {
                        *place = [place[0] / (height + EPSILON), place[1] / (width + EPSILON)];
                    }
                }
            }
        }
        places
    }

    /// Middle of every cell as fractions of its picture's width and height, `[B or 1, H*W, 2]` of x and y; cells of
    /// padding lie at the edge.
    pub fn centres(&self, device: &Device) -> Tensor<3> {
        let [rows, columns] = self.size;
        let places = self.places(false);
        let centres = places.chunks_exact(rows * columns).flat_map(|picture| {
            let most = |axis: usize| picture.iter().map(|place| place[axis]).fold(1.0, f64::max);
            let [height, width] = [most(0), most(1)];
            picture.iter().flat_map(move |[y, x]| [((x - 0.5) / width) as f32, ((y - 0.5) / height) as f32])
        });
        let values: Vec<f32> = centres.collect();
        let batch = values.len() / (2 * rows * columns);
        Tensor::from_data(TensorData::new(values, [batch, rows * columns, 2]), device)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{Fixture, assert_close, values, weights};

    fn cells(fixture: &Fixture) -> Cells {
        let mask = fixture.tensor::<3>("io/mask");
        let [batch, rows, columns] = mask.dims();
        Cells { batch, size: [rows, columns], padding: Some(mask.greater_elem(0.5)) }
    }

    /// `[B, H*W, D] -> [B, D, H, W]`
    fn map(tokens: Tensor<3>, [rows, columns]: [usize; 2]) -> Tensor<4> {
        let [batch, _, dim] = tokens.dims();
        tokens.swap_dims(1, 2).reshape([batch, dim, rows, columns])
    }

    #[test]
    fn sines_of_a_padded_batch_are_the_references() {
        let fixture = Fixture::load("sine_position_masked");
        let cells = cells(&fixture);
        for (kind, name) in [(GridPositionKind::Sine, "io/normalised"), (GridPositionKind::SineOfCells, "io/plain")] {
            let position = GridPosition::new(kind, fixture.usize("features"), &cpu()).forward(&cells, &cpu());
            assert_close(&map(position, cells.size), &fixture.tensor(name), 1e-5);
        }
    }

    #[test]
    fn the_learned_table_is_the_references() {
        let fixture = Fixture::load("sine_position_masked");
        let position = GridPosition::new(GridPositionKind::Learned, fixture.usize("features"), &cpu());
        let tensors = fixture.checkpoint(|name| name.strip_prefix("backbone.1.").map(str::to_string));
        let position = weights::fill(position, &tensors).unwrap();
        let cells = cells(&fixture);
        let expected = fixture.tensor::<3>("io/learned").unsqueeze();
        assert_close(&map(position.forward(&cells, &cpu()), cells.size), &expected, 1e-6);
    }

    #[test]
    fn a_batch_without_padding_is_one_whose_mask_is_false() {
        let position = GridPosition::new(GridPositionKind::Sine, 8, &cpu());
        let plain = Cells { batch: 2, size: [3, 5], padding: None };
        let padding = Tensor::<3>::zeros([2, 3, 5], &cpu()).greater_elem(0.5);
        let masked = Cells { padding: Some(padding), ..plain.clone() };
        let both = [plain, masked].map(|cells| position.forward(&cells, &cpu()));
        assert_eq!(both.each_ref().map(|position| position.dims()[0]), [1, 2]);
        assert_close(&both[0].clone().expand([2, 15, 8]), &both[1], 0.0);
    }

    #[test]
    fn a_point_has_the_position_of_the_cell_that_ends_there() {
        let cells = Cells { batch: 1, size: [4, 5], padding: None };
        let position = GridPosition::new(GridPositionKind::Sine, 8, &cpu()).forward(&cells, &cpu());
        // the second row of four and the third column of five
        let point = Tensor::from_floats([[3.0 / 5.0, 2.0 / 4.0]], &cpu());
        assert_close(&sine_of_points(point, 8), &position.narrow(1, 5 + 2, 1).squeeze_dim(0), 1e-5);
    }

    #[test]
    fn centres_are_in_the_middle_of_cells_and_padding_does_not_count() {
        let padding = Tensor::<3>::from_floats([[[0.0, 0.0, 1.0], [1.0, 1.0, 1.0]]], &cpu()).greater_elem(0.5);
        let cells = Cells { batch: 1, size: [2, 3], padding: Some(padding) };
        let centres = values(&cells.centres(&cpu()));
        assert_eq!(centres[..4], [0.25, 0.5, 0.75, 0.5]);
    }

    #[test]
    #[should_panic(expected = "positions: a map of 51 x 2, 50 rows are learned")]
    fn more_rows_than_were_learned_are_refused() {
        let cells = Cells { batch: 1, size: [51, 2], padding: None };
        GridPosition::new(GridPositionKind::Learned, 8, &cpu()).forward(&cells, &cpu());
    }
}
