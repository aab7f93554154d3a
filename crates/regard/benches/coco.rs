//! How long the evaluation of detections takes: `cargo bench -p regard --bench coco`.
//!
//! 5,000 pictures of 80 classes with 36,000 objects, as many as COCO's validation part, and 100,000 detections around them.

#![allow(clippy::print_stdout)] // the table is what it is for

use rand::rngs::ChaCha8Rng;
use rand::{RngExt as _, SeedableRng as _};
use regard::evaluate::coco::{CocoDetection, CocoTruth, DiagnosisOptions, diagnose, evaluate};
use std::time::Instant;

const PICTURES: u64 = 5_000;
const CLASSES: usize = 80;
const OBJECTS: u64 = 36_000;
const DETECTIONS: usize = 100_000;

fn main() {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let truths: Vec<CocoTruth> = (1..=OBJECTS)
        .map(|id| {
            let bounds = [0; 4].map(|_| random.random_range(5.0..300.0));
            // most objects of COCO are of few classes
            let class = (CLASSES as f64 * random.random::<f64>().powi(3)) as usize;
            let image = random.random_range(0..PICTURES);
            CocoTruth { id, image, class, bounds, area: bounds[2] * bounds[3], crowd: random.random_bool(0.01) }
        })
        .collect();
    let detections: Vec<CocoDetection> = (0..DETECTIONS)
        .map(|_| {
            let CocoTruth { image, class, bounds, .. } = truths[random.random_range(0..truths.len())];
            let bounds = bounds.map(|side| side + random.random_range(-5.0..5.0));
            CocoDetection { image, class, bounds, score: random.random() }
        })
        .collect();
    let images: Vec<u64> = (0..PICTURES).collect();
    let start = Instant::now();
    let result = evaluate(&images, CLASSES, &truths, &detections).expect("the numbers are finite");
    let evaluated = start.elapsed().as_secs_f64();
    let start = Instant::now();
    let mistakes = diagnose(CLASSES, &truths, &detections, DiagnosisOptions { score: 0.5, worst: 20 });
    println!("| what | seconds | result |");
    println!("|---|---|---|");
    println!("| evaluate {DETECTIONS} detections | {evaluated:.3} | AP {:.4} |", result.summary.ap);
    println!("| diagnose | {:.3} | {} missed |", start.elapsed().as_secs_f64(), mistakes.missed);
}
