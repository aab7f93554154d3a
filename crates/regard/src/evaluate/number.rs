//! Numbers in JSON, which has neither infinity nor "not a number": both are written as `null`.

use serde::{Deserialize, Deserializer};

/// Reads `null` as "not a number".
pub fn or_nan<'de, D: Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::<f64>::deserialize(from)?.unwrap_or(f64::NAN))
}
