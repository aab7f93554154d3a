//! What a BERT costs for one text, with the logits of every word.

use super::Bert;
use crate::cost::{Costed, Ledger};

impl Costed for Bert {
    /// `[N] -> [N, D]`
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [tokens] = shape[..] else { panic!("bert: a text is [N], got {shape:?}") };
        let x = ledger.within("bert", |ledger| self.bert.cost_of(tokens, ledger));
        ledger.within("cls", |ledger| self.cls.cost_of(&x, ledger));
        x
    }
}
