//! A number for each head of each layer, averaged over pictures.

use serde::Serialize;

use super::Attention;
use crate::Error;

/// The values of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ByHead {
    pub layer: String,
    /// `[head]`
    pub heads: Vec<f64>,
}

impl ByHead {
    /// The mean over heads.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.heads.iter().sum::<f64>() / self.heads.len() as f64
    }
}

/// A measure of a head: `(attention, sample, head)`.
pub type Measure = fn(&Attention, usize, usize) -> Result<f64, Error>;

/// Adds up a measure of every head.
#[derive(Clone, Debug)]
pub struct HeadMeans {
    measure: Measure,
    sums: Vec<ByHead>,
    pictures: usize,
}

impl HeadMeans {
    #[must_use]
    pub const fn of(measure: Measure) -> Self {
        Self { measure, sums: Vec::new(), pictures: 0 }
    }

    /// Adds the pictures of a batch.
    ///
    /// # Errors
    /// When there is no attention, the layers differ from those added before, or the measure is not defined for them.
    pub fn add(&mut self, layers: &[Attention]) -> Result<(), Error> {
        let Some(first) = layers.first() else {
            return Err(Error::analysis("attention by head", "the model has no attention"));
        };
        if self.sums.is_empty() {
            let zeros = |layer: &Attention| ByHead { layer: layer.layer.clone(), heads: vec![0.0; layer.heads] };
            self.sums = layers.iter().map(zeros).collect();
        }
        let same = |(sum, layer): (&ByHead, &Attention)| sum.layer == layer.layer && sum.heads.len() == layer.heads;
        if self.sums.len() != layers.len() || !self.sums.iter().zip(layers).all(same) {
            return Err(Error::analysis("attention by head", "the layers are those of another model"));
        }
        self.pictures += first.samples;
        for (sum, layer) in self.sums.iter_mut().zip(layers) {
            for (head, sum) in sum.heads.iter_mut().enumerate() {
                for sample in 0..layer.samples {
                    *sum += (self.measure)(layer, sample, head)?;
                }
            }
        }
        Ok(())
    }

    /// Number of pictures that were added.
    #[must_use]
    pub const fn pictures(&self) -> usize {
        self.pictures
    }

    /// The means so far, in the order of layers.
    #[must_use]
    pub fn layers(&self) -> Vec<ByHead> {
        let mean = |sum: &ByHead| ByHead {
            layer: sum.layer.clone(),
            heads: sum.heads.iter().map(|sum| sum / self.pictures as f64).collect(),
        };
        self.sums.iter().map(mean).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::of_tokens;

    fn layer(name: &str, weights: Vec<f32>) -> Attention {
        let mut attention = of_tokens(2, 0, [1, 2], [1, 2], weights);
        attention.layer = name.into();
        attention
    }

    #[test]
    fn means_are_over_all_pictures_whatever_the_batches() {
        let mut means = HeadMeans::of(|layer, sample, head| Ok(f64::from(layer.matrix(sample, head).unwrap()[0])));
        means.add(&[layer("a", [[1.0; 4], [2.0; 4], [3.0; 4], [4.0; 4]].concat())]).unwrap();
        means.add(&[layer("a", [[8.0; 4], [9.0; 4]].concat())]).unwrap();
        assert_eq!((means.layers()[0].heads.clone(), means.pictures()), (vec![4.0, 5.0], 3));
        assert_eq!(means.layers()[0].mean(), 4.5);
    }

    #[test]
    fn no_attention_and_other_layers_are_errors() {
        let mut means = HeadMeans::of(|_, _, _| Ok(0.0));
        assert!(means.add(&[]).unwrap_err().to_string().contains("no attention"));
        means.add(&[layer("a", vec![0.0; 8])]).unwrap();
        assert!(means.add(&[layer("b", vec![0.0; 8])]).unwrap_err().to_string().contains("another model"));
    }
}
