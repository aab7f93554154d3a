//! One forward pass: what to record, and what was recorded.
//!
//! Fused kernels never form the attention weights, so a hook could not see them. Every operator
//! therefore takes a [`Pass`]. If the pass records nothing, the operator runs its fused kernel. If it records,
//! the operator forms the weights and records them under the dotted path of the layer's parameters, such as
//! `blocks.3.attn.weights`.

mod depth;
mod dropout;
mod geometry;

use burn::backend::{DispatchTensor, TensorMetadata};
use burn::tensor::{Gradients, Tensor, TensorData};
use std::fmt::Display;

use crate::Error;
pub use depth::StochasticDepth;
pub use dropout::DropoutKey;
pub use geometry::{Axes, Geometry, Reach, WEIGHTS};

/// The state of one forward pass through a model.
#[derive(Debug, Default)]
pub struct Pass {
    path: Vec<String>,
    recording: Recording,
    /// Whether all attention weights are recorded, in addition to `recording`.
    attention: bool,
    /// How the tokens of this part of the model are laid out: queries and keys.
    axes: Option<[Axes; 2]>,
    trace: Trace,
    depth: Option<depth::Depth>,
    dropout: Option<dropout::Dropout>,
    probe: Probe,
    recomputing: bool,
}

/// Where a pass is in its random numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Randomness {
    depth: Option<depth::Depth>,
    dropout: Option<dropout::Dropout>,
}

#[derive(Debug, Default)]
enum Recording {
    #[default]
    Nothing,
    Everything,
    Names(Vec<String>),
}

/// What is added to watched tensors.
#[derive(Debug, Default)]
enum Probe {
    #[default]
    None,
    /// Zeros that require a gradient: it is the gradient of the tensor.
    Gradients,
    /// A tensor, added to the one with this name.
    Perturbation(String, Box<DispatchTensor>),
}

impl Pass {
    /// A pass that records nothing: every operator runs its fused path.
    #[must_use]
    pub fn silent() -> Self {
        Self::default()
    }

    /// A pass that records everything that operators and layers offer.
    #[must_use]
    pub fn recording() -> Self {
        Self { recording: Recording::Everything, ..Self::default() }
    }

    /// A pass that records these full names only, such as `blocks.3.attn.weights`; `*` stands for any one part.
    #[must_use]
    pub fn recording_only<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        let names = names.into_iter().map(Into::into).collect();
        Self { recording: Recording::Names(names), ..Self::default() }
    }

    /// A pass that records all attention weights and these full names.
    #[must_use]
    pub fn recording_attention<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Self {
        Self { attention: true, ..Self::recording_only(names) }
    }

    /// Also keeps the gradients of watched tensors: read them with [`Trace::gradient`] after the backward pass.
    #[must_use]
    pub fn with_gradients(self) -> Self {
        Self { probe: Probe::Gradients, ..self }
    }

    /// Adds a tensor to the watched tensor of this full name, for finite differences.
    #[must_use]
    pub fn perturbed<const D: usize>(self, name: impl Into<String>, by: Tensor<D>) -> Self {
        Self { probe: Probe::Perturbation(name.into(), Box::new(by.into_dispatch())), ..self }
    }

    /// Keeps only the inputs of a model's blocks for the backward pass, which computes the rest once more.
    #[must_use]
    pub fn recomputing(self) -> Self {
        Self { recomputing: true, ..self }
    }

    /// Whether blocks are computed once more in the backward pass: not those that are recorded.
    pub(crate) const fn recomputes(&self) -> bool {
        self.recomputing
            && !self.attention
            && matches!((&self.recording, &self.probe), (Recording::Nothing, Probe::None))
    }

    pub(crate) fn randomness(&self) -> Randomness {
        Randomness { depth: self.depth.clone(), dropout: self.dropout.clone() }
    }

    /// Goes on from where a pass was in its random numbers.
    pub(crate) fn rewind(&mut self, Randomness { depth, dropout }: Randomness) {
        (self.depth, self.dropout) = (depth, dropout);
    }

    /// Runs a part of the model; what it records is named below `part`.
    pub fn within<T>(&mut self, part: impl Display, run: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(part.to_string());
        let result = run(self);
        self.path.pop();
        result
    }

    /// Whether nothing is recorded and nothing is dropped at random: parts of a model may then run as one fused operation.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let unwatched = matches!((&self.recording, &self.probe), (Recording::Nothing, Probe::None));
        unwatched && self.dropout.is_none() && self.depth.as_ref().is_none_or(depth::Depth::is_idle)
    }

    /// Whether `name` is recorded at this point of the model.
    #[must_use]
    pub fn records(&self, name: &str) -> bool {
        if matches!(&self.probe, Probe::Perturbation(perturbed, _) if *perturbed == self.full_name(name)) {
            return true;
        }
        match &self.recording {
            Recording::Nothing => false,
            Recording::Everything => true,
            Recording::Names(names) => {
                let name = self.full_name(name);
                names.iter().any(|pattern| matches(pattern, &name))
            }
        }
    }

    /// Records a tensor, if the pass records this name; otherwise it costs nothing.
    pub fn record<const D: usize>(&mut self, name: &str, tensor: &Tensor<D>) {
        if self.records(name) {
            self.trace.entries.push((self.full_name(name), tensor.clone().into_dispatch()));
        }
    }

    /// Records a tensor and returns what the model continues with: the same values, tracked if the pass keeps
    /// [gradients](Self::with_gradients), or changed if it is [perturbed](Self::perturbed).
    #[must_use]
    pub fn watch<const D: usize>(&mut self, name: &str, tensor: Tensor<D>) -> Tensor<D> {
        if !self.records(name) {
            return tensor;
        }
        self.watch_as(self.full_name(name), tensor)
    }

    fn watch_as<const D: usize>(&mut self, full: String, tensor: Tensor<D>) -> Tensor<D> {
        let tensor = match &self.probe {
            // Burn keeps only the gradients of leaves; a sum passes its gradient to a leaf unchanged
            Probe::Gradients => {
                let tensor = tensor.autodiff();
                let leaf = tensor.zeros_like().detach().require_grad();
                self.trace.leaves.push((full.clone(), leaf.clone().into_dispatch()));
                tensor + leaf
            }
            Probe::Perturbation(name, by) if *name == full => tensor + Tensor::from_dispatch((**by).clone()),
            Probe::None | Probe::Perturbation(..) => tensor,
        };
        self.trace.entries.push((full, tensor.clone().into_dispatch()));
        tensor
    }

    /// What was recorded, in the order of the forward pass.
    #[must_use]
    pub fn into_trace(self) -> Trace {
        self.trace
    }

    fn full_name(&self, name: &str) -> String {
        let mut full = self.path.join(".");
        if !full.is_empty() {
            full.push('.');
        }
        full + name
    }
}

