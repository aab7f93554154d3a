//! RandAugment (Cubuk et al. 2020) as in timm, with strengths that increase (`inc1`).

use rand::seq::IndexedRandom as _;
use rand::{Rng, RngExt as _};
use rand_distr::{Distribution as _, StandardNormal};

use super::geometry::rotation;
use super::{Change, Geometric, Photometric, RandAugment, chance};

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    AutoContrast,
    Equalize,
    Invert,
    Rotate,
    Posterize,
    Solarize,
    SolarizeAdd,
    Color,
    Contrast,
    Brightness,
    Sharpness,
    ShearX,
    ShearY,
    TranslateX,
    TranslateY,
}

pub(super) const OPERATIONS: [Operation; 15] = [
    Operation::AutoContrast,
    Operation::Equalize,
    Operation::Invert,
    Operation::Rotate,
    Operation::Posterize,
    Operation::Solarize,
    Operation::SolarizeAdd,
    Operation::Color,
    Operation::Contrast,
    Operation::Brightness,
    Operation::Sharpness,
    Operation::ShearX,
    Operation::ShearY,
    Operation::TranslateX,
    Operation::TranslateY,
];

impl RandAugment {
    /// Draws the changes of a picture; `fill` is the colour outside it.
    pub(super) fn draw(&self, image: [usize; 2], fill: [u8; 3], random: &mut impl Rng) -> Vec<Change> {
        // all operations are chosen before any strength is drawn, with replacement
        let chosen: Vec<Operation> = (0..self.operations).filter_map(|_| OPERATIONS.choose(random)).copied().collect();
        let mut changes = Vec::with_capacity(chosen.len());
        for operation in chosen {
            if chance(self.probability, random) {
                let noise: f64 = StandardNormal.sample(random);
                let strength = (self.magnitude + self.std * noise).clamp(0.0, 10.0) / 10.0;
                let sign = if random.random() { 1.0 } else { -1.0 };
                changes.push(operation.change(image, strength, sign, fill));
            }
        }
        changes
    }
}

