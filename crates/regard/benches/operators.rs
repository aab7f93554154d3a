//! Each fused operator against the same operator in plain Burn operations, in turn: `cargo bench`.
//!
//! A recording pass takes the plain path, a silent pass the kernels; nothing else differs. After criterion's own
//! report comes a table: times measured alternately round by round, the median of the ratios of the rounds (so
//! that a wandering clock cancels), and the peak memory of both by a counting allocator.

#![allow(clippy::print_stdout)] // the table is what it is for

use burn::tensor::{Device, Distribution, Tensor};
use criterion::Criterion;
use peak_alloc::PeakAlloc;
use regard::attention::{
    DotProduct, Gamma, Local, PairPosition, PairRelation, Pairwise, PatchRelation, Patchwise, Relative, dot_product,
    local, pairwise, patchwise, position,
};
use regard::models::detect::detr::{CostWeights, match_objects};
use regard::{Pass, device, function};
use std::time::Instant;

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

const ROUNDS: usize = 7;

/// One operator, forward and backward, on its two paths.
struct BenchRow {
    name: &'static str,
    run: Box<dyn Fn(Path, bool)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Path {
    Plain,
    Fused,
}

impl Path {
    fn pass(self) -> Pass {
        if self == Path::Plain { Pass::recording() } else { Pass::silent() }
    }
}

fn random<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let tensor = Tensor::random(shape, Distribution::Normal(0.0, 1.0), device);
    if device.is_autodiff() { tensor.require_grad() } else { tensor }
}

/// A row whose operator is built from inputs that were made before the clock starts.
fn row<I: Clone + 'static, const D: usize>(
    name: &'static str,
    make: impl Fn(&Device) -> I,
    operator: impl Fn(I, Path) -> Tensor<D> + 'static,
) -> BenchRow {
    let (inference, training) = (make(&device::cpu()), make(&device::cpu().autodiff()));
    let run = move |path: Path, backward: bool| {
        if backward {
            drop(operator(training.clone(), path).sum().backward());
        } else {
            drop(operator(inference.clone(), path));
        }
    };
    BenchRow { name, run: Box::new(run) }
}

fn tokens(name: &'static str, [batch, heads, count, width]: [usize; 4]) -> BenchRow {
    row(
        name,
        move |device| [(); 3].map(|()| random([batch, heads, count, width], device)),
        |[query, key, value], path| dot_product(query, key, value, &DotProduct::default(), &mut path.pass()).out,
    )
}

fn rows() -> Vec<BenchRow> {
    let maps = |channels: usize| move |device: &Device| random([1, channels, 56, 56], device);
    vec![
        tokens("dot-product attention, 8x3 heads, 197 tokens of 64", [8, 3, 197, 64]),
        tokens("dot-product attention, 1x3 heads, 1024 tokens of 64", [1, 3, 1024, 64]),
        tokens("dot-product attention, 1x1 head, 4096 tokens of 64", [1, 1, 4096, 64]),
        row(
            "local attention, 56x56x64, k=7, 8 heads",
            move |device| {
                let embedding = || random([8, 4, 7], device);
                ([(); 3].map(|()| maps(64)(device)), Relative { rows: embedding(), columns: embedding() })
            },
            |([query, key, value], relative), path| {
                let options = Local { heads: 8, window: 7, relative: Some(relative), scale: None };
                local(query, key, value, &options, &mut path.pass()).out
            },
        ),
        row(
            "pairwise attention (subtraction), 56x56x64, k=7",
            move |device| {
                let gamma = Gamma::new(18, 16, 8, device);
                (maps(16)(device), maps(16)(device), maps(64)(device), position::absolute(56, 56, device), gamma)
            },
            |(phi, psi, beta, place, gamma), path| {
                let options =
                    Pairwise { relation: PairRelation::Subtraction, position: PairPosition::Relative, window: 7 };
                pairwise(phi, psi, beta, Some(place), &gamma, &options, &mut path.pass()).out
            },
        ),
        row(
            "patchwise attention (concatenation), 56x56x64, k=7",
            move |device| {
                (maps(16)(device), maps(16)(device), maps(64)(device), Gamma::new(16 * 50, 8, 8 * 49, device))
            },
            |(phi, psi, beta, gamma), path| {
                let options = Patchwise { relation: PatchRelation::Concatenation, window: 7 };
                patchwise(Some(phi), psi, beta, &gamma, &options, &mut path.pass()).out
            },
        ),
        row(
            "softmax, 1576x197",
            |device| random([1576, 197], device),
            |x, path| match path {
                Path::Plain => burn::tensor::activation::softmax(x, 1),
                Path::Fused => function::softmax(x),
            },
        ),
        row(
            "layer norm, 1576x192",
            |device| (random([1576, 192], device), random([192], device), random([192], device)),
            |(x, weight, bias), path| match path {
                Path::Plain => {
                    let centred = x.clone() - x.mean_dim(1);
                    let variance = (centred.clone() * centred.clone()).mean_dim(1);
                    centred / variance.add_scalar(1e-6).sqrt() * weight.unsqueeze() + bias.unsqueeze()
                }
                Path::Fused => function::layer_norm(x, weight, bias, 1e-6),
            },
        ),
        row(
            "bias + GELU, 1576x768",
            |device| (random([1576, 768], device), random([768], device)),
            |(x, bias), path| match path {
                Path::Plain => burn::tensor::activation::gelu(x + bias.unsqueeze()),
                Path::Fused => function::bias_gelu(x, bias),
            },
        ),
    ]
}

