//! The names of a module's tensors, and loading tensors by name into a module.
//!
//! A name is the dotted path of the fields, as in PyTorch: a batch norm's `gamma` and `beta` are `weight` and `bias`,
//! and the variant of an enum does not appear. The elements of a list whose field ends with `_` are numbered from one:
//! those of `layer_` are `layer1`, `layer2`. Where it ends with `__`, they are numbered from zero.

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};
use std::collections::BTreeMap;

use super::files::all_finite;
use super::lookalike::same_shape;
use crate::{Error, device};

/// Tensors by name.
pub type Tensors = BTreeMap<String, TensorData>;

/// Every tensor of a module: parameters and running statistics.
pub fn tensors(module: &impl Module) -> Tensors {
    let mut reader = TensorReader::default();
    module.visit(&mut reader);
    reader.tensors
}

/// The tensors of a module with wanted names; the others are not initialised.
pub(super) fn some_tensors(module: &impl Module, wanted: fn(&str) -> bool) -> Tensors {
    let mut reader = TensorReader { wanted: Some(wanted), ..TensorReader::default() };
    module.visit(&mut reader);
    reader.tensors
}

/// Name and shape of every tensor of a module, without initialising any.
pub fn shapes(module: &impl Module) -> BTreeMap<String, Vec<usize>> {
    let mut reader = TensorReader { shapes_only: true, ..TensorReader::default() };
    module.visit(&mut reader);
    reader.shapes
}

/// Loads tensors into a module.
///
/// A 1x1 convolution `[out, in, 1, 1]` fits a linear map `[out, in]`: trailing axes of size 1 are ignored.
///
/// # Errors
/// When tensors are missing, unexpected or of the wrong shape; all are listed.
pub fn fill<M: Module>(module: M, tensors: &Tensors) -> Result<M, Error> {
    fill_owned(module, tensors.clone())
}

/// [`fill`] without a copy of the tensors, which are most of the memory that loading uses.
pub(crate) fn fill_owned<M: Module>(module: M, tensors: Tensors) -> Result<M, Error> {
    let mut writer = TensorWriter { path: ModulePath::default(), tensors, problems: Vec::new() };
    let module = module.map(&mut writer);
    let TensorWriter { tensors, mut problems, .. } = writer;
    for (name, tensor) in tensors {
        problems.push(format!("unexpected `{name}` {:?}", tensor.shape().to_vec()));
    }
    if problems.is_empty() { Ok(module) } else { Err(Error::weights(problems)) }
}

/// Reads the tensors that loading left in the file; `place` is the module's path.
///
/// # Errors
/// When a tensor cannot be read; the error names it.
pub(crate) fn read_lazy_tensors<M: Module>(module: M, place: &str) -> Result<M, Error> {
    let mut rest = LazyTensorReader::default();
    if !place.is_empty() {
        rest.path.enter(place, "");
    }
    let module = module.map(&mut rest);
    if rest.problems.is_empty() { Ok(module) } else { Err(Error::weights(rest.problems)) }
}

/// The path of a visitor in a module.
#[derive(Default)]
pub(crate) struct ModulePath {
    parts: Vec<String>,
    containers: Vec<String>,
}

impl ModulePath {
    pub(crate) fn enter(&mut self, name: &str, container: &str) {
        self.parts.push(name.to_string());
        self.containers.push(container.to_string());
    }

    pub(crate) fn leave(&mut self) {
        self.parts.pop();
        self.containers.pop();
    }

    /// Whether the tensor here is a running statistic or another constant, which no optimiser moves.
    pub(crate) fn is_statistic(&self) -> bool {
        let is_running = |name: &String| name == "running_mean" || name == "running_var";
        let is_frozen = |container: &String| container.ends_with("FrozenBatchNorm");
        self.parts.last().is_some_and(is_running) || self.containers.last().is_some_and(is_frozen)
    }

    pub(crate) fn name(&self) -> String {
        let mut name = String::new();
        for (part, container) in self.parts.iter().zip(&self.containers) {
            let part = match (container.as_str(), part.as_str()) {
                (container, _) if container.starts_with("Enum:") => continue,
                (container, "gamma") if container.ends_with("BatchNorm") => "weight",
                (container, "beta") if container.ends_with("BatchNorm") => "bias",
                (_, part) => part,
            };
            if let (true, Ok(index)) = (name.ends_with('_'), part.parse::<usize>()) {
                let first = usize::from(!name.ends_with("__"));
                name.truncate(name.trim_end_matches('_').len());
                name += &(index + first).to_string();
            } else {
                let dot = if name.is_empty() { "" } else { "." };
                name = name + dot + part;
            }
        }
        name
    }
}

#[derive(Default)]
struct TensorReader {
    path: ModulePath,
    shapes_only: bool,
    /// All if none.
    wanted: Option<fn(&str) -> bool>,
    tensors: Tensors,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl ModuleVisitor for TensorReader {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.leave();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.name();
        if self.shapes_only {
            self.shapes.insert(name, param.lazy_shape().to_vec());
        } else if self.wanted.is_none_or(|wanted| wanted(&name)) {
            self.tensors.insert(name, param.val().into_data());
        }
    }
}

