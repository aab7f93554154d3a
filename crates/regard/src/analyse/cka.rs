//! Linear centred kernel alignment: do two layers represent images in the same way?
//! Kornblith et al. 2019, arXiv:1905.00414; by minibatches Nguyen et al. 2020, arXiv:2010.15327, as in Raghu et al. 2021,
//! arXiv:2108.08810.
//!
//! The features are the whole activation of a layer, positions and channels. CKA is invariant to rotation,
//! reflection and isotropic scaling of the features; other linear maps do change it.
//!
//! By minibatches the unbiased estimator of HSIC (Song et al. 2012) is summed over batches before the ratio is taken: it
//! may then be a little below zero or above one. It needs four pictures; fewer are an error, never NaN.

use burn::tensor::Tensor;
use serde::Serialize;

use super::check::Check;
use crate::models::Model;
use crate::{Error, Pass};

/// The fewest pictures for which the unbiased estimator is defined.
pub const FEWEST: usize = 4;

/// The Gram matrix of a batch in one layer: `[n, n]` products of centred features.
#[derive(Clone, Debug, PartialEq)]
pub struct Gram {
    pub layer: String,
    pictures: usize,
    values: Vec<f64>,
    /// Whether the activation is the same for all images.
    constant: bool,
}

impl Gram {
    /// Of the activation of a layer for a batch, `[B, ..]`.
    #[must_use]
    pub fn of<const D: usize>(layer: &str, features: Tensor<D>) -> Self {
        let pictures = features.dims()[0];
        let features: Tensor<2> = features.flatten(1, D - 1);
        let centred = features.clone() - features.clone().mean_dim(0);
        let squares = |features: &Tensor<2>| f64::from(features.clone().powi_scalar(2).mean().into_scalar::<f32>());
        let (spread, size) = (squares(&centred), squares(&features));
        let values = centred.clone().matmul(centred.transpose()).into_data().iter::<f32>().map(f64::from).collect();
        // f32 keeps seven digits of a feature, so its mean leaves a spread of 1e-14
        Self { layer: layer.into(), pictures, values, constant: spread <= 1e-12 * size }
    }

    /// Fails if HSIC is not defined.
    fn usable(&self, fewest: usize) -> Result<(), Error> {
        if self.pictures < fewest {
            let reason = format!("it needs batches of at least {fewest} pictures, got {}", self.pictures);
            return Err(Error::analysis("cka", reason));
        }
        if self.constant {
            let reason = format!("`{}` gives the same for all {} pictures of a batch", self.layer, self.pictures);
            return Err(Error::analysis("cka", reason));
        }
        Ok(())
    }
}

/// Linear CKA of features of the same pictures, `[n, ..]` each, by its definition: biased when pictures are few.
///
/// # Errors
/// When there are fewer than two pictures, the numbers differ, or a layer gives the same activation for all.
pub fn linear<const D: usize, const E: usize>(x: Tensor<D>, y: Tensor<E>) -> Result<f64, Error> {
    let (x, y) = (Gram::of("x", x), Gram::of("y", y));
    together(&x, &y)?;
    x.usable(2)?;
    y.usable(2)?;
    let product = |a: &Gram, b: &Gram| a.values.iter().zip(&b.values).map(|(a, b)| a * b).sum::<f64>();
    Ok(product(&x, &y) / (product(&x, &x) * product(&y, &y)).sqrt())
}

fn together(x: &Gram, y: &Gram) -> Result<(), Error> {
    if x.pictures == y.pictures {
        return Ok(());
    }
    Err(Error::analysis("cka", format!("{} pictures of one layer and {} of the other", x.pictures, y.pictures)))
}

/// The unbiased estimator of HSIC by Song et al. 2012, equation 5; of at least four pictures.
fn unbiased(x: &Gram, y: &Gram) -> f64 {
    let (count, n) = (x.pictures, x.pictures as f64);
    let off_diagonal = |gram: &Gram, row: usize, column: usize| {
        if row == column { 0.0 } else { gram.values[row * count + column] }
    };
    let (mut trace, mut crossed) = (0.0, 0.0);
    let mut sums = [0.0; 2];
    for row in 0..count {
        let mut rows = [0.0; 2];
        for column in 0..count {
            let (a, b) = (off_diagonal(x, row, column), off_diagonal(y, row, column));
            trace += a * b;
            rows[0] += a;
            rows[1] += b;
        }
        crossed += rows[0] * rows[1];
        sums[0] += rows[0];
        sums[1] += rows[1];
    }
    (trace + sums[0] * sums[1] / ((n - 1.0) * (n - 2.0)) - 2.0 / (n - 2.0) * crossed) / (n * (n - 3.0))
}

