//! What moves no number is a view: axes of length one in another place, whole slices, repetitions of one.

use crate::plan::graph::Graph;
use crate::plan::operation::Operation;

pub(crate) fn find(graph: &mut Graph) {
    for index in 0..graph.nodes.len() {
        let node = &graph.nodes[index];
        let (input, output) = (node.inputs.first(), node.outputs[0]);
        let Some(shape) = input.map(|&input| graph.shape(input)) else { continue };
        let keeps = match &node.operation {
            Operation::Permute(axes) => {
                let long: Vec<usize> = axes.iter().copied().filter(|&axis| shape[axis] != 1).collect();
                long.is_sorted()
            }
            Operation::Slice(_) | Operation::Broadcast => shape == graph.shape(output),
            _ => false,
        };
        if keeps {
            graph.nodes[index].operation = Operation::View;
        }
    }
}
