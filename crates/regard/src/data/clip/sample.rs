//! Which frames of a clip a model sees, and which parts of them at test time: as TimeSformer and `PySlowFast` do.
//!
//! *Dense* takes a run of frames out of the clip, `rate` frames of a 30 per second video apart, whatever the clip's own
//! rate: from a random place in training, from evenly spaced places for the views of a test (so that a single view begins
//! at the first frame). *Segments* takes one frame of each of equal segments: a random one in training, the middle one
//! in the test. Both are upstream's to the frame, in its arithmetic of 32 bits; a clip that is too short repeats its last frame.
//! *Uniform* is not upstream's: from the first frame to the last, the same forwards and backwards, so that a model that is
//! blind to order cannot tell a clip from its reversal; a clip with as many frames as wanted gives each once.

use rand::{Rng, RngExt as _};
use serde::{Deserialize, Serialize};

use super::ClipLength;

/// How the frames of a clip are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameSampling {
    /// A run of frames that are `rate` thirtieths of a second apart.
    Dense { rate: usize },
    /// One frame of each of equal segments.
    Segments,
    /// Evenly from the first frame to the last.
    #[default]
    Uniform,
}

impl FrameSampling {
    /// The frames of a clip that a training step sees; they do not decrease.
    #[must_use]
    pub fn train(self, length: ClipLength, count: usize, random: &mut impl Rng) -> Vec<usize> {
        match self {
            Self::Dense { rate } => {
                let (size, most) = dense_span(length, count, rate);
                let start = if most > 0.0 { random.random_range(0.0..=most) } else { 0.0 };
                dense(length, count, start, size)
            }
            Self::Segments => segments(length, count).map(|[first, last]| random.random_range(first..=last)).collect(),
            Self::Uniform => uniform(length, count),
        }
    }

    /// The frames of one of the views of a test. Only those of dense sampling differ.
    ///
    /// # Panics
    /// When there is no such view.
    #[must_use]
    pub fn view(self, length: ClipLength, count: usize, view: usize, views: usize) -> Vec<usize> {
        assert!(view < views, "frame sampling: view {view} of {views}");
        match self {
            Self::Dense { rate } => {
                let (size, most) = dense_span(length, count, rate);
                dense(length, count, most * view as f64 / views as f64, size)
            }
            Self::Segments => segments(length, count).map(|[first, last]| usize::midpoint(first, last)).collect(),
            Self::Uniform => uniform(length, count),
        }
    }

    /// How many different views a test may have.
    #[must_use]
    pub const fn has_views(self) -> bool {
        matches!(self, Self::Dense { .. })
    }
}

/// How many frames a run covers, and the last place where it may begin.
fn dense_span(length: ClipLength, count: usize, rate: usize) -> (f64, f64) {
    let size = (rate * count) as f64 / 30.0 * length.rate;
    (size, (length.frames as f64 - size).max(0.0))
}

/// `torch.linspace` of 32 bits, clamped and truncated.
fn dense(length: ClipLength, count: usize, start: f64, size: f64) -> Vec<usize> {
    let (start, end) = (start as f32, (start + size - 1.0) as f32);
    let step = if count > 1 { (end - start) / (count - 1) as f32 } else { 0.0 };
    let last = (length.frames.max(1) - 1) as f32;
    let place = |index: usize| {
        // from the nearer end
        if index < count / 2 || count == 1 {
            step.mul_add(index as f32, start)
        } else {
            (-step).mul_add((count - 1 - index) as f32, end)
        }
    };
    (0..count).map(|index| place(index).clamp(0.0, last) as usize).collect()
}

/// The first and last frame of each segment, halves rounded to even; neighbours share a frame.
fn segments(length: ClipLength, count: usize) -> impl Iterator<Item = [usize; 2]> {
    let size = (length.frames.max(1) - 1) as f64 / count as f64;
    (0..count).map(move |index| [index, index + 1].map(|index| (size * index as f64).round_ties_even() as usize))
}

fn uniform(length: ClipLength, count: usize) -> Vec<usize> {
    let last = length.frames.max(1) - 1;
    if count == 1 {
        return vec![last / 2];
    }
    let steps = count - 1;
    // the nearest frame; a half is rounded towards the nearer end
    let near_start = |index: usize| (2 * last * index + steps - 1) / (2 * steps);
    let place = |index| if 2 * index <= steps { near_start(index) } else { last - near_start(steps - index) };
    (0..count).map(place).collect()
}

/// Rows and columns with the short side so long, rounded down as upstream does.
#[must_use]
pub fn short_side_size([rows, columns]: [usize; 2], short: usize) -> [usize; 2] {
    let long = |side: usize, other: usize| (side as f64 / other as f64 * short as f64).floor() as usize;
    if columns < rows { [long(rows, columns), short] } else { [short, long(columns, rows)] }
}

/// Which part of a frame a test sees: along the longer side the left or upper end, the middle, or the other end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TestCrop {
    Start,
    #[default]
    Centre,
    End,
}

