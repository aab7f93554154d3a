//! The cost of a model, computed from shapes: nothing runs, nothing is allocated.
//!
//! Every layer adds its work to a [`Ledger`], under the same dotted names as parameters and traces. Papers count
//! differently: a [`Convention`] is how one of them adds the lines up.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use serde::Serialize;
use std::fmt::Display;

/// A layer whose cost can be computed from shapes.
pub trait Costed {
    /// Adds the cost of one forward pass over an input `[C, H, W]`, `[C, T, H, W]` or `[N, D]` (no batch); returns the
    /// output's shape.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize>;
}

/// The work of one layer, in enough detail for every convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "work")]
pub enum Work {
    /// A product with parameters at `positions`: `macs` and `outputs` at each of them.
    Linear {
        positions: u64,
        macs: u64,
        outputs: u64,
        bias: bool,
    },
    /// The last layer of a classifier: some conventions skip it or its bias.
    Head {
        macs: u64,
        outputs: u64,
    },
    /// A product of two activations: attention scores, sums of values.
    Product {
        macs: u64,
    },
    /// A product of two activations that counters based on module hooks miss: star and clique relations.
    HiddenProduct {
        macs: u64,
    },
    /// Batch norm or layer norm.
    Norm {
        elements: u64,
    },
    /// ReLU, GELU, sigmoid.
    Activation {
        elements: u64,
    },
    Softmax {
        elements: u64,
    },
    /// A residual sum.
    Add {
        elements: u64,
    },
    /// Pooling of `inputs` elements to `outputs` through windows of `window` elements.
    Pool {
        inputs: u64,
        outputs: u64,
        window: u64,
    },
    /// SAN's relation of pairs: elements of its output.
    Relation {
        elements: u64,
    },
    /// SAN's sum of values under vector weights.
    Aggregation {
        macs: u64,
    },
    /// A relative position added to keys: pixels times neighbours times channels.
    RelativePosition {
        elements: u64,
    },
    /// Parameters without arithmetic: tokens, position tables.
    Table,
}

/// One line of the ledger.
#[derive(Clone, Debug, Serialize)]
pub struct LedgerLine {
    /// Dotted name of the layer.
    pub name: String,
    /// Number of trainable parameters.
    pub parameters: u64,
    #[serde(flatten)]
    pub work: Work,
    /// Elements of the layer's output, for one picture.
    pub activations: u64,
}

/// How a paper adds the lines up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Convention {
    /// Multiply-adds of products, nothing else.
    MultiplyAdds,
    /// SAN's counter: multiply-adds with biases, plus elements of norms, activations, pools, relations.
    San,
    /// SASA's: two for a multiply-add, plus element-wise work.
    Sasa,
    /// DETR's: multiply-adds, plus one for each element of sums, products and activations, five for one of a softmax and
    /// one each for the mask and the dropout around it.
    Detr,
}

impl Convention {
    /// The cost of one line.
    #[must_use]
    #[allow(clippy::match_same_arms)] // grouped by convention, each in the order of its paper's rule
    pub fn count(self, work: Work) -> u64 {
        match (self, work) {
            (_, Work::Table) => 0,
            (Self::MultiplyAdds, Work::Linear { positions, macs, .. }) => positions * macs,
            (Self::MultiplyAdds, Work::Head { macs, .. }) => macs,
            (
                Self::MultiplyAdds,
                Work::Product { macs } | Work::HiddenProduct { macs } | Work::Aggregation { macs },
            ) => macs,
            (Self::MultiplyAdds, _) => 0,

            (Self::San, Work::Linear { positions, macs, outputs, bias }) => {
                positions * (macs + if bias { outputs } else { 0 })
            }
            (Self::San, Work::Head { macs, .. } | Work::Product { macs } | Work::Aggregation { macs }) => macs,
            (Self::San, Work::Norm { elements }) => 2 * elements,
            (Self::San, Work::Activation { elements } | Work::Relation { elements }) => elements,
            (Self::San, Work::Pool { inputs, .. }) => inputs,
            (
                Self::San,
                Work::HiddenProduct { .. } | Work::Softmax { .. } | Work::Add { .. } | Work::RelativePosition { .. },
            ) => 0,

            (Self::Sasa, Work::Linear { positions, macs, .. }) => 2 * positions * macs,
            (Self::Sasa, Work::Head { macs, .. }) => 2 * macs,
            (Self::Sasa, Work::Product { macs } | Work::HiddenProduct { macs } | Work::Aggregation { macs }) => {
                2 * macs
            }
            (Self::Sasa, Work::Norm { elements }) => 4 * elements,
            (
                Self::Sasa,
                Work::Activation { elements }
                | Work::Add { elements }
                | Work::Relation { elements }
                | Work::RelativePosition { elements },
            ) => elements,
            (Self::Sasa, Work::Softmax { elements }) => 5 * elements,
            (Self::Sasa, Work::Pool { outputs, window, .. }) => outputs * window,

            (Self::Detr, Work::Linear { positions, macs, .. }) => positions * macs,
            (
                Self::Detr,
                Work::Head { macs, .. }
                | Work::Product { macs }
                | Work::HiddenProduct { macs }
                | Work::Aggregation { macs },
            ) => macs,
            // frozen norms are a product and a sum
            (Self::Detr, Work::Norm { elements }) => 2 * elements,
            (
                Self::Detr,
                Work::Activation { elements }
                | Work::Add { elements }
                | Work::Relation { elements }
                | Work::RelativePosition { elements },
            ) => elements,
            (Self::Detr, Work::Softmax { elements }) => 7 * elements,
            (Self::Detr, Work::Pool { outputs, .. }) => outputs,
        }
    }
}

