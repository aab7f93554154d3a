//! Plans: a forward pass that is captured once, made into a graph of coarse nodes, rewritten, and run without the model.
//!
//! - [`capture`] runs `forward` on Burn's capture device; fused operators appear as one node each, with their kernel;
//! - [`lower`] makes nodes of Burn's operations; what has no form of its own here runs by Burn's interpreter;
//! - [`passes`] rewrite the graph, each without changing its numbers;
//! - [`run`] runs the nodes on the kernels.
//!
//! A plan is for one input shape at batch 1: the pictures of a batch are shared out over the threads, and a picture gives
//! the same bytes alone and among others.

mod capture;
mod count;
mod execute;
mod graph;
mod interpret;
mod lower;
mod operation;
mod passes;
mod run;
#[cfg(test)]
mod tests;

use burn::backend::DispatchTensor;
use burn::module::Module;
use burn::tensor::Tensor;
use rayon::prelude::*;
use serde::Serialize;
use std::time::Duration;

use crate::models::Model;
use crate::{Error, Pass};
use graph::Graph;
use run::Schedule;

/// A forward pass for inputs of one shape.
pub struct Plan {
    graph: Graph,
    schedule: Schedule,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("nodes", &self.graph.nodes.len()).finish_non_exhaustive()
    }
}

/// A node of a plan, for a table.
#[derive(Clone, Debug, Serialize)]
pub struct PlanNode {
    /// The path of its layer, if it has parameters.
    pub name: String,
    pub operation: String,
    /// Shapes of its inputs, without constants.
    pub inputs: Vec<Vec<usize>>,
    pub output: Vec<usize>,
    /// None where they are not counted: element-wise work, and operators whose formula is not there yet.
    pub multiply_adds: Option<u64>,
    /// What it reads and writes.
    pub bytes: usize,
}

impl Plan {
    /// The plan of a classifier for pictures `[C, H, W]`.
    ///
    /// # Errors
    /// When the forward pass has an operation that no plan computes; the error names it.
    pub fn of(model: &Model, picture: [usize; 3]) -> Result<Self, Error> {
        let [channels, rows, columns] = picture;
        Self::capture(model, [1, channels, rows, columns], |model, images| {
            vec![model.forward(images, &mut Pass::silent()).into_dispatch()]
        })
    }

    /// The plan of any forward pass from one tensor to some.
    ///
    /// # Errors
    /// When it has an operation that no plan computes; the error names it.
    pub fn capture<M: Module, const D: usize>(
        model: &M,
        shape: [usize; D],
        forward: impl FnOnce(&M, Tensor<D>) -> Vec<DispatchTensor>,
    ) -> Result<Self, Error> {
        let mut graph = lower::lower(capture::capture(model, shape, forward)?)?;
        passes::ALL.iter().for_each(|pass| pass(&mut graph));
        Ok(Self::from(graph))
    }

    fn from(graph: Graph) -> Self {
        Self { schedule: Schedule::of(&graph), graph }
    }

    /// The shape of an input.
    #[must_use]
    pub fn input(&self) -> &[usize] {
        self.graph.shape(self.graph.input)
    }

    /// The shapes of the outputs for one input.
    pub fn outputs(&self) -> impl Iterator<Item = &[usize]> {
        self.graph.outputs.iter().map(|&output| self.graph.shape(output))
    }

    /// The outputs for one input.
    ///
    /// # Panics
    /// When it has another length.
    #[must_use]
    pub fn run(&self, input: &[f32]) -> Vec<Vec<f32>> {
        run::run(&self.graph, &self.schedule, input, true, None)
    }

    /// The first output for each of some inputs, one after the other.
    ///
    /// # Panics
    /// When they do not divide the length.
    #[must_use]
    pub fn run_batch(&self, inputs: &[f32]) -> Vec<f32> {
        let one = self.graph.values[self.graph.input].len();
        assert!(one > 0 && inputs.len().is_multiple_of(one), "plan: inputs of another size");
        let first =
            |input: &[f32], all_threads| run::run(&self.graph, &self.schedule, input, all_threads, None).swap_remove(0);
        if inputs.len() / one < rayon::current_num_threads() {
            return inputs.chunks_exact(one).flat_map(|input| first(input, true)).collect();
        }
        inputs.par_chunks_exact(one).flat_map_iter(|input| first(input, false)).collect()
    }

    /// Multiply-adds for one input, of the nodes that are counted.
    #[must_use]
    pub fn multiply_adds(&self) -> u64 {
        self.graph.nodes.iter().filter_map(|node| count::multiply_adds(&self.graph, node)).sum()
    }

    /// Its nodes in the order in which they run; views are among them.
    #[must_use]
    pub fn nodes(&self) -> Vec<PlanNode> {
        let shape = |value: &graph::ValueId| self.graph.shape(*value).to_vec();
        let nodes = self.graph.nodes.iter().map(|node| PlanNode {
            name: node.name.clone(),
            operation: node.operation.name(),
            inputs: node
                .inputs
                .iter()
                .filter(|&&input| self.graph.values[input].constant.is_none())
                .map(shape)
                .collect(),
            output: shape(&node.outputs[0]),
            multiply_adds: count::multiply_adds(&self.graph, node),
            bytes: count::bytes(&self.graph, node),
        });
        nodes.collect()
    }

    /// How long each of the [nodes](Self::nodes) takes: the shortest of so many runs.
    #[must_use]
    pub fn measure(&self, runs: usize) -> Vec<Duration> {
        let input = vec![0.5; self.graph.values[self.graph.input].len()];
        let mut shortest = vec![Duration::MAX; self.graph.nodes.len()];
        for _ in 0..runs.max(1) {
            let mut watch = |node: usize, time: Duration| shortest[node] = shortest[node].min(time);
            run::run(&self.graph, &self.schedule, &input, true, Some(&mut watch));
        }
        shortest
    }
}
