//! One node: its outputs from its inputs.

use burn::tensor::TensorData;
use regard_kernels::packed_convolution::{Geometry, PackedConvolution};
use regard_kernels::strided::{self, MaxWindows};

use super::graph::{Constant, Graph, Node, ValueId};
use super::interpret;
use super::operation::{Convolution, Operation, PoolWindow};

/// What a node gave.
#[derive(Clone, Debug)]
pub(super) enum Buffer {
    Floats(Vec<f32>),
    /// Integers and booleans.
    Other(TensorData),
}

impl Buffer {
    pub fn of(data: TensorData) -> Self {
        match Constant::of(data) {
            Constant::Floats(floats) => Self::Floats(std::sync::Arc::unwrap_or_clone(floats)),
            Constant::Other(data) => Self::Other(std::sync::Arc::unwrap_or_clone(data)),
        }
    }
}

/// The values that nodes read.
pub(super) trait Values {
    fn floats(&self, value: ValueId) -> &[f32];
    fn data(&self, value: ValueId) -> TensorData;
}

/// The outputs of a node. `sum` is what a convolution adds to, if nobody else reads that; a convolution runs on all
/// threads or on this one, with the same bytes.
pub(super) fn execute(
    graph: &Graph,
    node: &Node,
    values: &impl Values,
    sum: Option<Vec<f32>>,
    all_threads: bool,
) -> Vec<Buffer> {
    let shape = |value: ValueId| graph.shape(value);
    let input = |index: usize| values.floats(node.inputs[index]);
    let out = shape(node.outputs[0]);
    let floats = match &node.operation {
        Operation::View => input(0).to_vec(),
        Operation::Permute(axes) => {
            let strides = strides(shape(node.inputs[0]));
            let strides: Vec<usize> = axes.iter().map(|&axis| strides[axis]).collect();
            strided::copy(input(0), 0, out, &strides)
        }
        Operation::Slice(starts) => {
            let strides = strides(shape(node.inputs[0]));
            let offset = starts.iter().zip(&strides).map(|(start, step)| start * step).sum();
            strided::copy(input(0), offset, out, &strides)
        }
        Operation::Broadcast => strided::copy(input(0), 0, out, &repeated(shape(node.inputs[0]), out)),
        Operation::Concatenate(axis) => {
            let width = |value: ValueId| shape(value)[*axis..].iter().product::<usize>();
            let parts: Vec<_> = node.inputs.iter().map(|&part| (values.floats(part), width(part))).collect();
            strided::concatenate(&parts, out[..*axis].iter().product())
        }
        Operation::Binary(binary) => {
            let [a, b] = [0, 1].map(|index| repeated(shape(node.inputs[index]), out));
            binary.apply((input(0), &a), (input(1), &b), out)
        }
        Operation::Unary(unary) => unary.apply(input(0)),
        Operation::Reduce(reduction, axis) => {
            let of = shape(node.inputs[0]);
            let inner = of[axis + 1..].iter().product();
            reduction.apply(input(0), [of[..*axis].iter().product(), of[*axis], inner])
        }
        Operation::MaxPool(window) => windows(*window, shape(node.inputs[0])).apply(input(0)),
        Operation::Convolution(convolution) => {
            let bias = if convolution.bias { input(2) } else { &[] };
            let geometry = geometry(convolution, shape(node.inputs[0]), shape(node.inputs[1]), [1, 1]);
            let packed = PackedConvolution::new(geometry, input(1), bias);
            let sum = convolution.epilogue.sum.then(|| input(node.inputs.len() - 1).to_vec());
            packed.forward(input(0), sum, convolution.epilogue.relu, all_threads)
        }
        Operation::PackedConvolution(packed, epilogue) => {
            let sum = epilogue.sum.then(|| sum.unwrap_or_else(|| input(1).to_vec()));
            packed.forward(input(0), sum, epilogue.relu, all_threads)
        }
        Operation::Fused(operator) => {
            let inputs: Vec<&[f32]> = node.inputs.iter().map(|&input| values.floats(input)).collect();
            operator.infer(&inputs)
        }
        Operation::Burn(operation) => {
            let inputs = node.inputs.iter().map(|&input| values.data(input)).collect();
            return interpret::run(operation, inputs).into_iter().map(Buffer::of).collect();
        }
    };
    vec![Buffer::Floats(floats)]
}

/// The sizes of a convolution of one picture.
pub(super) fn geometry(convolution: &Convolution, image: &[usize], weight: &[usize], chunks: [usize; 2]) -> Geometry {
    let Convolution { groups, stride, padding, dilation, .. } = *convolution;
    Geometry {
        inputs: image[1],
        outputs: weight[0],
        groups,
        image: [image[2], image[3]],
        kernel: [weight[2], weight[3]],
        stride,
        padding,
        dilation,
        chunks,
    }
}

fn windows(window: PoolWindow, shape: &[usize]) -> MaxWindows {
    let PoolWindow { kernel, stride, padding, channels_last } = window;
    let (inner, rows) = if channels_last { (shape[3], 1) } else { (1, 2) };
    MaxWindows { image: [shape[rows], shape[rows + 1]], inner, kernel, stride, padding }
}

/// How far neighbours along each axis are from each other.
fn strides(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|axis| shape[axis + 1..].iter().product()).collect()
}

/// The same, zero where an axis of length one is repeated.
fn repeated(shape: &[usize], out: &[usize]) -> Vec<usize> {
    let own = strides(shape);
    own.into_iter().enumerate().map(|(axis, step)| if shape[axis] == out[axis] { step } else { 0 }).collect()
}
