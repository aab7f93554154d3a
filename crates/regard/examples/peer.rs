//! The Rust side of `bench/run`: answers each line on stdin with a number on stdout.
//!
//! - `seconds REPEATS WORK`: the mean time of a run. What is named for the first time is made before the clock starts,
//!   and when there are repeats, one run comes before them.
//! - `peak WORK`: bytes that a run holds at its peak beyond what was there before, by a counting allocator.
//! - `parameters MODEL`: how many it has.
//! - `check FILE WORK`: writes inputs, weights and outputs of the work as safetensors, for a peer to compute the same.
//! - `drop`: forgets everything that was made.
//!
//! `WORK` is one of
//! - `prepared MODEL BATCH`: inference as `regard predict` does it; `int8 MODEL BATCH`: the same in eight bits;
//! - `model MODEL BATCH`: inference layer by layer;
//! - `detect MODEL ROWS COLUMNS`: the boxes of one picture of that size, layer by layer;
//! - `clips MODEL BATCH`: inference of a model of video, layer by layer;
//! - `train MODEL BATCH`: a step of the training engine, with `AdamW`;
//! - `gradient MODEL BATCH`: a step of plain gradient descent at a rate of 1, for `check`;
//! - `forward OPERATOR SIZES` and `backward OPERATOR SIZES`, which is forward and backward;
//! - `layer attention|recurrent|convolution TOKENS WIDTH`: a layer of each kind over one sentence, forward;
//! - `decode kept|again TOKENS`: a small Transformer writes so many tokens, with a cache or without;
//! - `pictures FOLDER COUNT`: JPEG to normalised pixels, one by one; `pictures-together`: on all threads.

#![allow(clippy::print_stdout)] // the numbers are what it is for

use burn::tensor::{Device, Distribution, Tensor, TensorData};
use peak_alloc::PeakAlloc;
use rayon::prelude::*;
use regard::attention::{
    DotProduct, Gamma, Local, PairPosition, PairRelation, Pairwise, PatchRelation, Patchwise, Relative, dot_product,
    local, pairwise, patchwise, position,
};
use regard::data::{Batch, Clips, Images, Picture, Preprocess, Target, Tokens, prepare};
use regard::layers::{GatedUnit, Linear, MultiHeadAttention};
use regard::models::{Model, detect, preset, translator, video};
use regard::tasks::classify::{ClassLoss, Recipe};
use regard::train::{Engine, Optimiser, SingleProcess};
use regard::translate::{Search, translate as decode};
use regard::weights::{Tensors, shapes, tensors, write_tensors};
use regard::{PackedModel, Pass, device, function};
use std::collections::HashMap;
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::path::Path;
use std::time::Instant;

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// Gives back what it computed, by name, when asked to; that is not part of what is timed.
type Run = Box<dyn FnMut(Option<&mut Tensors>)>;

/// The rate of every training step that is timed.
const RATE: f64 = 1e-4;
const ADAMW: Optimiser = Optimiser::Adamw { rate: RATE, betas: [0.9, 0.999], epsilon: 1e-8, decay: 0.05 };
const SGD: Optimiser = Optimiser::Sgd { rate: 1.0, momentum: 0.0, nesterov: false, decay: 0.0 };

fn main() {
    device::keep_memory();
    device::large_pages();
    // on a thread of the pool, as the binary runs
    rayon::scope(|_| answer_lines());
}

fn answer_lines() {
    let mut runs: HashMap<String, Run> = HashMap::new();
    for line in stdin().lock().lines() {
        let line = line.expect("stdin is text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["seconds", repeats, ref work @ ..] => {
                let run = runs.entry(work.join(" ")).or_insert_with(|| made(work).1);
                seconds(run, repeats.parse().expect("a number of runs"))
            }
            ["peak", ref work @ ..] => {
                let run = runs.entry(work.join(" ")).or_insert_with(|| made(work).1);
                peak(run)
            }
            ["parameters", model] => parameters(model),
            ["check", file, ref work @ ..] => check(Path::new(file), work),
            ["drop"] => {
                runs.clear();
                0.0
            }
            _ => panic!("`seconds`, `peak`, `parameters`, `check` or `drop`, got `{line}`"),
        };
        println!("{answer}");
        stdout().flush().expect("somebody reads");
    }
}

fn seconds(run: &mut Run, repeats: usize) -> f64 {
    if repeats > 1 {
        run(None);
    }
    let start = Instant::now();
    (0..repeats).for_each(|_| run(None));
    start.elapsed().as_secs_f64() / repeats as f64
}

fn peak(run: &mut Run) -> f64 {
    // the first run may make what later ones find
    run(None);
    PEAK.reset_peak_usage();
    let before = PEAK.current_usage();
    run(None);
    (PEAK.peak_usage() - before) as f64
}

