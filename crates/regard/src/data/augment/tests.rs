use super::geometry::{affine, rotation};
use super::*;
use crate::random::{Purpose, generator};
use crate::testing::{Fixture, noise_picture};
use rand::rngs::ChaCha8Rng;

const FILL: [u8; 3] = [124, 116, 104];

fn random(place: u64) -> ChaCha8Rng {
    generator(1, Purpose::Augment, [0, place])
}

/// What ours makes of a picture for a line of the fixture such as `posterize 3`.
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
