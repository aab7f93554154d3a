//! Numbers in JSON, which has neither infinity nor NaN: both are written as `null`.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Reads `null` as NaN.
pub fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}

/// The same for every value of a map.
pub fn values_or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Option<f64>>::deserialize(from)?;
    Ok(values.into_iter().map(|(name, value)| (name, value.unwrap_or(f64::NAN))).collect())
}
