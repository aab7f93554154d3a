//! The bridge between Burn and `regard-kernels`: a kernel on plain slices becomes one differentiable
//! operation of the CPU device, and one node of a captured graph ([`recorded`]). Other devices run the operator's plain
//! Burn path instead.
#![allow(clippy::match_wildcard_for_single_variants)] // which devices there are depends on cargo features

pub(crate) mod recorded;

use burn::backend::autodiff::{
    Autodiff,
    checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
    grads::Gradients,
    ops::{Backward, Ops, OpsKind},
};
use burn::backend::flex::FlexTensor;
use burn::backend::{
    BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, Flex, TensorMetadata,
    tensor::FloatTensor,
};
use burn::tensor::{DType, Tensor, TensorData};
use std::fmt::Debug;
use std::ops::Deref;
use std::sync::Arc;

pub(crate) type Tracked = FloatTensor<Autodiff<Flex>>;

/// A differentiable function of `N` contiguous f32 arrays.
pub(crate) trait Kernel<const N: usize>: Clone + Debug + Send + Sync + 'static {
    /// Whether the backward pass reads the output. If not, the output is not saved for it.
    const NEEDS_OUT: bool = false;

    /// The output, and what to save for the backward pass.
    fn forward(&self, inputs: [&[f32]; N]) -> (Vec<f32>, Vec<f32>);

    /// The output alone, for inference.
    fn infer(&self, inputs: [&[f32]; N]) -> Vec<f32> {
        self.forward(inputs).0
    }

    /// Multiply-adds of its products for inputs of these lengths; none if they are not counted.
    fn multiply_adds(&self, _lengths: [usize; N]) -> Option<u64> {
        None
    }

    /// One gradient for each input.
    fn backward(&self, inputs: [&[f32]; N], saved: Saved, grad: &[f32]) -> [Vec<f32>; N];
}

/// What the forward pass saved for the backward pass; `out` is empty unless [`Kernel::NEEDS_OUT`].
#[derive(Clone, Copy)]
pub(crate) struct Saved<'a> {
    pub out: &'a [f32],
    pub extra: &'a [f32],
    /// Which inputs need a gradient; the gradients of the others may be empty.
    pub needs_grad: &'a [bool],
}

/// Whether the kernels can take this tensor: f32 on the CPU device, or in a forward pass that is captured for it.
pub(crate) fn runs_on<const D: usize>(tensor: &Tensor<D>) -> bool {
    fn takes(kind: &DispatchTensorKind) -> bool {
        match kind {
            DispatchTensorKind::Flex(_) => true,
            DispatchTensorKind::Autodiff(inner) => takes(inner),
            DispatchTensorKind::Capture(_) => recorded::is_recording(),
            #[allow(unreachable_patterns)] // other devices are cargo features
            _ => false,
        }
    }
    tensor.dtype() == DType::F32 && takes(&tensor.clone().into_dispatch().kind)
}

/// Whether a forward pass is captured with this tensor: it has a shape and no values.
pub(crate) fn is_captured<const D: usize>(tensor: &Tensor<D>) -> bool {
    matches!(tensor.clone().into_dispatch().kind, DispatchTensorKind::Capture(_))
}

/// The values of a tensor for which [`runs_on`] holds and that is not captured, without a copy if they are contiguous.
pub(crate) struct FloatSlice(FlexTensor);

impl FloatSlice {
    pub(crate) fn of<const D: usize>(tensor: Tensor<D>) -> Self {
        Self(contiguous(untracked(tensor.into_dispatch().kind)))
    }
}

impl Deref for FloatSlice {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        slice(&self.0)
    }
}

/// What a kernel gave outside of a graph, on the CPU device.
pub(crate) fn constant<const D: usize>(values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
    let kind = DispatchTensorKind::Flex(BackendTensor::Float(tensor(values, shape.to_vec())));
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled })
}

