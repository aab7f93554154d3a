//! Limits on sizes, checked before anything is allocated.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::Tensor;

use crate::Error;

/// Largest number of parameters: more than 32 GB of weights.
pub const MOST_PARAMETERS: u64 = 1 << 33;

/// Largest number of pixels of an image: 8192 x 8192.
pub const MOST_PIXELS: usize = 1 << 26;

/// Refuses empty images and images that are too large.
pub fn check_image([rows, columns]: [usize; 2]) -> Result<(), Error> {
    match rows.checked_mul(columns) {
        Some(1..=MOST_PIXELS) => Ok(()),
        Some(0) => Err(Error::config("image", format!("must have at least one pixel, got {rows} x {columns}"))),
        _ => Err(Error::config("image", format!("must have at most {MOST_PIXELS} pixels, got {rows} x {columns}"))),
    }
}

/// Vocabularies may be larger than all other sizes.
pub fn check_vocabulary(field: &'static str, tokens: usize) -> Result<(), Error> {
    const LARGEST: usize = 1 << 20;
    if (1..=LARGEST).contains(&tokens) {
        return Ok(());
    }
    Err(Error::config(field, format!("must be from 1 to {LARGEST}, got {tokens}")))
}

/// Refuses a model of too many parameters, counted from shapes before any is initialised.
pub fn check_parameters<M: Module>(model: M) -> Result<M, Error> {
    let mut count = Count(0);
    model.visit(&mut count);
    if count.0 <= u128::from(MOST_PARAMETERS) {
        return Ok(model);
    }
    let reason = format!("must have at most {MOST_PARAMETERS} parameters, this one has {}; make it narrower", count.0);
    Err(Error::config("model", reason))
}

struct Count(u128);

impl ModuleVisitor for Count {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let sizes = param.lazy_shape().to_vec();
        self.0 = self.0.saturating_add(sizes.into_iter().fold(1, |all: u128, size| all.saturating_mul(size as u128)));
    }
}
