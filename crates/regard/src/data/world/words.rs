//! The words of captions and questions: no other ones occur, so that a tokenizer needs no pieces of words.

use std::collections::BTreeSet;

use super::garments::{COLOURS, KINDS};

/// In the order of [`KINDS`].
pub(super) const PLURALS: [&str; 8] =
    ["tees", "trousers", "pullovers", "dresses", "sandals", "sneakers", "bags", "boots"];

pub(super) const NUMBERS: [&str; 5] = ["zero", "one", "two", "three", "four"];

/// A motion as an answer, in a caption and in a question; in the order of the classes of clips.
const MOTION_WORDS: [[&str; 3]; 10] = [
    ["right", "moves right", "move right"],
    ["left", "moves left", "move left"],
    ["down", "moves down", "move down"],
    ["up", "moves up", "move up"],
    ["closer", "comes closer", "come closer"],
    ["away", "goes away", "go away"],
    ["clockwise", "turns clockwise", "turn clockwise"],
    ["back", "turns back", "turn back"],
    ["appears", "appears", "appear"],
    ["vanishes", "vanishes", "vanish"],
];

/// Every answer to any question about scenes and clips.
pub const ANSWERS: [&str; 32] = [
    "yes",
    "no",
    "zero",
    "one",
    "two",
    "three",
    "four",
    "red",
    "green",
    "blue",
    "yellow",
    "purple",
    "white",
    "tee",
    "trouser",
    "pullover",
    "dress",
    "sandal",
    "sneaker",
    "bag",
    "boot",
    "right",
    "left",
    "down",
    "up",
    "closer",
    "away",
    "clockwise",
    "back",
    "appears",
    "vanishes",
    "stays",
];

/// Numbers of answers in [`ANSWERS`].
pub(super) const fn yes(is_so: bool) -> usize {
    if is_so { 0 } else { 1 }
}

pub(super) const fn number(count: usize) -> usize {
    2 + count
}

pub(super) const fn colour(colour: usize) -> usize {
    7 + colour
}

pub(super) const fn kind(kind: usize) -> usize {
    13 + kind
}

pub(super) const fn motion(motion: usize) -> usize {
    21 + motion
}

pub(super) const STAYS: usize = 31;

/// How a motion is worded in a caption, and in a question: `moves right`, `move right`.
pub(super) const fn motion_words(motion: usize) -> [&'static str; 2] {
    let [_, told, asked] = MOTION_WORDS[motion];
    [told, asked]
}

const OTHERS: &str = "a and left right of above below what colour is the thing how many things are there ? near does \
                      something that changes stays happens to yes no";

/// The special tokens of BERT, then all words in alphabetical order, one per line: the content of `vocab.txt`.
#[must_use]
pub fn vocabulary() -> String {
    let kinds = KINDS.iter().map(|(name, _)| *name);
    let colours = COLOURS.iter().map(|(name, _)| *name);
    let motions = MOTION_WORDS.iter().flatten().flat_map(|text| text.split(' '));
    let words: BTreeSet<&str> =
        kinds.chain(colours).chain(PLURALS).chain(NUMBERS).chain(motions).chain(OTHERS.split_whitespace()).collect();
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    special.into_iter().chain(words).flat_map(|word| [word, "\n"]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_where_their_numbers_say() {
        assert_eq!((ANSWERS[yes(true)], ANSWERS[yes(false)], ANSWERS[number(3)]), ("yes", "no", "three"));
        (0..6).for_each(|index| assert_eq!(ANSWERS[colour(index)], COLOURS[index].0));
        (0..8).for_each(|index| assert_eq!(ANSWERS[kind(index)], KINDS[index].0));
        (0..10).for_each(|index| assert_eq!(ANSWERS[21 + index], MOTION_WORDS[index][0]));
        assert_eq!((ANSWERS[motion(3)], ANSWERS[STAYS], motion_words(3)), ("up", "stays", ["moves up", "move up"]));
        let different: BTreeSet<&str> = ANSWERS.into_iter().collect();
        assert_eq!(different.len(), 32);
    }

    #[test]
    fn every_answer_is_a_word_and_no_word_is_there_twice() {
        let text = vocabulary();
        let words: Vec<&str> = text.lines().collect();
        assert!(ANSWERS.iter().all(|answer| words.contains(answer)));
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
        assert_eq!((words[0], words[4], words.len()), ("[PAD]", "[MASK]", 78));
    }
}