/// Adds up the alignment of every layer of one model with every layer of another, or of itself.
#[derive(Clone, Debug, Default)]
pub struct Cka {
    rows: Vec<String>,
    columns: Vec<String>,
    /// `[row][column]`
    between: Vec<Vec<f64>>,
    of_rows: Vec<f64>,
    of_columns: Vec<f64>,
    pictures: usize,
}

/// The similarity of layers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Similarity {
    pub rows: Vec<String>,
    pub columns: Vec<String>,
    /// `[row][column]`: 1 when both represent images in the same way.
    pub values: Vec<Vec<f64>>,
    /// Pictures that were compared.
    pub pictures: usize,
}

impl Cka {
    /// Adds a batch of pictures: the Gram matrices of the layers of both models.
    ///
    /// # Errors
    /// When the batch is too small, layers or batches do not match, or a layer gives the same activation for all pictures.
    pub fn add(&mut self, rows: &[Gram], columns: &[Gram]) -> Result<(), Error> {
        let names = |grams: &[Gram]| grams.iter().map(|gram| gram.layer.clone()).collect::<Vec<_>>();
        if self.pictures == 0 {
            (self.rows, self.columns) = (names(rows), names(columns));
            self.between = vec![vec![0.0; columns.len()]; rows.len()];
            (self.of_rows, self.of_columns) = (vec![0.0; rows.len()], vec![0.0; columns.len()]);
        }
        if self.rows != names(rows) || self.columns != names(columns) {
            return Err(Error::analysis("cka", "the layers are those of other models"));
        }
        let first = rows.first().ok_or_else(|| Error::analysis("cka", "the model recorded no layers"))?;
        for gram in rows.iter().chain(columns) {
            together(first, gram)?;
            gram.usable(FEWEST)?;
        }
        for (row, sums) in rows.iter().zip(&mut self.between) {
            sums.iter_mut().zip(columns).for_each(|(sum, column)| *sum += unbiased(row, column));
        }
        self.of_rows.iter_mut().zip(rows).for_each(|(sum, gram)| *sum += unbiased(gram, gram));
        self.of_columns.iter_mut().zip(columns).for_each(|(sum, gram)| *sum += unbiased(gram, gram));
        self.pictures += first.pictures;
        Ok(())
    }

    /// The ratio of the sums.
    ///
    /// # Errors
    /// When nothing was added, or the pictures are too few to tell a layer from noise.
    pub fn similarity(&self) -> Result<Similarity, Error> {
        if self.pictures == 0 {
            return Err(Error::analysis("cka", "no batch was compared"));
        }
        let own = [(&self.rows, &self.of_rows), (&self.columns, &self.of_columns)];
        for (layer, sum) in own.into_iter().flat_map(|(layers, sums)| layers.iter().zip(sums)) {
            // NaN is not above zero either
            if !sum.is_finite() || *sum <= 0.0 {
                let reason = format!("{} pictures are too few to tell `{layer}` from noise", self.pictures);
                return Err(Error::analysis("cka", reason));
            }
        }
        let row = |(sums, own): (&Vec<f64>, &f64)| {
            sums.iter().zip(&self.of_columns).map(|(sum, other)| sum / (own.sqrt() * other.sqrt())).collect()
        };
        Ok(Similarity {
            rows: self.rows.clone(),
            columns: self.columns.clone(),
            values: self.between.iter().zip(&self.of_rows).map(row).collect(),
            pictures: self.pictures,
        })
    }
}

/// The Gram matrices of a batch `[B, C, H, W]` in every block of a model, and a check of the last one.
///
/// # Errors
/// When the batch is too small, or the last block gives the same activation for all pictures.
pub fn see(model: &Model, images: Tensor<4>) -> Result<(Vec<Gram>, Check), Error> {
    let mut pass = Pass::recording_only([model.inspect().blocks()]);
    model.forward(images, &mut pass);
    let trace = pass.into_trace();
    let ranks: Vec<(String, usize)> = trace.shapes().map(|(name, shape)| (name.to_string(), shape.len())).collect();
    let (mut grams, mut checked) = (Vec::new(), None);
    for (name, rank) in &ranks {
        let last = grams.len() + 1 == ranks.len();
        if *rank == 3 {
            let tokens = trace.get::<3>(name)?;
            checked = last.then(|| check(tokens.clone()));
            grams.push(Gram::of(name, tokens));
        } else {
            let map = trace.get::<4>(name)?;
            checked = last.then(|| check(map.clone()));
            grams.push(Gram::of(name, map));
        }
    }
    let check = checked.unwrap_or_else(|| Err(Error::analysis("cka", "the model recorded no layers")))?;
    Ok((grams, check))
}

