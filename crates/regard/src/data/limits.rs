//! Range checks of settings; errors name the field and its value.

use crate::Error;

/// A number from `least` to `most`, not NaN.
pub(super) fn between(field: &'static str, value: f64, [least, most]: [f64; 2]) -> Result<(), Error> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::config(field, format!("must be from {least} to {most}, got {value}")))
}

pub(super) fn probability(field: &'static str, value: f64) -> Result<(), Error> {
    between(field, value, [0.0, 1.0])
}

/// A number of at least zero.
pub(super) fn not_negative(field: &'static str, value: f64) -> Result<(), Error> {
    if value >= 0.0 && value.is_finite() {
        return Ok(());
    }
    Err(Error::config(field, format!("must be at least 0, got {value}")))
}

/// Positive numbers, the lesser first.
pub(super) fn range(field: &'static str, [least, most]: [f64; 2]) -> Result<(), Error> {
    if least > 0.0 && least <= most && most.is_finite() {
        return Ok(());
    }
    Err(Error::config(field, format!("must be two numbers above 0, the lesser first, got [{least}, {most}]")))
}
