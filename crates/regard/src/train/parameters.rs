//! The parameters of a model as one flat array.
//!
//! Summing over processes, accumulating, clipping, optimising, averaging over time and saving are then loops over arrays
//! of the same length, on every device.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Gradients, Tensor, TensorData};
use std::ops::Range;

use crate::Error;
use crate::weights::{ModulePath, Tensors};

/// The position of every tensor of a model: parameters in one array, running statistics in another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterLayout {
    pub parameters: Vec<Slot>,
    pub statistics: Vec<Slot>,
}

/// The position of one tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slot {
    pub name: String,
    pub shape: Vec<usize>,
    pub range: Range<usize>,
}

impl ParameterLayout {
    /// The layout of a model, in the order of its fields.
    pub fn of(model: &impl Module) -> Self {
        let mut finder =
            LayoutVisitor { path: ModulePath::default(), layout: Self { parameters: vec![], statistics: vec![] } };
        model.visit(&mut finder);
        finder.layout
    }

    /// Adds the gradients of a model's parameters; parameters without a gradient are skipped.
    pub fn add_gradients(&self, model: &impl Module, gradients: &Gradients, sums: &mut [f32]) {
        let slots = self.parameters.iter();
        model.visit(&mut GradientAdder { path: ModulePath::default(), slots, gradients, sums });
    }
}

/// Parameters and running statistics of a model.
pub fn values(model: &impl Module) -> [Vec<f32>; 2] {
    let mut reader = ValueReader { path: ModulePath::default(), values: [Vec::new(), Vec::new()], parameters: true };
    model.visit(&mut reader);
    reader.values
}

/// Running statistics of a model.
pub fn statistics(model: &impl Module) -> Vec<f32> {
    let mut reader = ValueReader { path: ModulePath::default(), values: [Vec::new(), Vec::new()], parameters: false };
    model.visit(&mut reader);
    let [_, statistics] = reader.values;
    statistics
}

/// The model with new parameters and statistics; parameters that are not `trained` require no gradient.
pub fn write<M: Module>(model: M, values: [&[f32]; 2], trained: &dyn Fn(&str) -> bool) -> M {
    model.map(&mut ValueWriter { path: ModulePath::default(), values, trained })
}

/// Values by name, with a prefix.
pub fn named(slots: &[Slot], prefix: &str, values: &[f32]) -> Tensors {
    let data = |slot: &Slot| TensorData::new(values[slot.range.clone()].to_vec(), slot.shape.clone());
    slots.iter().map(|slot| (format!("{prefix}{}", slot.name), data(slot))).collect()
}

/// The reverse of [`named`].
///
/// # Errors
/// When tensors are missing or of the wrong shape; all are listed.
pub fn collect(slots: &[Slot], prefix: &str, tensors: &Tensors) -> Result<Vec<f32>, Error> {
    let (mut values, mut problems) = (Vec::with_capacity(length(slots)), Vec::new());
    for Slot { name, shape, .. } in slots {
        match tensors.get(&format!("{prefix}{name}")) {
            None => problems.push(format!("missing `{prefix}{name}` {shape:?}")),
            Some(tensor) if tensor.shape().to_vec() != *shape => {
                problems.push(format!("`{prefix}{name}` is {:?}, the model needs {shape:?}", tensor.shape().to_vec()));
            }
            Some(tensor) => values.extend(tensor.iter::<f32>()),
        }
    }
    if problems.is_empty() { Ok(values) } else { Err(Error::weights(problems)) }
}

/// The length of the array of these slots.
pub fn length(slots: &[Slot]) -> usize {
    slots.last().map_or(0, |slot| slot.range.end)
}

/// Implements the tracking of names in a visitor or mapper.
macro_rules! follow {
    () => {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.leave();
        }
    };
}

struct LayoutVisitor {
    path: ModulePath,
    layout: ParameterLayout,
}

impl ModuleVisitor for LayoutVisitor {
    follow!();
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.name();
        let ParameterLayout { parameters, statistics } = &mut self.layout;
        let slots = if self.path.is_statistic() { statistics } else { parameters };
        let (start, shape) = (length(slots), param.lazy_shape().to_vec());
        let range = start..start + shape.iter().product::<usize>();
        slots.push(Slot { name, shape, range });
    }
}

struct ValueReader {
    path: ModulePath,
    values: [Vec<f32>; 2],
    /// Whether to read parameters too.
    parameters: bool,
}

impl ModuleVisitor for ValueReader {
    follow!();
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let statistic = self.path.is_statistic();
        if statistic || self.parameters {
            self.values[usize::from(statistic)].extend(param.val().into_data().iter::<f32>());
        }
    }
}

struct GradientAdder<'a> {
    path: ModulePath,
    slots: std::slice::Iter<'a, Slot>,
    gradients: &'a Gradients,
    sums: &'a mut [f32],
}