fn parameters(model: &str) -> f64 {
    let model = preset(model).expect("a preset").config.init(&device::cpu()).expect("a preset works");
    let trained = shapes(&model).into_iter().filter(|(name, _)| !name.contains("running_"));
    trained.map(|(_, shape)| shape.iter().product::<usize>()).sum::<usize>() as f64
}

/// Runs the work and writes what it began with and what came out.
fn check(file: &Path, work: &[&str]) -> f64 {
    let (mut tensors, mut run) = made(work);
    run(Some(&mut tensors));
    write_tensors(file, &tensors).expect("the file can be written");
    0.0
}

/// What the work begins with, and the work.
fn made(work: &[&str]) -> (Tensors, Run) {
    let number = |word: &str| word.parse::<usize>().unwrap_or_else(|_| panic!("`{word}` is no number in {work:?}"));
    match *work {
        ["prepared", name, batch] => inference(name, number(batch), |model| {
            let model = PackedModel::new(model);
            Box::new(move |images| model.forward(images))
        }),
        ["model", name, batch] => {
            inference(name, number(batch), |model| Box::new(move |images| model.forward(images, &mut Pass::silent())))
        }
        ["int8", name, batch] => inference(name, number(batch), |model| {
            let model = PackedModel::int8(model).expect("a model with a form in eight bits");
            Box::new(move |images| model.forward(images))
        }),
        ["detect", name, rows, columns] => detection(name, [number(rows), number(columns)]),
        ["clips", name, batch] => clips(name, number(batch)),
        ["train", name, batch] => training(name, number(batch), ADAMW, RATE),
        ["gradient", name, batch] => training(name, number(batch), SGD, 1.0),
        ["forward", name, ref sizes @ ..] => {
            let sizes: Vec<usize> = sizes.iter().map(|size| number(size)).collect();
            let Operator { inputs, run } = operator(name, &sizes, &device::cpu());
            (inputs, Box::new(move |kept| keep(kept, "out", run())))
        }
        ["backward", name, ref sizes @ ..] => {
            let sizes: Vec<usize> = sizes.iter().map(|size| number(size)).collect();
            let Operator { inputs, run } = operator(name, &sizes, &device::cpu().autodiff());
            let run = move |kept: Option<&mut Tensors>| {
                let out = run();
                drop(out.clone().sum().backward());
                keep(kept, "out", out);
            };
            (inputs, Box::new(run))
        }
        ["layer", kind, count, width] => layer(kind, number(count), number(width)),
        ["decode", how, count] => decoding(how == "kept", number(count)),
        ["pictures", folder, count] => {
            pictures(folder, number(count), |files| files.iter().map(|file| pixels(file)).collect())
        }
        ["pictures-together", folder, count] => {
            pictures(folder, number(count), |files| files.par_iter().map(|file| pixels(file)).collect())
        }
        _ => panic!("no work {work:?}"),
    }
}

fn keep<const D: usize>(kept: Option<&mut Tensors>, name: &str, tensor: Tensor<D>) {
    if let Some(kept) = kept {
        kept.insert(name.into(), tensor.into_data());
    }
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let tensor = Tensor::random(shape, Distribution::Normal(0.0, 1.0), device);
    if device.is_autodiff() { tensor.require_grad() } else { tensor }
}

fn model_and_images(name: &str, batch: usize, device: &Device) -> (Model, Tensor<4>) {
    let config = preset(name).expect("a preset").config;
    let [rows, columns] = config.image();
    let images = Tensor::random([batch, config.channels(), rows, columns], Distribution::Normal(0.0, 1.0), device);
    (config.init(device).expect("a preset works"), images)
}

type Forward = Box<dyn Fn(Tensor<4>) -> Tensor<2>>;

fn inference(name: &str, batch: usize, ready: impl FnOnce(Model) -> Forward) -> (Tensors, Run) {
    let (model, images) = model_and_images(name, batch, &device::cpu());
    let mut inputs = tensors(&model);
    inputs.insert("images".into(), images.to_data());
    let forward = ready(model);
    (inputs, Box::new(move |kept| keep(kept, "logits", forward(images.clone()))))
}

/// Logits of clips; there is no check of them here, the parity fixtures hold models of video to their upstreams.
fn clips(name: &str, batch: usize) -> (Tensors, Run) {
    let device = device::cpu();
    let config = video::preset(name).expect("a model of video").config;
    let [rows, columns] = config.image();
    let shape = [batch, config.channels(), config.frames(), rows, columns];
    let clips = Clips { pixels: Tensor::random(shape, Distribution::Normal(0.0, 1.0), &device) };
    let model = config.init(&device).expect("a preset works");
    let run = move |kept: Option<&mut Tensors>| keep(kept, "logits", model.forward(&clips, &mut Pass::silent()));
    (Tensors::new(), Box::new(run))
}

