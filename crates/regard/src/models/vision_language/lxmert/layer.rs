//! A layer in which words and regions look at each other through the same projections, then each at itself.

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};

use crate::Pass;
use crate::cost::Ledger;
use crate::layers::Linear;
use crate::layers::bert::{BertAttention, BertIntermediate, BertLayerConfig, BertOutput, BertProjections};
use crate::pass::Axes;

/// Cross-attention with shared projections, self-attention and a feed-forward network for each stream.
#[derive(Module, Debug)]
pub struct LxmertCrossLayer {
    pub visual_attention: LxmertAttention,
    pub lang_self_att: BertAttention,
    pub visn_self_att: BertAttention,
    pub lang_inter: BertIntermediate,
    pub lang_output: BertOutput,
    pub visn_inter: BertIntermediate,
    pub visn_output: BertOutput,
}

/// Cross-attention of both directions.
#[derive(Module, Debug)]
pub struct LxmertAttention {
    pub att: BertProjections,
    pub output: BertOutput,
}

impl LxmertCrossLayer {
    pub fn new(config: &BertLayerConfig, device: &Device) -> Self {
        let hidden = || BertIntermediate { dense: Linear::normal(config.dim, config.inner, device) };
        let output = || BertOutput::new(config.inner, config, device);
        Self {
            visual_attention: LxmertAttention {
                att: BertProjections::new(config, device),
                output: BertOutput::new(config.dim, config, device),
            },
            lang_self_att: BertAttention::new(config, device),
            visn_self_att: BertAttention::new(config, device),
            lang_inter: hidden(),
            lang_output: output(),
            visn_inter: hidden(),
            visn_output: output(),
        }
    }

    /// Words and regions, their padding and their layout.
    pub fn forward(
        &self,
        [text, vision]: [Tensor<3>; 2],
        [hidden_words, hidden_regions]: &[Option<Tensor<2, Bool>>; 2],
        [words, regions]: &[Axes; 2],
        pass: &mut Pass,
    ) -> [Tensor<3>; 2] {
        let (hidden_words, hidden_regions) = (hidden_words.as_ref(), hidden_regions.as_ref());
        let cross = &self.visual_attention;
        // both from what comes into the layer
        let [over_regions, over_text] = pass.within("visual_attention", |pass| {
            [
                cross.forward("text_over_regions", [words, regions], [&text, &vision], hidden_regions, pass),
                cross.forward("regions_over_text", [regions, words], [&vision, &text], hidden_words, pass),
            ]
        });
        let text = pass.with_tokens(words.clone(), |pass| {
            pass.within("lang_self_att", |pass| self.lang_self_att.forward(over_regions, hidden_words, pass))
        });
        let vision = pass.with_tokens(regions.clone(), |pass| {
            pass.within("visn_self_att", |pass| self.visn_self_att.forward(over_text, hidden_regions, pass))
        });
        let text = self.lang_output.forward(self.lang_inter.forward(text.clone()), text, pass);
        let vision = self.visn_output.forward(self.visn_inter.forward(vision.clone()), vision, pass);
        [text, vision]
    }

    /// Adds the cost of so many words and regions; the shared projections count as parameters once.
    pub fn cost_of(&self, [words, regions]: [usize; 2], ledger: &mut Ledger) {
        let cross = &self.visual_attention;
        let dim = cross.output.dense.weight.lazy_shape().dims::<2>()[0];
        let both = |ledger: &mut Ledger, tokens: [usize; 2]| {
            ledger.within("visual_attention", |ledger| {
                ledger.within("att", |ledger| cross.att.cost_of(tokens, ledger));
                ledger.part("output", &cross.output, vec![tokens[0], dim]);
            });
        };
        both(ledger, [words, regions]);
        ledger.shared(|ledger| both(ledger, [regions, words]));
        for (tokens, attention, hidden, output, side) in [
            (words, &self.lang_self_att, &self.lang_inter, &self.lang_output, "lang"),
            (regions, &self.visn_self_att, &self.visn_inter, &self.visn_output, "visn"),
        ] {
            let shape = ledger.part(format!("{side}_self_att"), attention, vec![tokens, dim]);
            let inner = ledger.part(format!("{side}_inter"), hidden, shape);
            ledger.part(format!("{side}_output"), output, inner);
        }
    }
}

impl LxmertAttention {
    /// Tokens look at others; `name` tells the two directions apart, `axes` are those of queries and keys.
    fn forward(
        &self,
        name: &str,
        axes: [&Axes; 2],
        [x, context]: [&Tensor<3>; 2],
        padding: Option<&Tensor<2, Bool>>,
        pass: &mut Pass,
    ) -> Tensor<3> {
        let run = |pass: &mut Pass| self.att.forward(x.clone(), context.clone(), padding, pass);
        let attended = pass.with_tokens(axes[0].clone(), |pass| {
            pass.with_keys(axes[1].clone(), |pass| pass.within("att", |pass| pass.within(name, run)))
        });
        self.output.forward(attended, x.clone(), pass)
    }
}
