//! Which model a command is about.

use regard::models::{self, ModelConfig};
use std::path::Path;

use crate::failure::Failure;

/// Which model.
#[derive(Debug, clap::Args)]
pub struct ModelArgs {
    /// A preset (`regard models` lists them) or a TOML file with `model = ".."` and its fields
    #[arg(value_name = "MODEL")]
    pub model: String,

    /// Change a field of the model, such as `depth=4`
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub set: Vec<String>,
}

impl ModelArgs {
    /// The configuration.
    pub fn config(&self) -> Result<ModelConfig, Failure> {
        let path = Path::new(&self.model);
        let mut config = if path.extension().is_some_and(|ending| ending == "toml") {
            let text = std::fs::read_to_string(path).map_err(|error| {
                Failure::input(format!("cannot read `{}`: {error}", self.model), "is the path right?")
            })?;
            ModelConfig::from_toml(&text)?
        } else {
            models::preset(&self.model)?.config
        };
        for change in &self.set {
            let Some((field, value)) = change.split_once('=') else {
                return Err(Failure::input(format!("`--set {change}` has no value"), "write `--set field=value`"));
            };
            // numbers, booleans and lists as JSON has them; anything else is a word
            let value = serde_json::from_str(value).unwrap_or_else(|_| serde_json::Value::String(value.into()));
            config = config.with(field, value)?;
        }
        Ok(config)
    }
}
