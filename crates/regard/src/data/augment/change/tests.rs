use super::super::{Augment, Crop, DetectionAugment, RandAugment};
use super::*;
use crate::random::{Purpose, generator};
use crate::testing::noise_picture;

const SIZE: [usize; 2] = [40, 60];

/// A black picture with a white rectangle, and the box around it.
fn rectangle([x1, y1, x2, y2]: [usize; 4]) -> (Picture, Bounds) {
    let inside = |at: usize| (x1..x2).contains(&(at % SIZE[1])) && (y1..y2).contains(&(at / SIZE[1]));
    let pixels = (0..SIZE[0] * SIZE[1]).flat_map(|at| [if inside(at) { 255 } else { 0 }; 3]).collect();
    let corners = [x1, y1, x2, y2].map(|place| place as f64);
    (Picture::new(SIZE, pixels).unwrap(), Bounds::from_pixel_corners(corners, SIZE))
}

/// Left, top, right and bottom in pixels of the area that is more white than black.
fn measured(picture: &Picture) -> Option<[f64; 4]> {
    let [_, columns] = picture.size();
    let white = |at: &usize| picture.pixels()[3 * at] > 127;
    let places: Vec<usize> = (0..picture.pixels().len() / 3).filter(white).collect();
    let extent = |of: fn(usize, usize) -> usize| {
        let places = || places.iter().map(|at| of(*at, columns));
        Some([places().min()?, places().max()? + 1])
    };
    let ([x1, x2], [y1, y2]) = (extent(|at, columns| at % columns)?, extent(|at, columns| at / columns)?);
    Some([x1, y1, x2, y2].map(|place| place as f64))
}

fn one(change: Geometric) -> Changes {
    Changes { from: SIZE, changes: vec![Change::Geometric(change)], erasure: None }
}

/// One of each kind, and the operations of RandAugment that move pixels.
fn geometric_changes() -> Vec<Geometric> {
    let fill = [0; 3];
    let affine = |matrix| Geometric::Affine { matrix, fill };
    vec![
        Geometric::Crop { corner: [3, 5], size: [30, 41] },
        Geometric::Resize { size: [80, 55], filter: Filter::Bilinear },
        Geometric::ResizedCrop { whole: [60, 90], corner: [7, 11], size: [40, 50], filter: Filter::Bicubic },
        Geometric::ReflectedCrop { whole: [40, 60], corner: [-4, -3], size: [40, 56], filter: Filter::Bilinear },
        Geometric::Flip,
        Geometric::UpsideDown,
        Geometric::QuarterTurns(1),
        Geometric::QuarterTurns(2),
        Geometric::QuarterTurns(3),
        affine(geometry::rotation(20.0, SIZE)),
        affine(geometry::rotation(-27.0, SIZE)),
        affine([1.0, 0.27, 0.0, 0.0, 1.0, 0.0]),
        affine([1.0, 0.0, 0.0, -0.2, 1.0, 0.0]),
        affine([1.0, 0.0, 7.5, 0.0, 1.0, 0.0]),
        affine([1.0, 0.0, 0.0, 0.0, 1.0, -6.0]),
    ]
}

#[test]
fn a_rectangle_of_pixels_lands_where_its_moved_box_says() {
    for change in geometric_changes() {
        for corners in [[20, 12, 34, 25], [10, 8, 30, 30], [25, 10, 45, 20]] {
            let (picture, bounds) = rectangle(corners);
            let changes = one(change.clone());
            let changed = changes.picture(&picture);
            assert_eq!(changed.size(), changes.size(), "{change:?}");
            let object = Object { class: 3, bounds, crowd: false };
            let moved = changes.objects(&[object], 0.0)[0].bounds.pixel_corners(changes.size());
            let found = measured(&changed).unwrap();
            // a corner of a turned rectangle is less than half a pixel of white
            let off = moved.iter().zip(found).map(|(moved, found)| (moved - found).abs()).fold(0.0, f64::max);
            assert!(off <= 1.6, "{change:?} moves {corners:?} to {moved:?}, but the pixels are at {found:?}");
        }
    }
}

#[test]
fn flipping_twice_and_turning_four_times_is_nothing() {
    let picture = noise_picture(SIZE, 1);
    let bounds = Bounds { cx: 0.3, cy: 0.4, w: 0.2, h: 0.1 };
    let object = Object { class: 0, bounds, crowd: true };
    for (change, times) in [
        (Geometric::Flip, 2),
        (Geometric::UpsideDown, 2),
        (Geometric::QuarterTurns(1), 4),
        (Geometric::QuarterTurns(2), 2),
    ] {
        let changes = Changes { changes: vec![Change::Geometric(change); times], ..Changes::new(SIZE) };
        assert_eq!(changes.picture(&picture), picture);
        let back = changes.objects(&[object], 1.0)[0];
        assert!(back.bounds.iou(&bounds) > 1.0 - 1e-9 && back.crowd, "{back:?}");
    }
}

#[test]
fn an_object_is_dropped_when_nothing_or_too_little_of_it_is_left() {
    let object = |corners| Object { class: 1, bounds: Bounds::from_pixel_corners(corners, SIZE), crowd: true };
    // the left half; a box left of it, one across its border by a quarter, one right of it
    let crop = one(Geometric::Crop { corner: [0, 0], size: [40, 30] });
    let objects = [object([5.0, 5.0, 15.0, 15.0]), object([20.0, 10.0, 60.0, 20.0]), object([30.0, 0.0, 40.0, 9.0])];
    let kept = crop.objects(&objects, 0.0);
    assert_eq!(kept.len(), 2);
    assert!(kept.iter().all(|object| object.crowd && object.class == 1));
    let corners = kept[1].bounds.pixel_corners([40, 30]).map(|place| (place * 1e6).round() / 1e6);
    assert_eq!(corners, [20.0, 10.0, 30.0, 20.0]);
    assert_eq!(crop.objects(&objects, 0.25).len(), 2);
    assert_eq!(crop.objects(&objects, 0.26).len(), 1);
    // the part of an annotation outside the picture is clipped, and does not count as lost
    let beyond = object([-20.0, 5.0, 20.0, 15.0]);
    assert_eq!(Changes::new(SIZE).objects(&[beyond], 1.0)[0].bounds.corners()[0], 0.0);
    assert_eq!(Changes::new(SIZE).objects(&[object([70.0, 5.0, 80.0, 15.0])], 0.0), []);
}

