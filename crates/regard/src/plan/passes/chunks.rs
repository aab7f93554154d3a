//! Convolutions are packed, and maps between them lie in chunks of channels, `[C / chunk, H, W, chunk]`, so that one
//! convolution reads what another wrote. What follows on maps of the same kind stays in chunks; a value that somebody
//! else reads is turned once.

use regard_kernels::packed_convolution::PackedConvolution;
use std::sync::Arc;

use crate::plan::execute::geometry;
use crate::plan::graph::{Graph, Node, ValueId};
use crate::plan::operation::{Convolution, Operation, PoolWindow};

/// Most channels of a chunk.
const LARGEST: usize = 64;

pub(crate) fn pack(graph: &mut Graph) {
    let widths = widths(graph);
    let nodes = std::mem::take(&mut graph.nodes);
    let mut planar = vec![true; graph.values.len()];
    nodes.iter().flat_map(|node| &node.outputs).for_each(|&output| planar[output] = false);
    let mut layouts = Layouts { twins: vec![None; planar.len()], flat: vec![None; planar.len()], planar, graph };
    for node in nodes {
        if !layouts.chunked(&node, &widths) {
            layouts.as_it_is(node);
        }
    }
    for output in layouts.graph.outputs.clone() {
        layouts.planes(output);
    }
}

/// How many channels a chunk of each value must divide, for the grouped convolutions that read it.
fn widths(graph: &Graph) -> Vec<usize> {
    let mut widths = vec![0; graph.values.len()];
    for node in graph.nodes.iter().rev() {
        match &node.operation {
            Operation::Convolution(Convolution { groups, .. }) => {
                let x = node.inputs[0];
                widths[x] = gcd(widths[x], graph.shape(x)[1] / groups);
            }
            Operation::Unary(_) | Operation::Binary(_) | Operation::MaxPool(_) => {
                for &input in &node.inputs {
                    widths[input] = gcd(widths[input], widths[node.outputs[0]]);
                }
            }
            _ => {}
        }
    }
    widths
}

const fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// The largest chunk that divides these channels.
fn chunk_of(channels: usize) -> usize {
    (1..=LARGEST.min(channels)).rev().find(|chunk| channels.is_multiple_of(*chunk)).unwrap_or(1)
}

/// Where the values are.
struct Layouts<'a> {
    graph: &'a mut Graph,
    /// Whether a value is there as planes.
    planar: Vec<bool>,
    /// The same numbers in chunks, and their channels.
    twins: Vec<Option<(ValueId, usize)>>,
    /// The map of which a value `[1, C, H * W]` is a view.
    flat: Vec<Option<ValueId>>,
}

