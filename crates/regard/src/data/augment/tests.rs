use super::geometry::{affine, rotation};
use super::*;
use crate::random::{Purpose, generator};
use crate::testing::{Fixture, noise_picture};
use rand::rngs::ChaCha8Rng;

const FILL: [u8; 3] = [124, 116, 104];

fn random(place: u64) -> ChaCha8Rng {
    generator(1, Purpose::Augment, [0, place])
}

/// Our result for a line of the fixture such as `posterize 3`.
fn changed(mut picture: Picture, change: &str) -> Picture {
    let (name, value) = change.split_once(' ').unwrap_or((change, "0"));
    let value: f64 = value.parse().unwrap();
    let [rows, columns] = picture.size();
    let place = &mut picture;
    match name {
        "autocontrast" => levels::autocontrast(place),
        "equalize" => levels::equalize(place),
        "invert" => levels::invert(place),
        "grayscale" => colour::grayscale(place),
        "posterize" => levels::posterize(place, value as u32),
        "solarize" => levels::solarize(place, value as u16),
        "color" => colour::saturation(place, value as f32),
        "contrast" => colour::contrast(place, value as f32),
        "brightness" => colour::brightness(place, value as f32),
        "sharpness" => colour::sharpness(place, value as f32),
        "rotate" => affine(place, rotation(value, [rows, columns]), FILL),
        "shear-x" => affine(place, [1.0, value, 0.0, 0.0, 1.0, 0.0], FILL),
        "shear-y" => affine(place, [1.0, 0.0, 0.0, value, 1.0, 0.0], FILL),
        "translate-x" => affine(place, [1.0, 0.0, value * columns as f64, 0.0, 1.0, 0.0], FILL),
        "translate-y" => affine(place, [1.0, 0.0, 0.0, 0.0, 1.0, value * rows as f64], FILL),
        other => panic!("no change `{other}`"),
    }
    picture
}

#[test]
fn changes_are_those_of_pil_to_the_bit() {
    let fixture = Fixture::load("augment");
    let names: Vec<&str> = fixture.names("io/").filter(|name| name.contains(' ')).collect();
    assert!(names.len() > 150, "only {} changes in the fixture", names.len());
    for name in names {
        let (picture, change) = name.split_once(' ').unwrap();
        assert!(changed(fixture.picture(picture), change) == fixture.picture(name), "{name}");
    }
}

#[test]
fn no_bits_are_black() {
    let mut picture = noise_picture([3, 3], 0);
    levels::posterize(&mut picture, 0);
    assert_eq!(picture.pixels(), [0; 27]);
}

#[test]
fn dark_levels_are_raised_and_light_ones_stay() {
    let mut picture = Picture::new([1, 2], vec![0, 100, 127, 128, 200, 255]).unwrap();
    levels::solarize_add(&mut picture, 110);
    assert_eq!(picture.pixels(), [110, 210, 237, 128, 200, 255]);
}

#[test]
fn without_changes_it_is_the_preparation_for_a_test() {
    for size in [[20, 31], [16, 16], [9, 40]] {
        let picture = noise_picture(size, 4);
        for preprocess in [Preprocess::DEIT, Preprocess::WHOLE, Preprocess::VIT] {
            let ours = Augment::default().apply(&picture, &preprocess, [16, 16], &mut random(0));
            assert_eq!(ours, crate::data::prepare(&picture, &preprocess, [16, 16]));
        }
    }
}

/// Everything at once.
fn everything() -> Augment {
    Augment {
        crop: Crop::RandomResized { area: [0.08, 1.0], aspect: [0.75, 4.0 / 3.0] },
        flip: 0.5,
        upside_down: 0.5,
        quarter_turns: true,
        rand_augment: Some(RandAugment::default()),
        three_augment: true,
        grayscale: 0.1,
        solarize: 0.1,
        blur: 0.1,
        colour_jitter: 0.3,
        erase: 0.25,
    }
}

