//! `clips`: short clips of a garment that does one of ten motions while another stays.
//!
//! Class = 2 axis + direction, and a clip of an odd class is one of the even class played backwards: the set of its frames
//! says nothing about the direction, so that a model that is blind to the order of frames is right at most half of the
//! time. The other target, the kind of the garment that moves, needs one good frame. Everything is a share of the
//! picture's side and of the clip's length: any number of frames of any size is painted directly, since frames taken
//! from a longer clip could tell the direction.

use super::draw::{Draw, Sample, Stage};
use super::garments::{COLOURS, Garment, GarmentCanvas, GarmentPlacement, KINDS};
use super::turn::turn;
use crate::Error;
use crate::data::clip::{ClipDataset, ClipLength};
use crate::data::{Part, Picture};

/// In pairs of a motion and its reversal.
pub const MOTIONS: [&str; 10] =
    ["right", "left", "down", "up", "closer", "away", "clockwise", "back", "appears", "vanishes"];

/// Frames of a clip, and pixels of a side, where nothing else is asked for.
pub const CLIP_FRAMES: usize = 8;
pub const CLIP_SIDE: usize = 32;

/// What the class of a clip stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipTarget {
    /// The motion: one of [`MOTIONS`].
    Motion,
    /// The garment that moves: one of [`KINDS`].
    Garment,
}

/// One of the two garments of a clip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Actor {
    /// Its kind is an index in [`KINDS`].
    pub garment: Garment,
    /// Index in [`COLOURS`].
    pub colour: usize,
}

/// The content of a clip before it is painted. Lengths and positions are fractions of the picture's side.
#[derive(Clone, Debug, PartialEq)]
pub struct MovingScene {
    /// Index in [`MOTIONS`].
    pub motion: usize,
    pub mover: Actor,
    pub stayer: Actor,
    stayer_is_in_front: bool,
    /// The gray level behind them.
    background: f64,
    stayer_centre: [f64; 2],
    stayer_side: f64,
    /// Position and size of the moving garment, unless they change.
    centre: [f64; 2],
    side: f64,
    /// When the change begins and ends, as shares of the clip's length.
    times: [f64; 2],
    /// Of a coordinate, of the side, and of the angle in quarter turns: at the beginning and at the end.
    places: [f64; 2],
    sides: [f64; 2],
    quarters: [f64; 2],
    /// When it appears.
    threshold: f64,
    identity: (u64, Part, usize),
}

/// The content of a clip of a part by its index.
///
/// # Panics
/// When the part is not train, validation or test.
#[must_use]
pub fn moving_scene(seed: u64, part: Part, index: usize) -> MovingScene {
    let mut draw = Draw::new(seed, part, (Sample::Clip, Stage::Content), index);
    let motion = index % MOTIONS.len();
    // all kinds are equally frequent in every 1,000 clips, and, of every 80, with every motion
    let kind = (index / MOTIONS.len() + 4 * (motion % 2)) % KINDS.len();
    let colour = draw.below(COLOURS.len());
    let other_kind = (kind + 1 + draw.below(KINDS.len() - 1)) % KINDS.len();
    let other_colour = (colour + 1 + draw.below(COLOURS.len() - 1)) % COLOURS.len();
    let mut actor = |kind, colour| Actor { garment: Garment::draw(part, kind, &mut draw), colour };
    let (mover, stayer) = (actor(kind, colour), actor(other_kind, other_colour));
    let mut range = |least, most| draw.uniform(least, most);
    let (background, coin) = (range(0.0, 60.0), range(0.0, 1.0));
    let (side, stayer_side) = (range(0.40, 0.55), range(0.30, 0.40));
    let stayer_centre = [range(0.2, 0.8), range(0.2, 0.8)];
    let times = [range(0.0, 0.2), 1.0 - range(0.0, 0.2)];
    let places = [range(0.15, 0.35), range(0.65, 0.85)];
    let centre = [range(0.25, 0.75), range(0.25, 0.75)];
    let sides = [range(0.22, 0.34), range(0.62, 0.80)];
    let start = range(0.0, 4.0);
    let quarters = [start, start + range(1.0, 2.0)];
    MovingScene {
        motion,
        mover,
        stayer,
        stayer_is_in_front: coin < 0.5,
        background,
        stayer_centre,
        stayer_side,
        centre,
        side,
        times,
        places,
        sides,
        quarters,
        threshold: range(0.3, 0.7),
        identity: (seed, part, index),
    }
}

