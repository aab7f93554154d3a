//! Other Rust frameworks, behind the same lines as `crates/regard/examples/peer.rs`:
//! `seconds REPEATS KIND MODEL BATCH` and `parameters KIND MODEL`.
//!
//! Kinds: `burn` and `burn-train` (Burn's own modules and AdamW, nothing of ours) and `candle` (candle-transformers' ViT).

mod burn_vit;
mod candle_vit;

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _, stdin, stdout};
use std::time::Instant;

type Run = Box<dyn FnMut()>;

/// A Vision Transformer for pictures of 224 x 224 with a thousand classes, or the small one.
#[derive(Clone, Copy)]
pub struct Size {
    pub image: usize,
    pub patch: usize,
    pub classes: usize,
    pub dim: usize,
    pub depth: usize,
    pub heads: usize,
    pub mlp_dim: usize,
}

impl Size {
    fn of(model: &str) -> Self {
        let large = |dim, heads| Self { image: 224, patch: 16, classes: 1000, dim, depth: 12, heads, mlp_dim: 4 * dim };
        match model {
            "vit-tiny-patch16-224" => large(192, 3),
            "vit-small-patch16-224" => large(384, 6),
            "vit-base-patch16-224" => large(768, 12),
            "vit-nano" => Self { image: 32, patch: 4, classes: 10, dim: 128, depth: 5, heads: 4, mlp_dim: 512 },
            _ => panic!("no model `{model}`"),
        }
    }
}

fn main() {
    let mut runs: HashMap<String, Run> = HashMap::new();
    for line in stdin().lock().lines() {
        let line = line.expect("stdin is text");
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["parameters", "burn", model] => println!("{}", burn_vit::parameters(Size::of(model))),
            ["parameters", "candle", model] => println!("{}", candle_vit::parameters(Size::of(model))),
            ["seconds", repeats, kind, model, batch] => {
                let repeats: usize = repeats.parse().expect("a number of runs");
                let run = runs.entry(words[2..].join(" ")).or_insert_with(|| made(kind, model, batch));
                if repeats > 1 {
                    run();
                }
                let start = Instant::now();
                (0..repeats).for_each(|_| run());
                println!("{}", start.elapsed().as_secs_f64() / repeats as f64);
            }
            ["drop"] => {
                runs.clear();
                println!("0");
            }
            _ => panic!("`seconds REPEATS KIND MODEL BATCH`, got `{line}`"),
        }
        stdout().flush().expect("somebody reads");
    }
}

fn made(kind: &str, model: &str, batch: &str) -> Run {
    let (size, batch) = (Size::of(model), batch.parse().expect("a number of pictures"));
    match kind {
        "burn" => burn_vit::inference(size, batch),
        "burn-train" => burn_vit::training(size, batch),
        "candle" => candle_vit::inference(size, batch),
        _ => panic!("no kind `{kind}`"),
    }
}
