//! Random erasing (Zhong et al. 2020), as timm's `pixel` mode: a rectangle becomes noise.

use rand::{Rng, RngExt as _};
use rand_distr::{Distribution as _, StandardNormal};

use super::{Erasure, rectangle};

const AREA: [f64; 2] = [0.02, 1.0 / 3.0];
const ASPECT: [f64; 2] = [0.3, 1.0 / 0.3];

/// A rectangle and standard normal noise for it; `None` for some tiny images.
pub(super) fn draw(image: [usize; 2], random: &mut impl Rng) -> Option<Erasure> {
    for _ in 0..10 {
        let size = rectangle(image, AREA, ASPECT, random);
        if (0..2).all(|axis| size[axis] < image[axis]) {
            let corner = [0, 1].map(|axis| random.random_range(0..=image[axis] - size[axis]));
            let noise = (0..3 * size[0] * size[1]).map(|_| StandardNormal.sample(random)).collect();
            return Some(Erasure { corner, size, noise });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Purpose, generator};

    #[test]
    fn a_rectangle_of_the_right_area_is_normal_noise_and_nothing_else_changes() {
        let image = [20, 30];
        let mut noise = Vec::new();
        for place in 0..200 {
            let mut values = vec![9.0; 3 * 600];
            let erasure = draw(image, &mut generator(0, Purpose::Augment, [0, place])).unwrap();
            erasure.apply(&mut values, image);
            let changed: Vec<usize> = (0..600).filter(|&at| values[at] != 9.0).collect();
            let rows = changed.iter().map(|at| at / 30).fold([20, 0], |[a, b], x| [a.min(x), b.max(x)]);
            let columns = changed.iter().map(|at| at % 30).fold([30, 0], |[a, b], x| [a.min(x), b.max(x)]);
            let sides = [rows[1] + 1 - rows[0], columns[1] + 1 - columns[0]];
            assert_eq!(changed.len(), sides[0] * sides[1], "not a rectangle");
            // sides are rounded to whole pixels
            assert!((8..=220).contains(&changed.len()), "{} of 600 pixels", changed.len());
            for plane in 1..3 {
                assert!((0..600).all(|at| (values[600 * plane + at] != 9.0) == (values[at] != 9.0)));
            }
            noise.extend(values.into_iter().filter(|value| *value != 9.0).map(f64::from));
        }
        let mean = noise.iter().sum::<f64>() / noise.len() as f64;
        let variance = noise.iter().map(|x| x * x).sum::<f64>() / noise.len() as f64;
        assert!(mean.abs() < 0.02 && (variance - 1.0).abs() < 0.03, "mean {mean}, variance {variance}");
    }

    #[test]
    fn an_image_without_room_stays() {
        let mut values = vec![9.0; 3];
        if let Some(erasure) = draw([1, 1], &mut generator(0, Purpose::Augment, [0, 0])) {
            erasure.apply(&mut values, [1, 1]);
        }
        assert_eq!(values, [9.0; 3]);
    }
}