/// Boxes of one picture; there is no check of them here, the parity fixtures hold detectors to their upstreams.
fn detection(name: &str, [rows, columns]: [usize; 2]) -> (Tensors, Run) {
    let device = device::cpu();
    let model = detect::preset(name).expect("a detector").config.init(&device).expect("a preset works");
    let images = Images::unpadded(Tensor::random([1, 3, rows, columns], Distribution::Normal(0.0, 1.0), &device));
    let run = move |_: Option<&mut Tensors>| drop(model.detect(&images, &mut Pass::silent()));
    (Tensors::new(), Box::new(run))
}

/// Steps on one batch whose classes go from 0 to 9 and again; what the first one changed is kept as `change.NAME`.
fn training(name: &str, batch: usize, optimiser: Optimiser, rate: f64) -> (Tensors, Run) {
    let device = device::cpu();
    let (model, images) = model_and_images(name, batch, &device.clone().autodiff());
    let mut inputs = tensors(&model);
    inputs.insert("images".into(), images.to_data());
    let shape = images.dims();
    let images = images.into_data().try_to_vec().expect("pixels are f32");
    let parts = [Batch { images, shape, targets: (0..batch).map(|picture| Target::pure(picture % 10)).collect() }];
    let before = tensors(&model);
    let mut recipe = Recipe::default();
    recipe.common.optimiser = optimiser;
    let objective = ClassLoss::new(&recipe, None, &device);
    let mut engine = Engine::new(objective, (&recipe.common).into(), model).expect("a recipe without groups works");
    let mut losses = Vec::new();
    let mut step = 0;
    let run = move |kept: Option<&mut Tensors>| {
        let done = engine.step(step, rate, &parts, false, &SingleProcess).expect("the loss is finite");
        step += 1;
        if let Some(kept) = kept {
            if losses.is_empty() {
                for (name, after) in tensors(&engine.model()) {
                    let change = before[&name].iter::<f32>().zip(after.iter::<f32>()).map(|(from, to)| to - from);
                    let change = TensorData::new(change.collect::<Vec<f32>>(), after.shape().clone());
                    kept.insert(format!("change.{name}"), change);
                }
            }
            losses.push(done.loss as f32);
            kept.insert("losses".into(), TensorData::new(losses.clone(), [losses.len()]));
        }
    };
    (inputs, Box::new(run))
}

/// An operator and its inputs, by name.
struct Operator {
    inputs: Tensors,
    run: Box<dyn Fn() -> Tensor<4>>,
}

fn operator(name: &str, sizes: &[usize], device: &Device) -> Operator {
    let named = |tensors: &[(&str, TensorData)]| -> Tensors {
        tensors.iter().map(|(name, tensor)| ((*name).into(), tensor.clone())).collect()
    };
    match (name, sizes) {
        ("dot-product", &[batch, heads, count, width]) => {
            let [query, key, value] = [(); 3].map(|()| random([batch, heads, count, width], device));
            let inputs = named(&[("query", query.to_data()), ("key", key.to_data()), ("value", value.to_data())]);
            let attend = move || {
                let (query, key, value) = (query.clone(), key.clone(), value.clone());
                dot_product(query, key, value, &DotProduct::default(), &mut Pass::silent()).out
            };
            Operator { inputs, run: Box::new(attend) }
        }
        ("local", &[side, channels, heads, window]) => {
            let [query, key, value] = [(); 3].map(|()| random([1, channels, side, side], device));
            let [rows, columns] = [(); 2].map(|()| random([heads, channels / heads / 2, window], device));
            let inputs = named(&[
                ("query", query.to_data()),
                ("key", key.to_data()),
                ("value", value.to_data()),
                ("rows", rows.to_data()),
                ("columns", columns.to_data()),
            ]);
            let options = Local { heads, window, relative: Some(Relative { rows, columns }), scale: None };
            let attend = move || local(query.clone(), key.clone(), value.clone(), &options, &mut Pass::silent()).out;
            Operator { inputs, run: Box::new(attend) }
        }
        ("pairwise" | "patchwise", &[side, channels, window]) => {
            // the widths of a SAN unit: a quarter for the relation, eight channels share a weight
            let (related, weights) = (channels / 4, channels / 8);
            let [phi, psi] = [(); 2].map(|()| random([1, related, side, side], device));
            let beta = random([1, channels, side, side], device);
            let mut inputs = named(&[("phi", phi.to_data()), ("psi", psi.to_data()), ("beta", beta.to_data())]);
            let with_gamma = |gamma: &Gamma, inputs: &mut Tensors| {
                inputs.extend(tensors(gamma).into_iter().map(|(name, tensor)| (format!("gamma.{name}"), tensor)));
            };
            if name == "pairwise" {
                let gamma = Gamma::new(related + 2, related, weights, device);
                with_gamma(&gamma, &mut inputs);
                let place = position::absolute(side, side, device);
                let options =
                    Pairwise { relation: PairRelation::Subtraction, position: PairPosition::Relative, window };
                let attend = move || {
                    let (phi, psi, beta, place) = (phi.clone(), psi.clone(), beta.clone(), place.clone());
                    pairwise(phi, psi, beta, Some(place), &gamma, &options, &mut Pass::silent()).out
                };
                Operator { inputs, run: Box::new(attend) }
            } else {
                let offsets = window * window;
                let gamma = Gamma::new(related * (offsets + 1), weights, weights * offsets, device);
                with_gamma(&gamma, &mut inputs);
                let options = Patchwise { relation: PatchRelation::Concatenation, window };
                let attend = move || {
                    let (phi, psi, beta) = (phi.clone(), psi.clone(), beta.clone());
                    patchwise(Some(phi), psi, beta, &gamma, &options, &mut Pass::silent()).out
                };
                Operator { inputs, run: Box::new(attend) }
            }
        }
        ("softmax" | "layer-norm" | "bias-gelu", &[rows, width]) => {
            let x = random([1, 1, rows, width], device);
            let [weight, bias] = [(); 2].map(|()| random([width], device));
            let inputs = named(&[("x", x.to_data()), ("weight", weight.to_data()), ("bias", bias.to_data())]);
            let run: Box<dyn Fn() -> Tensor<4>> = match name {
                "softmax" => Box::new(move || function::softmax(x.clone())),
                "layer-norm" => Box::new(move || function::layer_norm(x.clone(), weight.clone(), bias.clone(), 1e-6)),
                _ => Box::new(move || function::bias_gelu(x.clone(), bias.clone())),
            };
            Operator { inputs, run }
        }
        _ => panic!("no operator `{name}` of {sizes:?}"),
    }
}

