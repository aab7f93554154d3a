//! Fused operators in a captured graph: each becomes one custom operation, and the kernel itself is kept beside the
//! graph, so that a plan runs the very object that the forward pass made.

use burn::backend::{BackendTensor, Capture, DispatchTensor, DispatchTensorKind};
use burn::tensor::DType;
use burn_ir::{CustomOpIr, OperationIr, ScalarIr, TensorIr};
use burn_router::{RouterClient, RouterTensor};
use std::any::{Any, type_name};
use std::cell::RefCell;
use std::fmt::Debug;
use std::sync::Arc;

use super::Kernel;

/// A kernel of any number of inputs.
pub(crate) trait Operator: Debug + Send + Sync {
    /// Its name in a graph.
    fn name(&self) -> String;

    /// The output.
    fn infer(&self, inputs: &[&[f32]]) -> Vec<f32>;

    /// Multiply-adds of its products for inputs of these lengths; none if they are not counted.
    fn multiply_adds(&self, lengths: &[usize]) -> Option<u64>;

    /// The kernel, for passes that know its type.
    fn kernel(&self) -> &dyn Any;
}

/// A kernel of `N` inputs.
#[derive(Debug)]
struct Of<const N: usize, K>(K);

impl<const N: usize, K: Kernel<N>> Operator for Of<N, K> {
    fn name(&self) -> String {
        short_name(type_name::<K>())
    }

    fn infer(&self, inputs: &[&[f32]]) -> Vec<f32> {
        self.0.infer(inputs.try_into().expect("as many inputs as were recorded"))
    }

    fn multiply_adds(&self, lengths: &[usize]) -> Option<u64> {
        self.0.multiply_adds(lengths.try_into().expect("as many inputs as were recorded"))
    }

    fn kernel(&self) -> &dyn Any {
        &self.0
    }
}

/// `LayerNorm` is `layer-norm`, and `local::Fused` is `local`.
fn short_name(path: &str) -> String {
    let mut parts = path.rsplit("::");
    let last = parts.next().unwrap_or(path);
    let name = if last == "Fused" { parts.next().unwrap_or(last) } else { last };
    let mut short = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !short.is_empty() {
            short.push('-');
        }
        short.extend(letter.to_lowercase());
    }
    short.replace('_', "-")
}

thread_local! {
    /// The operators of the forward pass that this thread captures.
    static OPERATORS: RefCell<Option<Vec<Arc<dyn Operator>>>> = const { RefCell::new(None) };
}

/// Stops recording, also when the forward pass panics.
struct Stop;

impl Drop for Stop {
    fn drop(&mut self) {
        OPERATORS.take();
    }
}

/// Runs a forward pass on the capture device and returns the fused operators in it, in their order.
pub(crate) fn recording<T>(run: impl FnOnce() -> T) -> (T, Vec<Arc<dyn Operator>>) {
    OPERATORS.set(Some(Vec::new()));
    let stop = Stop;
    let result = run();
    let operators = OPERATORS.take().unwrap_or_default();
    drop(stop);
    (result, operators)
}

pub(super) fn is_recording() -> bool {
    OPERATORS.with_borrow(Option::is_some)
}

/// Adds a custom operation to the graph, whose only scalar is the index of its operator.
pub(super) fn record<const N: usize>(
    kernel: impl Kernel<N>,
    inputs: [DispatchTensor; N],
    shape: Vec<usize>,
) -> DispatchTensorKind {
    let operator = Of(kernel);
    let id = operator.name();
    let inputs = inputs.map(|input| match input.kind {
        DispatchTensorKind::Capture(tensor) => tensor.float(),
        other => panic!("{id}: a captured operator needs tensors of the capture device, got one on another: {other:?}"),
    });
    let client = inputs[0].client.clone();
    let index = OPERATORS.with_borrow_mut(|operators| {
        let operators = operators.as_mut().expect("a captured forward pass is recorded: `runs_on` asks");
        operators.push(Arc::new(operator));
        operators.len() - 1
    });
    let out = TensorIr::uninit(client.create_empty_handle(), shape.into(), DType::F32);
    let inputs = inputs.map(RouterTensor::into_ir).to_vec();
    let custom = CustomOpIr { id, inputs, outputs: vec![out], scalars: vec![ScalarIr::UInt(index as u64)] };
    let out = client.register(OperationIr::Custom(custom)).swap_remove(0);
    DispatchTensorKind::Capture(BackendTensor::<Capture>::Float(out))
}

#[cfg(test)]
mod tests {
    use super::short_name;

    #[test]
    fn names_are_those_of_the_operators() {
        assert_eq!(short_name("regard::function::LayerNorm"), "layer-norm");
        assert_eq!(short_name("regard::attention::dot_product::Fused"), "dot-product");
        assert_eq!(short_name("regard_kernels::convolution3d::Convolution3d"), "convolution3d");
    }
}
