//! What depends on parameters alone is computed once.

use burn::tensor::TensorData;

use crate::plan::execute::{Buffer, Values, execute};
use crate::plan::graph::{Constant, Graph, ValueId};
use crate::plan::operation::Operation;

impl From<Buffer> for Constant {
    fn from(buffer: Buffer) -> Self {
        match buffer {
            Buffer::Floats(floats) => Self::Floats(floats.into()),
            Buffer::Other(data) => Self::Other(data.into()),
        }
    }
}

/// The constants of a graph.
struct Known<'a>(&'a Graph);

impl Values for Known<'_> {
    fn floats(&self, value: ValueId) -> &[f32] {
        self.0.floats(value).expect("an operation of floats on constants")
    }

    fn data(&self, value: ValueId) -> TensorData {
        match &self.0.values[value].constant {
            Some(Constant::Other(data)) => (**data).clone(),
            _ => TensorData::new(self.floats(value).to_vec(), self.0.shape(value).to_vec()),
        }
    }
}

pub(crate) fn fold(graph: &mut Graph) {
    let mut rest = Vec::new();
    for node in std::mem::take(&mut graph.nodes) {
        if node.inputs.iter().any(|&input| graph.values[input].constant.is_none()) {
            rest.push(node);
            continue;
        }
        let name = node.inputs.first().map_or_else(String::new, |&input| graph.values[input].name.clone());
        let found: Vec<Constant> = if matches!(node.operation, Operation::View) {
            // the same numbers, which stay where they are
            graph.values[node.inputs[0]].constant.clone().into_iter().collect()
        } else {
            let outputs = execute(graph, &node, &Known(graph), None, true);
            outputs.into_iter().map(Constant::from).collect()
        };
        for (output, constant) in node.outputs.into_iter().zip(found) {
            graph.values[output].constant = Some(constant);
            graph.values[output].name.clone_from(&name);
        }
    }
    graph.nodes = rest;
}