impl TestCrop {
    /// The crops of a test with one of them, or with three.
    #[must_use]
    pub const fn all(count: usize) -> Option<&'static [Self]> {
        match count {
            1 => Some(&[Self::Centre]),
            3 => Some(&[Self::Start, Self::Centre, Self::End]),
            _ => None,
        }
    }

    /// The upper left corner of a part of so many rows and columns of a picture. The middle is rounded up.
    ///
    /// # Panics
    /// When the picture is smaller.
    #[must_use]
    pub fn corner(self, [rows, columns]: [usize; 2], part: [usize; 2]) -> [usize; 2] {
        assert!(rows >= part[0] && columns >= part[1], "test crop: {} x {} of {columns} x {rows}", part[1], part[0]);
        let room = [rows - part[0], columns - part[1]];
        let mut corner = room.map(|room| room.div_ceil(2));
        let long = usize::from(room[1] >= room[0]);
        match self {
            Self::Start => corner[long] = 0,
            Self::Centre => {}
            Self::End => corner[long] = room[long],
        }
        corner
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, generator};
    use crate::testing::Fixture;
    use serde_json::Value;

    fn numbers(value: &Value) -> Vec<usize> {
        value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap() as usize).collect()
    }

    fn number(case: &Value, name: &str) -> usize {
        case[name].as_u64().unwrap() as usize
    }

    fn cases(name: &str) -> Vec<Value> {
        Fixture::load("frame_sampling").config[name].as_array().unwrap().clone()
    }

    #[test]
    fn views_of_dense_sampling_are_upstreams() {
        let cases = cases("dense");
        assert!(cases.len() > 10);
        for case in cases {
            let length = ClipLength { frames: number(&case, "total"), rate: case["fps"].as_f64().unwrap() };
            let sampling = FrameSampling::Dense { rate: number(&case, "rate") };
            let found = sampling.view(length, number(&case, "frames"), number(&case, "clip"), number(&case, "clips"));
            assert_eq!(found, numbers(&case["indices"]), "{case}");
        }
    }

    #[test]
    fn middles_of_segments_are_upstreams() {
        let cases = cases("segments");
        assert!(cases.len() > 10);
        for case in cases {
            let length = ClipLength { frames: number(&case, "total"), rate: 30.0 };
            let found = FrameSampling::Segments.view(length, number(&case, "frames"), 0, 1);
            assert_eq!(found, numbers(&case["indices"]), "{case}");
        }
    }

    #[test]
    fn three_crops_are_upstreams() {
        for case in cases("three_crops") {
            let size = [number(&case, "height"), number(&case, "width")];
            let side = number(&case, "size");
            let wanted: Vec<Vec<usize>> = case["offsets_y_x"].as_array().unwrap().iter().map(numbers).collect();
            let found: Vec<Vec<usize>> =
                TestCrop::all(3).unwrap().iter().map(|crop| crop.corner(size, [side; 2]).to_vec()).collect();
            assert_eq!(found, wanted, "{case}");
        }
        assert_eq!(TestCrop::all(2), None);
    }

    #[test]
    fn frames_of_training_are_in_the_clip_in_order_and_reach_all_of_it() {
        let mut random = generator(0, Purpose::Augment, [0, 0]);
        for sampling in [FrameSampling::Dense { rate: 4 }, FrameSampling::Segments, FrameSampling::Uniform] {
            for (frames, count) in [(1, 8), (3, 8), (8, 8), (60, 8), (100, 1), (61, 16)] {
                let mut seen = vec![0; frames];
                for _ in 0..300 {
                    let found = sampling.train(ClipLength { frames, rate: 30.0 }, count, &mut random);
                    assert!(found.len() == count && found.is_sorted() && found[count - 1] < frames, "{found:?}");
                    found.iter().for_each(|frame| seen[*frame] += 1);
                }
                // a run that is longer than the clip does not move
                let reaches_all = match sampling {
                    FrameSampling::Dense { .. } => (32..=61).contains(&frames) && count == 8,
                    FrameSampling::Segments => frames <= 61,
                    FrameSampling::Uniform => false,
                };
                let missed = seen.iter().filter(|count| **count == 0).count();
                assert!(!reaches_all || missed <= 3, "{sampling:?} {seen:?}");
            }
        }
    }

    #[test]
    fn random_frames_of_a_segment_are_between_its_ends() {
        let mut random = generator(0, Purpose::Augment, [0, 1]);
        let length = ClipLength { frames: 37, rate: 30.0 };
        let ends: Vec<[usize; 2]> = segments(length, 8).collect();
        assert_eq!(ends[..3], [[0, 4], [4, 9], [9, 14]]);
        for _ in 0..200 {
            let found = FrameSampling::Segments.train(length, 8, &mut random);
            assert!(found.iter().zip(&ends).all(|(frame, [first, last])| (first..=last).contains(&frame)));
        }
    }

    #[test]
    fn uniform_frames_are_the_same_backwards_and_each_once_where_there_are_as_many() {
        for frames in 1..40 {
            for count in 1..20 {
                let length = ClipLength { frames, rate: 25.0 };
                let found = FrameSampling::Uniform.view(length, count, 0, 1);
                assert!(found.len() == count && found.is_sorted());
                if count > 1 {
                    let backwards: Vec<usize> = found.iter().rev().map(|frame| frames - 1 - frame).collect();
                    let is_middle = |frame: usize| 2 * frame + 1 == frames || 2 * frame + 2 == frames;
                    // the middle of an odd number of frames out of an even one is either of two
                    let same = found.iter().zip(&backwards).all(|(one, other)| one == other || is_middle(*one));
                    assert!(same, "{count} of {frames}: {found:?}");
                    assert_eq!([found[0], found[count - 1]], [0, frames - 1]);
                }
                if count == frames {
                    assert_eq!(found, (0..frames).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn the_short_side_becomes_as_long_as_wanted_and_the_other_is_rounded_down() {
        assert_eq!(short_side_size([240, 321], 224), [224, 299]);
        assert_eq!(short_side_size([321, 240], 224), [299, 224]);
        assert_eq!(short_side_size([224, 224], 224), [224, 224]);
    }
}
