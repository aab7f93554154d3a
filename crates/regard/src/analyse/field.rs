//! Effective receptive fields: which pixels does the centre of a layer depend on?
//! Luo et al. 2016, arXiv:1701.04128; for transformers Raghu et al. 2021, arXiv:2108.08810, figure 5.
//!
//! The gradient of the central position of a layer, summed over channels, with respect to the image; its magnitude is
//! summed over the channels of the image and averaged over images.

use burn::tensor::{Device, Tensor};
use serde::Serialize;

use super::activations::block_names;
use super::check::Check;
use super::gradients::{frozen, slopes};
use crate::models::Model;
use crate::{Error, Pass};

/// The field of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Field {
    pub layer: String,
    /// Rows and columns of the picture.
    pub size: [usize; 2],
    /// `[H, W]`: the mean magnitude of the gradient.
    pub values: Vec<f32>,
    /// The root mean square distance from the centre of the image, weighted by the values, in pixels.
    pub radius: f64,
    /// The smallest fraction of the pixels that holds half of the sum.
    pub half: f64,
}

/// Adds up the fields of all layers.
#[derive(Debug)]
pub struct Fields {
    model: Model,
    size: [usize; 2],
    layers: Vec<String>,
    sums: Vec<Vec<f64>>,
    pictures: usize,
}

impl Fields {
    /// The fields of every block of a model for images of so many channels, rows and columns.
    #[must_use]
    pub fn of(model: &Model, [channels, rows, columns]: [usize; 3], device: &Device) -> Self {
        let layers = block_names(model, Tensor::zeros([1, channels, rows, columns], device));
        let sums = vec![vec![0.0; rows * columns]; layers.len()];
        Self { model: frozen(model), size: [rows, columns], layers, sums, pictures: 0 }
    }

    /// The layers; each needs a forward and a backward pass per batch.
    #[must_use]
    pub fn layers(&self) -> &[String] {
        &self.layers
    }

    /// Counts pictures `[B, C, H, W]` that are going to be [added](Self::add_to) to every layer.
    pub fn begin(&mut self, images: &Tensor<4>) {
        self.pictures += images.dims()[0];
    }

    /// Adds pictures to the field of one of the layers, by its number.
    ///
    /// # Errors
    /// When no gradient reaches the pictures.
    pub fn add_to(&mut self, layer: usize, images: Tensor<4>) -> Result<(), Error> {
        let gradient = gradient(images, |images| self.centre(layer, images))?;
        let magnitudes: Vec<f32> = gradient.abs().sum_dim(1).sum_dim(0).into_data().iter::<f32>().collect();
        self.sums[layer].iter_mut().zip(magnitudes).for_each(|(sum, magnitude)| *sum += f64::from(magnitude));
        Ok(())
    }

    /// Adds pictures to the fields of all layers.
    ///
    /// # Errors
    /// When no gradient reaches the pictures.
    pub fn add(&mut self, images: Tensor<4>) -> Result<(), Error> {
        self.begin(&images);
        (0..self.layers.len()).try_for_each(|layer| self.add_to(layer, images.clone()))
    }

    /// The centre of a layer, summed over channels and images.
    fn centre(&self, layer: usize, images: Tensor<4>) -> Result<Tensor<1>, Error> {
        let mut pass = Pass::recording_only([&self.layers[layer]]);
        self.model.forward(images, &mut pass);
        let (trace, name) = (pass.into_trace(), &self.layers[layer]);
        Ok(if let Some(transformer) = self.model.as_transformer() {
            let ([rows, columns], prefix) = (transformer.patch_embed().grid(), transformer.prefix());
            trace.get::<3>(name)?.narrow(1, prefix + rows / 2 * columns + columns / 2, 1).sum()
        } else {
            let map = trace.get::<4>(name)?;
            let [_, _, rows, columns] = map.dims();
            map.narrow(2, rows / 2, 1).narrow(3, columns / 2, 1).sum()
        })
    }

    /// The fields so far, in the order of layers.
    #[must_use]
    pub fn fields(&self) -> Vec<Field> {
        let field = |(layer, sums): (&String, &Vec<f64>)| {
            let values = sums.iter().map(|sum| (sum / self.pictures.max(1) as f64) as f32).collect();
            Field::new(layer.clone(), self.size, values)
        };
        self.layers.iter().zip(&self.sums).map(field).collect()
    }

