//! `scenes`: 64 x 64 pictures of one to four coloured garments with boxes around them.
//!
//! How many: even from 1 to 4. Each has a side of 18 to 26 pixels, a kind, a colour and a place inside of the picture; it is
//! drawn again while it overlaps another by 5 % of the smaller one or more, or when its kind and colour are there already.

use super::draw::{Draw, Sample, Stage};
use super::garments::{Garment, GarmentCanvas, GarmentPlacement, KINDS};
use crate::Error;
use crate::data::detection::{Annotation, DetectionDataset};
use crate::data::{Part, Picture};

/// Pixels of a side of a scene.
pub const SCENE_SIDE: usize = 64;

/// Something in a scene, without a picture yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thing {
    /// Index in [`KINDS`].
    pub kind: usize,
    /// Index in [`super::COLOURS`].
    pub colour: usize,
    /// `[x, y]` in pixels.
    pub centre: [f64; 2],
    pub side: usize,
}

/// One to four things that fit into a picture with so many pixels a side.
pub(super) fn arrange(draw: &mut Draw, side: usize) -> Vec<Thing> {
    // a place is tried so many times before the whole scene is drawn again
    const TRIES: usize = 60;
    loop {
        let count = 1 + draw.below(4);
        let mut things: Vec<Thing> = Vec::with_capacity(count);
        for _ in 0..count {
            let fitting = (0..TRIES).find_map(|_| {
                let thing = Thing::draw(draw, side);
                let is_apart = |other: &Thing| {
                    thing.overlap(other) < 0.05 && (thing.kind, thing.colour) != (other.kind, other.colour)
                };
                things.iter().all(is_apart).then_some(thing)
            });
            things.extend(fitting);
        }
        if things.len() == count {
            return things;
        }
    }
}

impl Thing {
    /// The area that the squares of two things have in common, of the smaller one.
    fn overlap(&self, other: &Self) -> f64 {
        let reach = (self.side + other.side) as f64 / 2.0;
        let common = |axis: usize| (reach - (self.centre[axis] - other.centre[axis]).abs()).max(0.0);
        let least = self.side.min(other.side) as f64;
        common(0) * common(1) / (least * least)
    }

    fn draw(draw: &mut Draw, canvas: usize) -> Self {
        let side = 18 + draw.below(9);
        let (kind, colour) = (draw.below(KINDS.len()), draw.below(super::COLOURS.len()));
        let half = side as f64 / 2.0;
        let centre = [0; 2].map(|_| draw.uniform(half, canvas as f64 - half));
        Self { kind, colour, centre, side }
    }

    fn placement(&self) -> GarmentPlacement {
        GarmentPlacement::upright(self.centre, self.side as f64)
    }
}

/// The content of a scene before it is painted.
#[derive(Clone, Debug, PartialEq)]
pub struct Scene {
    /// Later ones lie on top.
    pub things: Vec<Thing>,
    pub garments: Vec<Garment>,
    /// The gray level behind them.
    pub background: f64,
    identity: Identity,
}

/// What determines a scene.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Identity {
    pub seed: u64,
    pub part: Part,
    pub sample: Sample,
    pub index: usize,
}

impl Identity {
    pub fn draw(self, stage: Stage) -> Draw {
        Draw::new(self.seed, self.part, (self.sample, stage), self.index)
    }
}

/// A scene of a part by its index.
///
/// # Panics
/// When the part is not train, validation or test.
#[must_use]
pub fn scene(seed: u64, part: Part, index: usize) -> Scene {
    let identity = Identity { seed, part, sample: Sample::Scene, index };
    let mut draw = identity.draw(Stage::Content);
    let things = arrange(&mut draw, SCENE_SIDE);
    Scene::of(things, &mut draw, identity)
}

impl Scene {
    /// Garments for things, and a background.
    pub(super) fn of(things: Vec<Thing>, draw: &mut Draw, identity: Identity) -> Self {
        let background = draw.uniform(0.0, 60.0);
        let garments = things.iter().map(|thing| Garment::draw(identity.part, thing.kind, draw)).collect();
        Self { things, garments, background, identity }
    }