#[test]
fn the_same_draws_make_the_same_image_and_others_another() {
    let picture = noise_picture([24, 20], 6);
    for image in [[16, 16], [12, 20]] {
        let apply = |place| everything().apply(&picture, &Preprocess::DEIT, image, &mut random(place));
        for place in 0..50 {
            let values = apply(place);
            assert_eq!(values.len(), 3 * image[0] * image[1]);
            assert!(values.iter().all(|value| value.is_finite()));
            assert_eq!(values, apply(place));
            assert_ne!(values, apply(place + 1));
        }
    }
}

#[test]
fn pictures_of_every_size_become_the_image() {
    for size in [[1, 1], [1, 50], [50, 1], [2, 3], [64, 64]] {
        for image in [[1, 1], [3, 2], [8, 8]] {
            for crop in [Crop::Middle, everything().crop, Crop::Random { padding: 4 }] {
                let augment = Augment { crop, ..everything() };
                augment.validate().unwrap();
                for place in 0..8 {
                    let values = augment.apply(&noise_picture(size, 0), &Preprocess::WHOLE, image, &mut random(place));
                    assert_eq!(values.len(), 3 * image[0] * image[1], "{size:?} to {image:?} by {crop:?}");
                }
            }
        }
    }
}

#[test]
fn probabilities_are_kept() {
    let picture = Picture::new([1, 2], vec![0, 0, 0, 255, 255, 255]).unwrap();
    let count = |augment: Augment| {
        let plain = crate::data::prepare(&picture, &Preprocess::WHOLE, [1, 2]);
        let changed = |place| augment.apply(&picture, &Preprocess::WHOLE, [1, 2], &mut random(place)) != plain;
        (0..2000).filter(|&place| changed(place)).count()
    };
    assert_eq!(count(Augment { flip: 1.0, ..Augment::default() }), 2000);
    let quarter = count(Augment { flip: 0.25, ..Augment::default() });
    assert!((430..570).contains(&quarter), "{quarter} of 2000");
}

#[test]
fn a_square_is_turned_four_ways_and_another_image_two() {
    let augment = Augment { quarter_turns: true, ..Augment::default() };
    for (size, ways) in [([3, 3], 4), ([2, 3], 2)] {
        let picture = noise_picture(size, 0);
        let mut seen: Vec<(Vec<f32>, usize)> = Vec::new();
        for place in 0..2000 {
            let values = augment.apply(&picture, &Preprocess::WHOLE, size, &mut random(place));
            match seen.iter_mut().find(|(other, _)| *other == values) {
                Some((_, count)) => *count += 1,
                None => seen.push((values, 1)),
            }
        }
        let counts: Vec<usize> = seen.iter().map(|(_, count)| *count).collect();
        assert!(counts.len() == ways && counts.iter().all(|count| count.abs_diff(2000 / ways) < 90), "{counts:?}");
    }
}

