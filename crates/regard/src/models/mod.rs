//! The models: one paper, one file.

pub mod non_local_resnet;
pub mod regnet;
pub mod resnet;

use crate::data::Preprocess;

/// A named configuration of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Preset<C> {
    /// What users call it.
    pub name: &'static str,
    /// Where it comes from, such as `arXiv:2010.11929`.
    pub paper: &'static str,
    /// What it expects of a picture.
    pub preprocess: Preprocess,
    /// Its configuration.
    pub config: fn() -> C,
}

/// Laws between models.
#[cfg(test)]
mod tests {
    use super::non_local_resnet::{NonLocalResNetConfig, Placement};
    use super::resnet::ResNetConfig;
    use crate::Pass;
    use crate::attention::Affinity;
    use crate::device;
    use crate::testing::{assert_close, random, weights};

    #[test]
    fn a_fresh_non_local_resnet_gives_the_logits_of_the_resnet_with_its_weights() {
        for affinity in [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation]
        {
            for placement in [Placement::BeforeLast, Placement::EverySecond, Placement::Every] {
                let scale = false;
                let config = NonLocalResNetConfig { placement, affinity, scale, ..NonLocalResNetConfig::nano() };
                let model = config.init(&device::cpu()).unwrap();
                let mut tensors = weights::tensors(&model);
                tensors.retain(|name, _| !name.starts_with("non_local."));
                let resnet = ResNetConfig::nano().init(&device::cpu()).unwrap();
                let resnet = weights::fill(resnet, &tensors).unwrap();
                let images = random([2, 3, 20, 24], 1);
                let expected = resnet.forward(images.clone(), &mut Pass::silent());
                assert_close(&model.forward(images, &mut Pass::silent()), &expected, 0.0);
            }
        }
    }
}
