//! What linear layers and embeddings of a transformer hold before training.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

/// The deviation that ViT and BERT start with.
const PAPER: f64 = 0.02;

/// The weights of a transformer that was not trained yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Start {
    /// Normal with deviation 0.02, as in the papers, which suits their width of 768.
    #[default]
    Paper,
    /// Normal with PyTorch's deviation of a linear layer, `1 / sqrt(3 inputs)`: narrow models without a pre-trained start learn
    /// several epochs sooner from it.
    Narrow,
}

impl Start {
    /// A new module whose linear layers and embeddings have deviation 0.02 gets its start; zeros stay zeros.
    pub fn apply<M: Module>(self, module: M) -> M {
        match self {
            Self::Paper => module,
            Self::Narrow => module.map(&mut ByInputs),
        }
    }
}

struct ByInputs;

impl ModuleMapper for ByInputs {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // matrices are `[outputs, inputs]`, embeddings `[entries, D]`; everything else starts as its layer says
        if D != 2 {
            return param;
        }
        let inputs = param.lazy_shape().as_slice()[1] as f64;
        param.init_mapper(move |weights| weights * (1.0 / (3.0 * inputs).sqrt() / PAPER))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::layers::Linear;
    use crate::testing::values;

    fn deviation(linear: &Linear) -> f64 {
        let weights = values(&linear.weight.val());
        (weights.iter().map(|weight| f64::from(weight * weight)).sum::<f64>() / weights.len() as f64).sqrt()
    }

    #[test]
    fn a_narrow_start_has_the_deviation_of_the_number_of_inputs() {
        let device = device::cpu();
        for (start, wanted) in [(Start::Paper, 0.02), (Start::Narrow, 1.0 / 12.0)] {
            let layer = start.apply(Linear::normal(48, 400, &device));
            assert!((deviation(&layer) / wanted - 1.0).abs() < 0.03, "{} for {wanted}", deviation(&layer));
            assert!(values(&layer.bias.unwrap().val()).iter().all(|bias| *bias == 0.0));
        }
        assert_eq!(deviation(&Start::Narrow.apply(Linear::zeros(48, 48, &device))), 0.0);
    }
}
