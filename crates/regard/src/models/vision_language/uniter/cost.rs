//! What a UNITER costs for one text and its regions, with the logits of every word and region.

use super::{Uniter, UniterImageEmbeddings};
use crate::cost::{Costed, Ledger, Work, size};
use crate::layers::bert::cost_of_table;

impl Costed for Uniter {
    /// `[N, R] -> [N + R, D]`; of two pictures, one.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [words, regions] = shape[..] else { panic!("uniter: words and regions are [N, R], got {shape:?}") };
        let x = ledger.within("uniter", |ledger| {
            let model = &self.uniter;
            let x = ledger.within("embeddings", |ledger| model.embeddings.cost_of(words, words, ledger));
            ledger.within("img_embeddings", |ledger| model.img_embeddings.cost_of(regions, ledger));
            let x = ledger.part("encoder", &model.encoder, vec![words + regions, x[1]]);
            ledger.part("pooler", &model.pooler, x.clone());
            x
        });
        let dim = x[1];
        if let Some(cls) = &self.cls {
            ledger.within("cls", |ledger| cls.cost_of(&[words, dim], ledger));
        }
        if let Some(head) = &self.feat_regress {
            ledger.within("feat_regress", |ledger| {
                ledger.part("net", &head.net, vec![regions, dim]);
                let outputs = size(&head.bias);
                let (positions, macs) = (regions as u64, (outputs * dim) as u64);
                // the map is a parameter of the embeddings
                let work = Work::Linear { positions, macs, outputs: outputs as u64, bias: true };
                ledger.within("bias", |ledger| ledger.line(outputs, work, regions * outputs));
            });
        }
        if let Some(head) = &self.region_classifier {
            ledger.within("region_classifier", |ledger| ledger.part("net", &head.net, vec![regions, dim]));
        }
        if let Some(head) = &self.itm_output {
            ledger.part("itm_output", head, vec![1, dim]);
        }
        if let Some(head) = &self.vqa_output {
            ledger.part("vqa_output", head, vec![1, dim]);
        }
        if let Some(head) = &self.nlvr2_output {
            ledger.part("nlvr2_output", head, vec![1, 2 * dim]);
        }
        x
    }
}

impl UniterImageEmbeddings {
    fn cost_of(&self, regions: usize, ledger: &mut Ledger) {
        let [dim, features] = self.img_linear.weight.lazy_shape().dims();
        let seen = ledger.part("img_linear", &self.img_linear, vec![regions, features]);
        ledger.part("img_layer_norm", &self.img_layer_norm, seen);
        let places = ledger.part("pos_linear", &self.pos_linear, vec![regions, 7]);
        ledger.part("pos_layer_norm", &self.pos_layer_norm, places);
        cost_of_table("mask_embedding", &self.mask_embedding, ledger);
        ledger.each("add", &[2 * regions, dim], |elements| Work::Add { elements });
        ledger.part("LayerNorm", &self.layer_norm, vec![regions, dim]);
    }
}