struct TensorWriter {
    path: ModulePath,
    /// Tensors not used yet.
    tensors: Tensors,
    problems: Vec<String>,
}

impl ModuleMapper for TensorWriter {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.leave();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let name = self.path.name();
        let wanted: Vec<usize> = param.lazy_shape().to_vec();
        let Some(tensor) = self.tensors.remove(&name) else {
            self.problems.push(format!("missing `{name}` {wanted:?}"));
            return param;
        };
        let shape = tensor.shape().to_vec();
        if !same_shape(&shape, &wanted) {
            self.problems.push(format!("`{name}` is {shape:?}, the model needs {wanted:?}"));
            return param;
        }
        let device = param.lazy_device();
        let (bytes, _, dtype) = tensor.into_parts();
        let value = Tensor::<D>::from_data(TensorData::from_bytes(bytes, wanted, dtype), &device);
        // running statistics drop the gradient themselves
        Param::initialized(param.id, if device.is_autodiff() { value.require_grad() } else { value })
    }
}

/// The message for a tensor with NaN or infinity.
pub(super) fn not_finite(name: &str) -> String {
    format!("`{name}` has values that are NaN or infinite")
}

#[derive(Default)]
struct LazyTensorReader {
    path: ModulePath,
    problems: Vec<String>,
}

impl ModuleMapper for LazyTensorReader {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.leave();
    }
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        let device = tensor.device();
        if device != device::cpu() {
            return Param::from_mapped_value(id, tensor, mapper);
        }
        // the tensor is not shared, so nothing is copied
        let data = tensor.into_data();
        #[allow(clippy::default_trait_access)] // Burn does not export this type
        if let Err(error) = data.bytes().read(Default::default()) {
            self.problems.push(format!("`{}`: {error}", self.path.name()));
        } else if data.as_slice().is_ok_and(|values| !all_finite(values)) {
            self.problems.push(not_finite(&self.path.name()));
        }
        Param::from_mapped_value(id, Tensor::from_data(data, &device), mapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{PairPosition, PairRelation};
    use crate::device;
    use crate::layers::{PairwiseUnit, SanRelation, SanUnit, SanUnitConfig, Sharing};

    fn unit() -> SanUnit {
        let relation = SanRelation::Pairwise { relation: PairRelation::Subtraction, position: PairPosition::None };
        let sharing = Sharing::AllDifferent;
        let config = SanUnitConfig {
            channels_in: 8,
            channels_out: 8,
            channels_relation: 2,
            share: 4,
            window: 3,
            relation,
            sharing,
        };
        config.init(&device::cpu()).unwrap()
    }

    fn inner(unit: SanUnit) -> PairwiseUnit {
        match unit {
            SanUnit::Pairwise(unit) => unit,
            SanUnit::Patchwise(_) => unreachable!(),
        }
    }

    #[test]
    fn names_are_paths_in_the_words_of_pytorch() {
        let names: Vec<String> = shapes(&unit()).into_keys().collect();
        assert!(names.contains(&"gamma.norm1.weight".to_string()), "{names:?}");
        assert!(names.contains(&"gamma.norm1.running_mean".to_string()), "{names:?}");
        assert!(names.contains(&"beta.weight".to_string()), "{names:?}");
    }

    #[test]
    fn a_list_with_an_underscore_is_numbered_from_one() {
        let mut path = ModulePath::default();
        for (part, container) in
            [("s_", "Struct:Net"), ("0", "Vec"), ("b_", "Struct:Stage"), ("11", "Vec"), ("2", "Vec")]
        {
            path.enter(part, container);
        }
        path.enter("gamma", "Struct:BatchNorm");
        assert_eq!(path.name(), "s1.b12.2.weight");
    }

    #[test]
    fn what_is_read_can_be_put_back_unchanged() {
        let before = tensors(&unit());
        let filled = fill(unit(), &before).unwrap();
        assert_eq!(tensors(&filled), before);
        assert_eq!(tensors(&inner(filled)), before, "the variant of an enum is not part of a name");
    }

    #[test]
    fn every_problem_is_listed_by_name_with_both_shapes() {
        let mut wrong = tensors(&unit());
        wrong.remove("beta.weight");
        wrong.insert("head.weight".into(), TensorData::new(vec![0f32; 6], [2, 3]));
        wrong.insert("phi.weight".into(), TensorData::new(vec![0f32; 6], [2, 3]));
        let error = fill(unit(), &wrong).unwrap_err();
        let Error::Weights { problems, .. } = &error else { panic!("{error}") };
        let error = problems.join("\n");
        for part in [
            "missing `beta.weight` [8, 8]",
            "unexpected `head.weight` [2, 3]",
            "`phi.weight` is [2, 3], the model needs [2, 8]",
        ] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_one_by_one_convolution_fits_a_linear_map() {
        let mut tensors = tensors(&unit());
        let (bytes, shape, dtype) = tensors["phi.weight"].clone().into_parts();
        let shape = [shape.to_vec(), vec![1, 1]].concat();
        tensors.insert("phi.weight".into(), TensorData::from_bytes(bytes, shape, dtype));
        assert!(fill(unit(), &tensors).is_ok());
    }
}