impl ModuleVisitor for GradientAdder<'_> {
    follow!();
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.path.is_statistic() {
            return;
        }
        let slot = self.slots.next().expect("the layout is of this model");
        if let Some(gradient) = param.val().grad(self.gradients) {
            let data = gradient.into_data();
            let sums = &mut self.sums[slot.range.clone()];
            match data.as_slice::<f32>() {
                Ok(gradient) => sums.iter_mut().zip(gradient).for_each(|(sum, gradient)| *sum += gradient),
                Err(_) => sums.iter_mut().zip(data.iter::<f32>()).for_each(|(sum, gradient)| *sum += gradient),
            }
        }
    }
}

struct ValueWriter<'a> {
    path: ModulePath,
    values: [&'a [f32]; 2],
    trained: &'a dyn Fn(&str) -> bool,
}

impl ModuleMapper for ValueWriter<'_> {
    follow!();
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.name();
        let (device, shape) = (param.lazy_device(), param.lazy_shape());
        let is_statistic = self.path.is_statistic();
        let rest = &mut self.values[usize::from(is_statistic)];
        let values = rest.split_off(..shape.num_elements()).expect("the values have the layout's length");
        let value = Tensor::<D>::from_data(TensorData::new(values.to_vec(), shape), &device);
        let wants_gradient = device.is_autodiff() && !is_statistic && (self.trained)(&name);
        Param::initialized(param.id, if wants_gradient { value.require_grad() } else { value })
    }
}

/// How an optimiser treats a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Factor of the learning rate; 0 for frozen.
    pub rate: f64,
    /// Factor of the weight decay.
    pub decay: f64,
}

/// Learning rates and weight decay for parts of a model.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Groups {
    /// Frozen parts, such as `patch_embed` or `blocks.*.attn`.
    pub freeze: Vec<String>,
    /// Parts without weight decay, in addition to all tensors of rank 1.
    pub no_decay: Vec<String>,
    /// Layer-wise decay: the rate of a block is this factor times that of the next.
    pub layer_decay: f64,
    /// The rate of a detector's trunk, or of everything except a classifier's head, as a factor of the rest's.
    pub backbone_rate: f64,
}

impl Default for Groups {
    fn default() -> Self {
        Self { freeze: vec![], no_decay: vec![], layer_decay: 1.0, backbone_rate: 1.0 }
    }
}

impl Groups {
    /// # Errors
    /// When a rate is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        for (field, rate) in [("groups.layer-decay", self.layer_decay), ("groups.backbone-rate", self.backbone_rate)] {
            if !(rate.is_finite() && rate >= 0.0) {
                return Err(Error::config(field, format!("must be at least 0, got {rate}")));
            }
        }
        Ok(())
    }

    /// The group of every parameter of a model.
    ///
    /// # Errors
    /// When the model does not have a named part, or everything is frozen.
    pub fn of(&self, slots: &[Slot]) -> Result<Vec<Group>, Error> {
        for (field, parts) in [("freeze", &self.freeze), ("no-decay", &self.no_decay)] {
            if let Some(part) = parts.iter().find(|part| !slots.iter().any(|slot| is_within(&slot.name, part))) {
                let field = format!("groups.{field}");
                return Err(Error::Field { field, reason: format!("the model has no part `{part}`") });
            }
        }
        let is_in = |name: &str, parts: &[String]| parts.iter().any(|part| is_within(name, part));
        let (depths, depth) = depths(slots);
        let has_trunk = slots.iter().any(|slot| is_trunk(&slot.name));
        let group = |(slot, at): (&Slot, usize)| {
            let backbone = if is_backbone(&slot.name, has_trunk) { self.backbone_rate } else { 1.0 };
            let rate = backbone * self.layer_decay.powi((depth - at) as i32);
            let decays = slot.shape.len() > 1 && !is_in(&slot.name, &self.no_decay);
            Group { rate: if is_in(&slot.name, &self.freeze) { 0.0 } else { rate }, decay: f64::from(u8::from(decays)) }
        };
        let groups: Vec<Group> = slots.iter().zip(depths).map(group).collect();
        if groups.iter().all(|group| group.rate == 0.0) {
            return Err(Error::config("groups.freeze", "every parameter is frozen"));
        }
        Ok(groups)
    }
}

/// Whether a parameter belongs to the trunk of a detector.
fn is_trunk(name: &str) -> bool {
    name.starts_with("backbone.") && name.contains(".body.")
}

/// Whether a parameter belongs to the backbone: the trunk of a detector, everything except the head of a classifier.
fn is_backbone(name: &str, has_trunk: bool) -> bool {
    if has_trunk { is_trunk(name) } else { !crate::weights::is_head(name) }
}

/// Whether a parameter is this part or inside it; `*` stands for one part of a name.
fn is_within(name: &str, part: &str) -> bool {
    let count = part.split('.').count();
    let mut ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    ends.nth(count - 1).is_some_and(|end| crate::pass::matches(part, &name[..end]))
}

