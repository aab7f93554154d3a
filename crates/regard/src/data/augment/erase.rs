//! Random erasing (Zhong et al. 2020), as timm's `pixel` mode: a rectangle becomes noise.

use rand::{Rng, RngExt as _};
use rand_distr::{Distribution as _, StandardNormal};

use super::rectangle;

const AREA: [f64; 2] = [0.02, 1.0 / 3.0];
const ASPECT: [f64; 2] = [0.3, 1.0 / 0.3];

/// Makes a rectangle of normalised `[3, H, W]` standard normal noise; of a tiny image perhaps nothing.
pub(super) fn erase(values: &mut [f32], image: [usize; 2], random: &mut impl Rng) {
    for _ in 0..10 {
        let part = rectangle(image, AREA, ASPECT, random);
        if (0..2).all(|axis| part[axis] < image[axis]) {
            let [top, left] = [0, 1].map(|axis| random.random_range(0..=image[axis] - part[axis]));
            for plane in values.chunks_exact_mut(image[0] * image[1]) {
                for line in plane.chunks_exact_mut(image[1]).skip(top).take(part[0]) {
                    line[left..left + part[1]].fill_with(|| StandardNormal.sample(random));
                }
            }
            return;
        }
    }
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
            erase(&mut values, image, &mut generator(0, Purpose::Augment, [0, place]));
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
        erase(&mut values, [1, 1], &mut generator(0, Purpose::Augment, [0, 0]));
        assert_eq!(values, [9.0; 3]);
    }
}
