//! A forward pass on Burn's capture device: its operations, its constants, and its fused operators.

use burn::backend::{DispatchTensor, DispatchTensorKind, TensorMetadata};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_ir::{OperationIr, TensorId};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};

use crate::Error;
use crate::fused::recorded::{self, Operator};
use crate::weights::ModulePath;

/// The device that captures take in turn: a process can make some thousands only. Who would have to wait makes another.
static SHARED: OnceLock<Mutex<Device>> = OnceLock::new();

/// What a forward pass did.
pub(super) struct Captured {
    pub operations: Vec<OperationIr>,
    pub input: TensorId,
    pub outputs: Vec<TensorId>,
    pub constants: BTreeMap<TensorId, TensorData>,
    /// Custom operations refer to them by index.
    pub operators: Vec<Arc<dyn Operator>>,
    /// The paths of parameters.
    pub names: HashMap<TensorId, String>,
}

/// Runs `forward` once without computing anything.
pub(super) fn capture<M: Module, const D: usize>(
    model: &M,
    shape: [usize; D],
    forward: impl FnOnce(&M, Tensor<D>) -> Vec<DispatchTensor>,
) -> Result<Captured, Error> {
    // parameters that were not read yet are drawn here, so that the copy has the same
    model.visit(&mut Reader);
    let shared = SHARED.get_or_init(|| Mutex::new(Device::capture())).try_lock();
    let device = shared.as_deref().map_or_else(|_| Device::capture(), Device::clone);
    let mut found = None;
    let captured = device.capture_scope(|scope| {
        let model = model.clone().to_device(&device);
        let mut names = Names::default();
        model.visit(&mut names);
        let input = Tensor::<D>::from_data(TensorData::zeros::<f32, _>(shape), &device);
        let id = tensor_id(&input.clone().into_dispatch());
        let (outputs, operators) = recorded::recording(|| forward(&model, input));
        let ids: Vec<TensorId> = outputs.iter().filter_map(tensor_id).collect();
        let completed = scope.complete(id, ids.iter().copied());
        found = Some((names.found, operators));
        completed
    });
    let captured = captured.map_err(|error| Error::plan("forward pass", error.to_string()))?;
    let (names, operators) = found.expect("the scope ran");
    let [input] = captured.graph.inputs[..] else {
        return Err(Error::plan("forward pass", "has no single input"));
    };
    let mut constants = captured.values;
    constants.remove(&input);
    let (operations, outputs) = (captured.graph.operations, captured.graph.outputs);
    Ok(Captured { operations, input, outputs, constants, operators, names })
}

/// The id of a captured tensor.
fn tensor_id(tensor: &DispatchTensor) -> Option<TensorId> {
    match &tensor.kind {
        DispatchTensorKind::Capture(tensor) if tensor.dtype() == DType::F32 => Some(tensor.as_float().id()),
        _ => None,
    }
}

/// Reads every parameter.
struct Reader;

impl ModuleVisitor for Reader {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        drop(param.val());
    }
}

#[derive(Default)]
struct Names {
    path: ModulePath,
    found: HashMap<TensorId, String>,
}

impl ModuleVisitor for Names {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.leave();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(id) = tensor_id(&param.val().into_dispatch()) {
            self.found.insert(id, self.path.name());
        }
    }
}
