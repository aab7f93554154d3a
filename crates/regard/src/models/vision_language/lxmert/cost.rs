//! What an LXMERT costs for one text and its regions, with the logits of every word and region.

use super::{Lxmert, LxmertRegionEmbeddings};
use crate::cost::{Costed, Ledger, Work};

impl Costed for Lxmert {
    /// `[N, R] -> [N, D]`; of two pictures, one.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [words, regions] = shape[..] else { panic!("lxmert: words and regions are [N, R], got {shape:?}") };
        let model = &self.lxmert;
        let (text, vision) = ledger.within("lxmert", |ledger| {
            let text = ledger.within("embeddings", |ledger| model.embeddings.cost_of(words, words, ledger));
            let vision = ledger.within("encoder", |ledger| {
                let vision = ledger.within("visn_fc", |ledger| model.encoder.visn_fc.cost_of(regions, ledger));
                for (i, layer) in model.encoder.layer.iter().enumerate() {
                    ledger.part(format!("layer.{i}"), layer, text.clone());
                }
                for (i, layer) in model.encoder.r_layers.iter().enumerate() {
                    ledger.part(format!("r_layers.{i}"), layer, vision.clone());
                }
                for (i, layer) in model.encoder.x_layers.iter().enumerate() {
                    ledger.within(format!("x_layers.{i}"), |ledger| layer.cost_of([words, regions], ledger));
                }
                vision
            });
            ledger.part("pooler", &model.pooler, text.clone());
            (text, vision)
        });
        let dim = text[1];
        if let Some(cls) = &self.cls {
            ledger.within("cls", |ledger| cls.cost_of(&text, ledger));
        }
        if let Some(head) = &self.obj_predict_head {
            ledger.within("obj_predict_head", |ledger| {
                let hidden = ledger.part("transform", &head.transform, vision);
                let decoders = &head.decoder_dict;
                for (name, map) in [("obj", &decoders.obj), ("attr", &decoders.attr), ("feat", &decoders.feat)] {
                    ledger.part(format!("decoder_dict.{name}"), map, hidden.clone());
                }
            });
        }
        if let Some(head) = &self.answer_head {
            ledger.within("answer_head", |ledger| ledger.part("logit_fc", &head.logit_fc, vec![1, dim]));
        }
        if let Some(head) = &self.logit_fc {
            ledger.part("logit_fc", head, vec![1, 2 * dim]);
        }
        text
    }
}

impl LxmertRegionEmbeddings {
    fn cost_of(&self, regions: usize, ledger: &mut Ledger) -> Vec<usize> {
        let features = self.visn_fc.weight.lazy_shape().dims::<2>()[1];
        let shape = ledger.part("visn_fc", &self.visn_fc, vec![regions, features]);
        ledger.part("visn_layer_norm", &self.visn_layer_norm, shape);
        let shape = ledger.part("box_fc", &self.box_fc, vec![regions, 4]);
        ledger.part("box_layer_norm", &self.box_layer_norm, shape.clone());
        ledger.each("add", &shape, |elements| Work::Add { elements });
        shape
    }
}
