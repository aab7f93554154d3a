//! Questions about scenes whose wording tells nothing of the answer.
//!
//! The question of index `i` has the template `i mod 8` and, of that template's answers, number `i div 8` in turn; things are drawn
//! until they give that answer. So all answers of a template are equally frequent, and somebody who does not look at the picture is
//! right in 0.3125 of the cases.

use super::draw::{Draw, Sample, Stage};
use super::garments::{COLOURS, KINDS};
use super::scenes::{Identity, SCENE_SIDE, Scene, Thing, arrange};
use super::words::{self, PLURALS};
use crate::data::Part;

/// What each template asks for.
pub const TEMPLATES: [&str; 8] = [
    "what colour",
    "which thing has a colour",
    "how many things",
    "how many of a kind",
    "is there",
    "is it left of",
    "is it above",
    "what is left of",
];

/// Pixels by which "left of" and "above" have to be clear.
const GAP: f64 = 6.0;

/// A question about a scene, and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub text: String,
    /// Index in [`super::ANSWERS`].
    pub answer: usize,
    /// Index in [`TEMPLATES`].
    pub template: usize,
    pub scene: Scene,
}

/// A question of a part by its index.
///
/// # Panics
/// When the part is not train, validation or test.
#[must_use]
pub fn question(seed: u64, part: Part, index: usize) -> Question {
    let identity = Identity { seed, part, sample: Sample::Question, index };
    let mut draw = identity.draw(Stage::Content);
    let template = index % TEMPLATES.len();
    loop {
        let things = arrange(&mut draw, SCENE_SIDE);
        if let Some((text, answer)) = ask(template, index / TEMPLATES.len(), &things, &mut draw) {
            return Question { text, answer, template, scene: Scene::of(things, &mut draw, identity) };
        }
    }
}

