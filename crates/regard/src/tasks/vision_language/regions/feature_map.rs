//! Regions of a frozen classifier: the places of its last map.

use burn::tensor::{Device, Tensor, TensorData};

use super::SharedModel;
use crate::data::vision_language::{OnePicture, RegionFeatures, RegionPicture, RegionSource};
use crate::data::{Picture, prepare};
use crate::models::Model;
use crate::weights::{self, LoadedModel};
use crate::{Error, Pass};

/// The places of a classifier's last map.
#[derive(Debug)]
pub(super) struct MapRegions {
    model: SharedModel<LoadedModel>,
    /// Rows and columns of its input.
    image: [usize; 2],
    width: usize,
    device: Device,
}

impl MapRegions {
    pub(super) fn open(name: &str, device: &Device) -> Result<Self, Error> {
        let model = weights::resolve(name, &mut |_| {})?.load(device)?;
        let image = model.config.image();
        let mut source = Self { model: SharedModel::new(model), image, width: 0, device: device.clone() };
        let [rows, columns] = image;
        let picture = Picture::new([rows, columns], vec![0; 3 * rows * columns])?;
        let found = source.regions(&OnePicture { name, picture: &picture, boxes: &[] })?;
        source.width = found.features.len() / found.len();
        Ok(source)
    }
}

impl RegionSource for MapRegions {
    fn width(&self) -> usize {
        self.width
    }

    fn network_pixels(&self, _: [usize; 2]) -> usize {
        self.image.iter().product()
    }

    fn classes(&self) -> usize {
        0
    }

    fn regions(&self, source: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let picture = source.picture()?;
        let map = self.model.with(|loaded| {
            let image = loaded.config.image();
            let pixels = prepare(&picture, &loaded.preprocess, image);
            let pixels = crate::data::to_channels(pixels, loaded.config.channels())?;
            let shape = [1, loaded.config.channels(), image[0], image[1]];
            let images = Tensor::<4>::from_data(TensorData::new(pixels, shape), &self.device);
            last_map(&loaded.model, images)
        })?;
        let [_, width, rows, columns] = map.dims();
        let features = map.reshape([width, rows * columns]).transpose().into_data().iter::<f32>().collect();
        let share = |at: usize, of: usize| at as f32 / of as f32;
        let place = |at: usize| {
            let [row, column] = [at / columns, at % columns];
            [share(column, columns), share(row, rows), share(column + 1, columns), share(row + 1, rows)]
        };
        Ok(RegionFeatures { features, boxes: (0..rows * columns).map(place).collect(), classes: Vec::new() })
    }
}

/// `[1, D, H, W]`: what is pooled for the head, or the tokens of the patches after the last block.
fn last_map(model: &Model, images: Tensor<4>) -> Result<Tensor<4>, Error> {
    let inspected = model.inspect();
    if let Some(transformer) = inspected.as_transformer() {
        let [rows, columns] = transformer.patch_embed().grid();
        let tokens = transformer.through(images, &mut Pass::silent());
        let [_, count, dim] = tokens.dims();
        let patches = tokens.narrow(1, count - rows * columns, rows * columns);
        return Ok(patches.swap_dims(1, 2).reshape([1, dim, rows, columns]));
    }
    let pattern = inspected.pooled().ok_or_else(|| Error::config("regions.model", "the classifier has no map"))?;
    let mut pass = Pass::recording_only([pattern]);
    let _ = model.forward(images, &mut pass);
    let trace = pass.into_trace();
    // in the order of the forward pass
    let last = trace.names().last().map(String::from);
    trace.get(&last.ok_or_else(|| Error::config("regions.model", "the classifier records no map"))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Part;
    use crate::data::world::scene;
    use crate::device::cpu;

    #[test]
    fn a_map_has_a_region_for_each_of_its_places() {
        let picture = scene(0, Part::Test, 3).picture();
        for model in ["fashion-vit", "fashion-resnet"] {
            let source = MapRegions::open(model, &cpu()).unwrap();
            let regions = source.regions(&OnePicture { name: "scene", picture: &picture, boxes: &[] }).unwrap();
            let area: f32 = regions.boxes.iter().map(|[x1, y1, x2, y2]| (x2 - x1) * (y2 - y1)).sum();
            assert!(regions.len() > 3 && (area - 1.0).abs() < 1e-4, "{model}");
            assert_eq!(regions.features.len(), regions.len() * source.width());
        }
    }
}
