//! Plans beside what they replace, in turn: the forward pass, and the hand-written form where a family has one.
//! `cargo bench --bench plans [-- NAME..]`

#![allow(clippy::print_stdout)]

use burn::tensor::{Distribution, Tensor};
use regard::plan::Plan;
use regard::{PackedModel, Pass, device, models};
use std::hint::black_box;
use std::time::Instant;

const MODELS: [&str; 6] =
    ["resnet-50", "regnety-4gf", "sasa-resnet26", "non-local-resnet-50-1", "vit-small-patch16-224", "san10-pairwise"];
const ROUNDS: usize = 7;

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let named: Vec<String> = std::env::args().skip(1).filter(|name| !name.starts_with('-')).collect();
    let [head, first, second, third, fourth] = ["ms a picture", "batch", "forward", "packed", "plan"];
    println!("{head:<26}{first:>7}{second:>12}{third:>12}{fourth:>12}   plan, times as fast");
    for name in MODELS.iter().filter(|name| named.is_empty() || named.iter().any(|one| one == *name)) {
        let config = models::preset(name).expect("a preset").config;
        let model = config.init(&device::cpu()).expect("presets can be built");
        let [rows, columns] = config.image();
        let packed = PackedModel::new(model.clone());
        let plan = Plan::of(&model, [3, rows, columns]).expect("classifiers have plans");
        for batch in [1, 8] {
            let images = Tensor::<4>::random([batch, 3, rows, columns], Distribution::Default, &device::cpu());
            let numbers: Vec<f32> = images.to_data().try_into_vec().expect("f32");
            let runs: [&dyn Fn(); 3] = [
                &|| drop(black_box(model.forward(images.clone(), &mut Pass::silent()).into_data())),
                &|| drop(black_box(packed.forward(images.clone()).into_data())),
                &|| drop(black_box(plan.run_batch(&numbers))),
            ];
            runs.iter().for_each(|run| run());
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..ROUNDS {
                times.iter_mut().zip(runs).for_each(|(times, run)| times.push(seconds(run)));
            }
            let [forward, packed, plan] = times.map(|times| 1e3 * median(times) / batch as f64);
            println!(
                "{name:<26}{batch:>7}{forward:>12.2}{packed:>12.2}{plan:>12.2}   {:.2} of forward, {:.2} of packed",
                forward / plan,
                packed / plan
            );
        }
    }
}