    #[must_use]
    pub fn picture(&self) -> Picture {
        let mut canvas = GarmentCanvas::new(SCENE_SIDE, self.background);
        for (thing, garment) in self.things.iter().zip(&self.garments) {
            canvas.paint(garment, thing.colour, &thing.placement());
        }
        canvas.develop(&mut self.identity.draw(Stage::Noise))
    }

    /// Left, top, right and bottom of what can be seen of each thing, in pixels.
    #[must_use]
    pub fn boxes(&self) -> Vec<[f64; 4]> {
        self.things.iter().zip(&self.garments).map(|(thing, garment)| garment.extent(&thing.placement())).collect()
    }

    /// The boxes as somebody would draw them, with the kind of the thing in each: every side moved by up to a pixel, in random
    /// order.
    #[must_use]
    pub fn drawn_boxes(&self) -> Vec<([f64; 4], usize)> {
        let mut draw =
            Identity { sample: Sample::Region, index: self.region_index(), ..self.identity }.draw(Stage::Content);
        let end = SCENE_SIDE as f64;
        let moved = |corners: [f64; 4]| corners.map(|side| (side + draw.uniform(-1.0, 1.0)).clamp(0.0, end));
        let mut boxes: Vec<([f64; 4], usize)> =
            self.boxes().into_iter().map(moved).zip(self.things.iter().map(|thing| thing.kind)).collect();
        (1..boxes.len()).rev().for_each(|last| boxes.swap(last, draw.below(last + 1)));
        boxes
    }

    /// Another one for every scene: those of questions are not those of `scenes`.
    const fn region_index(&self) -> usize {
        2 * self.identity.index + matches!(self.identity.sample, Sample::Question) as usize
    }
}

/// The scenes of a part: 20,000 for training, 1,000 for validation, 2,000 for the test.
#[derive(Clone, Debug)]
pub struct Scenes {
    part: Part,
    classes: Vec<String>,
}

impl Scenes {
    pub const NAME: &'static str = "scenes";

    /// Those of train, validation or test.
    ///
    /// # Errors
    /// When the part is none of these three.
    pub fn open(part: Part) -> Result<Self, Error> {
        if !matches!(part, Part::Train | Part::Validation | Part::Test) {
            return Err(Error::config("part", format!("`{}` has train, validation and test, got {part}", Self::NAME)));
        }
        Ok(Self { part, classes: KINDS.map(|(name, _)| name.to_string()).to_vec() })
    }
}

