//! Which part of a picture: the first change, after which it has the size of the image.

use rand::{Rng, RngExt as _};

use super::{Crop, rectangle};
use crate::data::picture::{middle, resized};
use crate::data::resample::resample;
use crate::data::{Picture, Preprocess};

impl Crop {
    /// The part, of the size of the image.
    pub(super) fn apply(
        self,
        picture: &Picture,
        preprocess: &Preprocess,
        image: [usize; 2],
        random: &mut impl Rng,
    ) -> Picture {
        match self {
            Self::Middle => middle(picture, preprocess, image),
            Self::RandomResized { area, aspect } => {
                let (corner, size) = random_part(picture.size(), area, aspect, random);
                if size == picture.size() {
                    return picture.resize(image, preprocess.filter);
                }
                part(picture, corner, size).resize(image, preprocess.filter)
            }
            Self::Random { padding } => padded(picture, preprocess, image, padding, random),
        }
    }
}

/// Corner and size of a random part, as torchvision's `RandomResizedCrop` draws it.
fn random_part(size: [usize; 2], area: [f64; 2], aspect: [f64; 2], random: &mut impl Rng) -> ([usize; 2], [usize; 2]) {
    for _ in 0..10 {
        let part = rectangle(size, area, aspect, random);
        if (0..2).all(|axis| part[axis] > 0 && part[axis] <= size[axis]) {
            let corner = [0, 1].map(|axis| random.random_range(0..=size[axis] - part[axis]));
            return (corner, part);
        }
    }
    // the middle, as much of it as an allowed aspect has
    let [rows, columns] = size;
    let ratio = columns as f64 / rows as f64;
    let part = if ratio < aspect[0] {
        [((columns as f64 / aspect[0]).round() as usize).clamp(1, rows), columns]
    } else if ratio > aspect[1] {
        [rows, ((rows as f64 * aspect[1]).round() as usize).clamp(1, columns)]
    } else {
        size
    };
    ([0, 1].map(|axis| (size[axis] - part[axis]) / 2), part)
}

/// The pixels of a part.
fn part(picture: &Picture, [top, left]: [usize; 2], [rows, columns]: [usize; 2]) -> Picture {
    let lines = picture.pixels.chunks_exact(3 * picture.columns).skip(top).take(rows);
    let mut pixels = Vec::with_capacity(3 * rows * columns);
    lines.for_each(|line| pixels.extend_from_slice(&line[3 * left..3 * (left + columns)]));
    Picture { rows, columns, pixels }
}

/// DeiT-III's simple random crop: the short side becomes the image's, a reflected border is added, a part of it cut out.
fn padded(
    picture: &Picture,
    preprocess: &Preprocess,
    image: [usize; 2],
    padding: usize,
    random: &mut impl Rng,
) -> Picture {
    let whole = resized(picture.size(), 1.0, image);
    // for each row and each column of the image, the one of the resized picture
    let [rows, columns] = [0, 1].map(|axis| {
        let start = random.random_range(0..=whole[axis] + 2 * padding - image[axis]);
        let places = start..start + image[axis];
        places.map(|place| reflected(place as isize - padding as isize, whole[axis])).collect::<Vec<usize>>()
    });
    let needed = [&rows, &columns].map(|places| {
        let (first, last) = (places.iter().min(), places.iter().max());
        first.copied().unwrap_or(0)..last.map_or(0, |last| last + 1)
    });
    let (first, width) = ([needed[0].start, needed[1].start], needed[1].len());
    let resized = resample(&picture.pixels, picture.size(), whole, needed, preprocess.filter);
    let mut pixels = Vec::with_capacity(3 * image[0] * image[1]);
    for row in rows {
        let line = &resized[3 * width * (row - first[0])..][..3 * width];
        columns.iter().for_each(|column| pixels.extend_from_slice(&line[3 * (column - first[1])..][..3]));
    }
    Picture { rows: image[0], columns: image[1], pixels }
}

