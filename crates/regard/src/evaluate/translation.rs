//! BLEU and chrF, as `sacrebleu` computes them.
//!
//! - BLEU: Papineni et al. 2002; words by the rules of `mteval-v13a`, n-grams up to four, exponential smoothing
//!   (`exp`), the length of the closest reference.
//! - chrF: Popović 2015; character n-grams up to six without spaces, recall counts twice.
//!
//! Both are corpus scores: counts are summed over the whole text before dividing.

use serde::Serialize;
use std::collections::HashMap;

/// Longest n-gram of words.
const WORDS: usize = 4;
/// Longest n-gram of characters.
const CHARACTERS: usize = 6;

/// Scores of a corpus, from 0 to 100.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TranslationScore {
    pub bleu: f64,
    /// n-gram precision for one to four words, in percent.
    pub precisions: [f64; WORDS],
    /// Brevity penalty: below 1 if the text is too short.
    pub brevity_penalty: f64,
    pub chrf: f64,
    pub sentences: usize,
}

/// Scores translations against one or more references each.
///
/// # Panics
/// When there are not as many translations as references.
pub fn score(translations: &[impl AsRef<str>], references: &[Vec<String>]) -> TranslationScore {
    assert_eq!(translations.len(), references.len(), "score: references of each translation");
    let (mut right, mut all, mut length, mut wanted) = ([0; WORDS], [0; WORDS], 0, 0);
    let mut characters = [[0; 3]; CHARACTERS];
    for (translation, references) in translations.iter().zip(references) {
        let words = words_13a(translation.as_ref());
        let references_in_words: Vec<Vec<String>> = references.iter().map(|text| words_13a(text)).collect();
        for n in 1..=WORDS {
            let counts = n_grams(&words, n);
            let mut most: HashMap<&[String], usize> = HashMap::new();
            for reference in &references_in_words {
                for (gram, count) in n_grams(reference, n) {
                    let known = most.entry(gram).or_default();
                    *known = count.max(*known);
                }
            }
            all[n - 1] += counts.values().sum::<usize>();
            right[n - 1] += counts.iter().map(|(gram, count)| *count.min(most.get(gram).unwrap_or(&0))).sum::<usize>();
        }
        length += words.len();
        // the closest length; on a tie the shorter
        let nearest = references_in_words.iter().map(Vec::len);
        wanted += nearest.min_by_key(|reference| (reference.abs_diff(words.len()), *reference)).unwrap_or(0);
        let best = references
            .iter()
            .map(|reference| character_counts(translation.as_ref(), reference))
            .max_by(|a, b| f_score(a).total_cmp(&f_score(b)));
        for (sum, counts) in characters.iter_mut().zip(best.unwrap_or_default()) {
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
    }
    let (bleu, precisions, brevity_penalty) = bleu(right, all, length, wanted);
    TranslationScore { bleu, precisions, brevity_penalty, chrf: f_score(&characters), sentences: translations.len() }
}

fn bleu(right: [usize; WORDS], all: [usize; WORDS], length: usize, wanted: usize) -> (f64, [f64; WORDS], f64) {
    let brevity = match length {
        0 => 0.0,
        length if length < wanted => (1.0 - wanted as f64 / length as f64).exp(),
        _ => 1.0,
    };
    let mut precisions = [0.0; WORDS];
    if right.iter().all(|right| *right == 0) {
        return (0.0, precisions, brevity);
    }
    let mut doubled = 1.0;
    for ((precision, right), all) in precisions.iter_mut().zip(right).zip(all) {
        *precision = match (right, all) {
            (_, 0) => break,
            (0, all) => {
                doubled *= 2.0;
                100.0 / (doubled * all as f64)
            }
            (right, all) => 100.0 * right as f64 / all as f64,
        };
    }
    let logarithms: f64 = precisions.iter().map(|precision| precision.ln()).sum();
    (brevity * (logarithms / WORDS as f64).exp(), precisions, brevity)
}

fn n_grams<T: Eq + std::hash::Hash>(words: &[T], n: usize) -> HashMap<&[T], usize> {
    let mut counts = HashMap::new();
    for gram in words.windows(n) {
        *counts.entry(gram).or_insert(0) += 1;
    }
    counts
}

/// For each length: n-grams of the translation, of the reference, and of both.
fn character_counts(translation: &str, reference: &str) -> [[usize; 3]; CHARACTERS] {
    let [translation, reference] =
        [translation, reference].map(|text| text.chars().filter(|c| !c.is_whitespace()).collect::<Vec<char>>());
    std::array::from_fn(|index| {
        let (ours, theirs) = (n_grams(&translation, index + 1), n_grams(&reference, index + 1));
        let both = ours.iter().map(|(gram, count)| *count.min(theirs.get(gram).unwrap_or(&0))).sum();
        let ours = if theirs.is_empty() { 0 } else { ours.values().sum() };
        [ours, theirs.values().sum(), both]
    })
}

fn f_score(counts: &[[usize; 3]; CHARACTERS]) -> f64 {
    const FACTOR: f64 = 4.0;
    let known = counts.iter().filter(|[ours, theirs, _]| *ours > 0 && *theirs > 0);
    let (mut precision, mut recall, mut lengths) = (0.0, 0.0, 0.0);
    for &[ours, theirs, both] in known {
        precision += both as f64 / ours as f64;
        recall += both as f64 / theirs as f64;
        lengths += 1.0;
    }
    if precision + recall == 0.0 {
        return 0.0;
    }
    let (precision, recall) = (precision / lengths, recall / lengths);
    100.0 * (1.0 + FACTOR) * precision * recall / (FACTOR * precision + recall)
}

/// Cuts a text into words as `mteval-v13a` does.
fn words_13a(text: &str) -> Vec<String> {
    let mut text = text.replace("<skipped>", "").replace("-\n", "").replace('\n', " ");
    for (entity, sign) in [("&quot;", "\""), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">")] {
        text = text.replace(entity, sign);
    }
    let is_sign = |c: char| matches!(c, '{'..='~' | '['..='`' | ' '..='&' | '('..='+' | ':'..='@' | '/');
    let mut spaced = String::from(" ");
    for c in text.chars() {
        if is_sign(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    spaced.push(' ');
    let point = |c: char| c == '.' || c == ',';
    let digit = |c: char| c.is_ascii_digit();
    let spaced = pairs(&spaced, |a, b| !digit(a) && point(b), |a, b| vec![a, ' ', b, ' ']);
    let spaced = pairs(&spaced, |a, b| point(a) && !digit(b), |a, b| vec![' ', a, ' ', b]);
    let spaced = pairs(&spaced, |a, b| digit(a) && b == '-', |a, b| vec![a, ' ', b, ' ']);
    spaced.split_whitespace().map(String::from).collect()
}

/// Replaces pairs of characters from left to right; a character is in one pair at most.
fn pairs(text: &str, is: impl Fn(char, char) -> bool, write: impl Fn(char, char) -> Vec<char>) -> String {
    let characters: Vec<char> = text.chars().collect();
    let (mut out, mut at) = (String::with_capacity(2 * text.len()), 0);
    while at < characters.len() {
        match characters.get(at + 1) {
            Some(&next) if is(characters[at], next) => {
                out.extend(write(characters[at], next));
                at += 2;
            }
            _ => {
                out.push(characters[at]);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fixture;

    fn texts(fixture: &Fixture, field: &str) -> Vec<String> {
        serde_json::from_value(fixture.config[field].clone()).unwrap()
    }

    #[test]
    fn they_are_those_of_sacrebleu() {
        let fixture = Fixture::load("bleu");
        let references: Vec<Vec<String>> = texts(&fixture, "references").into_iter().map(|text| vec![text]).collect();
        let score = score(&texts(&fixture, "hypotheses"), &references);
        let number = |field: &str| fixture.config[field].as_f64().unwrap();
        assert!((score.bleu - number("bleu")).abs() < 1e-9, "{score:?}");
        assert!((score.chrf - number("chrf")).abs() < 1e-9, "{score:?}");
        assert!((score.brevity_penalty - number("brevity_penalty")).abs() < 1e-12);
        let precisions: Vec<f64> = serde_json::from_value(fixture.config["precisions"].clone()).unwrap();
        assert!(score.precisions.iter().zip(precisions).all(|(a, b)| (a - b).abs() < 1e-9));
    }

    #[test]
    fn words_are_cut_by_the_rules_of_13a() {
        let cut = |text: &str| words_13a(text).join(" ");
        assert_eq!(cut("Hello, world."), "Hello , world .");
        assert_eq!(cut("It costs 1,000.50 (or 3-4)..."), "It costs 1,000.50 ( or 3 - 4 ) . . .");
        assert_eq!(cut("&quot;isn't&quot; e-mail 5."), "\" isn't \" e-mail 5 .");
        assert_eq!(cut("perché è così?"), "perché è così ?");
    }

    #[test]
    fn any_of_the_references_counts_and_a_perfect_text_has_a_hundred() {
        let references = vec![vec!["a b c d e".to_string(), "v w x y z".into()]];
        for text in ["a b c d e", "v w x y z"] {
            let score = score(&[text], &references);
            assert!((score.bleu - 100.0).abs() < 1e-9 && (score.chrf - 100.0).abs() < 1e-9, "{score:?}");
        }
        assert!(score(&["a b x y z"], &references).bleu < 50.0);
    }

    #[test]
    fn nothing_right_nothing_written_and_no_sentence_are_zero() {
        let references = vec![vec!["a b c d e".to_string()]];
        for text in ["", "v w x y z q"] {
            let score = score(&[text], &references);
            assert_eq!((score.bleu, score.chrf), (0.0, 0.0), "{text}");
        }
        assert_eq!(score(&[] as &[&str], &[]).bleu, 0.0);
    }
}
