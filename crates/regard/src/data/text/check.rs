//! Checks sentence pairs before training.

use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::parallel::{Languages, SentencePair, TextPart, read};
use crate::Error;

/// A pair is suspicious if one side has more than this many times the characters of the other, unless it is short.
pub const MOST_RATIO: f64 = 4.0;
const SHORT: usize = 20;

/// The problems found in the data.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TextReport {
    pub parts: Vec<PartCount>,
    /// Pairs with an empty side.
    pub empty: Vec<ListedPair>,
    /// Pairs with one side much longer than the other.
    pub uneven: Vec<ListedPair>,
    /// Repeated pairs within a part.
    pub duplicates: Vec<ListedPair>,
    /// Pairs of the dev or test part with a sentence that is also in the training part.
    pub leaks: Vec<Leak>,
}

/// The size of a part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PartCount {
    pub part: TextPart,
    pub pairs: usize,
    /// Distinct source sentences.
    pub sources: usize,
    /// Words of source and target, cut at spaces.
    pub words: [usize; 2],
    /// Words of the longest sentence.
    pub longest: usize,
}

/// One pair; rows count from one, without empty lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ListedPair {
    pub part: TextPart,
    pub row: usize,
    pub source: String,
    pub target: String,
}

/// A pair, and which of its sides are in the training part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leak {
    #[serde(flatten)]
    pub place: ListedPair,
    pub sides: [bool; 2],
}

impl TextReport {
    /// Number of problems.
    pub fn problems(&self) -> usize {
        self.empty.len() + self.uneven.len() + self.duplicates.len() + self.leaks.len()
    }
}

/// Checks all parts; only the training part is required.
///
/// # Errors
/// When a part cannot be read.
pub fn check(path: &Path, languages: &Languages) -> Result<TextReport, Error> {
    let mut parts = vec![(TextPart::Train, read(path, TextPart::Train, languages)?)];
    if path.is_dir() {
        for part in [TextPart::Dev, TextPart::Test] {
            match read(path, part, languages) {
                Ok(pairs) => parts.push((part, pairs)),
                // a missing part is fine, an unreadable one is not
                Err(Error::File { reason, .. }) if reason.starts_with("neither") => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(look(&parts))
}

fn look(parts: &[(TextPart, Vec<SentencePair>)]) -> TextReport {
    let mut report = TextReport { parts: vec![], empty: vec![], uneven: vec![], duplicates: vec![], leaks: vec![] };
    let sides = |pair: &'_ SentencePair| [pair.source.clone(), pair.target.clone()];
    let trained: [HashSet<String>; 2] = [0, 1].map(|side: usize| {
        let train = parts.iter().filter(|(part, _)| *part == TextPart::Train);
        train.flat_map(|(_, pairs)| pairs.iter().map(|pair| sides(pair)[side].clone())).collect()
    });
    for (part, pairs) in parts {
        let mut seen: HashMap<&SentencePair, usize> = HashMap::new();
        for (row, pair) in pairs.iter().enumerate() {
            let place =
                || ListedPair { part: *part, row: row + 1, source: pair.source.clone(), target: pair.target.clone() };
            let lengths = [&pair.source, &pair.target].map(|side| side.chars().count());
            let (short, long) = (lengths[0].min(lengths[1]), lengths[0].max(lengths[1]));
            if short == 0 {
                report.empty.push(place());
            } else if long > SHORT && long as f64 > MOST_RATIO * short as f64 {
                report.uneven.push(place());
            }
            if seen.insert(pair, row).is_some() {
                report.duplicates.push(place());
            }
            let own = sides(pair);
            let sides = [0, 1].map(|side: usize| *part != TextPart::Train && trained[side].contains(&own[side]));
            if sides.contains(&true) {
                report.leaks.push(Leak { place: place(), sides });
            }
        }
        let words =
            |side: fn(&SentencePair) -> &str| pairs.iter().map(move |pair| side(pair).split_whitespace().count());
        let (source, target) = (words(|pair| &pair.source), words(|pair| &pair.target));
        report.parts.push(PartCount {
            part: *part,
            pairs: pairs.len(),
            sources: pairs.iter().map(|pair| pair.source.as_str()).collect::<HashSet<_>>().len(),
            words: [source.clone().sum(), target.clone().sum()],
            longest: source.chain(target).max().unwrap_or(0),
        });
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(source: &str, target: &str) -> SentencePair {
        SentencePair { source: source.into(), target: target.into() }
    }

    #[test]
    fn empty_sides_uneven_lengths_copies_and_leaks_are_found_where_they_are() {
        let long = "a very long sentence that goes on and on";
        let train = vec![pair("a b", "c"), pair("x", ""), pair("hm", long), pair("a b", "c"), pair("a b", "d")];
        let test = vec![pair("new", "nuovo"), pair("a b", "e"), pair("f", "c")];
        let report = look(&[(TextPart::Train, train), (TextPart::Test, test)]);
        let rows = |places: &[ListedPair]| places.iter().map(|place| (place.part, place.row)).collect::<Vec<_>>();
        assert_eq!(rows(&report.empty), [(TextPart::Train, 2)]);
        assert_eq!(rows(&report.uneven), [(TextPart::Train, 3)]);
        assert_eq!(rows(&report.duplicates), [(TextPart::Train, 4)]);
        let leaks: Vec<_> = report.leaks.iter().map(|leak| (leak.place.row, leak.sides)).collect();
        assert_eq!(leaks, [(2, [true, false]), (3, [false, true])]);
        assert_eq!(report.problems(), 5);
        assert_eq!((report.parts[0].pairs, report.parts[0].sources, report.parts[0].longest), (5, 3, 9));
    }

    #[test]
    fn sound_data_has_no_problems() {
        let report = look(&[(TextPart::Train, vec![pair("I go", "Vado"), pair("I go", "Io vado")])]);
        assert_eq!(report.problems(), 0);
        assert_eq!(report.parts[0].words, [4, 3]);
    }
}