/// Applies a kernel to tensors for which [`runs_on`] holds.
pub(crate) fn apply<const N: usize, const D: usize>(
    kernel: impl Kernel<N>,
    inputs: [DispatchTensor; N],
    shape: [usize; D],
) -> Tensor<D> {
    if inputs.iter().any(|input| matches!(input.kind, DispatchTensorKind::Capture(_))) {
        let kind = recorded::record(kernel, inputs, shape.to_vec());
        return Tensor::from_dispatch(DispatchTensor { kind, autodiff: DispatchAutodiffContext::Disabled });
    }
    let context = inputs.iter().fold(DispatchAutodiffContext::Disabled, |all, input| all.merge(input.autodiff));
    let kind = if context == DispatchAutodiffContext::Disabled {
        let inputs = inputs.map(|input| contiguous(untracked(input.kind)));
        let out = kernel.infer(inputs.each_ref().map(slice));
        DispatchTensorKind::Flex(BackendTensor::Float(tensor(out, shape.to_vec())))
    } else {
        let out = differentiable(kernel, inputs.map(|input| tracked(input.kind)), shape.to_vec());
        DispatchTensorKind::Autodiff(Box::new(DispatchTensorKind::Flex(BackendTensor::Autodiff(out))))
    };
    Tensor::from_dispatch(DispatchTensor { kind, autodiff: context })
}

fn differentiable<const N: usize, K: Kernel<N>>(kernel: K, inputs: [Tracked; N], shape: Vec<usize>) -> Tracked {
    let nodes = inputs.each_ref().map(Tracked::node);
    let inputs = inputs.map(|input| contiguous(input.into_primitive()));
    let (out, extra) = kernel.forward(inputs.each_ref().map(slice));
    let out = tensor(out, shape);
    match (BackwardStep { kernel }).prepare::<NoCheckpointing>(nodes).compute_bound().stateful() {
        OpsKind::Tracked(prep) => {
            let saved_out = K::NEEDS_OUT.then(|| out.clone());
            let state = State { inputs, out: saved_out, extra: Arc::new(extra) };
            prep.finish(state, out)
        }
        OpsKind::UnTracked(prep) => prep.finish(out),
    }
}

#[derive(Debug)]
struct BackwardStep<K> {
    kernel: K,
}

#[derive(Clone, Debug)]
struct State<const N: usize> {
    inputs: [FlexTensor; N],
    out: Option<FlexTensor>,
    extra: Arc<Vec<f32>>,
}

impl<const N: usize, K: Kernel<N>> Backward<Flex, N> for BackwardStep<K> {
    type State = State<N>;

    fn backward(self, ops: Ops<State<N>, N>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = contiguous(grads.consume::<Flex>(&ops.node));
        let State { inputs, out, extra } = ops.state;
        let needs_grad = ops.parents.each_ref().map(Option::is_some);
        let saved = Saved { out: out.as_ref().map_or(&[], slice), extra: &extra, needs_grad: &needs_grad };
        let input_grads = self.kernel.backward(inputs.each_ref().map(slice), saved, slice(&grad));
        for ((node, input), grad) in ops.parents.into_iter().zip(&inputs).zip(input_grads) {
            if let Some(node) = node {
                grads.register::<Flex>(node.id, tensor(grad, input.shape().to_vec()));
            }
        }
    }
}

pub(crate) fn tracked(kind: DispatchTensorKind) -> Tracked {
    match kind {
        DispatchTensorKind::Autodiff(inner) => match *inner {
            DispatchTensorKind::Flex(tensor) => tensor.autodiff(),
            other => panic!("a fused kernel needs a tensor of the cpu device, got one on {:?}", other.device()),
        },
        constant => Tracked::new(untracked(constant)),
    }
}

pub(crate) fn untracked(kind: DispatchTensorKind) -> FlexTensor {
    match kind {
        DispatchTensorKind::Flex(tensor) => tensor.float(),
        other => panic!("a fused kernel needs a tensor of the cpu device, got one on {:?}", other.device()),
    }
}

fn contiguous(tensor: FlexTensor) -> FlexTensor {
    if tensor.as_slice::<f32>().is_some() { tensor } else { tensor.to_contiguous() }
}

fn slice(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice().expect("made contiguous before, and `runs_on` checked for f32")
}

fn tensor(values: Vec<f32>, shape: Vec<usize>) -> FlexTensor {
    debug_assert_eq!(values.len(), shape.iter().product::<usize>());
    FlexTensor::from_data(TensorData::new(values, shape))
}
