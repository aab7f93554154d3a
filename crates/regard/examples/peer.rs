//! The Rust side of `bench/run`: answers lines of `KIND MODEL BATCH` on stdin with the seconds of one run on stdout.
//!
//! Kinds: `prepared` (what `regard predict` runs), `model` (layer by layer) and `train` (a step without its optimiser).
//! Whatever a line names for the first time is made, and run once, before its clock starts.

#![allow(clippy::print_stdout)] // the seconds are what it is for

use burn::tensor::{Device, Distribution, Int, Tensor};
use regard::models::{Model, preset};
use regard::{Pass, Prepared, device, function};
use std::collections::HashMap;
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::time::Instant;

type Run = Box<dyn Fn()>;

fn main() {
    device::keep_memory();
    // on a thread of the pool, as the binary runs
    rayon::scope(|_| answer_lines());
}

fn answer_lines() {
    let mut runs: HashMap<String, Run> = HashMap::new();
    let mut answer = |line: &str| {
        let run = runs.entry(line.to_string()).or_insert_with(|| {
            let run = made(line);
            run();
            run
        });
        let start = Instant::now();
        run();
        start.elapsed().as_secs_f64()
    };
    for line in stdin().lock().lines() {
        let line = line.expect("stdin is text");
        println!("{}", answer(line.trim()));
        stdout().flush().expect("somebody reads");
    }
}

fn made(line: &str) -> Run {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [kind, name, batch] = words[..] else { panic!("`KIND MODEL BATCH`, got `{line}`") };
    let batch: usize = batch.parse().expect("a number of pictures");
    match kind {
        "prepared" => {
            let (model, images) = model_and_images(name, batch, &device::cpu());
            let model = Prepared::new(model);
            Box::new(move || drop(model.forward(images.clone())))
        }
        "model" => {
            let (model, images) = model_and_images(name, batch, &device::cpu());
            Box::new(move || drop(model.forward(images.clone(), &mut Pass::silent())))
        }
        "train" => {
            let device = device::cpu().autodiff();
            let (model, images) = model_and_images(name, batch, &device);
            let classes = Tensor::<1, Int>::arange(0..batch as i64, &device).remainder_scalar(10).reshape([batch, 1]);
            Box::new(move || {
                let logits = model.forward(images.clone(), &mut Pass::silent());
                drop(function::log_softmax(logits).gather(1, classes.clone()).mean().neg().backward());
            })
        }
        _ => panic!("no kind `{kind}`"),
    }
}

fn model_and_images(name: &str, batch: usize, device: &Device) -> (Model, Tensor<4>) {
    let config = preset(name).expect("a preset").config;
    let [rows, columns] = config.image();
    let images = Tensor::random([batch, config.channels(), rows, columns], Distribution::Normal(0.0, 1.0), device);
    (config.init(device).expect("a preset works"), images)
}