impl MovingScene {
    /// One of `frames` frames.
    ///
    /// # Panics
    /// When there is no such frame, or the side is 0.
    #[must_use]
    pub fn frame(&self, frame: usize, frames: usize, side: usize) -> Picture {
        let (seed, part, index) = self.identity;
        let mut draw = Draw::of_frame(seed, part, (Sample::Clip, Stage::Noise), index, frame);
        self.canvas(frame, frames, side).develop(&mut draw)
    }

    fn canvas(&self, frame: usize, frames: usize, side: usize) -> GarmentCanvas {
        assert!(frame < frames && side > 0, "clips: frame {frame} of {frames}, side {side}");
        let frame = if self.motion % 2 == 1 { frames - 1 - frame } else { frame };
        let time = frame as f64 / (frames - 1).max(1) as f64;
        let progress = ((time - self.times[0]) / (self.times[1] - self.times[0])).clamp(0.0, 1.0);
        let mut canvas = GarmentCanvas::new(side, self.background);
        let mut paint = |actor: &Actor, place: GarmentPlacement| {
            let scale = side as f64;
            let (centre, side) = (place.centre.map(|place| place * scale), place.side * scale);
            if place.visibility > 0.0 {
                canvas.paint(&actor.garment, actor.colour, &GarmentPlacement { centre, side, ..place });
            }
        };
        let (moving, staying) =
            (self.mover_placement(progress), GarmentPlacement::upright(self.stayer_centre, self.stayer_side));
        if self.stayer_is_in_front {
            paint(&self.mover, moving);
            paint(&self.stayer, staying);
        } else {
            paint(&self.stayer, staying);
            paint(&self.mover, moving);
        }
        canvas
    }

    /// The position of the moving garment after a fraction of the motion, in fractions of the side.
    fn mover_placement(&self, progress: f64) -> GarmentPlacement {
        let between = |[start, end]: [f64; 2]| start + (end - start) * progress;
        let mut place = GarmentPlacement::upright(self.centre, self.side);
        match self.motion / 2 {
            axis @ (0 | 1) => place.centre[axis] = between(self.places),
            2 => place.side = between(self.sides),
            3 => place.turn = turn(between(self.quarters)),
            _ => place.visibility = f64::from(u8::from(progress > self.threshold)),
        }
        place
    }
}

/// The clips of a part: 6,000 for training, 1,000 for validation, 1,000 for the test.
#[derive(Clone, Debug)]
pub struct WorldClips {
    part: Part,
    target: ClipTarget,
    classes: Vec<String>,
    frames: usize,
    side: usize,
}

impl WorldClips {
    /// With the motion as class; `clips-garment` has the kind of the mover.
    pub const NAME: &'static str = "clips";
    pub const GARMENT: &'static str = "clips-garment";

    /// Those of train, validation or test: `frames` frames of `side` x `side` pixels.
    ///
    /// # Errors
    /// When the part is none of these three, or a size is 0 or above 1024.
    pub fn open(part: Part, target: ClipTarget, [frames, side]: [usize; 2]) -> Result<Self, Error> {
        if !matches!(part, Part::Train | Part::Validation | Part::Test) {
            return Err(Error::config("part", format!("`{}` has train, validation and test, got {part}", Self::NAME)));
        }
        for (field, value) in [("frames", frames), ("side", side)] {
            if !(1..=1024).contains(&value) {
                return Err(Error::config(field, format!("must be from 1 to 1024, got {value}")));
            }
        }
        let classes = match target {
            ClipTarget::Motion => MOTIONS.map(String::from).to_vec(),
            ClipTarget::Garment => KINDS.map(|(name, _)| name.to_string()).to_vec(),
        };
        Ok(Self { part, target, classes, frames, side })
    }

    /// The target and `[frames, side]` of a source such as `clips`, `clips-garment` or `clips:16x64`; none if it is no
    /// name of these clips.
    #[must_use]
    pub fn parse(source: &str) -> Option<(ClipTarget, [usize; 2])> {
        let (name, size) = source.split_once(':').map_or((source, None), |(name, size)| (name, Some(size)));
        let target = match name {
            Self::NAME => ClipTarget::Motion,
            Self::GARMENT => ClipTarget::Garment,
            _ => return None,
        };
        let size = match size {
            None => [CLIP_FRAMES, CLIP_SIDE],
            Some(size) => {
                let (frames, side) = size.split_once('x')?;
                [frames.parse().ok()?, side.parse().ok()?]
            }
        };
        Some((target, size))
    }
}

