//! What a TimeSformer costs for one clip. The class token is projected once, where the released code projects a copy for every
//! frame; a local window counts the patches in it, where our masked bands compute about twice as many scores.

use super::block::StepLayers;
use super::{Timesformer, TimesformerBlock};
use crate::attention::SpaceTimeStep;
use crate::cost::{Costed, Ledger, Work, size};

impl Costed for Timesformer {
    /// `[C, T, H, W] -> [classes]`
    fn cost(&self, clip: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [channels, frames, rows, columns] = clip[..] else {
            panic!("timesformer: a clip is [C, T, H, W], got {clip:?}")
        };
        assert_eq!(
            frames, self.grid.frames,
            "timesformer: the clip has {frames} frames, times are learned for another number"
        );
        // one image with the frames below each other
        let map = ledger.part("patch_embed.proj", &self.patch_embed.proj, vec![channels, frames * rows, columns]);
        let dim = map[0];
        // frames that are kept apart have a class token each
        let apart = if self.scheme.keeps_frames_apart() { frames } else { 1 };
        let (patches, tokens) = (map[1] * map[2], apart + map[1] * map[2]);
        ledger.within("cls_token", |ledger| ledger.line(size(&self.cls_token), Work::Table, 0));
        let add = |tokens: usize| Work::Add { elements: (tokens * dim) as u64 };
        ledger.within("pos_embed", |ledger| ledger.line(size(&self.pos_embed), add(tokens), tokens * dim));
        if let Some(times) = &self.time_embed {
            ledger.within("time_embed", |ledger| ledger.line(size(times), add(patches), patches * dim));
        }
        let steps: Vec<Step> =
            self.plans().iter().map(|plan| Step { step: plan.step(), pairs: apart * plan.pairs() }).collect();
        for (i, block) in self.blocks.iter().enumerate() {
            ledger.within(format!("blocks.{i}"), |ledger| block.cost_of_steps(&steps, vec![tokens, dim], ledger));
        }
        if apart > 1 {
            let outputs = tokens / apart * dim;
            let work = Work::Pool { inputs: (tokens * dim) as u64, outputs: outputs as u64, window: apart as u64 };
            ledger.within("pool", |ledger| ledger.line(0, work, outputs));
        }
        ledger.part("norm", &self.norm, vec![tokens / apart, dim]);
        ledger.within("head", |ledger| self.head.cost_as_head(ledger))
    }
}

/// An attention step with the number of pairs of a query and a key that it looks at.
struct Step {
    step: SpaceTimeStep,
    pairs: usize,
}

impl TimesformerBlock {
    fn cost_of_steps(&self, steps: &[Step], mut shape: Vec<usize>, ledger: &mut Ledger) {
        for Step { step, pairs } in steps {
            let StepLayers { prefix, norm, attn, fc } = self.step(*step);
            shape = ledger.part(format!("{prefix}norm1"), norm, shape);
            shape = ledger.within(format!("{prefix}attn"), |ledger| attn.cost_of_pairs(shape, *pairs, ledger));
            if let Some(fc) = fc {
                shape = ledger.part(format!("{prefix}fc"), fc, shape);
            }
            ledger.each(&format!("{prefix}residual1"), &shape, |elements| Work::Add { elements });
        }
        shape = ledger.part("norm2", &self.norm2, shape);
        shape = ledger.part("mlp", &self.mlp, shape);
        ledger.each("residual2", &shape, |elements| Work::Add { elements });
    }
}
