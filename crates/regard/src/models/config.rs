//! Model configurations as data: changing a field, reading TOML, finding a preset by name.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, nearest};

/// Reads, writes and changes the configurations of one kind of model.
macro_rules! config_methods {
    ($config:ty) => {
        impl $config {
            /// The configuration in TOML, as [`from_toml`](Self::from_toml) reads it.
            ///
            /// # Panics
            /// Never: a configuration is plain data.
            #[must_use]
            pub fn to_toml(&self) -> String {
                toml::to_string(self).expect("a configuration is plain data")
            }

            /// Reads a configuration in TOML.
            ///
            /// # Errors
            /// When it is not TOML, or a field is unknown, missing or of the wrong type.
            pub fn from_toml(text: &str) -> Result<Self, $crate::Error> {
                $crate::models::config::from_toml(text)
            }

            /// Changes one field, as `--set depth=4` does.
            ///
            /// A table changes only what it names: `relation = { pairwise = { relation = "dot" } }` keeps the position.
            ///
            /// # Errors
            /// When there is no such field (the error suggests the nearest one) or the value has the wrong type.
            pub fn with(&self, field: &str, value: serde_json::Value) -> Result<Self, $crate::Error> {
                $crate::models::config::with_field(self, field, value)
            }
        }
    };
}
pub(super) use config_methods;

/// Whether a text is a configuration of one of these families, valid or not.
pub fn is_of_family(text: &str, families: &[&str]) -> bool {
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    table.get("model").and_then(toml::Value::as_str).is_some_and(|family| families.contains(&family))
}

/// The configuration with one field changed.
pub fn with_field<C: Serialize + DeserializeOwned>(
    config: &C,
    field: &str,
    value: serde_json::Value,
) -> Result<C, Error> {
    let mut fields = serde_json::to_value(config).expect("a configuration is plain data");
    let table = fields.as_object_mut().expect("a configuration is a table");
    if !table.contains_key(field) {
        let known: Vec<&str> = table.keys().map(String::as_str).filter(|key| *key != "model").collect();
        return Err(Error::Field { field: field.into(), reason: nearest::unknown(field, &known) });
    }
    merge(&mut table[field], value);
    serde_json::from_value(fields).map_err(|error| Error::Field { field: field.into(), reason: error.to_string() })
}

/// A configuration from TOML; an error names its line.
pub fn from_toml<C: DeserializeOwned>(text: &str) -> Result<C, Error> {
    toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        Error::Field { field: format!("line {line}"), reason: error.message().to_string() }
    })
}

/// Replaces a value; tables with the same keys, key by key.
fn merge(old: &mut serde_json::Value, new: serde_json::Value) {
    match (old, new) {
        (serde_json::Value::Object(old), serde_json::Value::Object(new))
            if new.keys().all(|key| old.contains_key(key)) =>
        {
            for (key, value) in new {
                merge(&mut old[&key], value);
            }
        }
        (old, new) => *old = new,
    }
}

/// The preset of this name; the error for an unknown name suggests the nearest.
pub fn find<P>(presets: Vec<P>, name: &str, name_of: fn(&P) -> &'static str) -> Result<P, Error> {
    let known: Vec<&str> = presets.iter().map(name_of).collect();
    let reason = nearest::unknown(name, &known);
    presets
        .into_iter()
        .find(|preset| name_of(preset) == name)
        .ok_or_else(|| Error::Field { field: name.into(), reason })
}
