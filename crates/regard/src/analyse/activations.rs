//! Activations of layers, by the names that models record.

use burn::tensor::Tensor;

use crate::models::Model;
use crate::{Pass, Trace, pass};

/// The recorded names that match a pattern, in the order of the forward pass.
pub(super) fn named(trace: &Trace, pattern: &str) -> Vec<String> {
    trace.names().filter(|name| pass::matches(pattern, name)).map(String::from).collect()
}

/// The names of all blocks of a model, found by a forward pass.
#[must_use]
pub fn block_names(model: &Model, images: Tensor<4>) -> Vec<String> {
    let blocks = model.inspect().blocks();
    let mut pass = Pass::recording_only([blocks]);
    model.forward(images, &mut pass);
    named(&pass.into_trace(), blocks)
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
            ("sasa-nano", 8, Some("groups.2.2")),
        ] {
            let (model, _) = model(name);
            let found = block_names(&model, random([1, 3, 32, 32], 1));
            assert_eq!(found.len(), blocks, "{name}: {found:?}");
            let pooled = model.inspect().pooled().and_then(|pattern| {
                let mut pass = Pass::recording_only([pattern]);
                model.forward(random([1, 3, 32, 32], 1), &mut pass);
                named(&pass.into_trace(), pattern).pop()
            });
            assert_eq!(pooled.as_deref(), last, "{name}");
        }
    }
}
