//! Samples of a detection dataset: a picture with its objects.

use rand::{Rng, RngExt as _};

use super::DetectionDataset;
use crate::Error;
use crate::data::picture::normalise;
use crate::data::{DetectionAugment, Filter, NormalisedPicture, Object, Picture, Preprocess, mosaic};

/// A picture and the objects in it.
#[derive(Clone, Debug, PartialEq)]
pub struct DetectionSample {
    pub picture: Picture,
    /// Boxes are fractions of this picture. They include crowds, which DETR does not learn from.
    pub objects: Vec<Object>,
    /// COCO's `image_id`; that of the first picture of a mosaic.
    pub image_id: u64,
    /// Rows and columns before all changes, to scale results back.
    pub original: [usize; 2],
}

/// A mosaic keeps objects with at least this fraction visible: a strip is not recognisable.
const LEAST_OF_MOSAIC: f64 = 0.2;

impl DetectionSample {
    /// An unchanged picture of a dataset.
    ///
    /// # Errors
    /// When it cannot be read; the error names it.
    pub fn load(dataset: &dyn DetectionDataset, index: usize) -> Result<Self, Error> {
        let (picture, annotations) = dataset.sample(index)?;
        let original = picture.size();
        let objects = annotations.iter().map(|annotation| annotation.object(original)).collect();
        Ok(Self { picture, objects, image_id: dataset.image_id(index), original })
    }

    /// A randomly changed picture of a dataset; for a mosaic, three others are read as well.
    ///
    /// # Errors
    /// When one cannot be read; the error names it.
    ///
    /// # Panics
    /// Where `validate` of the changes has an error.
    pub fn augmented(
        dataset: &dyn DetectionDataset,
        index: usize,
        augment: &DetectionAugment,
        random: &mut impl Rng,
    ) -> Result<Self, Error> {
        let mut sample = Self::load(dataset, index)?;
        let has_quarters = sample.original.iter().all(|side| *side > 1);
        if augment.mosaic > 0.0 && random.random::<f64>() < augment.mosaic && has_quarters {
            let others = [0; 3].map(|_| random.random_range(0..dataset.len()));
            let [one, two, three] = others.map(|other| Self::load(dataset, other));
            let (one, two, three) = (one?, two?, three?);
            let parts = [&sample, &one, &two, &three].map(|part| (&part.picture, &part.objects[..]));
            let (picture, objects) = mosaic(parts, sample.original, LEAST_OF_MOSAIC, random);
            sample = Self { picture, objects, ..sample };
        }
        let changes = augment.draw(sample.picture.size(), random);
        let objects = changes.objects(&sample.objects, 0.0);
        Ok(Self { picture: changes.picture(&sample.picture), objects, ..sample })
    }

    /// Resized, for evaluation.
    ///
    /// # Panics
    /// When a side is zero.
    #[must_use]
    pub fn resized(self, size: [usize; 2]) -> Self {
        // boxes are fractions
        let picture =
            if size == self.picture.size() { self.picture } else { self.picture.resize(size, Filter::Bilinear) };
        Self { picture, ..self }
    }

