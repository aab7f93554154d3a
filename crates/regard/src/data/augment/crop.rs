//! Crops: the first change, after which the picture has the size of the image.

use rand::{Rng, RngExt as _};

use super::{Change, Changes, Crop, Geometric, rectangle};
use crate::data::Preprocess;
use crate::data::clip::TestCrop;
use crate::data::picture::{middle_corner, resized, whole};

impl Crop {
    /// Draws the crop of a picture, resized to the size of the image.
    pub(super) fn draw(
        self,
        picture: [usize; 2],
        preprocess: &Preprocess,
        image: [usize; 2],
        random: &mut impl Rng,
    ) -> Vec<Change> {
        let filter = preprocess.filter;
        let changes = match self {
            Self::Middle => {
                let whole = whole(picture, preprocess, image);
                vec![Geometric::ResizedCrop { whole, corner: middle_corner(whole, image), size: image, filter }]
            }
            Self::RandomResized { area, aspect } => {
                let (corner, size) = random_part(picture, area, aspect, random);
                let crop = (size != picture).then_some(Geometric::Crop { corner, size });
                crop.into_iter().chain([Geometric::Resize { size: image, filter }]).collect()
            }
            // DeiT-III's simple random crop: the short side becomes the image's, a reflected border is added, a part cut out
            Self::Random { padding } => {
                let whole = resized(picture, 1.0, image);
                let corner = [0, 1].map(|axis| {
                    random.random_range(0..=whole[axis] + 2 * padding - image[axis]) as isize - padding as isize
                });
                vec![Geometric::ReflectedCrop { whole, corner, size: image, filter }]
            }
            Self::ShortSide { sides: [least, most] } => {
                let short = random.random_range(least..=most);
                let [rows, columns] = picture;
                let long = |long: usize, short_of: usize| (short as u128 * long as u128 / short_of as u128) as usize;
                let scaled = if rows <= columns { [short, long(columns, rows)] } else { [long(rows, columns), short] };
                // a part that is larger than the scaled picture needs a larger one
                let whole =
                    if scaled[0] < image[0] || scaled[1] < image[1] { resized(picture, 1.0, image) } else { scaled };
                let corner = [0, 1].map(|axis| random.random_range(0..=whole[axis] - image[axis]));
                vec![Geometric::ResizedCrop { whole, corner, size: image, filter }]
            }
        };
        changes.into_iter().map(Change::Geometric).collect()
    }
}

impl Changes {
    /// One of the parts of a frame that a test sees, resized as [`Preprocess`] says; the middle is rounded up.
    #[must_use]
    pub fn test_crop(size: [usize; 2], preprocess: &Preprocess, image: [usize; 2], crop: TestCrop) -> Self {
        let whole = whole(size, preprocess, image);
        let part =
            Geometric::ResizedCrop { whole, corner: crop.corner(whole, image), size: image, filter: preprocess.filter };
        Self { changes: vec![Change::Geometric(part)], ..Self::new(size) }
    }
}

/// Corner and size of a random crop, as drawn by torchvision's `RandomResizedCrop`.
pub(super) fn random_part(
    size: [usize; 2],
    area: [f64; 2],
    aspect: [f64; 2],
    random: &mut impl Rng,
) -> ([usize; 2], [usize; 2]) {
    for _ in 0..10 {
        let part = rectangle(size, area, aspect, random);
        if (0..2).all(|axis| part[axis] > 0 && part[axis] <= size[axis]) {
            let corner = [0, 1].map(|axis| random.random_range(0..=size[axis] - part[axis]));
            return (corner, part);
        }
    }
    // a centre crop, as large as an allowed aspect permits
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

#[cfg(test)]
mod tests {
    use super::super::geometry::reflected;
    use super::*;
    use crate::data::{Filter, Picture};
    use crate::random::{Purpose, generator};
    use crate::testing::noise_picture;

    fn applied(
        crop: Crop,
        picture: &Picture,
        preprocess: &Preprocess,
        image: [usize; 2],
        random: &mut impl Rng,
    ) -> Picture {
        let changes = crop.draw(picture.size(), preprocess, image, random);
        Changes { from: picture.size(), changes, erasure: None }.picture(picture)
    }

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
            let crop = applied(Crop::Random { padding }, &picture, &preprocess, image, &mut random(place));
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
    fn a_part_of_a_short_side_has_the_size_of_the_image_whatever_the_picture() {
        let (preprocess, image) = (Preprocess { filter: Filter::Bilinear, ..Preprocess::WHOLE }, [8, 8]);
        let mut seen = std::collections::BTreeSet::new();
        for place in 0..200 {
            for size in [[9, 14], [20, 11], [4, 4], [8, 3]] {
                let crop = Crop::ShortSide { sides: [10, 12] };
                let changes = crop.draw(size, &preprocess, image, &mut random(place));
                let [Change::Geometric(Geometric::ResizedCrop { whole, corner, .. })] = changes[..] else { panic!() };
                assert!((0..2).all(|axis| corner[axis] + image[axis] <= whole[axis]), "{size:?}: {whole:?}");
                assert!((10..=12).contains(&whole[0].min(whole[1])), "{size:?}: {whole:?}");
                seen.insert(whole);
            }
        }
        assert_eq!(seen.len(), 12);
    }

    #[test]
    fn the_whole_picture_at_its_own_size_is_not_changed() {
        let picture = noise_picture([8, 8], 2);
        for crop in
            [Crop::Middle, Crop::Random { padding: 0 }, Crop::RandomResized { area: [1.0, 1.0], aspect: [1.0, 1.0] }]
        {
            assert_eq!(applied(crop, &picture, &Preprocess::WHOLE, [8, 8], &mut random(0)), picture, "{crop:?}");
        }
    }
}