/// The assignments of one picture in all layers of a decoder.
fn matching() -> impl Fn() -> usize {
    let numbers = |count: usize| -> Vec<f32> {
        let tensor = Tensor::<1>::random([count], Distribution::Uniform(0.1, 0.9), &device::cpu());
        tensor.into_data().iter().collect()
    };
    let boxes = |count: usize| numbers(4 * count).as_chunks().0.to_vec();
    let objects: Vec<(usize, [f32; 4])> =
        boxes(50).into_iter().enumerate().map(|(class, bounds)| (class % 91, bounds)).collect();
    let layers: Vec<(Vec<f32>, Vec<[f32; 4]>)> = (0..6).map(|_| (numbers(100 * 92), boxes(100))).collect();
    move || {
        let pairs = layers.iter().map(|(probabilities, boxes)| {
            match_objects(0, CostWeights::DETR, (probabilities, 92), boxes, &objects).expect("costs are finite").len()
        });
        pairs.sum()
    }
}

fn seconds(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn peak(run: impl FnOnce()) -> f64 {
    PEAK.reset_peak_usage();
    let before = PEAK.current_usage();
    run();
    (PEAK.peak_usage() - before) as f64 / 1e6
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures both paths in turn and prints a row of the table.
fn compare(row: &BenchRow, backward: bool) {
    let run = |path: Path| (row.run)(path, backward);
    let memory = [Path::Plain, Path::Fused].map(|path| peak(|| run(path)));
    // fast runs are repeated within a round, so that the clock's grain does not show
    let repeats = (0.02 / seconds(|| run(Path::Fused)).max(1e-6)).ceil().min(50.0) as usize;
    let rounds: Vec<[f64; 2]> = (0..ROUNDS)
        .map(|_| {
            [(Path::Plain, 1), (Path::Fused, repeats)]
                .map(|(path, repeats)| seconds(|| (0..repeats).for_each(|_| run(path))) / repeats as f64)
        })
        .collect();
    let [plain, fused] = [0, 1].map(|path| median(rounds.iter().map(|round| round[path] * 1e3).collect()));
    let ratio = median(rounds.iter().map(|round| round[0] / round[1]).collect());
    println!(
        "| {} | {} | {plain:.2} | {fused:.2} | {ratio:.1}x | {:.1} | {:.1} | {:.1}x |",
        row.name,
        if backward { "forward+backward" } else { "forward" },
        memory[0],
        memory[1],
        memory[0] / memory[1],
    );
}

fn main() {
    let rows = rows();
    let mut criterion = Criterion::default().sample_size(10).configure_from_args();
    for row in &rows {
        let mut group = criterion.benchmark_group(row.name);
        for (name, path) in [("plain", Path::Plain), ("fused", Path::Fused)] {
            group.bench_function(name, |bencher| bencher.iter(|| (row.run)(path, true)));
        }
        group.finish();
    }
    let matching = matching();
    criterion
        .bench_function("matching of DETR, 6 layers of 100 queries and 50 objects", |bencher| bencher.iter(&matching));
    criterion.final_summary();

    println!("\n| operator | pass | plain ms | fused ms | speed | plain MB | fused MB | memory |");
    println!("|---|---|---|---|---|---|---|---|");
    for row in &rows {
        compare(row, false);
        compare(row, true);
    }
}
