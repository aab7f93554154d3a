//! The gradient of an answer with respect to what a model computed on its way.

use burn::module::Module as _;
use burn::tensor::{Gradients, Tensor};

use super::check::{Check, largest};
use crate::models::Model;
use crate::{Error, Pass, Trace};

/// A forward pass that was differentiated.
pub struct ClassGradients {
    /// `[B, classes]`
    pub logits: Tensor<2>,
    /// What was recorded.
    pub trace: Trace,
    gradients: Gradients,
}

impl std::fmt::Debug for ClassGradients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClassGradients").field("trace", &self.trace).finish_non_exhaustive()
    }
}

impl ClassGradients {
    /// Runs a model and differentiates the logit of a class, summed over pictures, by what it watches under these names.
    ///
    /// # Errors
    /// When there is no such class, or nothing is watched under these names.
    pub fn of(model: &Model, images: Tensor<4>, class: usize, names: &[&str]) -> Result<Self, Error> {
        let mut pass = Pass::recording_only(names.iter().copied()).with_gradients();
        let logits = frozen(model).forward(images, &mut pass);
        let trace = pass.into_trace();
        if trace.names().next().is_none() {
            return Err(Error::analysis("gradients", format!("the model watches nothing under {}", names.join(", "))));
        }
        let gradients = of_class(logits.clone(), class)?.backward();
        Ok(Self { logits: logits.inner(), trace, gradients })
    }

    /// The gradient of what was watched under a name.
    ///
    /// # Errors
    /// When nothing was, or it has another rank.
    pub fn by<const D: usize>(&self, name: &str) -> Result<Tensor<D>, Error> {
        self.trace.gradient(name, &self.gradients)
    }

    /// Whether a gradient is what differences say: the logit is followed along the gradient in steps of two sizes, and
    /// both slopes should be its length.
    ///
    /// # Errors
    /// When nothing was watched under that name.
    pub fn check<const D: usize>(
        &self,
        name: &str,
        model: &Model,
        images: Tensor<4>,
        class: usize,
    ) -> Result<Check, Error> {
        let gradient = self.by::<D>(name)?;
        let model = frozen(model);
        let moved = |by: Tensor<D>| -> Result<f64, Error> {
            let logits = model.forward(images.clone(), &mut Pass::silent().nudged(name, by));
            Ok(of_class(logits, class)?.into_scalar::<f32>().into())
        };
        slopes(&gradient, moved)
    }
}

/// A model whose norms use what they have learned, though its inputs are differentiated.
pub(super) fn frozen(model: &Model) -> Model {
    model.clone().freeze()
}

fn of_class(logits: Tensor<2>, class: usize) -> Result<Tensor<1>, Error> {
    let [_, classes] = logits.dims();
    if class >= classes {
        return Err(Error::analysis(
            "gradients",
            format!("the model has {classes} classes, there is no class {class}"),
        ));
    }
    Ok(logits.narrow(1, class, 1).sum())
}

/// A function is followed along its gradient: its slopes by steps of two sizes, one half of the other, against the
/// gradient's length. Steps are halved as long as the function is not straight over them.
pub(super) fn slopes<const D: usize>(
    gradient: &Tensor<D>,
    moved: impl Fn(Tensor<D>) -> Result<f64, Error>,
) -> Result<Check, Error> {
    const LAW: &str = "gradients are differences, by two step sizes";
    const TOLERANCE: f64 = 2e-2;
    let length = f64::from(gradient.clone().powi_scalar(2).sum().into_scalar::<f32>()).sqrt();
    if length == 0.0 {
        return Err(Error::analysis("gradients", "the gradient is zero everywhere: nothing depends on this layer"));
    }
    // shares of the length: one when the gradient is right
    let slope = |reach: f64| -> Result<f64, Error> {
        let by = gradient.clone().mul_scalar(reach / (length * length));
        Ok((moved(by.clone())? - moved(by.neg())?) / (2.0 * reach))
    };
    // so far should the function move: much more than rounding, little enough to be straight, which is tried
    let mut reach = 2e-3 * (moved(gradient.zeros_like())?.abs() + 1.0);
    let (mut coarse, mut deviation) = (slope(reach)?, f64::INFINITY);
    for _ in 0..6 {
        reach /= 2.0;
        let fine = slope(reach)?;
        let off = [(coarse - fine).abs(), (fine - 1.0).abs(), (coarse - 1.0).abs()].into_iter().fold(0.0, largest);
        deviation = deviation.min(off);
        coarse = fine;
        if deviation < TOLERANCE / 4.0 {
            break;
        }
    }
    Ok(Check::new(LAW, deviation, TOLERANCE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::activations::{blocks, named};
    use crate::analyse::attention::tests::model;
    use crate::testing::{random, stirred};

    #[test]
    fn gradients_of_maps_and_of_attention_are_differences() {
        for name in ["resnet-nano", "san-nano-pairwise", "sasa-nano", "non-local-resnet-nano"] {
            let (model, config) = model(name);
            let images = random([1, 3, 32, 32], 3);
            let found = ClassGradients::of(&model, images.clone(), 2, &[blocks(&config)]).unwrap();
            for layer in named(&found.trace, blocks(&config)) {
                let check = found.check::<4>(&layer, &model, images.clone(), 2).unwrap();
                assert!(check.holds(), "{name} {layer}: {check}");
            }
        }
        let (model, _) = model("vit-nano");
        let (model, images) = (stirred(model), random([1, 3, 32, 32], 3));
        let names = ["blocks.*", "blocks.*.attn.weights"];
        let found = ClassGradients::of(&model, images.clone(), 2, &names).unwrap();
        for block in 0..5 {
            let check = found.check::<3>(&format!("blocks.{block}"), &model, images.clone(), 2).unwrap();
            assert!(check.holds(), "blocks.{block}: {check}");
            let weights = format!("blocks.{block}.attn.weights");
            let check = found.check::<4>(&weights, &model, images.clone(), 2).unwrap();
            assert!(check.holds(), "{weights}: {check}");
        }
    }

    #[test]
    fn watching_changes_no_logit_and_norms_use_what_they_learned() {
        let (model, _) = model("resnet-nano");
        let images = random([2, 3, 32, 32], 3);
        let plain = model.forward(images.clone(), &mut Pass::silent());
        let found = ClassGradients::of(&model, images.clone(), 0, &["*.*"]).unwrap();
        crate::testing::assert_close(&found.logits, &plain, 1e-4);
        crate::testing::assert_close(&model.forward(images, &mut Pass::silent()), &plain, 0.0);
    }

    #[test]
    fn no_such_class_and_nothing_watched_are_errors() {
        let (model, _) = model("resnet-nano");
        let of = |class, name| {
            ClassGradients::of(&model, random([1, 3, 32, 32], 3), class, &[name]).unwrap_err().to_string()
        };
        assert!(of(10, "*.*").contains("there is no class 10"));
        assert!(of(0, "blocks.*").contains("blocks.*"));
    }
}
