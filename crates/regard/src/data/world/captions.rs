//! Sentences that tell what is in a scene, and sentences that nearly do.
//!
//! Two things are described by their relation along the axis on which their centres differ more, from either side; others are listed
//! from left to right.

use super::draw::{Draw, Sample, Stage};
use super::garments::{COLOURS, KINDS};
use super::scenes::{Scene, Thing};
use crate::data::Part;

/// The position of one thing relative to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpatialRelation {
    Left,
    Right,
    Above,
    Below,
}

impl SpatialRelation {
    const fn words(self) -> &'static str {
        match self {
            Self::Left => "left of",
            Self::Right => "right of",
            Self::Above => "above",
            Self::Below => "below",
        }
    }

    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
            Self::Above => Self::Below,
            Self::Below => Self::Above,
        }
    }

    /// Along the axis on which two things are further apart.
    fn between(one: &Thing, other: &Thing) -> Self {
        let [dx, dy] = [0, 1].map(|axis| one.centre[axis] - other.centre[axis]);
        match (dx.abs() > dy.abs(), dx < 0.0, dy < 0.0) {
            (true, true, _) => Self::Left,
            (true, false, _) => Self::Right,
            (false, _, true) => Self::Above,
            (false, _, false) => Self::Below,
        }
    }
}

/// The content of a caption.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caption {
    /// Colour and kind of each thing, in the order of the sentence.
    pub things: Vec<[usize; 2]>,
    /// The position of the first of two things; `None` for other numbers.
    pub relation: Option<SpatialRelation>,
}

/// The caption of a scene of a part by its index; `telling` is which of its captions it is.
#[must_use]
pub fn caption(seed: u64, part: Part, index: usize, scene: &Scene) -> Caption {
    let mut draw = Draw::new(seed, part, (Sample::Caption, Stage::Content), index);
    let told = |thing: &Thing| [thing.colour, thing.kind];
    if let [one, other] = &scene.things[..] {
        let (first, second) = if draw.below(2) == 0 { (one, other) } else { (other, one) };
        return Caption {
            things: vec![told(first), told(second)],
            relation: Some(SpatialRelation::between(first, second)),
        };
    }
    let mut things: Vec<&Thing> = scene.things.iter().collect();
    things.sort_by(|a, b| a.centre[0].total_cmp(&b.centre[0]));
    Caption { things: things.into_iter().map(told).collect(), relation: None }
}

impl Caption {
    #[must_use]
    pub fn text(&self) -> String {
        let named = |[colour, kind]: &[usize; 2]| format!("a {} {}", COLOURS[*colour].0, KINDS[*kind].0);
        let things: Vec<String> = self.things.iter().map(named).collect();
        let joint = self.relation.map_or(" and ".into(), |relation| format!(" {} ", relation.words()));
        things.join(&joint)
    }

    /// A caption that is wrong by one word: another colour or kind that nothing there has, or the opposite relation. It depends on
    /// the draw alone.
    #[must_use]
    pub fn hard_negative(&self, draw_id: [u64; 2]) -> Self {
        let mut draw = Draw::negative(draw_id);
        let slots = 2 * self.things.len() + usize::from(self.relation.is_some());
        let mut wrong = self.clone();
        match draw.below(slots) {
            slot if slot < 2 * self.things.len() => {
                let (thing, field) = (slot / 2, slot % 2);
                let count = [COLOURS.len(), KINDS.len()][field];
                // of six colours or eight kinds at most three make something that is there, too
                while self.things.contains(&wrong.things[thing]) {
                    wrong.things[thing][field] = draw.below(count);
                }
            }
            _ => wrong.relation = self.relation.map(SpatialRelation::opposite),
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::super::scenes::scene;
    use super::super::words::vocabulary;
    use super::*;
    use std::collections::HashSet;

    fn told(index: usize) -> (Scene, Caption) {
        let scene = scene(0, Part::Train, index);
        let caption = caption(0, Part::Train, index, &scene);
        (scene, caption)
    }

    /// Whether what a caption says is so.
    fn is_true(caption: &Caption, scene: &Scene) -> bool {
        let find = |named: &[usize; 2]| scene.things.iter().find(|thing| [thing.colour, thing.kind] == *named);
        let things: Option<Vec<&Thing>> = caption.things.iter().map(find).collect();
        let Some(things) = things else { return false };
        let ordered = things.windows(2).all(|pair| pair[0].centre[0] <= pair[1].centre[0]);
        let related = match caption.relation {
            None | Some(SpatialRelation::Left) => ordered,
            Some(SpatialRelation::Right) => !ordered,
            Some(SpatialRelation::Above) => things[0].centre[1] < things[1].centre[1],
            Some(SpatialRelation::Below) => things[0].centre[1] > things[1].centre[1],
        };
        things.len() == scene.things.len() && related
    }

    #[test]
    fn a_caption_is_true_and_a_hard_negative_is_wrong_by_one_word() {
        let mut changed = [0; 3];
        for index in 0..2000 {
            let (scene, caption) = told(index);
            assert!(is_true(&caption, &scene), "{}", caption.text());
            let wrong = caption.hard_negative([3, index as u64]);
            assert!(!is_true(&wrong, &scene), "{} and {}", caption.text(), wrong.text());
            let differs = |field: usize| caption.things.iter().zip(&wrong.things).any(|(a, b)| a[field] != b[field]);
            let kinds = [differs(0), differs(1), caption.relation != wrong.relation];
            assert_eq!(kinds.iter().filter(|differs| **differs).count(), 1);
            changed.iter_mut().zip(kinds).for_each(|(count, differs)| *count += usize::from(differs));
            assert_eq!(wrong, caption.hard_negative([3, index as u64]));
        }
        assert!(changed[0] > 700 && changed[1] > 700 && changed[2] > 60, "{changed:?}");
    }

    #[test]
    fn relations_are_as_frequent_as_each_other_and_told_from_either_side() {
        let mut counts = [0; 4];
        for index in 0..4000 {
            if let Some(relation) = told(index).1.relation {
                counts[relation as usize] += 1;
            }
        }
        assert!(counts.iter().all(|count| (200..320).contains(count)), "{counts:?}");
    }

    #[test]
    fn every_word_of_a_caption_is_in_the_vocabulary() {
        let text = vocabulary();
        let words: HashSet<&str> = text.lines().collect();
        for index in 0..2000 {
            assert!(told(index).1.text().split(' ').all(|word| words.contains(word)));
        }
    }
}