impl Layouts<'_> {
    fn push(&mut self, operation: Operation, inputs: Vec<ValueId>, shape: Vec<usize>) -> ValueId {
        let output = self.graph.add(shape);
        self.graph.nodes.push(Node { name: String::new(), operation, inputs, outputs: vec![output] });
        output
    }

    fn view(&mut self, of: ValueId, value: ValueId) {
        let node = Node { name: String::new(), operation: Operation::View, inputs: vec![of], outputs: vec![value] };
        self.graph.nodes.push(node);
    }

    /// Makes sure that a value is there as planes.
    fn planes(&mut self, value: ValueId) {
        if self.planar[value] {
            return;
        }
        if let Some(map) = self.flat[value] {
            self.planes(map);
            self.view(map, value);
        } else if let Some((twin, _)) = self.twins[value] {
            let [parts, rows, columns, chunk] = self.graph.shape(twin)[..] else {
                unreachable!("chunks have four axes")
            };
            let planes = self.push(Operation::Permute(vec![0, 3, 1, 2]), vec![twin], vec![parts, chunk, rows, columns]);
            self.view(planes, value);
        }
        self.planar[value] = true;
    }

    /// A value in chunks.
    fn in_chunks(&mut self, value: ValueId, chunk: usize) -> ValueId {
        if let Some((twin, _)) = self.twins[value].filter(|(_, own)| *own == chunk) {
            return twin;
        }
        self.planes(value);
        let [_, channels, rows, columns] = self.graph.shape(value)[..] else { unreachable!("maps have four axes") };
        let parts = channels / chunk;
        let split = self.push(Operation::View, vec![value], vec![parts, chunk, rows, columns]);
        let twin = self.push(Operation::Permute(vec![0, 2, 3, 1]), vec![split], vec![parts, rows, columns, chunk]);
        self.twins[value] = Some((twin, chunk));
        twin
    }

    /// A node that reads and writes planes.
    fn as_it_is(&mut self, node: Node) {
        if let (Operation::View, [input], [output]) = (&node.operation, &node.inputs[..], &node.outputs[..]) {
            let [map, flat] = [*input, *output].map(|value| self.graph.shape(value).to_vec());
            let flattens =
                matches!((&map[..], &flat[..]), ([1, c, h, w], [1, of, pixels]) if c == of && h * w == *pixels);
            if flattens && self.twins[*input].is_some() {
                self.flat[*output] = Some(*input);
                return;
            }
        }
        node.inputs.iter().for_each(|&input| self.planes(input));
        node.outputs.iter().for_each(|&output| self.planar[output] = true);
        self.graph.nodes.push(node);
    }

    /// A node that takes chunks, if it does.
    fn chunked(&mut self, node: &Node, widths: &[usize]) -> bool {
        let output = node.outputs[0];
        let twin = match &node.operation {
            Operation::Convolution(convolution) => self.convolution(node, convolution, widths[output]),
            Operation::Unary(_) => self.twins[node.inputs[0]].map(|(x, chunk)| {
                let shape = self.graph.shape(x).to_vec();
                (self.push(node.operation.clone(), vec![x], shape), chunk)
            }),
            Operation::Binary(_) => self.binary(node),
            Operation::MaxPool(window) => self.twins[node.inputs[0]].map(|(x, chunk)| {
                let [_, channels, rows, columns] = self.graph.shape(output)[..] else {
                    unreachable!("maps have four axes")
                };
                let operation = Operation::MaxPool(PoolWindow { channels_last: true, ..*window });
                (self.push(operation, vec![x], vec![channels / chunk, rows, columns, chunk]), chunk)
            }),
            Operation::Reduce(reduction, 2) => {
                let map = self.flat[node.inputs[0]].and_then(|map| self.twins[map]);
                let Some((x, chunk)) = map else { return false };
                let [parts, rows, columns, _] = self.graph.shape(x)[..] else { unreachable!("chunks have four axes") };
                let pixels = self.push(Operation::View, vec![x], vec![parts, rows * columns, chunk]);
                let reduced = self.push(Operation::Reduce(*reduction, 1), vec![pixels], vec![parts, 1, chunk]);
                self.view(reduced, output);
                self.planar[output] = true;
                return true;
            }
            _ => None,
        };
        self.twins[output] = twin;
        twin.is_some()
    }

    fn convolution(&mut self, node: &Node, convolution: &Convolution, width: usize) -> Option<(ValueId, usize)> {
        let (x, weight) = (node.inputs[0], node.inputs[1]);
        let numbers = self.graph.floats(weight)?.clone();
        let bias = if convolution.bias { Some(self.graph.floats(node.inputs[2])?.clone()) } else { None };
        let groups = convolution.groups;
        let [inputs, outputs] = [self.graph.shape(x)[1], self.graph.shape(weight)[0]].map(|channels| channels / groups);
        let sum = convolution.epilogue.sum.then(|| node.inputs[node.inputs.len() - 1]);
        // the chunks that the sum has, or the largest that those who read the output can take
        let of_sum = sum.and_then(|sum| self.twins[sum]).filter(|(_, chunk)| outputs.is_multiple_of(*chunk));
        let chunk = of_sum.map_or_else(|| chunk_of(gcd(outputs, width)), |(_, chunk)| chunk);
        let twin = self.twins[x].filter(|(_, chunk)| inputs.is_multiple_of(*chunk));
        if twin.is_none() {
            self.planes(x);
        }
        let (from, of_input) = twin.unwrap_or((x, 1));
        let mut read = vec![from];
        read.extend(sum.map(|sum| self.in_chunks(sum, chunk)));
        let sizes = geometry(convolution, self.graph.shape(x), self.graph.shape(weight), [of_input, chunk]);
        let [rows, columns] = sizes.output_size();
        let packed = PackedConvolution::new(sizes, &numbers, bias.as_deref().map_or(&[][..], Vec::as_slice));
        let operation = Operation::PackedConvolution(Arc::new(packed), convolution.epilogue);
        let twin = self.push(operation, read, vec![sizes.outputs / chunk, rows, columns, chunk]);
        if let Some(last) = self.graph.nodes.last_mut() {
            last.name.clone_from(&node.name);
        }
        Some((twin, chunk))
    }

    /// Of two maps, or of a map and a number for each channel.
    fn binary(&mut self, node: &Node) -> Option<(ValueId, usize)> {
        let shape = self.graph.shape(node.outputs[0]).to_vec();
        let [1, channels, rows, columns] = shape[..] else { return None };
        let (_, chunk) = node.inputs.iter().find_map(|&input| self.twins[input])?;
        let each = [1, channels, 1, 1];
        if node.inputs.iter().any(|&input| ![&shape[..], &each].contains(&self.graph.shape(input))) {
            return None;
        }
        let inputs = node.inputs.clone().into_iter().map(|input| {
            if self.graph.shape(input) == shape {
                return self.in_chunks(input, chunk);
            }
            self.planes(input);
            self.push(Operation::View, vec![input], vec![channels / chunk, 1, 1, chunk])
        });
        let inputs = inputs.collect();
        let out = vec![channels / chunk, rows, columns, chunk];
        Some((self.push(node.operation.clone(), inputs, out), chunk))
    }
}