impl ClipDataset for WorldClips {
    fn len(&self) -> usize {
        match self.part {
            Part::Validation | Part::Test => 1000,
            _ => 6000,
        }
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn class(&self, index: usize) -> usize {
        match self.target {
            ClipTarget::Motion => index % MOTIONS.len(),
            ClipTarget::Garment => moving_scene(0, self.part, index).mover.garment.kind,
        }
    }

    fn name(&self, index: usize) -> String {
        format!("{} {} #{index}", Self::NAME, self.part)
    }

    fn length(&self, _: usize) -> Result<ClipLength, Error> {
        // a clip lasts for a second
        Ok(ClipLength { frames: self.frames, rate: self.frames as f64 })
    }

    fn frames(&self, index: usize, wanted: &[usize]) -> Result<Vec<Picture>, Error> {
        if let Some(frame) = wanted.iter().find(|frame| **frame >= self.frames) {
            let reason = format!("{} has {} frames, no frame {frame}", self.name(index), self.frames);
            return Err(Error::config("frames", reason));
        }
        let scene = moving_scene(0, self.part, index);
        Ok(wanted.iter().map(|&frame| scene.frame(frame, self.frames, self.side)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest as _, Sha256};
    use std::collections::HashSet;

    const PARTS: [Part; 3] = [Part::Train, Part::Validation, Part::Test];

    fn opened(part: Part, target: ClipTarget) -> WorldClips {
        WorldClips::open(part, target, [CLIP_FRAMES, CLIP_SIDE]).unwrap()
    }

    #[test]
    fn no_garment_is_in_two_parts() {
        let garments = PARTS.map(|part| {
            let scenes = (0..1000).map(|index| moving_scene(0, part, index));
            let all = scenes.flat_map(|scene| [scene.mover.garment, scene.stayer.garment]);
            all.map(|garment| (garment.kind, garment.test, garment.index)).collect::<HashSet<_>>()
        });
        assert!(garments.iter().all(|garments| garments.len() > 1000));
        for [one, other] in [[0, 1], [0, 2], [1, 2]] {
            assert!(garments[one].is_disjoint(&garments[other]));
        }
    }

    #[test]
    fn classes_of_both_targets_are_exactly_as_frequent_as_each_other() {
        for part in PARTS {
            for target in [ClipTarget::Motion, ClipTarget::Garment] {
                let clips = opened(part, target);
                let mut counts = vec![0; clips.classes().len()];
                (0..clips.len()).for_each(|index| counts[clips.class(index)] += 1);
                assert!(counts.iter().all(|count| *count == clips.len() / counts.len()), "{part} {counts:?}");
            }
        }
    }

    #[test]
    fn the_kind_of_the_mover_says_nothing_about_the_motion_in_training() {
        let mut counts = [[0; 8]; 10];
        for index in 0..6000 {
            let scene = moving_scene(0, Part::Train, index);
            counts[scene.motion][scene.mover.garment.kind] += 1;
            assert_ne!(scene.mover.garment.kind, scene.stayer.garment.kind);
            assert_ne!(scene.mover.colour, scene.stayer.colour);
        }
        assert!(counts.iter().flatten().all(|count| *count == 75), "{counts:?}");
    }

    #[test]
    fn an_odd_class_is_the_even_one_played_backwards() {
        for index in (0..20).step_by(2) {
            let even = moving_scene(0, Part::Train, index);
            let odd = MovingScene { motion: even.motion + 1, ..even.clone() };
            for frames in [1, 2, 5, 8] {
                for frame in 0..frames {
                    let (one, other) = (even.canvas(frame, frames, 12), odd.canvas(frames - 1 - frame, frames, 12));
                    assert_eq!(one.levels(), other.levels(), "motion {} frame {frame} of {frames}", even.motion);
                }
            }
        }
    }

    #[test]
    fn the_mean_frame_of_a_motion_is_that_of_its_reversal() {
        const SIDE: usize = 6;
        const LEVELS: usize = 3 * SIDE * SIDE;
        let (frames, clips) = (4, 1000);
        // sums and sums of squares of each level of the mean frames
        let sums = |motion: usize| {
            let (mut sums, mut squares) = ([0.0; LEVELS], [0.0; LEVELS]);
            for clip in 0..clips {
                let scene = moving_scene(0, Part::Train, 10 * clip + motion);
                let canvases: Vec<GarmentCanvas> = (0..frames).map(|frame| scene.canvas(frame, frames, SIDE)).collect();
                for (place, (sum, square)) in sums.iter_mut().zip(&mut squares).enumerate() {
                    let mean = canvases.iter().map(|canvas| canvas.levels()[place]).sum::<f64>() / frames as f64;
                    *sum += mean;
                    *square += mean * mean;
                }
            }
            (sums, squares)
        };
        let count = f64::from(clips as u32);
        for motion in [0, 2, 4, 6, 8] {
            let (even, odd) = (sums(motion), sums(motion + 1));
            for place in 0..LEVELS {
                let mean = |(sums, _): &([f64; LEVELS], _)| sums[place] / count;
                let variance = |(sums, squares): &([f64; LEVELS], [f64; LEVELS])| {
                    squares[place] / count - (sums[place] / count).powi(2)
                };
                let deviation = ((variance(&even) + variance(&odd)) / count).sqrt();
                let difference = mean(&even) - mean(&odd);
                assert!(difference.abs() < 5.0 * deviation, "motion {motion}, level {place}: {difference} {deviation}");
            }
        }
    }

    #[test]
    fn the_mover_ends_right_of_below_larger_turned_or_visible() {
        for index in 0..100 {
            let scene = moving_scene(0, Part::Test, index);
            let (start, end) = (scene.mover_placement(0.0), scene.mover_placement(1.0));
            match scene.motion / 2 {
                axis @ (0 | 1) => assert!(end.centre[axis] - start.centre[axis] >= 0.3),
                2 => assert!(end.side >= 1.8 * start.side),
                // the product of the first with the second across is the sine of the angle between them
                3 => {
                    let [[cos, sin], [end_cos, end_sin]] = [start.turn, end.turn];
                    assert!(cos * end_sin - sin * end_cos > -1e-9 && cos * end_cos + sin * end_sin < 1e-9);
                }
                _ => assert_eq!([start.visibility, end.visibility], [0.0, 1.0]),
            }
        }
    }

    #[test]
    fn the_same_index_gives_the_same_bytes_on_every_machine_and_another_seed_others() {
        let bytes = |seed, part, index| -> Vec<u8> {
            let scene = moving_scene(seed, part, index);
            (0..3).flat_map(|frame| scene.frame(frame, 3, 16).pixels().to_vec()).collect()
        };
        assert_eq!(bytes(0, Part::Train, 5), bytes(0, Part::Train, 5));
        for other in [bytes(1, Part::Train, 5), bytes(0, Part::Validation, 5), bytes(0, Part::Train, 6)] {
            assert_ne!(bytes(0, Part::Train, 5), other);
        }
        let mut hash = Sha256::new();
        for part in PARTS {
            (0..20).for_each(|index| hash.update(bytes(0, part, index)));
        }
        let start = hash.finalize().first_chunk().map_or(0, |start| u64::from_be_bytes(*start));
        assert_eq!(format!("{start:016x}"), "9755a6eaf42e2a2b");
    }

    #[test]
    fn frames_are_those_asked_for_and_no_others() {
        let clips = opened(Part::Validation, ClipTarget::Motion);
        let all = clips.frames(3, &[0, 1, 2, 3, 4, 5, 6, 7]).unwrap();
        assert_eq!(clips.frames(3, &[2, 2, 7]).unwrap(), [&all[2], &all[2], &all[7]].map(Clone::clone));
        assert_eq!(all[0].size(), [32, 32]);
        assert_eq!(clips.length(3).unwrap().frames, 8);
        let error = clips.frames(3, &[8]).unwrap_err().to_string();
        assert_eq!(error, "`frames`: clips validation #3 has 8 frames, no frame 8");
        assert!(WorldClips::open(Part::All, ClipTarget::Motion, [8, 32]).is_err());
        assert!(WorldClips::open(Part::Train, ClipTarget::Motion, [0, 32]).is_err());
    }

    #[test]
    fn a_source_names_the_target_the_frames_and_the_size() {
        assert_eq!(WorldClips::parse("clips"), Some((ClipTarget::Motion, [8, 32])));
        assert_eq!(WorldClips::parse("clips-garment:16x64"), Some((ClipTarget::Garment, [16, 64])));
        for other in ["clip", "clips:", "clips:8", "clips/train", "scenes"] {
            assert_eq!(WorldClips::parse(other), None, "{other}");
        }
    }
}