#[test]
fn a_wrong_setting_is_named_with_its_value() {
    let plain = Augment::default;
    let resized = |area, aspect| Augment { crop: Crop::RandomResized { area, aspect }, ..plain() };
    let strong = |settings| Augment { rand_augment: Some(settings), ..plain() };
    let wrong = [
        (Augment { flip: 1.5, ..plain() }, "`augment.flip`", "1.5"),
        (Augment { upside_down: -0.1, ..plain() }, "`augment.upside-down`", "-0.1"),
        (Augment { grayscale: f64::NAN, ..plain() }, "`augment.grayscale`", "NaN"),
        (Augment { solarize: 2.0, ..plain() }, "`augment.solarize`", "2"),
        (Augment { blur: 7.0, ..plain() }, "`augment.blur`", "7"),
        (Augment { colour_jitter: f64::INFINITY, ..plain() }, "`augment.colour-jitter`", "inf"),
        (Augment { erase: -1.0, ..plain() }, "`augment.erase`", "-1"),
        (Augment { crop: Crop::Random { padding: 9999 }, ..plain() }, "padding`", "9999"),
        (resized([0.5, 0.4], [0.75, 1.5]), "area`", "[0.5, 0.4]"),
        (resized([0.5, 1.4], [0.75, 1.5]), "area`", "1.4"),
        (resized([0.0, 1.0], [0.75, 1.5]), "area`", "[0, 1]"),
        (resized([0.5, 1.0], [0.75, f64::INFINITY]), "aspect`", "[0.75, inf]"),
        (strong(RandAugment { magnitude: 11.0, ..RandAugment::default() }), "magnitude`", "11"),
        (strong(RandAugment { std: -1.0, ..RandAugment::default() }), "std`", "-1"),
        (strong(RandAugment { operations: 100, ..RandAugment::default() }), "operations`", "100"),
        (strong(RandAugment { probability: 1.1, ..RandAugment::default() }), "probability`", "1.1"),
    ];
    for (augment, field, value) in wrong {
        let error = augment.validate().unwrap_err().to_string();
        assert!(error.contains(field) && error.ends_with(value), "{error}");
    }
    assert!(plain().validate().is_ok() && everything().validate().is_ok());
}

#[test]
fn settings_are_read_from_toml_and_unknown_ones_refused() {
    let text = "crop = { random = { padding = 4 } }\nthree-augment = true\n[rand-augment]\nmagnitude = 7.0\n";
    let augment: Augment = toml::from_str(text).unwrap();
    assert_eq!(augment.crop, Crop::Random { padding: 4 });
    assert_eq!(augment.rand_augment, Some(RandAugment { magnitude: 7.0, ..RandAugment::default() }));
    assert_eq!(toml::from_str::<Augment>(&toml::to_string(&everything()).unwrap()).unwrap(), everything());
    assert!(toml::from_str::<Augment>("flipp = 0.5").unwrap_err().to_string().contains("flipp"));
}

/// The same changes, each drawn and applied in turn, as in versions before changes could be
/// kept. Runs of those versions continue with the same bytes.
mod in_turn {
    use super::super::rand_augment::OPERATIONS;
    use super::super::{rectangle, *};
    use crate::data::picture::{middle_corner, normalise, resized};
    use crate::data::resample::resample;
    use rand::seq::{IndexedRandom as _, SliceRandom as _};
    use rand_distr::{Distribution as _, StandardNormal};

    pub fn apply(
        augment: &Augment,
        picture: &Picture,
        preprocess: &Preprocess,
        image: [usize; 2],
        random: &mut impl Rng,
    ) -> Vec<f32> {
        let mut picture = crop(augment.crop, picture, preprocess, image, random);
        if chance(augment.flip, random) {
            geometry::flip(&mut picture);
        }
        if chance(augment.upside_down, random) {
            geometry::upside_down(&mut picture);
        }
        if augment.quarter_turns {
            let half_turns = usize::from(image[0] != image[1]);
            geometry::turn(&mut picture, random.random_range(0..4 >> half_turns) << half_turns);
        }
        if let Some(settings) = augment.rand_augment {
            let fill = preprocess.mean.map(|mean| (255.0 * mean).round_ties_even() as u8);
            let chosen: Vec<_> = (0..settings.operations).filter_map(|_| OPERATIONS.choose(random)).copied().collect();
            for operation in chosen {
                if chance(settings.probability, random) {
                    let noise: f64 = StandardNormal.sample(random);
                    let strength = (settings.magnitude + settings.std * noise).clamp(0.0, 10.0) / 10.0;
                    let sign = if random.random() { 1.0 } else { -1.0 };
                    let changes = vec![operation.change(picture.size(), strength, sign, fill)];
                    picture = Changes { changes, ..Changes::new(picture.size()) }.picture(&picture);
                }
            }
        }
        if augment.three_augment {
            match random.random_range(0..3) {
                0 => colour::grayscale(&mut picture),
                1 => levels::solarize(&mut picture, 128),
                _ => blur::blur(&mut picture, radius(random)),
            }
        }
        if chance(augment.grayscale, random) {
            colour::grayscale(&mut picture);
        }
        if chance(augment.solarize, random) {
            levels::solarize(&mut picture, 128);
        }
        if chance(augment.blur, random) {
            blur::blur(&mut picture, radius(random));
        }
        if augment.colour_jitter > 0.0 {
            let mut changes: [fn(&mut Picture, f32); 3] = [colour::brightness, colour::contrast, colour::saturation];
            changes.shuffle(random);
            for change in changes {
                let strength = augment.colour_jitter;
                change(&mut picture, random.random_range((1.0 - strength).max(0.0)..=1.0 + strength) as f32);
            }
        }
        let mut values = normalise(&picture, preprocess);
        if chance(augment.erase, random) {
            erase(&mut values, image, random);
        }
        values
    }

