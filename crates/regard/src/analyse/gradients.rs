//! Gradients of a logit with respect to intermediate tensors of a model.

use burn::module::Module as _;
use burn::tensor::{Gradients, Tensor};

use super::check::{Check, largest};
use crate::models::Model;
use crate::{Error, Pass, Trace};

/// A forward pass with its gradients.
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
    /// Runs a model and differentiates the logit of a class, summed over pictures, with respect to the tensors of these names.
    ///
    /// # Errors
    /// When there is no such class, or the model records nothing under these names.
    pub fn of(model: &Model, images: Tensor<4>, class: usize, names: &[&str]) -> Result<Self, Error> {
        Self::over(model, images, class, Pass::recording_only(names.iter().copied()))?.ok_or_else(|| {
            Error::analysis("gradients", format!("the model records nothing under {}", names.join(", ")))
        })
    }

    /// The same with respect to all attention weights.
    ///
    /// # Errors
    /// When there is no such class, or the model has no attention.
    pub fn of_attention(model: &Model, images: Tensor<4>, class: usize) -> Result<Self, Error> {
        let pass = Pass::recording_attention::<String>([]);
        Self::over(model, images, class, pass)?
            .ok_or_else(|| Error::analysis("gradients", "the model has no attention"))
    }

    /// `None` if the pass recorded nothing.
    fn over(model: &Model, images: Tensor<4>, class: usize, pass: Pass) -> Result<Option<Self>, Error> {
        let mut pass = pass.with_gradients();
        let logits = frozen(model).forward(images, &mut pass);
        let trace = pass.into_trace();
        if trace.names().next().is_none() {
            return Ok(None);
        }
        let gradients = of_class(logits.clone(), class)?.backward();
        Ok(Some(Self { logits: logits.inner(), trace, gradients }))
    }

    /// The gradient of the tensor of this name.
    ///
    /// # Errors
    /// When there is none, or it has another rank.
    pub fn by<const D: usize>(&self, name: &str) -> Result<Tensor<D>, Error> {
        self.trace.gradient(name, &self.gradients)
    }

    /// Checks a gradient by finite differences: the logit is followed along the gradient, and its
    /// slope should be the gradient's length.
    ///
    /// # Errors
    /// When there is no tensor of that name.
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
            let logits = model.forward(images.clone(), &mut Pass::silent().perturbed(name, by));
            Ok(of_class(logits, class)?.into_scalar::<f32>().into())
        };
        slopes(&gradient, moved)
    }
}

/// The model with norms that use their running statistics, although its inputs are differentiated.
pub(super) fn frozen(model: &Model) -> Model {
    model.clone().freeze()
}

pub(super) fn of_class(logits: Tensor<2>, class: usize) -> Result<Tensor<1>, Error> {
    let [_, classes] = logits.dims();
    if class >= classes {
        return Err(Error::analysis(
            "gradients",
            format!("the model has {classes} classes, there is no class {class}"),
        ));
    }
    Ok(logits.narrow(1, class, 1).sum())
}

/// Central differences of a function along its gradient, over the gradient's length: one when the gradient is right.
///
/// The step is halved until the slopes of two steps in a row agree within an eighth of the tolerance, at most six times;
/// of the pairs tried, the one that agrees best counts. The gradient takes no part in that choice, and the deviation
/// is the larger one of that pair.
pub(super) fn slopes<const D: usize>(
    gradient: &Tensor<D>,
    moved: impl Fn(Tensor<D>) -> Result<f64, Error>,
) -> Result<Check, Error> {
    const LAW: &str = "gradients are differences, by the two neighbouring step sizes that agree best";
    const TOLERANCE: f64 = 2e-2;
    let length = f64::from(gradient.clone().powi_scalar(2).sum().into_scalar::<f32>()).sqrt();
    if length == 0.0 {
        return Err(Error::analysis("gradients", "the gradient is zero everywhere: nothing depends on this layer"));
    }
    let slope = |change: f64| -> Result<f64, Error> {
        let by = gradient.clone().mul_scalar(change / (length * length));
        Ok((moved(by.clone())? - moved(by.neg())?) / (2.0 * change))
    };
    // the expected change of the function: far above rounding, small enough to be linear
    let first = 2e-3 * (moved(gradient.zeros_like())?.abs() + 1.0);
    let slopes = (0..=6).map(|halvings| slope(first / f64::from(1 << halvings)));
    Ok(Check::new(LAW, deviation(slopes, TOLERANCE / 8.0)?, TOLERANCE))
}

/// How far from one are the two neighbouring slopes that agree best, or the first two that agree well enough.
fn deviation(mut slopes: impl Iterator<Item = Result<f64, Error>>, enough: f64) -> Result<f64, Error> {
    let mut coarse = slopes.next().transpose()?.unwrap_or(f64::NAN);
    let (mut apart, mut found) = (f64::INFINITY, f64::NAN);
    for fine in slopes {
        let fine = fine?;
        if (coarse - fine).abs() < apart {
            apart = (coarse - fine).abs();
            found = largest((coarse - 1.0).abs(), (fine - 1.0).abs());
        }
        if apart <= enough {
            break;
        }
        coarse = fine;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::activations::named;
    use crate::analyse::attention::tests::model;
    use crate::testing::{random, stirred};

    #[test]
    fn gradients_of_maps_and_of_attention_are_differences() {
        for name in ["resnet-nano", "san-nano-pairwise", "sasa-nano", "non-local-resnet-nano"] {
            let (model, _) = model(name);
            let images = random([1, 3, 32, 32], 3);
            let blocks = model.inspect().blocks();
            let found = ClassGradients::of(&model, images.clone(), 2, &[blocks]).unwrap();
            for layer in named(&found.trace, blocks) {
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
    fn the_deviation_is_that_of_the_steps_that_agree_and_not_the_least_one() {
        let of = |slopes: &[f64]| deviation(slopes.iter().map(|slope| Ok(*slope)), 1e-3).unwrap();
        // one step gives one by chance; the others agree that the gradient is ten percent too small
        let deviation_of_a_wrong_gradient = of(&[1.3, 1.0, 1.12, 1.101, 1.1005, 1.1002]);
        assert!((deviation_of_a_wrong_gradient - 0.101).abs() < 1e-9, "{deviation_of_a_wrong_gradient}");
        assert!((of(&[1.2, 1.01, 1.002]) - 0.01).abs() < 1e-9);
        assert!(of(&[1.0]).is_nan() && of(&[f64::NAN, f64::NAN]).is_nan());
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
