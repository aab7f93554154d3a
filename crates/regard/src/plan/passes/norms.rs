//! A batch norm of constant moments goes into the convolution before it.

use crate::batch_norm::ChannelLines;
use crate::plan::graph::{Graph, Node};
use crate::plan::operation::{Convolution, Epilogue, Operation};

pub(crate) fn fold(graph: &mut Graph) {
    let (uses, makers) = (graph.uses(), graph.makers());
    let mut folded = vec![false; graph.nodes.len()];
    for (index, folded) in folded.iter_mut().enumerate() {
        let Node { inputs, .. } = &graph.nodes[index];
        let maker = inputs.first().and_then(|&x| makers[x].filter(|_| uses[x] == 1));
        let (Some(lines), Some(maker)) = (lines(graph, &graph.nodes[index]), maker) else { continue };
        let before = graph.nodes[maker].clone();
        if let Some(convolution) = normalised(graph, &before, &lines) {
            let outputs = graph.nodes[index].outputs.clone();
            graph.nodes[maker] = Node { outputs, ..convolution };
            *folded = true;
        }
    }
    let mut folded = folded.into_iter();
    graph.nodes.retain(|_| !folded.next().unwrap_or(false));
}

/// What a node does to every channel, if it is a norm of constants.
fn lines(graph: &Graph, node: &Node) -> Option<ChannelLines> {
    let Operation::Fused(operator) = &node.operation else { return None };
    let parameters = node.inputs[1..].iter().map(|&input| graph.floats(input).map(|floats| floats.as_slice()));
    ChannelLines::of(operator.kernel(), &parameters.collect::<Option<Vec<_>>>()?)
}

/// A convolution whose outputs are normalised; none for other nodes.
fn normalised(graph: &mut Graph, node: &Node, lines: &ChannelLines) -> Option<Node> {
    let Operation::Convolution(convolution) = &node.operation else { return None };
    if convolution.epilogue != Epilogue::default() {
        return None;
    }
    let (x, weight) = (node.inputs[0], node.inputs[1]);
    let (shape, name) = (graph.shape(weight).to_vec(), graph.values[weight].name.clone());
    let mut numbers = graph.floats(weight)?.to_vec();
    let depth = numbers.len() / lines.scale.len();
    numbers.chunks_exact_mut(depth).zip(&lines.scale).for_each(|(weights, scale)| {
        weights.iter_mut().for_each(|weight| *weight = (f64::from(*weight) * scale) as f32);
    });
    let mut shift = lines.shift.clone();
    if convolution.bias {
        let bias = graph.floats(node.inputs[2])?;
        let scaled = bias.iter().zip(&lines.scale).map(|(bias, scale)| f64::from(*bias) * scale);
        shift.iter_mut().zip(scaled).for_each(|(shift, bias)| *shift += bias);
    }
    let bias = shift.iter().map(|shift| *shift as f32).collect();
    let weight = graph.add_constant(numbers, shape, name.clone());
    let bias = graph.add_constant(bias, vec![shift.len()], name);
    let epilogue = Epilogue { sum: false, relu: lines.relu };
    let operation = Operation::Convolution(Convolution { bias: true, epilogue, ..*convolution });
    Some(Node { operation, inputs: vec![x, weight, bias], ..node.clone() })
}