/// Whether a dotted name matches a pattern, in which `*` stands for any one part.
#[must_use]
pub fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.split('.'), name.split('.'));
    loop {
        match (pattern.next(), name.next()) {
            (None, None) => return true,
            (Some(wanted), Some(part)) if wanted == "*" || wanted == part => {}
            _ => return false,
        }
    }
}

/// The tensors that a forward pass recorded, by dotted name.
#[derive(Debug, Default)]
pub struct Trace {
    entries: Vec<(String, DispatchTensor)>,
    /// The zeros added to watched tensors; their gradients are those of the tensors.
    leaves: Vec<(String, DispatchTensor)>,
    /// The geometry of recorded attention weights.
    geometries: Vec<(String, Geometry)>,
}

impl Trace {
    /// Every recorded name, in the order of the forward pass.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(name, _)| name.as_str())
    }

    /// The tensor recorded under `name`.
    ///
    /// # Errors
    /// When no tensor of that name and rank was recorded; the error lists those that were.
    pub fn get<const D: usize>(&self, name: &str) -> Result<Tensor<D>, Error> {
        found(&self.entries, name)
            .ok_or_else(|| Error::NotRecorded { name: format!("{name} of rank {D}"), known: self.to_string() })
    }

    /// The gradient of the tensor watched under `name`, from a pass [with gradients](Pass::with_gradients).
    ///
    /// # Errors
    /// When nothing of that name and rank was watched, or the gradient did not reach it.
    pub fn gradient<const D: usize>(&self, name: &str, gradients: &Gradients) -> Result<Tensor<D>, Error> {
        found::<D>(&self.leaves, name).and_then(|leaf| leaf.grad(gradients)).ok_or_else(|| Error::NotRecorded {
            name: format!("the gradient of {name} of rank {D}"),
            known: self.to_string(),
        })
    }

    /// The geometry of the attention weights recorded under `name`; none for other tensors.
    #[must_use]
    pub fn geometry(&self, name: &str) -> Option<&Geometry> {
        self.geometries.iter().find(|(known, _)| known == name).map(|(_, geometry)| geometry)
    }

    /// Names and geometries of all recorded attention weights, in the order of the forward pass.
    pub fn attention(&self) -> impl Iterator<Item = (&str, &Geometry)> {
        self.geometries.iter().map(|(name, geometry)| (name.as_str(), geometry))
    }

    /// The shape of every recorded tensor with its name, in the order of the forward pass.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, Vec<usize>)> {
        self.entries.iter().map(|(name, tensor)| (name.as_str(), tensor.shape().to_vec()))
    }
}

fn found<const D: usize>(entries: &[(String, DispatchTensor)], name: &str) -> Option<Tensor<D>> {
    let fits = |(known, tensor): &&(String, DispatchTensor)| known == name && tensor.shape().num_dims() == D;
    entries.iter().find(fits).map(|(_, tensor)| Tensor::from_dispatch(tensor.clone()))
}

