//! The cost of a network, in the order of its forward pass.

use super::{Sasa, SasaBlock, SasaStem, Spatial, StagedBackbone};
use crate::cost::{Costed, Ledger, Work};

/// Up to the last group; the shape of every group's map.
pub(super) fn of_groups(sasa: &Sasa, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<Vec<usize>> {
    let mut shape = ledger.part("stem", &sasa.stem, shape);
    let mut shapes = Vec::new();
    for (group, blocks) in sasa.groups.iter().enumerate() {
        for (index, block) in blocks.iter().enumerate() {
            shape = ledger.part(format!("groups.{group}.{index}"), block, shape);
        }
        shapes.push(shape.clone());
    }
    shapes
}

impl Costed for Sasa {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = self.last_cost(shape, ledger);
        let Some(fc) = &self.fc else { return shape };
        ledger.pool("mean", &shape, [1, 1], shape[1] * shape[2]);
        ledger.within("fc", |ledger| fc.cost_as_head(ledger))
    }
}

impl Costed for SasaStem {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let (shape, bn) = match self {
            Self::Convolution(stem) => (ledger.part("conv", &stem.conv, shape), &stem.bn),
            Self::Attention(stem) => (ledger.part("attn", &stem.attn, shape), &stem.bn),
        };
        let shape = ledger.part("bn", bn, shape);
        ledger.each("relu", &shape, activation);
        let (side, pooled) = match self {
            Self::Convolution(_) => (3, [1, 2].map(|axis| shape[axis].div_ceil(2))),
            Self::Attention(stem) => (stem.attn.block(), [1, 2].map(|axis| shape[axis] / stem.attn.block())),
        };
        ledger.pool("pool", &shape, pooled, side * side)
    }
}

impl Costed for SasaBlock {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let narrow = ledger.part("conv1", &self.conv1, shape.clone());
        let narrow = ledger.part("bn1", &self.bn1, narrow);
        ledger.each("relu1", &narrow, activation);
        let mixed = match &self.spatial {
            Spatial::Convolution(conv) => ledger.part("spatial", conv, narrow),
            Spatial::Attention(attention) => {
                let attended = ledger.part("spatial", attention, narrow);
                match self.stride {
                    1 => attended,
                    _ => ledger.pool("pool", &attended, [1, 2].map(|axis| attended[axis].div_ceil(2)), 4),
                }
            }
        };
        let mixed = ledger.part("bn2", &self.bn2, mixed);
        ledger.each("relu2", &mixed, activation);
        let wide = ledger.part("conv3", &self.conv3, mixed);
        let wide = ledger.part("bn3", &self.bn3, wide);
        if let Some(shortcut) = &self.shortcut {
            ledger.within("shortcut", |ledger| {
                let around = ledger.part("conv", &shortcut.conv, shape);
                ledger.part("bn", &shortcut.bn, around)
            });
        }
        ledger.each("add", &wide, |elements| Work::Add { elements });
        ledger.each("relu3", &wide, activation);
        wide
    }
}

const fn activation(elements: u64) -> Work {
    Work::Activation { elements }
}