    /// Checks the gradient of the deepest layer by finite differences.
    ///
    /// # Errors
    /// When no gradient reaches the picture.
    pub fn check(&self, images: Tensor<4>) -> Result<Check, Error> {
        let last = self.layers.len() - 1;
        let gradient = gradient(images.clone(), |images| self.centre(last, images))?;
        slopes(&gradient, |by| Ok(self.centre(last, images.clone() + by)?.into_scalar::<f32>().into()))
    }
}

impl Field {
    fn new(layer: String, size: [usize; 2], values: Vec<f32>) -> Self {
        let all: f64 = values.iter().map(|value| f64::from(*value)).sum();
        let centre = size.map(|side| (side as f64 - 1.0) / 2.0);
        let squared = |pixel: usize| {
            let away = [(pixel / size[1]) as f64 - centre[0], (pixel % size[1]) as f64 - centre[1]];
            away[0] * away[0] + away[1] * away[1]
        };
        let moment: f64 = values.iter().enumerate().map(|(pixel, value)| f64::from(*value) * squared(pixel)).sum();
        let mut sorted: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let mut held = 0.0;
        let count = sorted.iter().take_while(|value| {
            let below = held < all / 2.0;
            held += **value;
            below
        });
        let half = count.count() as f64 / values.len() as f64;
        let radius = if all > 0.0 { (moment / all).sqrt() } else { 0.0 };
        Self { layer, size, values, radius, half }
    }
}

/// `[B, C, H, W]`: the gradient of a number with respect to pictures.
fn gradient(images: Tensor<4>, of: impl Fn(Tensor<4>) -> Result<Tensor<1>, Error>) -> Result<Tensor<4>, Error> {
    let images = images.autodiff().require_grad();
    let gradients = of(images.clone())?.backward();
    images.grad(&gradients).ok_or_else(|| Error::analysis("receptive field", "no gradient reaches the picture"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::model;
    use crate::device;
    use crate::testing::{random, values};
    use burn::nn::PaddingConfig2d;
    use burn::nn::conv::Conv2dConfig;

    #[test]
    fn the_field_of_a_convolution_is_its_window() {
        let same = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let convolution = Conv2dConfig::new([3, 4], [3, 3]).with_padding(same).init(&device::cpu());
        let middle = |images: Tensor<4>| Ok(convolution.forward(images).narrow(2, 4, 1).narrow(3, 5, 1).sum());
        let found = values(&gradient(random([1, 3, 9, 9], 1), middle).unwrap().abs().sum_dim(1));
        for (pixel, value) in found.iter().enumerate() {
            let inside = (3..=5).contains(&(pixel / 9)) && (4..=6).contains(&(pixel % 9));
            assert_eq!(*value > 0.0, inside, "{pixel}");
        }
        let field = Field::new("layer".into(), [9, 9], found);
        assert!(field.half <= 9.0 / 81.0 && field.radius < 3.0, "{field:?}");
    }

    #[test]
    fn convolutions_see_further_layer_by_layer_and_transformers_everything_at_once() {
        let (resnet, _) = model("resnet-nano");
        let mut fields = Fields::of(&resnet, [3, 32, 32], &device::cpu());
        fields.add(random([2, 3, 32, 32], 1)).unwrap();
        let found = fields.fields();
        let seen = |field: &Field| field.values.iter().filter(|value| **value > 0.0).count();
        assert!(seen(&found[0]) < 32 * 32 / 4, "{}", seen(&found[0]));
        assert!(found.windows(2).all(|pair| seen(&pair[0]) <= seen(&pair[1])));
        let (vit, _) = model("vit-nano");
        let mut fields = Fields::of(&vit, [3, 32, 32], &device::cpu());
        fields.add(random([1, 3, 32, 32], 1)).unwrap();
        assert_eq!(fields.layers().len(), 5);
        assert!(fields.fields().iter().all(|field| seen(field) == 32 * 32));
    }

    #[test]
    fn its_gradient_is_what_differences_say() {
        for name in ["vit-nano", "resnet-nano", "san-nano-pairwise", "sasa-nano"] {
            let (model, _) = model(name);
            let check = Fields::of(&model, [3, 32, 32], &device::cpu()).check(random([1, 3, 32, 32], 2)).unwrap();
            assert!(check.holds(), "{name}: {check}");
        }
    }

    #[test]
    fn even_values_have_half_in_half_of_the_pixels_and_the_radius_of_a_square() {
        let field = Field::new("layer".into(), [10, 10], vec![3.0; 100]);
        assert_eq!(field.half, 0.5);
        // the variance of 0..10 is 8.25 along each side
        assert!((field.radius - 16.5f64.sqrt()).abs() < 1e-6);
    }
}
