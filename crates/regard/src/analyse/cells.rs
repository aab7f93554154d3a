//! Which cells of a feature map show the picture, and not the padding right of it and below it.

use crate::Error;
use crate::data::{Bounds, Images};

/// The cells of a map that show the first picture of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct VisibleCells {
    /// Columns of the whole map.
    columns: usize,
    /// Rows and columns that show the picture.
    pub size: [usize; 2],
    /// Height and width of a cell as fractions of the picture; the last cells may reach beyond it.
    pub cell: [f64; 2],
}

impl VisibleCells {
    pub fn of(images: &Images, map: [usize; 2]) -> Self {
        let [_, _, rows, columns] = images.pixels.dims();
        let picture = images.sizes[0];
        let size = images.padding_at(map).map_or(map, |padding| {
            let padding: Vec<bool> = padding.into_data().iter::<bool>().take(map[0] * map[1]).collect();
            let visible_rows = padding.chunks_exact(map[1]).filter(|row| !row[0]).count();
            [visible_rows, padding[..map[1]].iter().filter(|padded| !**padded).count()]
        });
        let cell = [0, 1].map(|axis| [rows, columns][axis] as f64 / (map[axis] * picture[axis]) as f64);
        Self { columns: map[1], size, cell }
    }

    /// The values of visible cells, of those of the whole map.
    pub fn crop(&self, values: &[f32]) -> Vec<f32> {
        let [rows, columns] = self.size;
        values.chunks_exact(self.columns).take(rows).flat_map(|row| &row[..columns]).copied().collect()
    }

    /// The whole map's row and column of the cell that shows a point, given as fractions of the picture's height and width.
    pub fn at(&self, point: [f64; 2]) -> [usize; 2] {
        [0, 1].map(|axis| ((point[axis] / self.cell[axis]) as usize).min(self.size[axis].saturating_sub(1)))
    }

    /// The number of a cell in the whole map.
    pub const fn index(&self, [row, column]: [usize; 2]) -> usize {
        row * self.columns + column
    }
}

/// The fraction of a map's values in cells whose centres are inside a box; none when all values are zero.
///
/// `cell` is the height and width of a cell as fractions of the picture.
///
/// # Panics
/// When there are more or fewer values than cells.
#[must_use]
pub fn share_inside(size: [usize; 2], cell: [f64; 2], values: &[f32], bounds: &Bounds) -> Option<f64> {
    assert_eq!(values.len(), size[0] * size[1], "share_inside: values and cells");
    let [left, top, right, bottom] = bounds.corners();
    let is_inside = |at: usize| {
        let [y, x] = [(at / size[1], 0), (at % size[1], 1)].map(|(place, axis)| (place as f64 + 0.5) * cell[axis]);
        (left..=right).contains(&x) && (top..=bottom).contains(&y)
    };
    let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
    let inside = values.iter().enumerate().filter(|(at, _)| is_inside(*at));
    (sum > 0.0).then(|| inside.map(|(_, value)| f64::from(*value)).sum::<f64>() / sum)
}

/// Fails if a value is not finite.
pub(super) fn check_finite(what: &'static str, values: &[f32]) -> Result<(), Error> {
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Error::analysis(what, format!("a value is {value}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{ImageBatch, NormalisedPicture};
    use crate::device;

    fn picture(size: [usize; 2]) -> NormalisedPicture {
        NormalisedPicture { values: vec![0.5; 3 * size[0] * size[1]], size }
    }

    #[test]
    fn cells_of_padding_are_left_out_and_the_last_ones_may_reach_beyond_the_picture() {
        let batch = ImageBatch::collate(&[picture([40, 64]), picture([64, 64])]).unwrap();
        let images = batch.to_device(&device::cpu());
        let cells = VisibleCells::of(&images, [4, 4]);
        assert_eq!((cells.size, cells.cell), ([3, 4], [0.4, 0.25]));
        let values: Vec<f32> = (0..16).map(|value| value as f32).collect();
        assert_eq!(cells.crop(&values), values[..12]);
        assert_eq!((cells.at([0.99, 0.0]), cells.at([0.39, 1.0])), ([2, 0], [0, 3]));
    }

    #[test]
    fn a_picture_without_padding_is_the_whole_map() {
        let batch = ImageBatch::collate(&[picture([32, 48])]).unwrap();
        let cells = VisibleCells::of(&batch.to_device(&device::cpu()), [2, 3]);
        assert_eq!((cells.size, cells.cell, cells.index([1, 2])), ([2, 3], [0.5, 1.0 / 3.0], 5));
    }

    #[test]
    fn all_of_a_map_is_inside_of_the_whole_picture_and_a_quarter_in_a_quarter() {
        let values = [1.0, 1.0, 1.0, 1.0];
        assert_eq!(share_inside([2, 2], [0.5; 2], &values, &Bounds::WHOLE), Some(1.0));
        let quarter = Bounds::from_corners([0.0, 0.0, 0.5, 0.5]);
        assert_eq!(share_inside([2, 2], [0.5; 2], &values, &quarter), Some(0.25));
        assert_eq!(share_inside([2, 2], [0.5; 2], &[0.0; 4], &quarter), None);
    }
}