impl Trace {
    /// Everything that was recorded, as plain data.
    #[must_use]
    pub fn into_data(self) -> Vec<(String, TensorData)> {
        let data = |tensor: DispatchTensor| match tensor.shape().num_dims() {
            1 => Tensor::<1>::from_dispatch(tensor).into_data(),
            2 => Tensor::<2>::from_dispatch(tensor).into_data(),
            3 => Tensor::<3>::from_dispatch(tensor).into_data(),
            4 => Tensor::<4>::from_dispatch(tensor).into_data(),
            5 => Tensor::<5>::from_dispatch(tensor).into_data(),
            _ => Tensor::<6>::from_dispatch(tensor).into_data(),
        };
        self.entries.into_iter().map(|(name, tensor)| (name, data(tensor))).collect()
    }
}

impl Display for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (name, tensor)) in self.entries.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{name} {:?}", tensor.shape().to_vec())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;

    fn run(mut pass: Pass) -> Trace {
        let tensor = Tensor::<1>::ones([2], &device::cpu());
        pass.within("blocks.3", |pass| pass.within("attn", |pass| pass.record("weights", &tensor)));
        pass.record("logits", &tensor);
        pass.into_trace()
    }

    #[test]
    fn names_are_the_path_of_the_part() {
        assert_eq!(run(Pass::recording()).names().collect::<Vec<_>>(), ["blocks.3.attn.weights", "logits"]);
    }

    #[test]
    fn a_silent_pass_records_nothing() {
        assert_eq!(run(Pass::silent()).names().count(), 0);
    }

    #[test]
    fn a_pass_that_drops_anything_at_random_or_records_is_not_plain() {
        let depth = |rate| Pass::with_stochastic_depth(StochasticDepth { rate, uniform: true, seed: 1, step: 1 });
        assert!(Pass::silent().is_plain() && depth(0.0).is_plain());
        assert!(!depth(0.1).is_plain());
        assert!(!Pass::with_dropout(DropoutKey { seed: 1, step: 1 }).is_plain(), "dropout was once ignored");
        assert!(!Pass::recording().is_plain() && !Pass::recording_attention(["x"]).is_plain());
        assert!(!Pass::silent().with_gradients().is_plain());
    }

    #[test]
    fn only_the_asked_names_are_recorded() {
        assert_eq!(run(Pass::recording_only(["logits"])).names().collect::<Vec<_>>(), ["logits"]);
    }

    #[test]
    fn a_star_stands_for_one_part_of_a_name() {
        assert_eq!(run(Pass::recording_only(["blocks.*.attn.weights"])).names().count(), 1);
        assert_eq!(run(Pass::recording_only(["*.weights"])).names().count(), 0);
        assert!(matches("a.*", "a.b") && !matches("a.*", "a") && !matches("a.*", "a.b.c"));
    }

    /// `logits = (2x)^2` with `2x` watched as `twice`.
    fn squares(mut pass: Pass) -> (Tensor<1>, Trace) {
        let x = Tensor::<1>::from_data([1.0, 3.0], &device::cpu());
        let twice = pass.within("layer", |pass| pass.watch("twice", x * 2.0));
        (twice.clone() * twice, pass.into_trace())
    }

    #[test]
    fn the_gradient_of_what_is_watched_can_be_read() {
        let (out, trace) = squares(Pass::recording().with_gradients());
        let gradient = trace.gradient::<1>("layer.twice", &out.sum().backward()).unwrap();
        assert_eq!(gradient.into_data().iter::<f32>().collect::<Vec<_>>(), [4.0, 12.0]);
        let (out, trace) = squares(Pass::recording_only(["layer.twice"]).with_gradients());
        assert!(trace.gradient::<2>("layer.twice", &out.sum().backward()).is_err());
    }

    #[test]
    fn a_perturbation_changes_what_follows_and_watching_alone_changes_nothing() {
        let values = |pass: Pass| squares(pass).0.into_data().iter::<f32>().collect::<Vec<_>>();
        let by = || Tensor::<1>::from_data([1.0, 0.0], &device::cpu());
        assert_eq!(values(Pass::silent()), [4.0, 36.0]);
        assert_eq!(values(Pass::recording()), [4.0, 36.0]);
        assert_eq!(values(Pass::silent().perturbed("layer.twice", by())), [9.0, 36.0]);
        assert_eq!(values(Pass::silent().perturbed("layer.other", by())), [4.0, 36.0]);
    }

    #[test]
    fn what_was_recorded_comes_out_as_data() {
        let data = run(Pass::recording()).into_data();
        assert_eq!(data[0].1.shape().to_vec(), [2]);
        assert_eq!(data[1].0, "logits");
    }

    #[test]
    fn a_missing_name_is_an_error_that_lists_what_there_is() {
        let error = run(Pass::recording()).get::<2>("attention").unwrap_err().to_string();
        assert!(error.contains("`attention of rank 2`") && error.contains("blocks.3.attn.weights [2]"), "{error}");
    }
}
