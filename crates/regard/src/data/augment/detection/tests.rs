use super::*;
use crate::data::{Bounds, Object};
use crate::random::{Purpose, generator};

fn random(place: u64) -> impl Rng {
    generator(2, Purpose::Augment, [0, place])
}

#[test]
fn sizes_are_those_of_detr() {
    // rows and columns, short side, longest, and what `get_size_with_aspect_ratio` of DETR gives
    for (size, short, longest, expected) in DETR {
        assert_eq!(ShortSide { short, longest: (longest > 0).then_some(longest) }.detr(size), expected, "{size:?}");
    }
}

#[test]
fn sizes_are_those_of_torchvision() {
    for (size, short, longest, expected) in TORCHVISION {
        assert_eq!(
            ShortSide { short, longest: (longest > 0).then_some(longest) }.torchvision(size),
            expected,
            "{size:?}"
        );
    }
}

#[test]
fn a_training_picture_of_detr_has_one_of_its_short_sides_or_the_longest() {
    let augment = DetectionAugment::default();
    let (mut cropped, mut flipped) = (0, 0);
    for place in 0..400 {
        let changes = augment.draw([480, 640], &mut random(place));
        let [least, most] = {
            let [rows, columns] = changes.size();
            [rows.min(columns), rows.max(columns)]
        };
        assert!(most <= 1333 && (augment.short_sides.contains(&least) || most >= 1331), "{least} x {most}");
        for change in &changes.changes {
            match change {
                Change::Geometric(Geometric::Flip) => flipped += 1,
                Change::Geometric(Geometric::Crop { size, .. }) => {
                    cropped += 1;
                    assert!(size.iter().all(|side| (384..=600).contains(side)), "{size:?}");
                }
                Change::Geometric(Geometric::Resize { .. }) => {}
                other => panic!("{other:?}"),
            }
        }
    }
    assert!((150..250).contains(&cropped) && (150..250).contains(&flipped), "{cropped} crops, {flipped} flips");
}

#[test]
fn a_small_picture_keeps_the_side_that_is_too_small_to_crop() {
    let augment = DetectionAugment { crop: 1.0, flip: 0.0, crop_short_sides: vec![20], ..DetectionAugment::default() };
    for place in 0..20 {
        let changes = augment.draw([10, 30], &mut random(place));
        assert_eq!(
            changes.changes[0],
            Change::Geometric(Geometric::Resize { size: [20, 60], filter: Filter::Bilinear })
        );
        assert!(matches!(changes.changes[1], Change::Geometric(Geometric::Crop { corner: [0, 0], size: [20, 60] })));
    }
}

#[test]
fn a_crop_keeps_boxes_by_detrs_rules() {
    // `crop` of datasets/transforms.py: shifted, clipped to the crop, kept if both sides are above 0
    let object = |x1, y1, x2, y2| Object {
        class: 0,
        bounds: Bounds::from_pixel_corners([x1, y1, x2, y2], [100, 200]),
        crowd: false,
    };
    let objects = [
        object(0.0, 0.0, 50.0, 20.0),
        object(60.0, 30.0, 90.0, 40.0),
        object(120.0, 90.0, 199.0, 99.0),
        object(50.0, 25.0, 51.0, 26.0),
    ];
    let changes = Changes {
        changes: vec![Change::Geometric(Geometric::Crop { corner: [20, 40], size: [50, 80] })],
        ..Changes::new([100, 200])
    };
    let kept: Vec<[i64; 4]> = changes
        .objects(&objects, 0.0)
        .iter()
        .map(|object| object.bounds.pixel_corners([50, 80]).map(|place| place.round() as i64))
        .collect();
    assert_eq!(kept, [[20, 10, 50, 20], [10, 5, 11, 6]]);
}

#[test]
fn a_scaled_list_is_that_of_detr_in_proportion() {
    assert_eq!(DetectionAugment::scaled(800), DetectionAugment::default());
    let small = DetectionAugment::scaled(80);
    assert_eq!((small.short_sides.first(), small.short_sides.last(), small.longest), (Some(&48), Some(&80), 133));
    assert_eq!((&small.crop_short_sides[..], small.crop_sides), (&[40, 50, 60][..], [38, 60]));
    assert!(DetectionAugment::scaled(1).validate().is_ok());
}

#[test]
fn a_wrong_setting_is_named_with_its_value() {
    let plain = DetectionAugment::default;
    for (augment, field, value) in [
        (DetectionAugment { flip: 2.0, ..plain() }, "augment.flip", "2"),
        (DetectionAugment { short_sides: vec![], ..plain() }, "augment.short-sides", "none"),
        (DetectionAugment { short_sides: vec![0], ..plain() }, "augment.short-sides", "0"),
        (DetectionAugment { longest: 1 << 40, ..plain() }, "augment.longest", "1099511627776"),
        (DetectionAugment { crop_sides: [600, 384], ..plain() }, "augment.crop-sides", "[600, 384]"),
        (DetectionAugment { mosaic: 1.5, ..plain() }, "augment.mosaic", "1.5"),
        (DetectionAugment { colour_jitter: -0.5, ..plain() }, "augment.colour-jitter", "-0.5"),
    ] {
        let error = augment.validate().unwrap_err().to_string();
        assert!(error.contains(field) && error.ends_with(value), "{error}");
    }
    assert!(plain().validate().is_ok());
}

/// By the published code.
const DETR: [([usize; 2], usize, usize, [usize; 2]); 16] = [
    ([480, 640], 800, 1333, [800, 1066]),
    ([640, 480], 800, 1333, [1066, 800]),
    ([427, 640], 800, 1333, [800, 1199]),
    ([375, 500], 480, 1333, [480, 640]),
    ([333, 500], 672, 1333, [672, 1009]),
    ([100, 1000], 800, 1333, [133, 1330]),
    ([1000, 100], 800, 1333, [1330, 133]),
    ([1333, 800], 800, 1333, [1333, 800]),
    ([500, 500], 800, 1333, [800, 800]),
    ([612, 612], 600, 0, [600, 600]),
    ([426, 640], 400, 0, [400, 600]),
    ([640, 360], 512, 1333, [910, 512]),
    ([237, 640], 800, 1333, [494, 1334]),
    ([3, 1000], 800, 1333, [4, 1333]),
    ([640, 427], 544, 1333, [815, 544]),
    ([480, 480], 480, 1333, [480, 480]),
];

/// By the published code.
const TORCHVISION: [([usize; 2], usize, usize, [usize; 2]); 16] = [
    ([480, 640], 800, 1333, [800, 1066]),
    ([640, 480], 800, 1333, [1066, 800]),
    ([427, 640], 800, 1333, [800, 1199]),
    ([375, 500], 480, 1333, [480, 640]),
    ([333, 500], 672, 1333, [672, 1009]),
    ([100, 1000], 800, 1333, [133, 1333]),
    ([1000, 100], 800, 1333, [1333, 133]),
    ([1333, 800], 800, 1333, [1333, 800]),
    ([500, 500], 800, 1333, [800, 800]),
    ([612, 612], 600, 0, [600, 600]),
    ([426, 640], 400, 0, [400, 600]),
    ([640, 360], 512, 1333, [910, 512]),
    ([237, 640], 800, 1333, [493, 1333]),
    ([3, 1000], 800, 1333, [3, 1333]),
    ([640, 427], 544, 1333, [815, 544]),
    ([480, 480], 480, 1333, [480, 480]),
];