    fn crop(
        crop: Crop,
        picture: &Picture,
        preprocess: &Preprocess,
        image: [usize; 2],
        random: &mut impl Rng,
    ) -> Picture {
        match crop {
            Crop::Middle => {
                let whole = resized(picture.size(), preprocess.crop, image);
                let corner = middle_corner(whole, image);
                let middle = [0, 1].map(|axis| corner[axis]..corner[axis] + image[axis]);
                let pixels = resample(&picture.pixels, picture.size(), whole, middle, preprocess.filter);
                Picture { rows: image[0], columns: image[1], pixels }
            }
            Crop::RandomResized { area, aspect } => {
                let (corner, size) = crop::random_part(picture.size(), area, aspect, random);
                if size == picture.size() {
                    return picture.resize(image, preprocess.filter);
                }
                picture.crop(corner, size).resize(image, preprocess.filter)
            }
            Crop::Random { padding } => {
                let whole = picture.resize(resized(picture.size(), 1.0, image), preprocess.filter);
                let size = whole.size();
                let [rows, columns] = [0, 1].map(|axis| {
                    let start = random.random_range(0..=size[axis] + 2 * padding - image[axis]);
                    let places = start..start + image[axis];
                    let inside = |place| geometry::reflected(place as isize - padding as isize, size[axis]);
                    places.map(inside).collect::<Vec<usize>>()
                });
                let pixel = |row: usize, column: usize| whole.pixels[3 * (size[1] * row + column)..][..3].to_vec();
                let line = |row: &usize| columns.iter().flat_map(|column| pixel(*row, *column)).collect::<Vec<u8>>();
                Picture { rows: image[0], columns: image[1], pixels: rows.iter().flat_map(line).collect() }
            }
            Crop::ShortSide { .. } => unreachable!("it is newer than the one pass"),
        }
    }

    fn erase(values: &mut [f32], image: [usize; 2], random: &mut impl Rng) {
        for _ in 0..10 {
            let part = rectangle(image, [0.02, 1.0 / 3.0], [0.3, 1.0 / 0.3], random);
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
}

#[test]
fn drawing_everything_first_gives_the_bytes_that_drawing_in_turn_gave() {
    for (size, image) in [([24, 20], [16, 16]), ([16, 16], [16, 16]), ([9, 40], [12, 20])] {
        let picture = noise_picture(size, 6);
        for crop in [Crop::Middle, everything().crop, Crop::Random { padding: 4 }] {
            let augment = Augment { crop, erase: 0.6, ..everything() };
            for place in 0..40 {
                let ours = augment.apply(&picture, &Preprocess::DEIT, image, &mut random(place));
                let before = in_turn::apply(&augment, &picture, &Preprocess::DEIT, image, &mut random(place));
                assert_eq!(ours, before, "{crop:?}, draw {place}");
            }
        }
    }
}
