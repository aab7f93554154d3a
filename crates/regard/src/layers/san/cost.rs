//! The cost of a unit. Concatenation costs nothing.

use burn::module::Param;
use burn::tensor::Tensor;

use super::{PairwiseUnit, PatchwiseUnit, SanUnit};
use crate::attention::{Gamma, PairPosition, PairRelation, PatchRelation};
use crate::cost::{Costed, Ledger, Work, size};
use crate::layers::Pointwise;

impl Costed for SanUnit {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        match self {
            Self::Pairwise(unit) => unit.cost(shape, ledger),
            Self::Patchwise(unit) => unit.cost(shape, ledger),
        }
    }
}

impl Costed for PairwiseUnit {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [offsets, pixels] = [self.options.window * self.options.window, shape[1] * shape[2]];
        if let Some(place) = &self.place {
            ledger.part("place", place, vec![2, shape[1], shape[2]]);
        }
        let (related, out) = features(shape, [self.phi.as_ref(), self.psi.as_ref()], &self.beta, ledger);
        let relation = |elements| Work::Relation { elements };
        match self.options.relation {
            PairRelation::Summation | PairRelation::Subtraction | PairRelation::Hadamard => {
                ledger.each("relation", &[related, offsets, pixels], relation);
            }
            PairRelation::Dot => {
                let work = Work::Product { macs: (related * offsets * pixels) as u64 };
                ledger.within("relation", |ledger| ledger.line(0, work, offsets * pixels));
            }
            PairRelation::Concatenation => {}
        }
        if self.options.position == PairPosition::Relative {
            ledger.each("position", &[2, offsets, pixels], relation);
        }
        let weights = ledger.part("gamma", &self.gamma, vec![self.gamma.inputs(), offsets, pixels]);
        ledger.each("softmax", &weights, |elements| Work::Softmax { elements });
        aggregation(&out, offsets, ledger);
        out
    }
}

impl Costed for PatchwiseUnit {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let (offsets, pixels) = (self.options.window * self.options.window, shape[1] * shape[2]);
        let (related, out) = features(shape, [self.phi.as_ref(), self.psi.as_ref()], &self.beta, ledger);
        if self.options.relation != PatchRelation::Concatenation {
            // star and clique: one dot product for each input of gamma
            let products = self.gamma.inputs() * pixels;
            let work = Work::HiddenProduct { macs: (related * products) as u64 };
            ledger.within("relation", |ledger| ledger.line(0, work, products));
        }
        ledger.part("gamma", &self.gamma, vec![self.gamma.inputs(), pixels]);
        aggregation(&out, offsets, ledger);
        out
    }
}

/// Adds each convolution once; returns the channels of the relation and the shape of the values.
fn features(
    shape: Vec<usize>,
    [phi, psi]: [Option<&Pointwise>; 2],
    beta: &Pointwise,
    ledger: &mut Ledger,
) -> (usize, Vec<usize>) {
    let related = phi.map(|phi| ledger.part("phi", phi, shape.clone()));
    if let Some(psi) = psi {
        ledger.part("psi", psi, shape.clone());
    }
    let out = ledger.part("beta", beta, shape);
    (related.map_or(out[0], |related| related[0]), out)
}

fn aggregation(out: &[usize], offsets: usize, ledger: &mut Ledger) {
    let elements = out.iter().product::<usize>();
    let work = Work::Aggregation { macs: (elements * offsets) as u64 };
    ledger.within("aggregation", |ledger| ledger.line(0, work, elements));
}

impl Costed for Gamma {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let activation = |elements| Work::Activation { elements };
        let shape = ledger.part("norm1", &self.norm1, shape);
        ledger.each("relu1", &shape, activation);
        let shape = linear("linear1", &self.linear1, None, shape, ledger);
        let shape = ledger.part("norm2", &self.norm2, shape);
        ledger.each("relu2", &shape, activation);
        linear("linear2", &self.linear2, Some(&self.bias2), shape, ledger)
    }
}

fn linear(
    name: &str,
    weight: &Param<Tensor<2>>,
    bias: Option<&Param<Tensor<1>>>,
    mut shape: Vec<usize>,
    ledger: &mut Ledger,
) -> Vec<usize> {
    let [outputs, inputs] = weight.lazy_shape().dims();
    let positions = shape[1..].iter().product::<usize>();
    let work = Work::Linear {
        positions: positions as u64,
        macs: (inputs * outputs) as u64,
        outputs: outputs as u64,
        bias: bias.is_some(),
    };
    ledger.within(name, |ledger| ledger.line(size(weight) + bias.map_or(0, size), work, outputs * positions));
    shape[0] = outputs;
    shape
}
