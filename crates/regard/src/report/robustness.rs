//! The table of accuracy on rotated and flipped pictures, as in "Exploring Self-attention for Image Recognition".

use super::table::Table;
use crate::evaluate::{Robustness, Rotation};

/// One row per model: top-1 accuracy in percent, and in brackets the drop.
#[must_use]
pub fn robustness(models: &[Robustness]) -> Table {
    let table =
        Rotation::ALL.iter().fold(Table::new().words("top-1 %"), |table, rotation| table.numbers(rotation.name()));
    models.iter().fold(table, |mut table, model| {
        let cells = Rotation::ALL.into_iter().map(|rotation| match rotation {
            Rotation::None => format!("{:.1}", 100.0 * model.top1(rotation)),
            rotation => format!("{:.1} ({:.1})", 100.0 * model.top1(rotation), 100.0 * model.drop(rotation)),
        });
        table.row([model.name.clone()].into_iter().chain(cells));
        table
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use burn::tensor::{Tensor, TensorData};

    #[test]
    fn the_drop_is_in_brackets_behind_what_is_left() {
        let mut model = Robustness { name: "corner".into(), ..Robustness::default() };
        let images = Tensor::from_data(TensorData::new(vec![1f32, 1., -1., -1.], [1, 1, 2, 2]), &device::cpu());
        let corner = |images: Tensor<4>| {
            let corner: Tensor<2> = images.slice([0..1, 0..1, 0..1, 0..1]).reshape([1, 1]);
            Tensor::cat(vec![corner.clone(), -corner], 1)
        };
        model.add(images, &[0], corner).unwrap();
        let text = robustness(&[model]).text();
        let cells: Vec<&str> =
            text.lines().nth(1).unwrap().split("  ").filter(|cell| !cell.is_empty()).map(str::trim).collect();
        assert_eq!(cells, ["corner", "100.0", "0.0 (100.0)", "0.0 (100.0)", "100.0 (0.0)", "0.0 (100.0)"]);
        assert!(text.starts_with("top-1 %"), "{text}");
    }
}
