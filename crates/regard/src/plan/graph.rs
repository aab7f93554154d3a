//! The graph of a plan: nodes in the order in which they run, between values of static shapes.

use burn::tensor::{DType, TensorData};
use std::sync::Arc;

use super::operation::Operation;

/// A value of a graph.
pub(crate) type ValueId = usize;

/// Numbers that are known before a plan runs.
#[derive(Clone, Debug)]
pub(crate) enum Constant {
    Floats(Arc<Vec<f32>>),
    /// Integers and booleans.
    Other(Arc<TensorData>),
}

impl Constant {
    pub fn of(data: TensorData) -> Self {
        if data.dtype() != DType::F32 {
            return Self::Other(Arc::new(data));
        }
        Self::Floats(Arc::new(data.try_into_vec().expect("f32 by its type")))
    }

    pub fn floats(&self) -> Option<&Arc<Vec<f32>>> {
        match self {
            Self::Floats(floats) => Some(floats),
            Self::Other(_) => None,
        }
    }
}

/// What is known of a value.
#[derive(Clone, Debug)]
pub(crate) struct Value {
    pub shape: Vec<usize>,
    pub constant: Option<Constant>,
    /// The path of a parameter; empty for other values.
    pub name: String,
}

impl Value {
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }
}

/// An operation on values.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// The path of its layer, if it has parameters.
    pub name: String,
    pub operation: Operation,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
}

/// Nodes and the values between them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Graph {
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    pub input: ValueId,
    pub outputs: Vec<ValueId>,
}

impl Graph {
    /// A new value of floats.
    pub fn add(&mut self, shape: Vec<usize>) -> ValueId {
        self.values.push(Value { shape, constant: None, name: String::new() });
        self.values.len() - 1
    }

    /// A new constant under the name of the parameter that it comes from.
    pub fn add_constant(&mut self, numbers: Vec<f32>, shape: Vec<usize>, name: String) -> ValueId {
        let id = self.add(shape);
        self.values[id].constant = Some(Constant::Floats(Arc::new(numbers)));
        self.values[id].name = name;
        id
    }

    pub fn shape(&self, value: ValueId) -> &[usize] {
        &self.values[value].shape
    }

    /// The numbers of a constant of floats.
    pub fn floats(&self, value: ValueId) -> Option<&Arc<Vec<f32>>> {
        self.values[value].constant.as_ref()?.floats()
    }

    /// How often each value is read; outputs of the graph once more.
    pub fn uses(&self) -> Vec<usize> {
        let mut uses = vec![0; self.values.len()];
        let read = self.nodes.iter().flat_map(|node| &node.inputs).chain(&self.outputs);
        read.for_each(|&value| uses[value] += 1);
        uses
    }

    /// Which node makes a value.
    pub fn makers(&self) -> Vec<Option<usize>> {
        let mut makers = vec![None; self.values.len()];
        for (index, node) in self.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|&value| makers[value] = Some(index));
        }
        makers
    }

    /// The path of the layer whose parameters are among some values.
    pub fn layer(&self, values: &[ValueId]) -> String {
        let name = values.iter().map(|&value| self.values[value].name.as_str()).find(|name| !name.is_empty());
        name.map_or("", |name| name.rsplit_once('.').map_or(name, |(layer, _)| layer)).to_string()
    }
}
