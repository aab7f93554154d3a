//! From Burn's operations to the nodes of a plan.

use burn::tensor::{DType, Slice};
use burn_ir::{
    ActivationOperationIr, BaseOperationIr, FloatOperationIr, ModuleOperationIr, NumericOperationIr, OperationIr,
    ScalarIr, TensorId, TensorIr,
};
use regard_kernels::convolution;
use regard_kernels::strided::{Binary, Reduction, Unary};
use std::collections::HashMap;
use std::sync::Arc;

use super::capture::Captured;
use super::graph::{Constant, Graph, Node, Value, ValueId};
use super::interpret;
use super::operation::{Convolution, Epilogue, Operation, PoolWindow};
use crate::Error;
use crate::fused::recorded::Operator;

/// The graph of a captured forward pass.
///
/// # Errors
/// When it has an operation that no plan computes; the error names it.
pub(super) fn lower(captured: Captured) -> Result<Graph, Error> {
    let Captured { operations, input, outputs, constants, operators, names } = captured;
    let mut graph = Graph::default();
    let mut ids: HashMap<TensorId, ValueId> = HashMap::new();
    for operation in operations.iter().filter(|operation| !matches!(operation, OperationIr::Init(_))) {
        let mut value = |tensor: &TensorIr| {
            *ids.entry(tensor.id).or_insert_with(|| {
                let name = names.get(&tensor.id).cloned().unwrap_or_default();
                let constant = constants.get(&tensor.id).cloned().map(Constant::of);
                graph.values.push(Value { shape: tensor.shape.to_vec(), constant, name });
                graph.values.len() - 1
            })
        };
        let inputs: Vec<ValueId> = operation.inputs().map(&mut value).collect();
        let outputs = operation.outputs().map(&mut value).collect();
        let operation = node(operation, &operators)?;
        graph.nodes.push(Node { name: graph.layer(&inputs), operation, inputs, outputs });
    }
    let known = |id: &TensorId| {
        ids.get(id)
            .copied()
            .ok_or_else(|| Error::plan("forward pass", "its input or output takes part in no operation"))
    };
    graph.input = known(&input)?;
    graph.outputs = outputs.iter().map(known).collect::<Result<_, _>>()?;
    Ok(graph)
}

fn node(operation: &OperationIr, operators: &[Arc<dyn Operator>]) -> Result<Operation, Error> {
    let own = match operation {
        OperationIr::Custom(custom) => match custom.scalars[..] {
            [ScalarIr::UInt(index)] => operators.get(index as usize).map(|operator| fused(operator, &custom.inputs)),
            _ => None,
        },
        OperationIr::BaseFloat(base) => self::base(base),
        OperationIr::NumericFloat(DType::F32, numeric) => self::numeric(numeric),
        OperationIr::Activation(ActivationOperationIr::Relu(_)) => Some(Operation::Unary(Unary::Relu)),
        OperationIr::Activation(ActivationOperationIr::Sigmoid(_)) => Some(Operation::Unary(Unary::Sigmoid)),
        OperationIr::Float(DType::F32, FloatOperationIr::Tanh(_)) => Some(Operation::Unary(Unary::Tanh)),
        OperationIr::Module(module) => self::module(module),
        _ => None,
    };
    if let Some(own) = own {
        return Ok(own);
    }
    interpret::check(operation)?;
    Ok(Operation::Burn(Box::new(operation.clone())))
}

fn fused(operator: &Arc<dyn Operator>, inputs: &[TensorIr]) -> Operation {
    match operator.kernel().downcast_ref::<convolution::Convolution>() {
        Some(case) if inputs[0].shape[0] == 1 => Operation::Convolution(Convolution {
            groups: 1,
            stride: [case.stride; 2],
            padding: [case.padding; 2],
            dilation: [1; 2],
            bias: inputs.len() == 3,
            epilogue: Epilogue::default(),
        }),
        _ => Operation::Fused(operator.clone()),
    }
}

fn base(operation: &BaseOperationIr) -> Option<Operation> {
    Some(match operation {
        BaseOperationIr::Reshape(_) => Operation::View,
        BaseOperationIr::SwapDims(swap) => {
            let mut axes: Vec<usize> = (0..swap.input.shape.num_dims()).collect();
            axes.swap(swap.dim1, swap.dim2);
            Operation::Permute(axes)
        }
        BaseOperationIr::Permute(permute) => Operation::Permute(permute.axes.clone()),
        BaseOperationIr::Slice(slice) => {
            // an axis without a range is whole
            let ranges = slice.ranges.iter().map(start).collect::<Option<Vec<_>>>()?;
            let whole = slice.tensor.shape.num_dims() - ranges.len();
            Operation::Slice([ranges, vec![0; whole]].concat())
        }
        BaseOperationIr::Cat(cat) => Operation::Concatenate(cat.dim),
        BaseOperationIr::Expand(expand) if expand.input.shape.num_dims() == expand.out.shape.num_dims() => {
            Operation::Broadcast
        }
        BaseOperationIr::RepeatDim(repeat) if repeat.tensor.shape[repeat.dim] == 1 => Operation::Broadcast,
        _ => return None,
    })
}

/// Where a range begins, if it goes forward one by one from a given place.
fn start(slice: &Slice) -> Option<usize> {
    usize::try_from(slice.start).ok().filter(|_| slice.step == 1)
}

fn numeric(operation: &NumericOperationIr) -> Option<Operation> {
    let number = |scalar: &ScalarIr| scalar.elem::<f32>();
    Some(match operation {
        NumericOperationIr::Add(_) => Operation::Binary(Binary::Add),
        NumericOperationIr::Sub(_) => Operation::Binary(Binary::Subtract),
        NumericOperationIr::Mul(_) => Operation::Binary(Binary::Multiply),
        NumericOperationIr::Div(_) => Operation::Binary(Binary::Divide),
        NumericOperationIr::AddScalar(by) => Operation::Unary(Unary::AddScalar(number(&by.rhs))),
        NumericOperationIr::SubScalar(by) => Operation::Unary(Unary::AddScalar(-number(&by.rhs))),
        NumericOperationIr::MulScalar(by) => Operation::Unary(Unary::MultiplyScalar(number(&by.rhs))),
        NumericOperationIr::MeanDim(reduce) => Operation::Reduce(Reduction::Mean, reduce.axis),
        NumericOperationIr::SumDim(reduce) => Operation::Reduce(Reduction::Sum, reduce.axis),
        NumericOperationIr::MaxDim(reduce) => Operation::Reduce(Reduction::Max, reduce.axis),
        _ => return None,
    })
}

fn module(operation: &ModuleOperationIr) -> Option<Operation> {
    match operation {
        ModuleOperationIr::MaxPool2d(pool) if pool.dilation == [1, 1] && !pool.ceil_mode => {
            Some(Operation::MaxPool(PoolWindow {
                kernel: pool.kernel_size,
                stride: pool.stride,
                padding: pool.padding,
                channels_last: false,
            }))
        }
        ModuleOperationIr::Conv2d(conv) => {
            let even = conv.options.padding.iter().all(|(before, after)| before == after);
            (even && conv.x.shape[0] == 1).then(|| {
                Operation::Convolution(Convolution {
                    groups: conv.options.groups,
                    stride: conv.options.stride,
                    padding: conv.options.padding.map(|(before, _)| before),
                    dilation: conv.options.dilation,
                    bias: conv.bias.is_some(),
                    epilogue: Epilogue::default(),
                })
            })
        }
        _ => None,
    }
}
