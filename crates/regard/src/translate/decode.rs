//! Decoding token by token: greedy or beam search.
//!
//! Beam search keeps the `beam` most probable prefixes and divides the log-probability of a finished sentence by
//! `((5 + length) / 6)^penalty` (Wu et al. 2016, as in Vaswani et al. 2017), so that long ones have a chance. A search
//! ends when no prefix can overtake the worst of `beam` finished sentences.

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::data::Tokens;
use crate::function::log_softmax;
use crate::models::translator::{Translator, TranslatorState};
use crate::{Error, Pass};

/// Options of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// Beam size; 1 is greedy.
    pub beam: usize,
    /// Length penalty: 0.6 in the paper, 0 for none.
    pub penalty: f64,
    /// A translation has at most this many tokens more than its source.
    pub longer: usize,
    /// Whether to use a KV cache; without it, everything is recomputed for each token.
    pub cache: bool,
    /// The start and the end token.
    pub begin: u32,
    pub end: u32,
}

impl Search {
    /// As in the paper, with the tokens of a vocabulary.
    #[must_use]
    pub const fn new(begin: u32, end: u32) -> Self {
        Self { beam: 4, penalty: 0.6, longer: 50, cache: true, begin, end }
    }

    #[must_use]
    pub const fn greedy(self) -> Self {
        Self { beam: 1, ..self }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        if !(1..=256).contains(&self.beam) {
            return Err(Error::config("beam", format!("must be from 1 to 256, got {}", self.beam)));
        }
        if !(self.penalty.is_finite() && self.penalty >= 0.0) {
            return Err(Error::config("penalty", format!("must be at least 0, got {}", self.penalty)));
        }
        Ok(())
    }

    /// The divisor of the log-probability for a number of tokens.
    fn divisor(&self, length: usize) -> f64 {
        ((5.0 + length as f64) / 6.0).powf(self.penalty)
    }
}

/// A decoded sentence.
#[derive(Clone, Debug, PartialEq)]
pub struct Hypothesis {
    /// Without start and end tokens.
    pub tokens: Vec<u32>,
    /// Log-probability, divided by the length penalty.
    pub score: f64,
    /// Whether it has an end token, and was not cut off.
    pub finished: bool,
}

/// A prefix of a sentence.
#[derive(Clone, Debug)]
struct Beginning {
    tokens: Vec<u32>,
    log_probability: f64,
    /// Its row in the state.
    row: usize,
}

/// One sentence in search.
#[derive(Debug)]
struct Searching {
    most: usize,
    open: Vec<Beginning>,
    /// The best first.
    done: Vec<Hypothesis>,
}

/// Translates sentences: up to `beam` translations of each, best first.
///
/// # Panics
/// When the search is not valid, or a source has no token.
pub fn translate(model: &Translator, source: &Tokens, search: &Search, device: &Device) -> Vec<Vec<Hypothesis>> {
    translate_while(model, source, search, device, &|| true).expect("it is always wanted")
}

/// As [`translate`], but calls `is_wanted` before every token; `None` if it returned false.
///
/// # Panics
/// When the search is not valid, or a source has no token.
pub fn translate_while(
    model: &Translator,
    source: &Tokens,
    search: &Search,
    device: &Device,
    is_wanted: &dyn Fn() -> bool,
) -> Option<Vec<Vec<Hypothesis>>> {
    search.validate().expect("a valid search");
    let mut state = State::new(model, source, search);
    let mut all: Vec<Searching> = source
        .lengths()
        .iter()
        .enumerate()
        .map(|(row, length)| Searching {
            most: model.limit().map_or(length + search.longer, |limit| (length + search.longer).min(limit)),
            open: vec![Beginning { tokens: vec![search.begin], log_probability: 0.0, row }],
            done: Vec::new(),
        })
        .collect();
    loop {
        let open: Vec<&Beginning> = all.iter().flat_map(|one| &one.open).collect();
        if open.is_empty() {
            break;
        }
        if !is_wanted() {
            return None;
        }
        let rows: Vec<usize> = open.iter().map(|beginning| beginning.row).collect();
        let written: Vec<&[u32]> = open.iter().map(|beginning| beginning.tokens.as_slice()).collect();
        let chances = state.next(&rows, &written, device);
        let mut row = 0;
        for one in &mut all {
            let count = one.open.len();
            one.advance(&chances[row..row + count], row, search);
            row += count;
        }
    }
    Some(all.into_iter().map(|one| one.done).collect())
}

