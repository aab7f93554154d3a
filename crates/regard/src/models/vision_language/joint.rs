//! One stream for words and regions: they are concatenated and attend to each other.

use burn::tensor::{Bool, Tensor, TensorData};

use super::input::{Regions, VisionLanguageInput};
use crate::Pass;
use crate::layers::bert::BertEncoder;
use crate::pass::Axes;

/// Hidden states of words `[B, N, D]` and regions `[B, R, D]`.
pub struct Joint {
    pub text: Tensor<3>,
    pub regions: Option<Tensor<3>>,
}

impl Joint {
    /// Both through the layers. Padding between words and regions stays, since nothing attends to it.
    pub fn encode(self, encoder: &BertEncoder, input: &VisionLanguageInput, pass: &mut Pass) -> Self {
        let [batch, words, _] = self.text.dims();
        let Some(regions) = self.regions else {
            let padding = input.words.tokens.padding(&self.text.device());
            let run = |pass: &mut Pass| encoder.forward(self.text, padding.as_ref(), pass);
            let text = pass.with_tokens(Axes::Words(words), |pass| pass.within("encoder", run));
            return Self { text, regions: None };
        };
        let count = regions.dims()[1];
        let axes = Axes::Joined(vec![Axes::Words(words), Axes::Slots(count)]);
        let padding = input.regions.as_ref().and_then(|regions| joint_padding(input, regions, batch));
        let both = Tensor::cat(vec![self.text, regions], 1);
        let run = |pass: &mut Pass| encoder.forward(both, padding.as_ref(), pass);
        let both = pass.with_tokens(axes, |pass| pass.within("encoder", run));
        Self { text: both.clone().narrow(1, 0, words), regions: Some(both.narrow(1, words, count)) }
    }
}

/// `[B, N + R]`, true for padding; none if there is none.
fn joint_padding(input: &VisionLanguageInput, regions: &Regions, batch: usize) -> Option<Tensor<2, Bool>> {
    let (lengths, words) = (input.words.tokens.lengths(), input.words.tokens.length());
    let count = regions.length();
    let is_full = lengths.iter().all(|own| *own == words) && regions.counts.iter().all(|own| *own == count);
    if is_full {
        return None;
    }
    let row = |sample: usize| {
        let (own_words, own_regions) = (lengths[sample], regions.counts[sample]);
        (0..words).map(move |at| at >= own_words).chain((0..count).map(move |at| at >= own_regions))
    };
    let hidden: Vec<bool> = (0..batch).flat_map(row).collect();
    Some(Tensor::from_data(TensorData::new(hidden, [batch, words + count]), &regions.features.device()))
}