#[test]
fn a_photometric_change_moves_no_box() {
    let changes = [
        Photometric::AutoContrast,
        Photometric::Equalize,
        Photometric::Invert,
        Photometric::Posterize(3),
        Photometric::Solarize(100),
        Photometric::SolarizeAdd(50),
        Photometric::Saturation(0.3),
        Photometric::Contrast(1.7),
        Photometric::Brightness(0.4),
        Photometric::Sharpness(1.5),
        Photometric::Grayscale,
        Photometric::Blur(1.3),
    ];
    let bounds = Bounds { cx: 0.3, cy: 0.4, w: 0.25, h: 0.5 };
    let object = Object { class: 0, bounds, crowd: false };
    for change in changes {
        let changes = Changes { changes: vec![Change::Photometric(change)], ..Changes::new(SIZE) };
        let moved = changes.objects(&[object], 1.0)[0].bounds.corners();
        assert!(moved.iter().zip(bounds.corners()).all(|(a, b)| (a - b).abs() < 1e-12), "{change:?}");
        assert_eq!(changes.size(), SIZE);
        assert_eq!(changes.picture(&noise_picture(SIZE, 2)).size(), SIZE);
    }
}

/// Everything at once.
fn everything() -> Augment {
    Augment {
        crop: Crop::RandomResized { area: [0.3, 1.0], aspect: [0.75, 4.0 / 3.0] },
        flip: 0.5,
        upside_down: 0.5,
        quarter_turns: true,
        rand_augment: Some(RandAugment::default()),
        three_augment: true,
        grayscale: 0.1,
        solarize: 0.1,
        blur: 0.1,
        colour_jitter: 0.3,
        erase: 0.5,
    }
}

#[test]
fn all_frames_of_a_clip_change_alike() {
    let frame = noise_picture(SIZE, 3);
    for place in 0..20 {
        let mut random = generator(5, Purpose::Augment, [0, place]);
        let changes = everything().draw(SIZE, &Preprocess::DEIT, [24, 24], &mut random);
        let clip = changes.clip(&vec![frame.clone(); 4], &Preprocess::DEIT).unwrap();
        assert!(clip.iter().all(|image| *image == clip[0]), "equal frames stay equal");
        // and a frame changes as it would as a picture
        let mut random = generator(5, Purpose::Augment, [0, place]);
        assert_eq!(clip[0], everything().apply(&frame, &Preprocess::DEIT, [24, 24], &mut random));
    }
    let changes = everything().draw(SIZE, &Preprocess::DEIT, [24, 24], &mut generator(5, Purpose::Augment, [0, 0]));
    let error = changes.clip(&[frame, noise_picture([4, 5], 0)], &Preprocess::DEIT).unwrap_err().to_string();
    assert!(error.contains("frame 1 has 5 x 4 pixels, others 60 x 40"), "{error}");
}

/// For any draw, a rectangle that survives lands where its box says.
fn check_draws(draw: impl Fn(u64) -> Changes) {
    let mut kept = 0;
    for place in 0..200 {
        let (picture, bounds) = rectangle([22, 12, 40, 28]);
        let changes = draw(place);
        let geometric = |change: &Change| matches!(change, Change::Geometric(_));
        let only = Changes {
            changes: changes.changes.iter().filter(|change| geometric(change)).cloned().collect(),
            ..changes
        };
        let object = Object { class: 0, bounds, crowd: false };
        // wholly visible: a box that is first clipped and then rotated is looser
        let Some(moved) = only.objects(&[object], 0.999).first().map(|object| object.bounds.pixel_corners(only.size()))
        else {
            continue;
        };
        let Some(found) = measured(&only.picture(&picture)) else { continue };
        let turns = only.changes.iter().filter(|change| matches!(change, Change::Geometric(Geometric::Affine { .. })));
        // two turns of a box give a box around a box
        if turns.count() > 1 {
            continue;
        }
        kept += 1;
        let scale = only.size()[0] as f64 / 20.0;
        let off = moved.iter().zip(found).map(|(moved, found)| (moved - found).abs()).fold(0.0, f64::max);
        assert!(off <= 1.6 + scale, "draw {place}: {moved:?}, but the pixels are at {found:?}: {only:?}");
    }
    assert!(kept > 20, "only {kept} of 200");
}

#[test]
fn whatever_is_drawn_boxes_follow_their_pixels() {
    let fill_is_black = Preprocess { mean: [0.0; 3], ..Preprocess::WHOLE };
    check_draws(|place| {
        everything().draw(SIZE, &fill_is_black, [30, 30], &mut generator(9, Purpose::Augment, [0, place]))
    });
    let detection = DetectionAugment {
        short_sides: vec![30, 44, 50],
        longest: 90,
        crop_short_sides: vec![40, 50],
        crop_sides: [24, 45],
        ..DetectionAugment::default()
    };
    detection.validate().unwrap();
    check_draws(|place| detection.draw(SIZE, &mut generator(9, Purpose::Augment, [1, place])));
}
