//! Multiply-adds of nodes, from their shapes: what papers count, products alone. None where they are not counted.

use burn_ir::{FloatOperationIr, ModuleOperationIr, OperationIr};

use super::execute::geometry;
use super::graph::{Graph, Node, ValueId};
use super::operation::Operation;

pub(super) fn multiply_adds(graph: &Graph, node: &Node) -> Option<u64> {
    let len = |value: ValueId| graph.values[value].len();
    match &node.operation {
        Operation::Convolution(convolution) => {
            let [x, weight] = [0, 1].map(|index| graph.shape(node.inputs[index]));
            Some(geometry(convolution, x, weight, [1, 1]).multiply_adds())
        }
        Operation::PackedConvolution(packed, _) => Some(packed.geometry().multiply_adds()),
        Operation::Fused(operator) => {
            let lengths: Vec<usize> = node.inputs.iter().map(|&input| len(input)).collect();
            operator.multiply_adds(&lengths)
        }
        Operation::Burn(operation) => {
            let out = len(node.outputs[0]);
            let depth = match &**operation {
                OperationIr::Float(_, FloatOperationIr::Matmul(_)) => graph.shape(node.inputs[0]).last().copied(),
                OperationIr::Module(ModuleOperationIr::Conv2d(_) | ModuleOperationIr::Conv3d(_)) => {
                    Some(graph.shape(node.inputs[1])[1..].iter().product())
                }
                _ => None,
            };
            depth.map(|depth| (out * depth) as u64)
        }
        _ => None,
    }
}

/// Bytes that a node reads and writes, its weights among them.
pub(super) fn bytes(graph: &Graph, node: &Node) -> usize {
    let weights = match &node.operation {
        Operation::View => return 0,
        Operation::PackedConvolution(packed, _) => packed.bytes(),
        _ => 0,
    };
    let values = node.inputs.iter().chain(&node.outputs);
    weights + values.map(|&value| size_of::<f32>() * graph.values[value].len()).sum::<usize>()
}
