//! What a `ViLBERT` costs for one text and its regions, with the logits of every word and region.

use super::Vilbert;
use crate::cost::{Costed, Ledger, Work};

impl Costed for Vilbert {
    /// `[N, R] -> [N, D]`; region 0 is one more.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [words, regions] = shape[..] else { panic!("vilbert: words and regions are [N, R], got {shape:?}") };
        let regions = regions + 1;
        let (text, image) = ledger.within("bert", |ledger| self.cost_of_streams([words, regions], ledger));
        let joint = self.bert.t_pooler.dense.weight.lazy_shape().dims::<2>()[0];
        ledger.each("fused", &[joint], |elements| Work::Activation { elements });
        if let Some(cls) = &self.cls {
            ledger.within("cls", |ledger| {
                ledger.part("predictions", &cls.predictions, text.clone());
                ledger.part("bi_seq_relationship", &cls.bi_seq_relationship, vec![1, joint]);
                ledger.within("imagePredictions", |ledger| {
                    let hidden =
                        ledger.part("transform", &cls.image_predictions.transform, vec![regions - 1, image[1]]);
                    ledger.part("decoder", &cls.image_predictions.decoder, hidden);
                });
            });
        }
        for (name, head, width) in [
            ("vil_prediction", &self.vil_prediction, joint),
            ("vil_binary_prediction", &self.vil_binary_prediction, 2 * joint),
        ] {
            let Some(head) = head else { continue };
            ledger.within(format!("{name}.main"), |ledger| {
                let hidden = ledger.part("0", &head.main.dense, vec![1, width]);
                ledger.each("relu", &hidden, |elements| Work::Activation { elements });
                ledger.part("3", &head.main.decoder, hidden);
            });
        }
        text
    }
}

impl Vilbert {
    /// The shapes of words and of regions after all layers.
    fn cost_of_streams(&self, [words, regions]: [usize; 2], ledger: &mut Ledger) -> (Vec<usize>, Vec<usize>) {
        let bert = &self.bert;
        let text = ledger.within("embeddings", |ledger| bert.embeddings.cost_of(words, words, ledger));
        let image = ledger.within("v_embeddings", |ledger| {
            let own = &bert.v_embeddings;
            let features = own.image_embeddings.weight.lazy_shape().dims::<2>()[1];
            ledger.part("image_embeddings", &own.image_embeddings, vec![regions, features]);
            let shape = ledger.part("image_location_embeddings", &own.image_location_embeddings, vec![regions, 5]);
            ledger.each("add", &shape, |elements| Work::Add { elements });
            ledger.part("LayerNorm", &own.layer_norm, shape)
        });
        ledger.within("encoder", |ledger| {
            for (i, layer) in bert.encoder.layer.iter().enumerate() {
                ledger.part(format!("layer.{i}"), layer, text.clone());
            }
            for (i, layer) in bert.encoder.v_layer.iter().enumerate() {
                ledger.part(format!("v_layer.{i}"), layer, image.clone());
            }
            for (i, layer) in bert.encoder.c_layer.iter().enumerate() {
                ledger.within(format!("c_layer.{i}"), |ledger| layer.cost_of([words, regions], ledger));
            }
        });
        ledger.part("t_pooler", &bert.t_pooler, text.clone());
        ledger.part("v_pooler", &bert.v_pooler, image.clone());
        (text, image)
    }
}