/// A question of a template about things and its answer, if they have the answer that is due.
fn ask(template: usize, turn: usize, things: &[Thing], draw: &mut Draw) -> Option<(String, usize)> {
    let of_kind = |kind: usize| things.iter().filter(move |thing| thing.kind == kind).count();
    let of_colour = |colour: usize| things.iter().filter(move |thing| thing.colour == colour).count();
    let once: Vec<&Thing> = things.iter().filter(|thing| of_kind(thing.kind) == 1).collect();
    let is_yes = turn.is_multiple_of(2);
    let name = |thing: &Thing| KINDS[thing.kind].0;
    let one_of =
        |fitting: &[&Thing], draw: &mut Draw| (!fitting.is_empty()).then(|| *fitting[draw.below(fitting.len())]);
    match template {
        0 => {
            let colour = turn % COLOURS.len();
            let fitting: Vec<&Thing> = once.into_iter().filter(|thing| thing.colour == colour).collect();
            let thing = one_of(&fitting, draw)?;
            Some((format!("what colour is the {} ?", name(&thing)), words::colour(colour)))
        }
        1 => {
            let kind = turn % KINDS.len();
            let is_fitting = |thing: &&Thing| thing.kind == kind && of_colour(thing.colour) == 1;
            let fitting: Vec<&Thing> = things.iter().filter(is_fitting).collect();
            let thing = one_of(&fitting, draw)?;
            Some((format!("what is the {} thing ?", COLOURS[thing.colour].0), words::kind(kind)))
        }
        2 => {
            let count = 1 + turn % 4;
            (things.len() == count).then(|| ("how many things are there ?".into(), words::number(count)))
        }
        3 => {
            let (count, kind) = (turn % 3, draw.below(KINDS.len()));
            let is_fitting = things.len() >= 2 && of_kind(kind) == count;
            is_fitting.then(|| (format!("how many {} are there ?", PLURALS[kind]), words::number(count)))
        }
        4 => {
            let (kind, colour) = (draw.below(KINDS.len()), draw.below(COLOURS.len()));
            let is_there = things.iter().any(|thing| (thing.kind, thing.colour) == (kind, colour));
            // for a no, colour and kind are both there, on different things
            let is_fitting = if is_yes { is_there } else { !is_there && of_kind(kind) > 0 && of_colour(colour) > 0 };
            let text = || format!("is there a {} {} ?", COLOURS[colour].0, KINDS[kind].0);
            (things.len() >= 2 && is_fitting).then(|| (text(), words::yes(is_yes)))
        }
        5 | 6 => {
            if once.len() < 2 {
                return None;
            }
            let first = draw.below(once.len());
            let second = (first + 1 + draw.below(once.len() - 1)) % once.len();
            let (one, other, axis) = (once[first], once[second], template - 5);
            let distance = one.centre[axis] - other.centre[axis];
            let relation = if axis == 0 { "left of" } else { "above" };
            let text = || format!("is the {} {relation} the {} ?", name(one), name(other));
            (distance.abs() >= GAP && (distance < 0.0) == is_yes).then(|| (text(), words::yes(is_yes)))
        }
        _ => {
            let kind = turn % KINDS.len();
            let is_fitting = |thing: &&&Thing| {
                let mut left = things.iter().filter(|other| other.centre[0] <= thing.centre[0] - GAP);
                let is_clear =
                    |other: &Thing| std::ptr::eq(other, **thing) || (other.centre[0] - thing.centre[0]).abs() >= GAP;
                left.next().is_some_and(|left| left.kind == kind)
                    && left.next().is_none()
                    && things.iter().all(is_clear)
            };
            let thing = once.iter().find(is_fitting)?;
            Some((format!("what is left of the {} ?", name(thing)), words::kind(kind)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::words::vocabulary;
    use super::*;
    use std::collections::{BTreeMap, HashMap, HashSet};

    /// After so many indices every answer of every template came equally often.
    const PERIOD: usize = 8 * 24;
    const PARTS: [Part; 3] = [Part::Train, Part::Validation, Part::Test];

    #[test]
    fn every_answer_of_a_template_is_as_frequent_as_the_others() {
        let mut counts: [BTreeMap<usize, usize>; 8] = Default::default();
        for index in 0..2 * PERIOD {
            let question = question(0, Part::Test, index);
            *counts[question.template].entry(question.answer).or_default() += 1;
        }
        let answers: Vec<usize> = counts.iter().map(BTreeMap::len).collect();
        assert_eq!(answers, [6, 8, 4, 3, 2, 2, 2, 8]);
        for counts in counts {
            let each: HashSet<usize> = counts.values().copied().collect();
            assert_eq!(each.len(), 1, "{counts:?}");
        }
    }

    #[test]
    fn the_most_frequent_answer_of_the_same_question_is_right_in_a_third_at_most() {
        let mut counts: HashMap<String, HashMap<usize, usize>> = HashMap::new();
        for index in 0..12_000 {
            let question = question(0, Part::Train, index);
            *counts.entry(question.text).or_default().entry(question.answer).or_default() += 1;
        }
        let count = 2400;
        let right = (0..count).filter(|index| {
            let question = question(0, Part::Test, *index);
            let known = counts.get(&question.text);
            let best = known.and_then(|known| known.iter().max_by_key(|(answer, count)| (**count, **answer)));
            best.is_some_and(|(answer, _)| *answer == question.answer)
        });
        let share = right.count() as f64 / f64::from(count as u32);
        assert!((0.27..=0.34).contains(&share), "{share}");
    }

    /// An answer found from the sentence alone and the scene, without the code that made them.
    fn answer(text: &str, things: &[Thing]) -> String {
        let kind = |word: &str| KINDS.iter().position(|(name, _)| *name == word);
        let colour = |word: &str| COLOURS.iter().position(|(name, _)| *name == word);
        let the = |word: &str| things.iter().find(|thing| Some(thing.kind) == kind(word)).unwrap();
        let yes = |is_so: bool| if is_so { "yes".to_string() } else { "no".to_string() };
        let numbers = ["zero", "one", "two", "three", "four"];
        match text.split(' ').collect::<Vec<_>>()[..] {
            ["what", "colour", "is", "the", word, "?"] => COLOURS[the(word).colour].0.into(),
            ["what", "is", "the", word, "thing", "?"] => {
                let thing = things.iter().find(|thing| Some(thing.colour) == colour(word)).unwrap();
                KINDS[thing.kind].0.into()
            }
            ["how", "many", "things", ..] => numbers[things.len()].into(),
            ["how", "many", word, ..] => {
                let kind = PLURALS.iter().position(|plural| *plural == word).unwrap();
                numbers[things.iter().filter(|thing| thing.kind == kind).count()].into()
            }
            ["is", "there", "a", tint, word, "?"] => {
                let wanted = (kind(word), colour(tint));
                yes(things.iter().any(|thing| (Some(thing.kind), Some(thing.colour)) == wanted))
            }
            ["is", "the", one, "left", "of", "the", other, "?"] => yes(the(one).centre[0] < the(other).centre[0]),
            ["is", "the", one, "above", "the", other, "?"] => yes(the(one).centre[1] < the(other).centre[1]),
            ["what", "is", "left", "of", "the", word, "?"] => {
                let end = the(word).centre[0];
                let left: Vec<&Thing> = things.iter().filter(|thing| thing.centre[0] < end).collect();
                assert_eq!(left.len(), 1);
                KINDS[left[0].kind].0.into()
            }
            _ => panic!("`{text}` is no question"),
        }
    }

    #[test]
    fn answers_are_right_and_every_word_is_in_the_vocabulary() {
        let text = vocabulary();
        let words: HashSet<&str> = text.lines().collect();
        for index in 0..1200 {
            let question = question(0, Part::Train, index);
            assert_eq!(super::super::ANSWERS[question.answer], answer(&question.text, &question.scene.things));
            assert!(question.text.split(' ').all(|word| words.contains(word)), "{}", question.text);
        }
    }

    #[test]
    fn no_garment_is_in_two_parts_and_the_same_index_gives_the_same() {
        let garments = PARTS.map(|part| {
            let all = (0..600).flat_map(|index| question(0, part, index).scene.garments);
            all.map(|garment| (garment.kind, garment.test, garment.index)).collect::<HashSet<_>>()
        });
        for [one, other] in [[0, 1], [0, 2], [1, 2]] {
            assert!(garments[one].is_disjoint(&garments[other]));
        }
        let bytes = |seed, part, index| question(seed, part, index).scene.picture().pixels().to_vec();
        assert_eq!(bytes(0, Part::Train, 5), bytes(0, Part::Train, 5));
        for other in [bytes(1, Part::Train, 5), bytes(0, Part::Validation, 5), bytes(0, Part::Train, 13)] {
            assert_ne!(bytes(0, Part::Train, 5), other);
        }
    }

    #[test]
    fn drawn_boxes_are_within_a_pixel_of_the_true_ones_in_another_order() {
        let mut kept = 0;
        for index in 0..400 {
            let scene = question(0, Part::Test, index).scene;
            let (drawn, truth) = (scene.drawn_boxes(), scene.boxes());
            assert_eq!(drawn.len(), truth.len());
            let near = |drawn: &[f64; 4], truth: &[f64; 4]| drawn.iter().zip(truth).all(|(a, b)| (a - b).abs() <= 1.0);
            for (corners, kind) in &drawn {
                let mut same = truth.iter().zip(&scene.things).filter(|(_, thing)| thing.kind == *kind);
                assert!(same.any(|(truth, _)| near(corners, truth)));
                assert!(corners.iter().all(|side| (0.0..=64.0).contains(side)));
            }
            kept += usize::from(truth.len() == 4 && near(&drawn[0].0, &truth[0]));
        }
        assert!(kept < 60, "{kept}");
    }
}
