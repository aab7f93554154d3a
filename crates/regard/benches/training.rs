//! How many pictures a second the small models learn from, on 28 x 28: `cargo bench -p regard --bench training`.
//!
//! A step is what a trainer does but for the optimiser: logits, cross-entropy, and the gradient of every parameter.
//! Names of models after `--` choose among them; `RAYON_NUM_THREADS` sets the threads.

#![allow(clippy::print_stdout)] // the table is what it is for

use burn::tensor::{Device, Distribution, Int, Tensor};
use regard::models::{Model, preset};
use regard::{Pass, device, function};
use std::time::Instant;

const MODELS: [&str; 5] = ["vit-nano", "san-nano-pairwise", "san-nano-patchwise", "sasa-nano", "resnet-nano"];
const BATCH: usize = 64;
/// Seconds that a measurement takes at least, and the rounds whose best one counts.
const ROUND: f64 = 0.5;
const ROUNDS: usize = 5;

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    device::keep_memory();
    device::large_pages();
    println!("| model | forward, pictures/s | forward+backward, pictures/s |");
    println!("|---|---|---|");
    for name in MODELS.into_iter().filter(|name| wanted.is_empty() || wanted.iter().any(|wanted| wanted == name)) {
        let forward = Run::new(name, &device::cpu());
        let training = Run::new(name, &device::cpu().autodiff());
        let forward = pictures_per_second(|| drop(forward.logits()));
        let training = pictures_per_second(|| drop(training.loss().backward()));
        println!("| {name} | {forward:.0} | {training:.0} |");
    }
}

/// A model and a batch, made before the clock starts.
struct Run {
    model: Model,
    images: Tensor<4>,
    classes: Tensor<2, Int>,
}

impl Run {
    fn new(name: &str, device: &Device) -> Self {
        let config = preset(name).and_then(|preset| preset.config.with("image", serde_json::json!([28, 28])));
        let model = config.and_then(|config| config.init(device)).expect("small models take small pictures");
        let images = Tensor::random([BATCH, 3, 28, 28], Distribution::Normal(0.0, 1.0), device);
        let classes = Tensor::<1, Int>::arange(0..BATCH as i64, device).remainder_scalar(10).reshape([BATCH, 1]);
        Self { model, images, classes }
    }

    fn logits(&self) -> Tensor<2> {
        self.model.forward(self.images.clone(), &mut Pass::silent())
    }

    fn loss(&self) -> Tensor<1> {
        function::log_softmax(self.logits()).gather(1, self.classes.clone()).mean().neg()
    }
}

fn pictures_per_second(step: impl Fn()) -> f64 {
    step(); // parameters are initialised on first use
    let round = |_| {
        let (start, mut steps) = (Instant::now(), 0);
        while start.elapsed().as_secs_f64() < ROUND {
            step();
            steps += 1;
        }
        (steps * BATCH) as f64 / start.elapsed().as_secs_f64()
    };
    (0..ROUNDS).map(round).fold(0.0, f64::max)
}
