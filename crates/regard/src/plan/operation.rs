//! The kinds of nodes. Shapes are those of the values.

use burn_ir::OperationIr;
use regard_kernels::packed_convolution::PackedConvolution;
use std::sync::Arc;

use crate::fused::recorded::Operator;
use regard_kernels::strided::{Binary, Reduction, Unary};

/// What a node computes.
#[derive(Clone, Debug)]
pub(crate) enum Operation {
    /// The same numbers in another shape: costs nothing.
    View,
    /// Axes in another order.
    Permute(Vec<usize>),
    /// A part of every axis, from these indices on.
    Slice(Vec<usize>),
    /// Inputs one after the other along an axis.
    Concatenate(usize),
    /// Axes of length one repeated.
    Broadcast,
    /// Of two values, the second repeated along axes of length one, or the first.
    Binary(Binary),
    Unary(Unary),
    /// Along one axis, which stays with length one.
    Reduce(Reduction, usize),
    /// Windows of `[.., H, W]`.
    MaxPool(PoolWindow),
    /// Image, weight, bias if there is one, and what is added if there is anything.
    Convolution(Convolution),
    /// A convolution whose weights are packed: image, and what is added if there is anything.
    PackedConvolution(Arc<PackedConvolution>, Epilogue),
    /// A fused operator of the forward pass.
    Fused(Arc<dyn Operator>),
    /// Whatever has no form of its own here runs by Burn's interpreter on its CPU backend.
    Burn(Box<OperationIr>),
}

/// Windows of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolWindow {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
    /// Whether channels come last: `[.., H, W, C]`.
    pub channels_last: bool,
}

/// A convolution of one picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Convolution {
    pub groups: usize,
    pub stride: [usize; 2],
    /// Zeros on both sides of rows and columns.
    pub padding: [usize; 2],
    pub dilation: [usize; 2],
    pub bias: bool,
    pub epilogue: Epilogue,
}

/// What follows a convolution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Epilogue {
    /// The last input is added.
    pub sum: bool,
    /// Then negative numbers become zeros.
    pub relu: bool,
}

impl Operation {
    /// Its name in a table.
    pub fn name(&self) -> String {
        let name = match self {
            Self::View => "view",
            Self::Permute(_) => "permute",
            Self::Slice(_) => "slice",
            Self::Concatenate(_) => "concatenate",
            Self::Broadcast => "broadcast",
            Self::Binary(binary) => binary.name(),
            Self::Unary(unary) => unary.name(),
            Self::Reduce(reduction, _) => reduction.name(),
            Self::MaxPool(_) => "max-pool",
            Self::Convolution(Convolution { epilogue, .. }) | Self::PackedConvolution(_, epilogue) => {
                match (epilogue.sum, epilogue.relu) {
                    (false, false) => "convolution",
                    (false, true) => "convolution+relu",
                    (true, false) => "convolution+sum",
                    (true, true) => "convolution+sum+relu",
                }
            }
            Self::Fused(operator) => return operator.name(),
            Self::Burn(operation) => return super::interpret::name(operation),
        };
        name.to_string()
    }
}
