//! Runs a graph: each node in its turn, each value for as long as somebody reads it.

use burn::tensor::TensorData;
use std::time::{Duration, Instant};

use super::execute::{Buffer, Values, execute};
use super::graph::{Constant, Graph, ValueId};
use super::operation::Operation;

/// When values come and go.
#[derive(Clone, Debug)]
pub(super) struct Schedule {
    /// Whose numbers a value has: its own, or those of what it is a view of.
    roots: Vec<ValueId>,
    /// The values that nobody reads after a node.
    ends: Vec<Vec<ValueId>>,
}

impl Schedule {
    pub fn of(graph: &Graph) -> Self {
        let mut roots: Vec<ValueId> = (0..graph.values.len()).collect();
        for node in &graph.nodes {
            if matches!(node.operation, Operation::View) {
                roots[node.outputs[0]] = roots[node.inputs[0]];
            }
        }
        let mut last = vec![None; graph.values.len()];
        for (index, node) in graph.nodes.iter().enumerate() {
            // what nobody reads ends with the node that made it
            node.inputs.iter().chain(&node.outputs).for_each(|&value| last[roots[value]] = Some(index));
        }
        graph.outputs.iter().for_each(|&output| last[roots[output]] = None);
        let mut ends = vec![Vec::new(); graph.nodes.len()];
        last.iter().enumerate().for_each(|(value, last)| {
            if let Some(last) = last {
                ends[*last].push(value);
            }
        });
        Self { roots, ends }
    }
}

/// The values of one run.
struct State<'a> {
    graph: &'a Graph,
    roots: &'a [ValueId],
    input: &'a [f32],
    buffers: Vec<Option<Buffer>>,
}

impl Values for State<'_> {
    fn floats(&self, value: ValueId) -> &[f32] {
        let root = self.roots[value];
        if root == self.graph.input {
            return self.input;
        }
        if let Some(Buffer::Floats(floats)) = &self.buffers[root] {
            return floats;
        }
        self.graph.floats(root).expect("a value is there before it is read, and floats by the operation")
    }

    fn data(&self, value: ValueId) -> TensorData {
        let (root, shape) = (self.roots[value], self.graph.shape(value).to_vec());
        match (&self.buffers[root], &self.graph.values[root].constant) {
            (Some(Buffer::Other(data)), _) => data.clone(),
            (None, Some(Constant::Other(data))) => (**data).clone(),
            _ => TensorData::new(self.floats(value).to_vec(), shape),
        }
    }
}

/// The outputs for one input. On all threads or on this one: the bytes are the same. `watch` is told how long each node
/// took.
pub(super) fn run(
    graph: &Graph,
    schedule: &Schedule,
    input: &[f32],
    all_threads: bool,
    mut watch: Option<&mut dyn FnMut(usize, Duration)>,
) -> Vec<Vec<f32>> {
    assert_eq!(input.len(), graph.values[graph.input].len(), "plan: length of the input");
    let buffers = vec![None; graph.values.len()];
    let mut state = State { graph, roots: &schedule.roots, input, buffers };
    for (index, (node, ends)) in graph.nodes.iter().zip(&schedule.ends).enumerate() {
        let start = watch.as_ref().map(|_| Instant::now());
        if !matches!(node.operation, Operation::View) {
            let sum = match node.operation {
                Operation::PackedConvolution(_, epilogue) if epilogue.sum => Some(schedule.roots[node.inputs[1]]),
                _ => None,
            };
            // unless somebody else reads it, this convolution among others
            let sum = sum.filter(|sum| ends.contains(sum) && schedule.roots[node.inputs[0]] != *sum);
            let sum = sum.and_then(|sum| match state.buffers[sum].take() {
                Some(Buffer::Floats(sum)) => Some(sum),
                other => {
                    state.buffers[sum] = other;
                    None
                }
            });
            let outputs = execute(graph, node, &state, sum, all_threads);
            node.outputs.iter().zip(outputs).for_each(|(&output, buffer)| state.buffers[output] = Some(buffer));
        }
        if let (Some(watch), Some(start)) = (&mut watch, start) {
            watch(index, start.elapsed());
        }
        ends.iter().for_each(|&value| state.buffers[value] = None);
    }
    graph.outputs.iter().map(|&output| state.floats(output).to_vec()).collect()
}
