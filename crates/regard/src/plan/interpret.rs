//! Operations without a form of their own: Burn's interpreter runs them on its CPU backend, and folds constants.

use burn::backend::Flex;
use burn::backend::flex::FlexDevice;
use burn::tensor::TensorData;
use burn_ir::{HandleKind, OperationIr, TensorIr, TensorStatus};
use burn_router::TensorInterpreter;

use crate::Error;

/// The name of an operation: `burn.MaxDim`.
pub(super) fn name(operation: &OperationIr) -> String {
    // NumericFloat(F32, MaxDim(ReduceDimOpIr { .. }))
    let text = format!("{operation:?}");
    let inner = text.split_once('(').map_or("", |(_, inner)| inner);
    let inner = inner.split(['(', ' ']).find(|word| !word.ends_with(',')).unwrap_or(inner);
    format!("burn.{inner}")
}

/// Whether the interpreter computes an operation, the same each time.
pub(super) fn check(operation: &OperationIr) -> Result<(), Error> {
    let reason = match operation {
        OperationIr::Custom(custom) => {
            return Err(Error::plan(&custom.id, "a custom operation without its kernel"));
        }
        OperationIr::Distributed(_) => "spans several processes",
        OperationIr::Init(_) | OperationIr::Drop(_) => "is no computation",
        OperationIr::Float(_, burn_ir::FloatOperationIr::Random(_))
        | OperationIr::NumericInt(_, burn_ir::NumericOperationIr::IntRandom(_)) => "is another one each time",
        _ => return Ok(()),
    };
    Err(Error::plan(name(operation), reason))
}

/// The outputs of an operation that [`check`] took.
pub(super) fn run(operation: &OperationIr, inputs: Vec<TensorData>) -> Vec<TensorData> {
    let mut interpreter = TensorInterpreter::<Flex>::new(FlexDevice);
    for (tensor, data) in operation.inputs().zip(inputs) {
        interpreter.register_tensor_data_id(tensor.id, data);
    }
    interpreter.register_op(operation.clone());
    let outputs = operation.outputs().map(|out| TensorIr { status: TensorStatus::ReadWrite, ..out.clone() });
    let outputs: Vec<TensorIr> = outputs.collect();
    let read = |out: &TensorIr, interpreter: &mut TensorInterpreter<Flex>| match interpreter.get_tensor_handle(out) {
        HandleKind::Float(tensor) | HandleKind::Int(tensor) | HandleKind::Bool(tensor) => tensor.into_data(),
        HandleKind::Quantized(_) => panic!("plan: {} gives a quantised tensor", name(operation)),
    };
    outputs.iter().map(|out| read(out, &mut interpreter)).collect()
}
