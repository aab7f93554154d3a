//! A residual sum and a ReLU go into the convolution before them.

use regard_kernels::strided::{Binary, Unary};

use crate::plan::graph::{Graph, Node};
use crate::plan::operation::{Convolution, Operation};

pub(crate) fn fold(graph: &mut Graph) {
    let mut index = 0;
    while index < graph.nodes.len() {
        if let Some((maker, node)) = relu(graph, index).or_else(|| sum(graph, index)) {
            // what is added may be made after the convolution, so that runs where the sum was
            graph.nodes[index] = node;
            graph.nodes.remove(maker);
        } else {
            index += 1;
        }
    }
}

/// The convolution that makes a value which nobody else reads.
fn convolution(graph: &Graph, value: usize) -> Option<(usize, &Node, Convolution)> {
    let maker = graph.nodes.iter().position(|node| node.outputs.contains(&value))?;
    let Operation::Convolution(convolution) = graph.nodes[maker].operation else { return None };
    (graph.uses()[value] == 1).then(|| (maker, &graph.nodes[maker], convolution))
}

fn relu(graph: &Graph, index: usize) -> Option<(usize, Node)> {
    let Node { operation: Operation::Unary(Unary::Relu), inputs, outputs, .. } = &graph.nodes[index] else {
        return None;
    };
    let (maker, node, mut convolution) = convolution(graph, inputs[0])?;
    convolution.epilogue.relu = true;
    let operation = Operation::Convolution(convolution);
    Some((maker, Node { operation, outputs: outputs.clone(), ..node.clone() }))
}

fn sum(graph: &Graph, index: usize) -> Option<(usize, Node)> {
    let Node { operation: Operation::Binary(Binary::Add), inputs, outputs, .. } = &graph.nodes[index] else {
        return None;
    };
    let [a, b] = inputs[..] else { return None };
    if graph.shape(a) != graph.shape(b) {
        return None;
    }
    let plain = |(value, other): (usize, usize)| {
        let (maker, node, convolution) = convolution(graph, value)?;
        let free = !convolution.epilogue.sum && !convolution.epilogue.relu;
        free.then_some((maker, node, convolution, other))
    };
    // the one that runs last: the other's output is then there
    let candidates = [(a, b), (b, a)].into_iter().filter_map(plain);
    let (maker, node, mut convolution, other) = candidates.max_by_key(|(maker, ..)| *maker)?;
    convolution.epilogue.sum = true;
    let inputs = [node.inputs.as_slice(), &[other]].concat();
    Some((
        maker,
        Node { operation: Operation::Convolution(convolution), inputs, outputs: outputs.clone(), ..node.clone() },
    ))
}