/// The depth of each parameter, and the largest: 0 before the first block, one more for each block, and for the head.
fn depths(slots: &[Slot]) -> (Vec<usize>, usize) {
    let mut blocks: Vec<&str> = Vec::new();
    let mut depths = Vec::new();
    for slot in slots {
        let at = match block(&slot.name) {
            Some(block) if blocks.last() == Some(&block) => blocks.len(),
            Some(block) => {
                blocks.push(block);
                blocks.len()
            }
            None => blocks.len(),
        };
        depths.push(at);
    }
    // everything after the last block is one deeper
    let last = slots.iter().rposition(|slot| block(&slot.name).is_some());
    if let Some(last) = last {
        depths[last + 1..].iter_mut().for_each(|depth| *depth += 1);
    }
    (depths, blocks.len() + 1)
}

/// `blocks.3`, `layer1.0` or `s1.b2` of a name.
fn block(name: &str) -> Option<&str> {
    let (first, rest) = name.split_once('.')?;
    let second = rest.split('.').next()?;
    let digits = second.trim_start_matches('b');
    let numbered = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    numbered.then(|| &name[..first.len() + 1 + second.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::preset;
    use crate::testing::random;
    use crate::{Pass, device};

    fn model(name: &str) -> crate::models::Model {
        preset(name).unwrap().config.init(&device::cpu().autodiff()).unwrap()
    }

    #[test]
    fn what_is_read_is_written_back_unchanged() {
        let model = model("resnet-nano");
        let layout = ParameterLayout::of(&model);
        let [parameters, statistics] = values(&model);
        assert_eq!(parameters.len(), length(&layout.parameters));
        let changed: Vec<f32> = parameters.iter().map(|value| value + 1.0).collect();
        let model = write(model, [&changed, &statistics], &|_| true);
        assert_eq!(values(&model), [changed, statistics]);
    }

    #[test]
    fn gradients_arrive_where_their_parameters_are_and_frozen_ones_have_none() {
        let model = model("vit-nano");
        let layout = ParameterLayout::of(&model);
        let [parameters, statistics] = values(&model);
        let model = write(model, [&parameters, &statistics], &|name| !name.starts_with("blocks.0."));
        let images = random([2, 3, 32, 32], 1).to_device(&device::cpu().autodiff());
        let gradients = model.forward(images, &mut Pass::silent()).sum().backward();
        let mut sums = vec![0.0; parameters.len()];
        layout.add_gradients(&model, &gradients, &mut sums);
        for slot in &layout.parameters {
            let there = sums[slot.range.clone()].iter().any(|gradient| *gradient != 0.0);
            assert_eq!(there, !slot.name.starts_with("blocks.0."), "{}", slot.name);
        }
    }

    fn groups_of(name: &str, groups: &Groups) -> Vec<(String, Group)> {
        let layout = ParameterLayout::of(&model(name));
        let found = groups.of(&layout.parameters).unwrap();
        layout.parameters.into_iter().map(|slot| slot.name).zip(found).collect()
    }

    #[test]
    fn biases_and_norms_do_not_decay_and_deeper_layers_learn_faster() {
        let groups = Groups { layer_decay: 0.5, ..Groups::default() };
        for (name, group) in groups_of("vit-nano", &groups) {
            let expected = match name.split('.').collect::<Vec<_>>()[..] {
                ["blocks", number, ..] => 0.5f64.powi(5 - number.parse::<i32>().unwrap()),
                ["norm" | "head", ..] => 1.0,
                _ => 0.5f64.powi(6),
            };
            assert_eq!(group.rate, expected, "{name}");
            let flat = name.ends_with("bias") || name.contains("norm");
            assert_eq!(group.decay, if flat { 0.0 } else { 1.0 }, "{name}");
        }
    }

    #[test]
    fn the_blocks_of_a_residual_network_are_layers_too() {
        let groups = Groups { layer_decay: 0.5, backbone_rate: 0.1, ..Groups::default() };
        let found = groups_of("resnet-nano", &groups);
        let rate = |name: &str| found.iter().find(|(known, _)| known == name).unwrap().1.rate;
        assert!(rate("layer1.0.conv1.weight") < rate("layer2.0.conv1.weight"));
        assert_eq!(rate("fc.weight"), 1.0);
    }

    #[test]
    fn a_part_that_is_not_there_is_named_and_something_must_learn() {
        let layout = ParameterLayout::of(&model("vit-nano"));
        let freeze = |parts: &[&str]| {
            let groups = Groups { freeze: parts.iter().map(ToString::to_string).collect(), ..Groups::default() };
            groups.of(&layout.parameters)
        };
        assert!(freeze(&["block"]).unwrap_err().to_string().contains("no part `block`"));
        let frozen = freeze(&["blocks.*.attn"]).unwrap().iter().filter(|group| group.rate == 0.0).count();
        assert_eq!(frozen, 5 * 4);
        let everything = ["cls_token", "pos_embed", "patch_embed", "blocks", "norm", "head"];
        assert!(freeze(&everything).unwrap_err().to_string().contains("every parameter is frozen"));
    }
}