impl Searching {
    /// One token more; `chances` are the log-probabilities after each prefix, whose rows start at `first`.
    fn advance(&mut self, chances: &[Vec<f32>], first: usize, search: &Search) {
        if self.open.is_empty() {
            return;
        }
        // the most probable tokens of every prefix, one more than the beam: one of them may be the end
        let mut next: Vec<(usize, u32, f64)> = Vec::new();
        for (index, (beginning, chances)) in self.open.iter().zip(chances).enumerate() {
            for token in likeliest(chances, search.beam + 1) {
                let chance = f64::from(chances[token as usize]);
                next.push((index, token, beginning.log_probability + chance));
            }
        }
        next.sort_by(|a, b| b.2.total_cmp(&a.2).then((a.0, a.1).cmp(&(b.0, b.1))));
        let mut open = Vec::new();
        for (index, token, log_probability) in next {
            let before = self.open[index].clone();
            if token == search.end {
                // an end that is less probable than a full beam is ignored
                if open.len() < search.beam {
                    self.finish(&before.tokens[1..], log_probability, before.tokens.len(), true, search);
                }
            } else if open.len() < search.beam {
                let tokens = [before.tokens.as_slice(), &[token]].concat();
                open.push(Beginning { tokens, log_probability, row: first + index });
            }
        }
        let length = open.first().map_or(0, |beginning| beginning.tokens.len());
        // one place is left for the end
        if length > self.most {
            for Beginning { tokens, log_probability, .. } in std::mem::take(&mut open) {
                let kept = &tokens[1..];
                self.finish(kept, log_probability, kept.len(), false, search);
            }
        }
        self.open = open;
        let best = self.open.iter().map(|beginning| beginning.log_probability).fold(f64::NEG_INFINITY, f64::max);
        // a log-probability only falls; the penalty helps most at the maximum length
        let hope = best / search.divisor(self.most.max(1));
        if self.done.len() >= search.beam && self.done[search.beam - 1].score >= hope {
            self.open.clear();
        }
        self.done.truncate(search.beam);
    }

    fn finish(&mut self, tokens: &[u32], log_probability: f64, length: usize, finished: bool, search: &Search) {
        let score = log_probability / search.divisor(length);
        let hypothesis = Hypothesis { tokens: tokens.to_vec(), score, finished };
        // finished ones before those that were cut off
        let place = self.done.partition_point(|other| {
            (other.finished, other.score) >= (finished, score) || (other.finished && !finished)
        });
        self.done.insert(place, hypothesis);
    }
}

/// The indices of the largest numbers; on a tie the first.
fn likeliest(chances: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    for (token, chance) in chances.iter().enumerate() {
        let full = best.len() == count;
        if full && *chance <= chances[*best.last().expect("full") as usize] {
            continue;
        }
        let place = best.partition_point(|other| chances[*other as usize] >= *chance);
        best.insert(place, token as u32);
        best.truncate(count);
    }
    best
}