impl DetectionDataset for Scenes {
    fn len(&self) -> usize {
        match self.part {
            Part::Validation => 1000,
            Part::Test => 2000,
            _ => 20_000,
        }
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn picture(&self, index: usize) -> Result<Picture, Error> {
        Ok(scene(0, self.part, index).picture())
    }

    fn annotations(&self, index: usize) -> Result<Vec<Annotation>, Error> {
        let scene = scene(0, self.part, index);
        let annotation = |(place, (thing, [x1, y1, x2, y2])): (usize, (&Thing, [f64; 4]))| {
            let bounds = [x1, y1, x2 - x1, y2 - y1];
            Annotation::new((4 * index + place + 1) as u64, thing.kind, bounds)
        };
        Ok(scene.things.iter().zip(scene.boxes()).enumerate().map(annotation).collect())
    }

    fn image_id(&self, index: usize) -> u64 {
        index as u64 + 1
    }

    fn name(&self, index: usize) -> String {
        format!("{} {} #{index}", Self::NAME, self.part)
    }

    fn declared_size(&self, _: usize) -> Option<[usize; 2]> {
        Some([SCENE_SIDE; 2])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest as _, Sha256};
    use std::collections::HashSet;

    const PARTS: [Part; 3] = [Part::Train, Part::Validation, Part::Test];

    #[test]
    fn no_garment_is_in_two_parts() {
        let garments = PARTS.map(|part| {
            let all = (0..1500).flat_map(|index| scene(0, part, index).garments);
            all.map(|garment| (garment.kind, garment.test, garment.index)).collect::<HashSet<_>>()
        });
        // nearly all of the 200 of each kind come up
        assert!(garments.iter().all(|garments| garments.len() > 1300));
        for [one, other] in [[0, 1], [0, 2], [1, 2]] {
            assert!(garments[one].is_disjoint(&garments[other]));
        }
    }

    #[test]
    fn boxes_are_inside_as_large_as_garments_are_and_things_are_apart() {
        let mut counts = [0; 5];
        for index in 0..2000 {
            let scene = scene(0, Part::Train, index);
            counts[scene.things.len()] += 1;
            for [x1, y1, x2, y2] in scene.boxes() {
                assert!(x1 >= 0.0 && y1 >= 0.0 && x2 <= 64.0 && y2 <= 64.0, "{:?}", [x1, y1, x2, y2]);
                let sides = [x2 - x1, y2 - y1];
                assert!(sides.iter().all(|side| (3.0..26.0 + 1e-9).contains(side)), "{sides:?}");
            }
            for (place, thing) in scene.things.iter().enumerate() {
                for other in &scene.things[..place] {
                    assert!(thing.overlap(other) < 0.05 && (thing.kind, thing.colour) != (other.kind, other.colour));
                }
            }
        }
        // four things do not always fit
        assert!(counts[0] == 0 && counts[1..4].iter().all(|count| (450..600).contains(count)), "{counts:?}");
        assert!((350..480).contains(&counts[4]), "{counts:?}");
    }

    #[test]
    fn kinds_and_colours_are_as_frequent_as_each_other() {
        let things: Vec<Thing> = (0..4000).flat_map(|index| scene(0, Part::Train, index).things).collect();
        let share = |count: usize| count as f64 / things.len() as f64;
        for kind in 0..8 {
            assert!((share(things.iter().filter(|thing| thing.kind == kind).count()) - 0.125).abs() < 0.015);
        }
        for colour in 0..6 {
            assert!((share(things.iter().filter(|thing| thing.colour == colour).count()) - 1.0 / 6.0).abs() < 0.015);
        }
    }

    #[test]
    fn a_box_is_around_the_colour_of_its_thing() {
        for index in (0..200).filter(|index| scene(0, Part::Test, *index).things.len() == 1) {
            let scene = scene(0, Part::Test, index);
            let (picture, [x1, y1, x2, y2]) = (scene.picture(), scene.boxes()[0]);
            let background = scene.background;
            for (place, pixel) in picture.pixels().as_chunks::<3>().0.iter().enumerate() {
                let (x, y) = ((place % 64) as f64, (place / 64) as f64);
                let is_outside = x + 1.5 < x1 || x - 0.5 > x2 || y + 1.5 < y1 || y - 0.5 > y2;
                let differs = pixel.iter().map(|level| (f64::from(*level) - background).abs()).fold(0.0, f64::max);
                assert!(!is_outside || differs < 45.0, "scene {index}: {differs} at {x}, {y}");
            }
        }
    }

    #[test]
    fn the_same_index_gives_the_same_bytes_on_every_machine_and_another_seed_others() {
        let bytes = |seed, part, index| scene(seed, part, index).picture().pixels().to_vec();
        assert_eq!(bytes(0, Part::Train, 5), bytes(0, Part::Train, 5));
        for other in [bytes(1, Part::Train, 5), bytes(0, Part::Validation, 5), bytes(0, Part::Train, 6)] {
            assert_ne!(bytes(0, Part::Train, 5), other);
        }
        let mut hash = Sha256::new();
        for part in PARTS {
            (0..20).for_each(|index| hash.update(bytes(0, part, index)));
        }
        let start = hash.finalize().first_chunk().map_or(0, |start| u64::from_be_bytes(*start));
        assert_eq!(format!("{start:016x}"), "1abab6af121336e1");
    }

    #[test]
    fn parts_have_their_sizes_and_ids_are_unique() {
        let sizes = PARTS.map(|part| Scenes::open(part).unwrap().len());
        assert_eq!(sizes, [20_000, 1000, 2000]);
        assert!(Scenes::open(Part::All).is_err());
        let scenes = Scenes::open(Part::Validation).unwrap();
        let ids: Vec<u64> = (0..1000).flat_map(|index| scenes.annotations(index).unwrap()).map(|one| one.id).collect();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        assert_eq!((scenes.name(3), scenes.classes()[7].as_str()), ("scenes validation #3".into(), "boot"));
    }
}
