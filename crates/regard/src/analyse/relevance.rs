//! How much each word and each region matters for an answer: the rollout of the answer through a stream of both.
//! Chefer et al. 2021, "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers",
//! arXiv:2103.15679, in the form of [`class_rollout`], which normalises rows.
//!
//! Only where words and regions are one stream (`VisualBERT`, UNITER): between two streams there is no single product of layers.

use burn::tensor::Tensor;
use serde::Serialize;

use super::attention::attentions;
use super::check::Check;
use super::gradients::{of_class, slopes};
use super::rollout::{RolloutOptions, class_rollout};
use crate::pass::Axes;
use crate::{Error, Pass};

/// Shares of one: how much of each word and region reached the place where the answer is read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WordRegionRelevance {
    pub words: Vec<f32>,
    pub regions: Vec<f32>,
    pub checks: Vec<Check>,
}

/// The relevance for an answer, by its number, that is read at the token `reader`; `forward` gives the logits `[1, answers]`.
///
/// # Errors
/// When words and regions are not one stream, or there is no such answer.
pub fn word_region_relevance(
    forward: impl Fn(&mut Pass) -> Result<Tensor<2>, Error>,
    answer: usize,
    reader: usize,
) -> Result<WordRegionRelevance, Error> {
    let wrong = |reason: &str| Error::analysis("relevance", reason);
    let mut pass = Pass::recording_attention::<String>([]).with_gradients();
    let logits = forward(&mut pass)?;
    let trace = pass.into_trace();
    let layers: Vec<String> = trace.attention().map(|(name, _)| name.to_string()).collect();
    let streams = trace.attention().map(|(_, geometry)| match &geometry.queries {
        Axes::Joined(parts) if geometry.queries == geometry.keys => match parts[..] {
            [Axes::Words(words), Axes::Slots(regions)] => Some([words, regions]),
            _ => None,
        },
        _ => None,
    });
    let sizes: Option<Vec<[usize; 2]>> = streams.collect();
    let sizes = sizes.filter(|sizes| sizes.windows(2).all(|pair| pair[0] == pair[1]));
    let Some([words, regions]) = sizes.and_then(|sizes| sizes.first().copied()) else {
        return Err(wrong("words and regions are not one stream, which a rollout needs"));
    };
    if reader >= words {
        return Err(wrong("the answer is read at a token that is not there"));
    }
    let gradients = of_class(logits, answer)?.backward();
    let of_layer = |layer: &String| trace.gradient::<4>(layer, &gradients);
    let last = of_layer(&layers[layers.len() - 1])?;
    let slope = slopes(&last, |by| {
        let logits = forward(&mut Pass::silent().perturbed(layers[layers.len() - 1].clone(), by))?;
        Ok(of_class(logits, answer)?.into_scalar::<f32>().into())
    })?;
    let all = layers.iter().map(|layer| Ok(of_layer(layer)?.into_data().iter::<f32>().collect()));
    let all = all.collect::<Result<Vec<Vec<f32>>, Error>>()?;
    let rollout = class_rollout(&attentions(trace, None)?, &all, 0, RolloutOptions::default())?;
    let row = &rollout.values[reader * (words + regions)..][..words + regions];
    let (of_words, of_regions) = row.split_at(words);
    Ok(WordRegionRelevance {
        words: of_words.to_vec(),
        regions: of_regions.to_vec(),
        checks: vec![rollout.check(), slope],
    })
}