/// What each token becomes by way of the others, in the three ways that the Transformer's paper compares.
fn layer(kind: &str, count: usize, width: usize) -> (Tensors, Run) {
    let device = device::cpu();
    let x = random([1, count, width], &device);
    let forward: Box<dyn Fn(Tensor<3>) -> Tensor<3>> = match kind {
        "attention" => {
            let layer = MultiHeadAttention::new(width, 8, &device);
            Box::new(move |x| layer.self_attention(x, &DotProduct::default(), &mut Pass::silent()))
        }
        "recurrent" => {
            let layer = GatedUnit::new(width, width, None, &device);
            Box::new(move |x| layer.forward(x, None, false))
        }
        "convolution" => {
            // three neighbours are one long row
            let layer = Linear::new(3 * width, width, &device);
            Box::new(move |x| {
                let edge = Tensor::zeros([1, 1, width], &x.device());
                let all = Tensor::cat(vec![edge.clone(), x, edge], 1);
                let neighbours = (0..3).map(|place| all.clone().narrow(1, place, count)).collect();
                layer.forward(Tensor::cat(neighbours, 2))
            })
        }
        _ => panic!("no layer `{kind}`"),
    };
    (Tensors::new(), Box::new(move |kept| keep(kept, "out", forward(x.clone()))))
}

/// Greedy, from as many tokens as it writes.
fn decoding(cache: bool, count: usize) -> (Tensors, Run) {
    let device = device::cpu();
    let model = translator::preset("transformer-small").expect("a preset").config.init(&device).expect("it works");
    let source = Tokens::new(&[(5..5 + count as u32).collect::<Vec<u32>>()]);
    // no token ends the sentence, so that it is cut
    let search = Search { cache, longer: 0, ..Search::new(2, u32::MAX).greedy() };
    let run = move |_: Option<&mut Tensors>| {
        let written = decode(&model, &source, &search, &device);
        assert_eq!(written[0][0].tokens.len(), count);
    };
    (Tensors::new(), Box::new(run))
}

/// `[3, 224, 224]`
fn pixels(file: &[u8]) -> Vec<f32> {
    prepare(&Picture::decode(file).expect("a picture"), &Preprocess::DEIT, [224, 224])
}

/// The first pictures of a folder, again from the first when there are fewer; the files are read before.
fn pictures(folder: &str, count: usize, ready: impl Fn(&[Vec<u8>]) -> Vec<Vec<f32>> + 'static) -> (Tensors, Run) {
    let mut names: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder of pictures")
        .map(|entry| entry.expect("it can be listed").path())
        .collect();
    names.sort();
    let files: Vec<Vec<u8>> =
        names.iter().cycle().take(count).map(|name| std::fs::read(name).expect("it can be read")).collect();
    let run = move |kept: Option<&mut Tensors>| {
        let values = ready(&files);
        if let Some(kept) = kept {
            kept.insert("pixels".into(), TensorData::new(values.concat(), [values.len(), 3, 224, 224]));
        }
    };
    (Tensors::new(), Box::new(run))
}