/// Checks that features have similarity one with themselves, also when reflected and scaled.
///
/// # Errors
/// When the batch is too small or the layer gives the same activation for all pictures.
pub fn check<const D: usize>(features: Tensor<D>) -> Result<Check, Error> {
    let features: Tensor<2> = features.flatten(1, D - 1);
    let turned = features.clone().flip([1]).mul_scalar(-3.0);
    let mut cka = Cka::default();
    cka.add(&[Gram::of("x", features.clone()), Gram::of("x turned", turned)], &[Gram::of("x", features)])?;
    let found = cka.similarity()?.values;
    let deviation = found.iter().map(|row| (row[0] - 1.0).abs()).fold(0.0, super::check::largest);
    Ok(Check::new("CKA of a layer with itself, and with itself reflected and scaled, is one", deviation, 1e-4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fixture, random};

    fn by_batches(x: &Tensor<2>, y: &Tensor<2>, size: usize) -> Result<f64, Error> {
        let mut cka = Cka::default();
        for start in (0..x.dims()[0]).step_by(size) {
            let part = |of: &Tensor<2>| Gram::of("layer", of.clone().narrow(0, start, size));
            cka.add(&[part(x)], &[part(y)])?;
        }
        Ok(cka.similarity()?.values[0][0])
    }

    #[test]
    fn it_is_that_of_the_reference() {
        let fixture = Fixture::load("analysis");
        let (x, y) = (fixture.tensor::<2>("io/X"), fixture.tensor::<2>("io/Y"));
        let agrees = |found: f64, name: &str| {
            let expected = f64::from(fixture.values(name)[0]);
            assert!((found - expected).abs() < 1e-5, "{name}: {found}, not {expected}");
        };
        agrees(linear(x.clone(), y.clone()).unwrap(), "io/linear_cka");
        agrees(by_batches(&x, &y, 5).unwrap(), "io/minibatch_cka_5");
        agrees(by_batches(&x, &y, 20).unwrap(), "io/unbiased_cka_full");
    }

    #[test]
    fn turning_mirroring_and_scaling_change_nothing_and_shearing_does() {
        let (x, y) = (random::<2>([12, 2], 1), random::<2>([12, 5], 2));
        let turn = Tensor::<2>::from_data([[0.6, -0.8], [0.8, 0.6]], &crate::device::cpu());
        let shear = Tensor::<2>::from_data([[1.0, 3.0], [0.0, 1.0]], &crate::device::cpu());
        for of in [linear::<2, 2>, |x, y| by_batches(&x, &y, 6)] {
            let plain = of(x.clone(), y.clone()).unwrap();
            for changed in
                [x.clone().matmul(turn.clone()), x.clone().flip([1]), x.clone().mul_scalar(-40.0), x.clone() + 3.0]
            {
                assert!((of(changed, y.clone()).unwrap() - plain).abs() < 1e-4);
            }
            assert!((of(x.clone().matmul(shear.clone()), y.clone()).unwrap() - plain).abs() > 1e-3);
        }
    }

    #[test]
    fn a_layer_is_like_itself_and_the_order_does_not_matter() {
        let (x, y) = (random::<2>([8, 6], 1), random::<2>([8, 4], 2));
        assert!((linear(x.clone(), x.clone()).unwrap() - 1.0).abs() < 1e-6);
        assert!((by_batches(&x, &x, 4).unwrap() - 1.0).abs() < 1e-6);
        assert!((by_batches(&x, &y, 8).unwrap() - by_batches(&y, &x, 8).unwrap()).abs() < 1e-9);
        assert!(check(x).unwrap().holds());
    }

    #[test]
    fn noise_is_like_nothing_to_the_unbiased_estimator_alone() {
        let (x, y) = (random::<2>([16, 400], 3), random::<2>([16, 400], 4));
        assert!(linear(x.clone(), y.clone()).unwrap() > 0.5, "many features, few pictures: biased");
        assert!(by_batches(&x, &y, 8).unwrap().abs() < 0.2);
    }

    #[test]
    fn too_small_a_batch_and_a_constant_layer_are_errors_that_say_so() {
        let x = random::<2>([9, 6], 1);
        let error = by_batches(&x, &x, 3).unwrap_err().to_string();
        assert!(error.contains("at least 4 pictures, got 3"), "{error}");
        let same = Tensor::<2>::ones([8, 5], &crate::device::cpu()).mul_scalar(0.3);
        let error = by_batches(&x.clone().narrow(0, 0, 8), &same, 4).unwrap_err().to_string();
        assert!(error.contains("`layer` gives the same for all 4 pictures"), "{error}");
        assert!(linear(x.clone().narrow(0, 0, 8), same).is_err());
        assert!(linear(x.clone(), x.narrow(0, 0, 8)).is_err());
        assert!(Cka::default().similarity().is_err());
    }
}