/// A place outside of `0..size` mirrored into it; the border itself is not repeated.
fn reflected(place: isize, size: usize) -> usize {
    let last = size as isize - 1;
    if last == 0 {
        return 0;
    }
    let folded = place.rem_euclid(2 * last);
    folded.min(2 * last - folded) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Filter;
    use crate::random::{Purpose, generator};
    use crate::testing::noise_picture;

    fn random(place: u64) -> impl Rng {
        generator(3, Purpose::Augment, [0, place])
    }

    #[test]
    fn a_random_part_has_the_area_and_the_aspect_that_were_asked_for() {
        let (size, area, aspect) = ([300, 400], [0.08, 1.0], [0.75, 4.0 / 3.0]);
        let (mut least, mut most) = (1.0f64, 0.0f64);
        for place in 0..2000 {
            let (corner, part) = random_part(size, area, aspect, &mut random(place));
            assert!((0..2).all(|axis| corner[axis] + part[axis] <= size[axis]));
            let share = (part[0] * part[1]) as f64 / (size[0] * size[1]) as f64;
            let ratio = part[1] as f64 / part[0] as f64;
            assert!((0.079..=1.001).contains(&share), "area {share}");
            assert!((0.74..=1.35).contains(&ratio), "aspect {ratio}");
            (least, most) = (least.min(share), most.max(share));
        }
        assert!(least < 0.1 && most > 0.9, "areas from {least} to {most}");
    }

    #[test]
    fn where_no_part_fits_it_is_the_middle_of_an_allowed_aspect() {
        let whole = ([1.0, 1.0], [0.75, 4.0 / 3.0]);
        assert_eq!(random_part([10, 100], whole.0, whole.1, &mut random(0)), ([0, 43], [10, 13]));
        assert_eq!(random_part([100, 10], whole.0, whole.1, &mut random(0)), ([43, 0], [13, 10]));
        assert_eq!(random_part([1, 1], [0.01, 0.01], whole.1, &mut random(0)), ([0, 0], [1, 1]));
    }

    #[test]
    fn a_border_is_reflected_as_by_torch() {
        let places: Vec<usize> = (-3..7).map(|place| reflected(place, 4)).collect();
        assert_eq!(places, [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
        assert_eq!((reflected(-5, 1), reflected(9, 2)), (0, 1));
    }

    #[test]
    fn a_padded_crop_is_a_part_of_the_padded_picture() {
        let picture = noise_picture([9, 14], 1);
        let preprocess = Preprocess { filter: Filter::Bicubic, ..Preprocess::WHOLE };
        let (image, padding) = ([6, 6], 4);
        let whole = picture.resize([6, 9], preprocess.filter);
        let level = |row: isize, column: isize, channel: usize| {
            let (row, column) = (reflected(row - 4, 6), reflected(column - 4, 9));
            whole.pixels()[3 * (9 * row + column) + channel]
        };
        let mut places = std::collections::BTreeSet::new();
        for place in 0..300 {
            let crop = Crop::Random { padding }.apply(&picture, &preprocess, image, &mut random(place));
            let found = (0..=8isize).flat_map(|top| (0..=11isize).map(move |left| (top, left))).find(|(top, left)| {
                let same = |at: usize| {
                    level(top + (at / 18) as isize, left + (at / 3 % 6) as isize, at % 3) == crop.pixels()[at]
                };
                (0..108).all(same)
            });
            places.insert(found.expect("no such part"));
        }
        assert!(places.len() > 70, "only {} of 108 places", places.len());
    }

    #[test]
    fn the_whole_picture_at_its_own_size_is_not_changed() {
        let picture = noise_picture([8, 8], 2);
        for crop in
            [Crop::Middle, Crop::Random { padding: 0 }, Crop::RandomResized { area: [1.0, 1.0], aspect: [1.0, 1.0] }]
        {
            assert_eq!(crop.apply(&picture, &Preprocess::WHOLE, [8, 8], &mut random(0)), picture, "{crop:?}");
        }
    }
}