    /// The normalised pixels.
    #[must_use]
    pub fn normalised(&self, preprocess: &Preprocess) -> NormalisedPicture {
        NormalisedPicture { values: normalise(&self.picture, preprocess), size: self.picture.size() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::detection::Annotation;
    use crate::data::{Part, world};
    use crate::random::{Purpose, generator};

    /// Dark pictures of different sizes with one bright rectangle each.
    #[derive(Debug)]
    struct Rectangles(Vec<([usize; 2], [usize; 4])>);

    impl Rectangles {
        fn new(count: usize, sides: std::ops::Range<usize>) -> Self {
            let mut random = generator(9, Purpose::Augment, [0, 0]);
            let picture = |_| {
                let size = [0; 2].map(|_| random.random_range(sides.clone()));
                let [rows, columns] = size;
                let (h, w) = (random.random_range(rows / 4..rows / 2), random.random_range(columns / 4..columns / 2));
                let (y, x) = (random.random_range(0..rows - h), random.random_range(0..columns - w));
                (size, [x, y, w, h])
            };
            Self((0..count).map(picture).collect())
        }
    }

    impl DetectionDataset for Rectangles {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn classes(&self) -> &[String] {
            &[]
        }
        fn picture(&self, index: usize) -> Result<Picture, Error> {
            let ([rows, columns], [x, y, w, h]) = self.0[index];
            let is_inside = |place: usize| {
                let (row, column) = (place / columns, place % columns);
                (y..y + h).contains(&row) && (x..x + w).contains(&column)
            };
            let pixels = (0..rows * columns).flat_map(|place| if is_inside(place) { [230; 3] } else { [20; 3] });
            Picture::new([rows, columns], pixels.collect())
        }
        fn annotations(&self, index: usize) -> Result<Vec<Annotation>, Error> {
            Ok(vec![Annotation::new(1, 0, self.0[index].1.map(|side| side as f64))])
        }
        fn image_id(&self, index: usize) -> u64 {
            index as u64
        }
        fn name(&self, index: usize) -> String {
            index.to_string()
        }
        fn declared_size(&self, _: usize) -> Option<[usize; 2]> {
            None
        }
    }

    /// Left, top, right and bottom of the pixels nearer to the bright level, among those of a rectangle.
    fn bright(picture: &Picture, [x1, y1, x2, y2]: [f64; 4], middle: u8) -> Option<[f64; 4]> {
        let [rows, columns] = picture.size();
        let mut found: Option<[f64; 4]> = None;
        for row in 0..rows {
            for column in 0..columns {
                let (x, y) = (column as f64, row as f64);
                let is_near = x + 0.5 > x1 && x + 0.5 < x2 && y + 0.5 > y1 && y + 0.5 < y2;
                if is_near && picture.pixels()[3 * (row * columns + column)] >= middle {
                    let [a, b, c, d] = found.unwrap_or([f64::MAX, f64::MAX, 0.0, 0.0]);
                    found = Some([a.min(x), b.min(y), c.max(x + 1.0), d.max(y + 1.0)]);
                }
            }
        }
        found
    }

    #[test]
    fn a_drawn_box_is_found_again_within_a_pixel_after_any_chain() {
        let dataset = Rectangles::new(40, 40..90);
        let (mut checked, mut dropped) = (0, 0);
        for draw in 0..400 {
            let mut random = generator(5, Purpose::Augment, [0, draw]);
            let augment = DetectionAugment {
                crop: 0.5,
                colour_jitter: if draw % 2 == 0 { 0.3 } else { 0.0 },
                ..DetectionAugment::scaled(100)
            };
            let index = draw as usize % dataset.len();
            let sample = DetectionSample::augmented(&dataset, index, &augment, &mut random).unwrap();
            let levels = sample.picture.pixels();
            let (least, most) = (*levels.iter().min().unwrap(), *levels.iter().max().unwrap());
            let middle = least / 2 + most / 2;
            let [rows, columns] = sample.picture.size().map(|side| side as f64);
            let Some(object) = sample.objects.first() else {
                dropped += 1;
                assert!(most - least < 40, "draw {draw}: something bright is left of a box that was dropped");
                continue;
            };
            let corners = object.bounds.pixel_corners(sample.picture.size());
            // a strip at the border has few bright pixels, and without dark ones there is no mean level
            if corners[2] - corners[0] < 3.0 || corners[3] - corners[1] < 3.0 || most - least < 80 {
                continue;
            }
            let found = bright(&sample.picture, [0.0, 0.0, columns, rows], middle).unwrap();
            for (place, expected) in found.iter().zip(corners) {
                assert!((place - expected).abs() <= 1.0, "draw {draw}: {found:?} instead of {corners:?}");
            }
            checked += 1;
        }
        assert!(checked > 300 && dropped < 60, "{checked} checked, {dropped} dropped");
    }

    #[test]
    fn boxes_of_a_mosaic_are_around_what_was_drawn() {
        let dataset = Rectangles::new(40, 60..120);
        let mut boxes = 0;
        for draw in 0..100 {
            let mut random = generator(6, Purpose::Augment, [0, draw]);
            let samples: Vec<DetectionSample> = (0..4)
                .map(|_| DetectionSample::load(&dataset, random.random_range(0..dataset.len())).unwrap())
                .collect();
            let parts = [0, 1, 2, 3].map(|place| (&samples[place].picture, &samples[place].objects[..]));
            let (picture, objects) = mosaic(parts, [100, 110], 0.0, &mut random);
            assert!(objects.len() <= 4);
            for object in &objects {
                let corners = object.bounds.pixel_corners([100, 110]);
                if corners[2] - corners[0] < 3.0 || corners[3] - corners[1] < 3.0 {
                    continue;
                }
                // inner pixels are bright, and the edges are found
                let found = bright(&picture, corners, 125).unwrap();
                for (place, expected) in found.iter().zip(corners) {
                    assert!((place - expected).abs() <= 1.0, "draw {draw}: {found:?} instead of {corners:?}");
                }
                boxes += 1;
            }
            // and nothing bright is outside all boxes
            let is_covered = |x: f64, y: f64| {
                objects.iter().any(|object| {
                    let [x1, y1, x2, y2] = object.bounds.pixel_corners([100, 110]);
                    x > x1 - 1.0 && x < x2 + 1.0 && y > y1 - 1.0 && y < y2 + 1.0
                })
            };
            for (place, pixel) in picture.pixels().as_chunks::<3>().0.iter().enumerate() {
                let (x, y) = ((place % 110) as f64 + 0.5, (place / 110) as f64 + 0.5);
                assert!(pixel[0] < 125 || is_covered(x, y), "draw {draw}: bright at {x}, {y}");
            }
        }
        assert!(boxes > 200, "{boxes}");
    }

    #[test]
    fn a_sample_depends_on_its_draw_alone_and_has_whole_boxes() {
        let dataset = world::Scenes::open(Part::Validation).unwrap();
        let augment = DetectionAugment { mosaic: 0.5, colour_jitter: 0.2, ..DetectionAugment::scaled(80) };
        let sample = |draw| {
            let mut random = generator(0, Purpose::Augment, [1, draw]);
            DetectionSample::augmented(&dataset, 3, &augment, &mut random).unwrap()
        };
        assert_eq!(sample(7), sample(7));
        assert_ne!(sample(7).picture, sample(8).picture);
        for draw in 0..30 {
            let sample = sample(draw);
            assert!(sample.objects.iter().all(|object| object.bounds.clipped().is_some()));
            assert_eq!((sample.image_id, sample.original), (4, [64, 64]));
            let image = sample.normalised(&Preprocess::WHOLE);
            assert_eq!(image.values.len(), 3 * image.size[0] * image.size[1]);
        }
        let plain = DetectionSample::load(&dataset, 3).unwrap();
        assert_eq!(plain.clone().resized([96, 96]).objects, plain.objects);
    }
}