impl Operation {
    /// Strength 0 to 1; the sign is the direction, where there are two.
    pub(super) fn change(self, [rows, columns]: [usize; 2], strength: f64, sign: f64, fill: [u8; 3]) -> Change {
        let signed = sign * strength;
        // 1 changes nothing
        let factor = (1.0 + 0.9 * signed).max(0.1) as f32;
        let affine = |matrix| Change::Geometric(Geometric::Affine { matrix, fill });
        Change::Photometric(match self {
            Self::Rotate => return affine(rotation(30.0 * signed, [rows, columns])),
            Self::ShearX => return affine([1.0, 0.3 * signed, 0.0, 0.0, 1.0, 0.0]),
            Self::ShearY => return affine([1.0, 0.0, 0.0, 0.3 * signed, 1.0, 0.0]),
            Self::TranslateX => return affine([1.0, 0.0, 0.45 * signed * columns as f64, 0.0, 1.0, 0.0]),
            Self::TranslateY => return affine([1.0, 0.0, 0.0, 0.0, 1.0, 0.45 * signed * rows as f64]),
            Self::AutoContrast => Photometric::AutoContrast,
            Self::Equalize => Photometric::Equalize,
            Self::Invert => Photometric::Invert,
            Self::Posterize => Photometric::Posterize(4 - (4.0 * strength) as u32),
            Self::Solarize => Photometric::Solarize(256 - (256.0 * strength) as u16),
            Self::SolarizeAdd => Photometric::SolarizeAdd((110.0 * strength) as u8),
            Self::Color => Photometric::Saturation(factor),
            Self::Contrast => Photometric::Contrast(factor),
            Self::Brightness => Photometric::Brightness(factor),
            Self::Sharpness => Photometric::Sharpness(factor),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::geometry::affine;
    use super::super::{Changes, colour, levels};
    use super::*;
    use crate::data::Picture;
    use crate::random::{Purpose, generator};
    use crate::testing::noise_picture;

    const FILL: [u8; 3] = [124, 116, 104];

    fn apply(operation: Operation, picture: &mut Picture, strength: f64, sign: f64, fill: [u8; 3]) {
        let changes = vec![operation.change(picture.size(), strength, sign, fill)];
        *picture = Changes { from: picture.size(), changes, erasure: None }.picture(picture);
    }

    #[test]
    fn every_operation_changes_a_picture_and_at_no_strength_hardly() {
        // half of the contrast, so that it can be stretched
        let mut picture = noise_picture([24, 24], 1);
        picture.pixels.iter_mut().for_each(|level| *level = 60 + *level / 2);
        for operation in OPERATIONS {
            let changed = |strength| {
                let mut changed = picture.clone();
                apply(operation, &mut changed, strength, -1.0, FILL);
                changed
            };
            assert!(changed(0.9) != picture, "{operation:?}");
            // these have no strength, or start at 4 bits
            let constant = [Operation::AutoContrast, Operation::Equalize, Operation::Invert, Operation::Posterize];
            assert!(constant.contains(&operation) || changed(0.0) == picture, "{operation:?}");
        }
    }

    #[test]
    fn strengths_are_those_of_timm() {
        type Change = fn(&mut Picture);
        let cases: [(Operation, f64, Change); 12] = [
            (Operation::Brightness, -1.0, |picture| colour::brightness(picture, 0.19)),
            (Operation::Brightness, 1.0, |picture| colour::brightness(picture, 1.81)),
            (Operation::Contrast, 1.0, |picture| colour::contrast(picture, 1.81)),
            (Operation::Color, -1.0, |picture| colour::saturation(picture, 0.19)),
            (Operation::Sharpness, 1.0, |picture| colour::sharpness(picture, 1.81)),
            (Operation::Posterize, 1.0, |picture| levels::posterize(picture, 1)),
            (Operation::Solarize, 1.0, |picture| levels::solarize(picture, 26)),
            (Operation::SolarizeAdd, 1.0, |picture| levels::solarize_add(picture, 99)),
            (Operation::Rotate, -1.0, |picture| affine(picture, rotation(-27.0, [20, 30]), FILL)),
            (Operation::ShearX, -1.0, |picture| affine(picture, [1.0, -0.27, 0.0, 0.0, 1.0, 0.0], FILL)),
            (Operation::TranslateX, 1.0, |picture| affine(picture, [1.0, 0.0, 12.15, 0.0, 1.0, 0.0], FILL)),
            (Operation::TranslateY, -1.0, |picture| {
                affine(picture, [1.0, 0.0, 0.0, 0.0, 1.0, 0.45 * -0.9 * 20.0], FILL);
            }),
        ];
        for (operation, sign, change) in cases {
            let (mut ours, mut expected) = (noise_picture([20, 30], 8), noise_picture([20, 30], 8));
            apply(operation, &mut ours, 0.9, sign, FILL);
            change(&mut expected);
            assert!(ours == expected, "{operation:?} {sign}");
        }
    }

    #[test]
    fn a_probability_of_zero_and_no_operations_change_nothing() {
        for settings in [
            RandAugment { probability: 0.0, ..RandAugment::default() },
            RandAugment { operations: 0, ..RandAugment::default() },
        ] {
            let changes = settings.draw([8, 8], [0; 3], &mut generator(0, Purpose::Augment, [0, 0]));
            assert_eq!(changes, []);
        }
    }

    #[test]
    fn what_comes_in_from_outside_is_the_fill() {
        let mut picture = noise_picture([20, 20], 3);
        apply(Operation::TranslateX, &mut picture, 1.0, 1.0, [1, 2, 3]);
        let line = &picture.pixels()[..60];
        assert!(line[33..].chunks(3).all(|pixel| pixel == [1, 2, 3]) && line[..3] != [1, 2, 3], "{line:?}");
    }
}