/// The costs of a model, layer by layer, in the order of the forward pass.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ledger {
    #[serde(skip)]
    path: Vec<String>,
    /// Whether the parameters of what is added are counted already.
    #[serde(skip)]
    shared: bool,
    lines: Vec<LedgerLine>,
}

impl Ledger {
    /// The ledger of a whole model for a picture `[C, H, W]` or a clip `[C, T, H, W]`.
    #[must_use]
    pub fn of<const D: usize>(model: &impl Costed, input: [usize; D]) -> Self {
        let mut ledger = Self::default();
        model.cost(input.to_vec(), &mut ledger);
        ledger
    }

    /// Adds lines under the name of a part.
    pub fn within<T>(&mut self, part: impl Display, write: impl FnOnce(&mut Self) -> T) -> T {
        self.path.push(part.to_string());
        let result = write(self);
        self.path.pop();
        result
    }

    /// Adds the cost of a part under its name.
    pub fn part(&mut self, name: impl Display, part: &impl Costed, shape: Vec<usize>) -> Vec<usize> {
        self.within(name, |ledger| part.cost(shape, ledger))
    }

    /// Adds lines of layers that ran before, on another input: their work counts again, their parameters do not.
    pub fn shared<T>(&mut self, write: impl FnOnce(&mut Self) -> T) -> T {
        let before = std::mem::replace(&mut self.shared, true);
        let result = write(self);
        self.shared = before;
        result
    }

    /// Adds a line under the current path.
    pub fn line(&mut self, parameters: usize, work: Work, activations: usize) {
        let name = self.path.join(".");
        let parameters = if self.shared { 0 } else { parameters };
        self.lines.push(LedgerLine { name, parameters: parameters as u64, work, activations: activations as u64 });
    }

    /// Adds a line for work without parameters over the elements of a shape.
    pub fn each(&mut self, name: &str, shape: &[usize], work: impl FnOnce(u64) -> Work) {
        let elements = shape.iter().product::<usize>();
        self.within(name, |ledger| ledger.line(0, work(elements as u64), elements));
    }

    /// Adds a line for the pooling of a map `[C, H, W]` to `[rows, columns]`, returns the output's shape.
    pub fn pool(&mut self, name: &str, shape: &[usize], [rows, columns]: [usize; 2], window: usize) -> Vec<usize> {
        let (inputs, outputs) = (shape.iter().product::<usize>(), shape[0] * rows * columns);
        let work = Work::Pool { inputs: inputs as u64, outputs: outputs as u64, window: window as u64 };
        self.within(name, |ledger| ledger.line(0, work, outputs));
        vec![shape[0], rows, columns]
    }

    /// Every line, in the order of the forward pass.
    #[must_use]
    pub fn lines(&self) -> &[LedgerLine] {
        &self.lines
    }

    /// Number of trainable parameters.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.lines.iter().map(|line| line.parameters).sum()
    }

    /// The total under a convention.
    #[must_use]
    pub fn total(&self, convention: Convention) -> u64 {
        self.lines.iter().map(|line| convention.count(line.work)).sum()
    }
}

/// Number of elements of a parameter, which need not be initialised.
pub fn size<const D: usize>(parameter: &Param<Tensor<D>>) -> usize {
    parameter.lazy_shape().num_elements()
}

impl Costed for Conv2d {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [outputs, inputs, rows, columns] = self.weight.lazy_shape().dims();
        assert_eq!(
            shape[0],
            inputs * self.groups,
            "convolution: input has channels {}, weight {}",
            shape[0],
            inputs * self.groups
        );
        let (top, left, bottom, right) = match &self.padding {
            PaddingConfig2d::Valid => (0, 0, 0, 0),
            PaddingConfig2d::Explicit(top, left, bottom, right) => (*top, *left, *bottom, *right),
            PaddingConfig2d::Same => panic!("convolution: costs need an explicit padding"),
        };
        let out = |size: usize, padding: usize, kernel: usize, axis: usize| {
            (size + padding - self.dilation[axis] * (kernel - 1) - 1) / self.stride[axis] + 1
        };
        let (height, width) = (out(shape[1], top + bottom, rows, 0), out(shape[2], left + right, columns, 1));
        let work = Work::Linear {
            positions: (height * width) as u64,
            macs: (inputs * rows * columns * outputs) as u64,
            outputs: outputs as u64,
            bias: self.bias.is_some(),
        };
        let parameters = size(&self.weight) + self.bias.as_ref().map_or(0, size);
        ledger.line(parameters, work, outputs * height * width);
        vec![outputs, height, width]
    }
}
