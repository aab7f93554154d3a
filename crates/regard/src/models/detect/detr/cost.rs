//! The costs of a DETR, in the order of its forward pass.

use super::{Detr, ReferencePoints};
use crate::cost::{Costed, Ledger, Work, size};

impl Costed for Detr {
    /// Gives `[queries, 4]`.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let (trunk, position) = &self.backbone;
        let map = ledger.part("backbone.0.body", &trunk.body, shape);
        for (name, table) in [("row_embed", &position.row_embed), ("col_embed", &position.col_embed)] {
            if let Some(table) = table {
                ledger.within(format!("backbone.1.{name}"), |ledger| ledger.line(size(&table.weight), Work::Table, 0));
            }
        }
        let map = ledger.part("input_proj", &self.input_proj, map);
        let [dim, tokens] = [map[0], map[1] * map[2]];
        if self.reference.is_some() {
            ledger.each("places", &[tokens, dim], |elements| Work::Add { elements });
        }
        ledger.within("transformer.encoder", |ledger| {
            let encoder = &self.transformer.encoder;
            for (index, layer) in encoder.layers.iter().enumerate() {
                ledger.within(format!("layers.{index}"), |ledger| layer.cost_at(&[tokens, dim], ledger));
            }
            if let Some(norm) = &encoder.norm {
                ledger.part("norm", norm, vec![tokens, dim]);
            }
        });
        if let Some(table) = &self.query_embed {
            ledger.within("query_embed", |ledger| ledger.line(size(&table.weight), Work::Table, 0));
        }
        if let Some(ReferencePoints { points, spread }) = &self.reference {
            ledger.within("reference.points", |ledger| ledger.line(size(points), Work::Table, 0));
            ledger.within("reference.spread", |ledger| ledger.line(size(spread), Work::Table, 0));
        }
        let (queries, decoder) = (self.num_queries(), &self.transformer.decoder);
        ledger.within("transformer.decoder", |ledger| {
            for (index, layer) in decoder.layers.iter().enumerate() {
                ledger.within(format!("layers.{index}"), |ledger| layer.cost_at(&[queries, dim], tokens, ledger));
            }
            ledger.part("norm", &decoder.norm, vec![decoder.layers.len() * queries, dim]);
        });
        // every layer makes predictions
        let answers = vec![decoder.layers.len() * queries, dim];
        ledger.part("class_embed", &self.class_embed, answers.clone());
        ledger.within("bbox_embed", |ledger| {
            let mut shape = answers;
            for (index, layer) in self.bbox_embed.layers.iter().enumerate() {
                shape = ledger.part(format!("layers.{index}"), layer, shape);
                ledger.each(&format!("activation{index}"), &shape, |elements| Work::Activation { elements });
            }
        });
        vec![queries, 4]
    }
}
