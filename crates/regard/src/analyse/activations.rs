//! What layers give, by the names that models record.

use burn::tensor::Tensor;

use crate::models::{Model, ModelConfig};
use crate::{Pass, Trace, pass};

/// The names of what every block gives: tokens `[B, N, D]` or maps `[B, C, H, W]`.
#[must_use]
pub const fn blocks(config: &ModelConfig) -> &'static str {
    match config {
        ModelConfig::Vit(_) | ModelConfig::Deit(_) | ModelConfig::Deit3(_) => "blocks.*",
        ModelConfig::Resnet(_) | ModelConfig::Regnet(_) | ModelConfig::NonLocalResnet(_) => "*.*",
        ModelConfig::San(_) => "stages.*.layer.*",
        ModelConfig::Sasa(_) => "groups.*.*",
    }
}

/// The names of the maps of which the last one is pooled; none for transformers, which have tokens.
#[must_use]
pub const fn pooled(config: &ModelConfig) -> Option<&'static str> {
    match config {
        ModelConfig::Vit(_) | ModelConfig::Deit(_) | ModelConfig::Deit3(_) => None,
        // a stage of SAN ends with a norm of its own
        ModelConfig::San(_) => Some("stages.*"),
        other => Some(blocks(other)),
    }
}

/// The recorded names of one pattern, in the order of the forward pass.
pub(super) fn named(trace: &Trace, pattern: &str) -> Vec<String> {
    trace.names().filter(|name| pass::matches(pattern, name)).map(String::from).collect()
}

/// The names of all blocks of a model, found by running it on pictures.
#[must_use]
pub fn block_names(model: &Model, config: &ModelConfig, images: Tensor<4>) -> Vec<String> {
    let mut pass = Pass::recording_only([blocks(config)]);
    model.forward(images, &mut pass);
    named(&pass.into_trace(), blocks(config))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::model;
    use crate::testing::random;

    #[test]
    fn every_model_has_blocks_and_all_but_transformers_a_map_that_is_pooled() {
        for (name, blocks, last) in [
            ("vit-nano", 5, None),
            ("resnet-nano", 9, Some("layer4.2")),
            ("non-local-resnet-nano", 9, Some("layer4.2")),
            ("san-nano-pairwise", 9, Some("stages.2")),
            ("sasa-nano", 0, None),
        ] {
            let (model, config) = model(name);
            let found = block_names(&model, &config, random([1, 3, 32, 32], 1));
            assert!(found.len() == blocks || (blocks == 0 && found.len() > 3), "{name}: {found:?}");
            if let (Some(pattern), Some(last)) = (pooled(&config), last) {
                let mut pass = Pass::recording_only([pattern]);
                model.forward(random([1, 3, 32, 32], 1), &mut pass);
                assert_eq!(named(&pass.into_trace(), pattern).last().map(String::as_str), Some(last), "{name}");
            }
        }
    }
}
