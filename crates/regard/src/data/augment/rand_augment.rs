//! RandAugment (Cubuk et al. 2020) as timm has it, with strengths that increase (`inc1`).

use rand::seq::IndexedRandom as _;
use rand::{Rng, RngExt as _};
use rand_distr::{Distribution as _, StandardNormal};

use super::geometry::{affine, rotation};
use super::{RandAugment, chance, colour, levels};
use crate::data::Picture;

/// What may happen to a picture.
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
    /// `fill` is what comes in from outside of the picture.
    pub(super) fn apply(&self, picture: &mut Picture, fill: [u8; 3], random: &mut impl Rng) {
        // all are chosen before any strength is drawn, the same one perhaps twice
        let chosen: Vec<Operation> = (0..self.operations).filter_map(|_| OPERATIONS.choose(random)).copied().collect();
        for operation in chosen {
            if chance(self.probability, random) {
                let noise: f64 = StandardNormal.sample(random);
                let strength = (self.magnitude + self.std * noise).clamp(0.0, 10.0) / 10.0;
                let sign = if random.random() { 1.0 } else { -1.0 };
                operation.apply(picture, strength, sign, fill);
            }
        }
    }
}

impl Operation {
    /// Strength 0 to 1; the sign is the direction, where there are two.
    pub(super) fn apply(self, picture: &mut Picture, strength: f64, sign: f64, fill: [u8; 3]) {
        let signed = sign * strength;
        // 1 changes nothing
        let factor = (1.0 + 0.9 * signed).max(0.1) as f32;
        let [rows, columns] = picture.size();
        match self {
            Self::AutoContrast => levels::autocontrast(picture),
            Self::Equalize => levels::equalize(picture),
            Self::Invert => levels::invert(picture),
            Self::Rotate => affine(picture, rotation(30.0 * signed, [rows, columns]), fill),
            Self::Posterize => levels::posterize(picture, 4 - (4.0 * strength) as u32),
            Self::Solarize => levels::solarize(picture, 256 - (256.0 * strength) as u16),
            Self::SolarizeAdd => levels::solarize_add(picture, (110.0 * strength) as u8),
            Self::Color => colour::saturation(picture, factor),
            Self::Contrast => colour::contrast(picture, factor),
            Self::Brightness => colour::brightness(picture, factor),
            Self::Sharpness => colour::sharpness(picture, factor),
            Self::ShearX => affine(picture, [1.0, 0.3 * signed, 0.0, 0.0, 1.0, 0.0], fill),
            Self::ShearY => affine(picture, [1.0, 0.0, 0.0, 0.3 * signed, 1.0, 0.0], fill),
            Self::TranslateX => affine(picture, [1.0, 0.0, 0.45 * signed * columns as f64, 0.0, 1.0, 0.0], fill),
            Self::TranslateY => affine(picture, [1.0, 0.0, 0.0, 0.0, 1.0, 0.45 * signed * rows as f64], fill),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, generator};
    use crate::testing::noise_picture;

    const FILL: [u8; 3] = [124, 116, 104];

    #[test]
    fn every_operation_changes_a_picture_and_at_no_strength_hardly() {
        // half of the contrast, so that it can be stretched
        let mut picture = noise_picture([24, 24], 1);
        picture.pixels.iter_mut().for_each(|level| *level = 60 + *level / 2);
        for operation in OPERATIONS {
            let changed = |strength| {
                let mut changed = picture.clone();
                operation.apply(&mut changed, strength, -1.0, FILL);
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
            operation.apply(&mut ours, 0.9, sign, FILL);
            change(&mut expected);
            assert!(ours == expected, "{operation:?} {sign}");
        }
    }

    #[test]
    fn a_probability_of_zero_and_no_operations_change_nothing() {
        let picture = noise_picture([8, 8], 1);
        for settings in [
            RandAugment { probability: 0.0, ..RandAugment::default() },
            RandAugment { operations: 0, ..RandAugment::default() },
        ] {
            let mut changed = picture.clone();
            settings.apply(&mut changed, [0; 3], &mut generator(0, Purpose::Augment, [0, 0]));
            assert_eq!(changed, picture);
        }
    }

    #[test]
    fn what_comes_in_from_outside_is_the_fill() {
        let mut picture = noise_picture([20, 20], 3);
        Operation::TranslateX.apply(&mut picture, 1.0, 1.0, [1, 2, 3]);
        let line = &picture.pixels()[..60];
        assert!(line[33..].chunks(3).all(|pixel| pixel == [1, 2, 3]) && line[..3] != [1, 2, 3], "{line:?}");
    }
}
