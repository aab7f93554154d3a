//! Captions of clips, and questions about them whose wording tells nothing of the answer.
//!
//! The question of index `i` is about the clip of that index: motion `i mod 10`, template `(i div 10) mod 5`. Somebody who does not
//! look is right in a fifth of the cases.

use super::clips::{MOTIONS, MovingScene, moving_scene};
use super::garments::{COLOURS, KINDS};
use super::words::{self, motion_words};
use crate::data::Part;

/// What each template asks for.
pub const CLIP_TEMPLATES: [&str; 5] =
    ["what happens to a kind", "what changes", "what colour changes", "what stays", "does something happen"];

/// A question about a clip, and its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipQuestion {
    pub text: String,
    /// Index in [`super::ANSWERS`].
    pub answer: usize,
    /// Index in [`CLIP_TEMPLATES`].
    pub template: usize,
    pub clip: MovingScene,
}

impl MovingScene {
    /// `a red boot moves right near a blue bag`
    #[must_use]
    pub fn caption(&self) -> String {
        self.told(self.motion)
    }

    /// The caption with the reversed motion: wrong by its direction alone.
    #[must_use]
    pub fn hard_negative(&self) -> String {
        self.told(self.motion ^ 1)
    }

    fn told(&self, motion: usize) -> String {
        let [mover, stayer] = [&self.mover, &self.stayer]
            .map(|actor| format!("a {} {}", COLOURS[actor.colour].0, KINDS[actor.garment.kind].0));
        format!("{mover} {} near {stayer}", motion_words(motion)[0])
    }
}

/// A question of a part by its index.
///
/// # Panics
/// When the part is not train, validation or test.
#[must_use]
pub fn clip_question(seed: u64, part: Part, index: usize) -> ClipQuestion {
    let clip = moving_scene(seed, part, index);
    let (block, template) = (index / MOTIONS.len(), index / MOTIONS.len() % CLIP_TEMPLATES.len());
    let turn = block / CLIP_TEMPLATES.len();
    let [mover, stayer] = [&clip.mover, &clip.stayer];
    let (text, answer) = match template {
        0 => {
            // as often as each of the ten motions
            let stays = turn % 11 == 10;
            let asked = if stays { stayer } else { mover };
            let answer = if stays { words::STAYS } else { words::motion(clip.motion) };
            (format!("what happens to the {} ?", KINDS[asked.garment.kind].0), answer)
        }
        1 => ("what changes ?".into(), words::kind(mover.garment.kind)),
        2 => ("what colour is the thing that changes ?".into(), words::colour(mover.colour)),
        3 => ("what stays ?".into(), words::kind(stayer.garment.kind)),
        _ => {
            let is_yes = turn.is_multiple_of(2);
            let asked = if is_yes { clip.motion } else { clip.motion ^ 1 };
            (format!("does something {} ?", motion_words(asked)[1]), words::yes(is_yes))
        }
    };
    ClipQuestion { text, answer, template, clip }
}

#[cfg(test)]
mod tests {
    use super::super::words::{ANSWERS, vocabulary};
    use super::*;
    use std::collections::{BTreeMap, HashMap, HashSet};

    #[test]
    fn motions_and_yes_and_no_are_exactly_as_frequent_and_every_word_is_known() {
        let text = vocabulary();
        let known: HashSet<&str> = text.lines().collect();
        let mut counts: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for index in 0..10 * 5 * 22 {
            let question = clip_question(0, Part::Train, index);
            *counts.entry((question.template, question.answer)).or_default() += 1;
            for sentence in [&question.text, &question.clip.caption(), &question.clip.hard_negative()] {
                assert!(sentence.split(' ').all(|word| known.contains(word)), "{sentence}");
            }
        }
        let of = |template: usize| counts.iter().filter(move |((own, _), _)| *own == template).map(|(_, count)| *count);
        assert_eq!(of(0).collect::<Vec<_>>(), [20; 11]);
        assert_eq!(of(4).collect::<Vec<_>>(), [110; 2]);
        assert_eq!((of(1).count(), of(2).count(), of(3).count()), (8, 6, 8));
    }

    #[test]
    fn captions_say_what_happens_and_hard_negatives_the_reverse() {
        let question = clip_question(0, Part::Test, 43);
        assert_eq!((question.clip.motion, question.template), (3, 4));
        assert!(question.clip.caption().contains(" moves up near a "), "{}", question.clip.caption());
        assert!(question.clip.hard_negative().contains(" moves down near a "));
        assert_eq!((question.text.as_str(), ANSWERS[question.answer]), ("does something move up ?", "yes"));
    }

    #[test]
    fn somebody_who_does_not_look_is_right_in_a_fifth() {
        let mut counts: HashMap<String, HashMap<usize, usize>> = HashMap::new();
        for index in 0..6000 {
            let question = clip_question(0, Part::Train, index);
            *counts.entry(question.text).or_default().entry(question.answer).or_default() += 1;
        }
        let right = (0..2000).filter(|index| {
            let question = clip_question(0, Part::Test, *index);
            let best =
                counts.get(&question.text).and_then(|own| own.iter().max_by_key(|(answer, count)| (**count, **answer)));
            best.is_some_and(|(answer, _)| *answer == question.answer)
        });
        let share = right.count() as f64 / 2000.0;
        assert!((0.15..=0.24).contains(&share), "{share}");
    }
}
