//! The names of a module's tensors, and putting tensors under names into a module.
//!
//! A name is the dotted path of the fields, as PyTorch would have it: a batch norm's `gamma` and `beta` are called
//! `weight` and `bias`, and the variant of an enum has no part in it. A list whose field ends with `_` stands for
//! fields that are numbered from one: the elements of `layer_` are `layer1`, `layer2`.

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
    let mut reader = Reader::default();
    module.visit(&mut reader);
    reader.tensors
}

/// Those tensors of a module whose names are asked for; the others are not made.
pub(super) fn some_tensors(module: &impl Module, wanted: fn(&str) -> bool) -> Tensors {
    let mut reader = Reader { wanted: Some(wanted), ..Reader::default() };
    module.visit(&mut reader);
    reader.tensors
}

/// Name and shape of every tensor of a module, without making those that do not exist yet.
pub fn shapes(module: &impl Module) -> BTreeMap<String, Vec<usize>> {
    let mut reader = Reader { shapes_only: true, ..Reader::default() };
    module.visit(&mut reader);
    reader.shapes
}

/// Puts every tensor into its place.
///
/// A 1x1 convolution `[out, in, 1, 1]` fits a linear map `[out, in]`: axes of size 1 at the end do not count.
///
/// # Errors
/// When a tensor is missing, left over or of another shape: all of them are listed, and the module is given up.
pub fn fill<M: Module>(module: M, tensors: &Tensors) -> Result<M, Error> {
    put(module, tensors.clone())
}

/// The same without a copy: a model's tensors are most of the memory that loading touches.
pub(crate) fn put<M: Module>(module: M, tensors: Tensors) -> Result<M, Error> {
    let mut writer = Writer { path: Path::default(), tensors, problems: Vec::new() };
    let module = module.map(&mut writer);
    let Writer { tensors, mut problems, .. } = writer;
    for (name, tensor) in tensors {
        problems.push(format!("unexpected `{name}` {:?}", tensor.shape().to_vec()));
    }
    if problems.is_empty() { Ok(module) } else { Err(Error::weights(problems)) }
}

/// Reads what loading left in its file; `place` is the module's own path.
///
/// # Errors
/// When a tensor cannot be read; the error names it.
pub(crate) fn read_rest<M: Module>(module: M, place: &str) -> Result<M, Error> {
    let mut rest = Rest::default();
    if !place.is_empty() {
        rest.path.enter(place, "");
    }
    let module = module.map(&mut rest);
    if rest.problems.is_empty() { Ok(module) } else { Err(Error::weights(rest.problems)) }
}

/// Where a visitor is in a module.
#[derive(Default)]
pub(crate) struct Path {
    parts: Vec<String>,
    containers: Vec<String>,
}

impl Path {
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
                name.pop();
                name += &(index + 1).to_string();
            } else {
                let dot = if name.is_empty() { "" } else { "." };
                name = name + dot + part;
            }
        }
        name
    }
}

#[derive(Default)]
struct Reader {
    path: Path,
    shapes_only: bool,
    /// None is all.
    wanted: Option<fn(&str) -> bool>,
    tensors: Tensors,
    shapes: BTreeMap<String, Vec<usize>>,
}

impl ModuleVisitor for Reader {
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

struct Writer {
    path: Path,
    /// Those that have no place yet.
    tensors: Tensors,
    problems: Vec<String>,
}

impl ModuleMapper for Writer {
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
        // running statistics refuse the gradient again by themselves
        Param::initialized(param.id, if device.is_autodiff() { value.require_grad() } else { value })
    }
}

/// What is wrong with such a tensor.
pub(super) fn not_finite(name: &str) -> String {
    format!("`{name}` has values that are NaN or infinite")
}

#[derive(Default)]
struct Rest {
    path: Path,
    problems: Vec<String>,
}

impl ModuleMapper for Rest {
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
        // nobody else has the tensor, so that nothing is copied here
        let data = tensor.into_data();
        #[allow(clippy::default_trait_access)] // Burn has no name for what tells how to read
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
        let mut path = Path::default();
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