/// The state of all prefixes, with a cache or without.
enum State<'a> {
    Kept { model: &'a Translator, state: TranslatorState, rows: usize },
    Again { model: &'a Translator, source: Vec<Vec<u32>> },
}

impl<'a> State<'a> {
    fn new(model: &'a Translator, source: &Tokens, search: &Search) -> Self {
        if search.cache {
            Self::Kept { model, state: model.begin(source), rows: source.batch() }
        } else {
            let source = (0..source.batch()).map(|index| source.sentence(index).to_vec()).collect();
            Self::Again { model, source }
        }
    }

    /// Log-probabilities after each prefix, which were at these rows.
    fn next(&mut self, rows: &[usize], written: &[&[u32]], device: &Device) -> Vec<Vec<f32>> {
        let logits = match self {
            Self::Kept { model, state, rows: count } => {
                if rows.len() != *count || rows.iter().enumerate().any(|(place, row)| place != *row) {
                    let places: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
                    let places = Tensor::<1, Int>::from_data(TensorData::new(places, [rows.len()]), device);
                    *state = state.select(&places);
                    *count = rows.len();
                }
                let last: Vec<u32> = written.iter().map(|tokens| tokens[tokens.len() - 1]).collect();
                model.next(&last, state)
            }
            Self::Again { model, source } => {
                *source = rows.iter().map(|row| source[*row].clone()).collect();
                let logits = model.forward(&Tokens::new(source), &Tokens::new(written), &mut Pass::silent());
                let [_, length, _] = logits.dims();
                logits.narrow(1, length - 1, 1).squeeze_dim::<2>(1)
            }
        };
        let width = logits.dims()[1];
        let values: Vec<f32> = log_softmax(logits).into_data().try_to_vec().expect("logits are f32");
        values.chunks_exact(width).map(<[f32]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::models::translator::{TranslatorConfig, preset};
    use crate::testing::stirred;
    use serde_json::json;

    fn model(name: &str) -> Translator {
        let mut config: TranslatorConfig = preset(name).unwrap().config;
        for (field, value) in [("source_vocabulary", 40), ("target_vocabulary", 40)] {
            config = config.with(field, json!(value)).unwrap();
        }
        stirred(config.init(&cpu()).unwrap())
    }

    fn sources() -> Tokens {
        Tokens::new(&[vec![5, 6, 7, 8], vec![9, 3], vec![11, 12, 13, 14, 15, 16, 17], vec![20]])
    }

    const SEARCH: Search = Search { beam: 4, penalty: 0.6, longer: 12, cache: true, begin: 2, end: 3 };

    #[test]
    fn the_cache_changes_nothing_at_all() {
        let model = model("transformer-nano");
        for beam in [1, 4] {
            let search = Search { beam, ..SEARCH };
            let kept = translate(&model, &sources(), &search, &cpu());
            let again = translate(&model, &sources(), &Search { cache: false, ..search }, &cpu());
            assert_eq!(kept, again, "{beam}");
        }
    }

    /// Without a cache: sums over the sentence have other shapes, and other last bits.
    #[test]
    fn a_state_that_is_carried_on_writes_what_one_from_the_beginning_does() {
        let model = model("rnnsearch-nano");
        for beam in [1, 4] {
            let search = Search { beam, ..SEARCH };
            let kept = translate(&model, &sources(), &search, &cpu());
            let again = translate(&model, &sources(), &Search { cache: false, ..search }, &cpu());
            for (kept, again) in kept.iter().flatten().zip(again.iter().flatten()) {
                assert_eq!(kept.tokens, again.tokens);
                assert!((kept.score - again.score).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn sentences_side_by_side_are_translated_as_alone() {
        let model = model("transformer-nano");
        let together = translate(&model, &sources(), &SEARCH, &cpu());
        for (index, together) in together.iter().enumerate() {
            let alone = translate(&model, &Tokens::new(&[sources().sentence(index)]), &SEARCH, &cpu());
            let tokens = |all: &[Hypothesis]| all.iter().map(|one| one.tokens.clone()).collect::<Vec<_>>();
            assert_eq!(tokens(&alone[0]), tokens(together));
        }
    }

    #[test]
    fn a_wider_beam_finds_nothing_less_likely_and_a_beam_of_one_is_greedy() {
        let model = model("transformer-nano");
        let flat = Search { penalty: 0.0, ..SEARCH };
        let greedy = translate(&model, &sources(), &flat.greedy(), &cpu());
        let wide = translate(&model, &sources(), &Search { beam: 8, ..flat }, &cpu());
        for (greedy, wide) in greedy.iter().zip(&wide) {
            assert_eq!(greedy.len(), 1);
            assert!(wide[0].score >= greedy[0].score - 1e-6 || !greedy[0].finished, "{wide:?} {greedy:?}");
            let finished: Vec<f64> = wide.iter().filter(|one| one.finished).map(|one| one.score).collect();
            assert!(finished.windows(2).all(|pair| pair[0] >= pair[1]));
        }
    }

    #[test]
    fn a_score_is_the_log_probability_of_the_sentence_over_the_penalty() {
        let model = model("transformer-nano");
        let source = Tokens::new(&[[5, 6, 7, 8]]);
        for hypothesis in &translate(&model, &source, &SEARCH, &cpu())[0] {
            let mut target = [&[2], hypothesis.tokens.as_slice()].concat();
            let logits = model.forward(&source, &Tokens::new(&[target.clone()]), &mut Pass::silent());
            let chances: Vec<f32> = log_softmax(logits).into_data().try_to_vec().unwrap();
            target.remove(0);
            if hypothesis.finished {
                target.push(3);
            }
            let sum: f64 =
                target.iter().enumerate().map(|(n, token)| f64::from(chances[40 * n + *token as usize])).sum();
            let expected = sum / ((5.0 + target.len() as f64) / 6.0).powf(0.6);
            assert!((hypothesis.score - expected).abs() < 1e-4, "{hypothesis:?} {expected}");
        }
    }

    #[test]
    fn no_translation_is_longer_than_allowed() {
        let model = model("transformer-nano");
        for (index, all) in translate(&model, &sources(), &SEARCH, &cpu()).iter().enumerate() {
            let most = sources().lengths()[index] + SEARCH.longer;
            assert!(all.iter().all(|one| one.tokens.len() <= most) && !all.is_empty());
        }
    }

    #[test]
    fn a_search_that_nobody_wants_any_more_ends_at_the_next_token() {
        let model = model("transformer-nano");
        for steps in [0, 1, 5] {
            let asked = std::cell::Cell::new(0);
            let is_wanted = || asked.replace(asked.get() + 1) < steps;
            assert_eq!(translate_while(&model, &sources(), &SEARCH, &cpu(), &is_wanted), None);
            assert_eq!(asked.get(), steps + 1);
        }
    }

    #[test]
    fn the_likeliest_are_found_in_order() {
        assert_eq!(likeliest(&[0.1, 0.5, 0.5, 0.9, -1.0], 3), [3, 1, 2]);
        assert_eq!(likeliest(&[0.1], 3), [0]);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |search: Search| search.validate().unwrap_err().to_string();
        assert!(refused(Search { beam: 0, ..SEARCH }).contains("`beam`"));
        assert!(refused(Search { penalty: f64::NAN, ..SEARCH }).contains("`penalty`"));
    }
}
