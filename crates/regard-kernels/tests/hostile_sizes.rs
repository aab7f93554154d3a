//! Sizes whose products wrap around are refused by every operator, in debug and in release builds.
//!
//! Every case is a small one that fits its arrays, with one size changed so that products of sizes wrap around to what
//! they were. Without checks such a size passes every comparison of lengths in a release build, and the loops behind it
//! then read and write anywhere. An overflow that only a debug build notices counts as a failure here.

use std::panic::{AssertUnwindSafe, catch_unwind};

use regard_kernels::additive::Additive;
use regard_kernels::attention::Attention;
use regard_kernels::batch_norm::{self, Activation, BatchNorm};
use regard_kernels::blocks::Blocks;
use regard_kernels::channels::Channels;
use regard_kernels::convolution::Convolution;
use regard_kernels::convolution3d::Convolution3d;
use regard_kernels::cross_entropy::CrossEntropy;
use regard_kernels::encoder::Encoder;
use regard_kernels::gamma::{Moments, Statistics};
use regard_kernels::integer::QuantizedWeights;
use regard_kernels::linear::{Linear, NeedsGrad};
use regard_kernels::local::Local;
use regard_kernels::nl_means::NlMeans;
use regard_kernels::pair_relu::PairRelu;
use regard_kernels::pairwise::{self, Pairwise, Position};
use regard_kernels::patchwise::{self, PatchAggregate, PatchRelate};
use regard_kernels::pool::BlockMax;
use regard_kernels::pool3d::{AveragePool3d, MaxPool3d};
use regard_kernels::residual::{self, FoldedConv, Residual};
use regard_kernels::san::{Affine, Conv1x1, San, Stage};
use regard_kernels::softmax;
use regard_kernels::transformer::{Parameters, Precision, Readout, Transformer};
use regard_kernels::window::Window;

const WANTED: NeedsGrad = NeedsGrad { input: true, parameters: true };

/// Numbers that wrap to nothing when they are multiplied by a power of two, and the largest.
fn hostile() -> impl Iterator<Item = usize> {
    (56..=63).map(|bit| 1usize << bit).chain([usize::MAX, 6_148_914_691_236_517_206])
}

fn zeros(len: usize) -> Vec<f32> {
    vec![0.0; len]
}

/// Runs `case` once as it is, and then with each size made hostile.
fn refuses<const N: usize>(name: &str, sizes: [usize; N], case: impl Fn([usize; N])) {
    case(sizes);
    for at in 0..N {
        for large in hostile() {
            for new in [large, large.saturating_add(sizes[at])] {
                let mut sizes = sizes;
                sizes[at] = new;
                let Err(panic) = catch_unwind(AssertUnwindSafe(|| case(sizes))) else {
                    panic!("{name} accepts {sizes:?}")
                };
                let message = panic
                    .downcast_ref::<String>()
                    .map_or_else(|| (*panic.downcast_ref::<&str>().expect("a message")).to_owned(), String::clone);
                let unchecked = ["attempt to", "capacity overflow", "out of range", "out of bounds"];
                let found = unchecked.iter().find(|unchecked| message.contains(**unchecked));
                assert_eq!(found, None, "{name} does not check {sizes:?}: {message}");
            }
        }
    }
}

#[test]
fn the_size_that_once_crashed_is_refused() {
    // keys times this is 2, modulo 2^64
    let case = Attention { value_width: 6_148_914_691_236_517_206, ..attention([1, 1, 1, 3, 1, 1]) };
    let run = || case.forward(&[0.0], &[0.0; 3], &[0.0; 2], &[]);
    assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
}

fn attention([batch, heads, queries, keys, width, value_width]: [usize; 6]) -> Attention {
    Attention {
        batch,
        heads,
        queries,
        keys,
        width,
        value_width,
        scale: 1.0,
        causal: false,
        visible: Vec::new(),
        bias: None,
    }
}

#[test]
fn attention_refuses_sizes_that_wrap() {
    let x = zeros(16);
    refuses("attention forward", [2; 6], |sizes| {
        let _ = attention(sizes).forward(&x, &x, &x, &[]);
    });
    refuses("attention backward", [2; 6], |sizes| {
        let _ = attention(sizes).backward([&x, &x, &x, &[]], &x, &zeros(8), &x);
    });
    refuses("attention bias", [2; 2], |bias| {
        let _ = Attention { bias: Some(bias), ..attention([2; 6]) }.forward(&x, &x, &x, &x);
    });
    refuses("attention mask", [2; 6], |sizes| {
        let _ = Attention { visible: vec![1.0; 4], ..attention(sizes) }.forward(&x, &x, &x, &[]);
    });
    refuses("attention on rows", [2; 4], |[batch, heads, tokens, width]| {
        let case = attention([batch, heads, tokens, tokens, width, width]);
        let (out, lse) = case.forward_rows(&zeros(48));
        let _ = case.backward_rows(&zeros(48), &out, &lse, &out);
    });
    refuses("additive", [2; 4], |[batch, queries, keys, hidden]| {
        let case = Additive { batch, queries, keys, hidden };
        let scores = case.forward([&zeros(8), &zeros(8), &zeros(2)]);
        let _ = case.backward([&zeros(8), &zeros(8), &zeros(2)], &scores);
    });
}

#[test]
fn norms_and_losses_refuse_sizes_that_wrap() {
    let x = zeros(8);
    let moments = Moments { mean: zeros(2), variance: zeros(2), count: 1 };
    refuses("batch moments", [2; 2], |[channels, pixels]| _ = batch_norm::moments(&x, channels, pixels));
    refuses("batch norm", [2], |[pixels]| {
        let case = BatchNorm { pixels, epsilon: 1.0, activation: Activation::Relu };
        let _ = case.forward(&x, &zeros(2), &zeros(2), &moments);
    });
    refuses("batch norm backward", [2], |[pixels]| {
        let case = BatchNorm { pixels, epsilon: 1.0, activation: Activation::Identity };
        let _ = case.backward([&x, &zeros(2), &zeros(2)], &moments, Statistics::Batch, &x);
    });
    refuses("cross entropy", [2], |[classes]| {
        let case = CrossEntropy { classes, targets: vec![0; 4], smoothing: 0.1 };
        let (_, lse) = case.forward(&x);
        let _ = case.backward(&x, &lse, 1.0);
    });
    for run in [softmax::softmax, softmax::log_softmax] {
        refuses("softmax", [2], |[width]| _ = run(&x, width));
    }
    for run in [softmax::softmax_backward, softmax::log_softmax_backward] {
        refuses("softmax backward", [2], |[width]| _ = run(&x, &x, width));
    }
}

#[test]
fn linear_maps_and_convolutions_refuse_sizes_that_wrap() {
    refuses("linear", [2; 2], |[inputs, outputs]| {
        let _ = Linear { inputs, outputs }.forward(&zeros(8), &zeros(4), &zeros(2));
    });
    refuses("linear backward", [2; 2], |[inputs, outputs]| {
        let _ = Linear { inputs, outputs }.backward(&zeros(8), &zeros(4), &zeros(8), WANTED);
    });
    refuses("rounded weights", [2], |[inputs]| _ = QuantizedWeights::new(&zeros(8), inputs));
    // the stride may be as large as it likes: there is one window then
    let convolution = |[inputs, outputs, height, width, kernel, padding]: [usize; 6]| Convolution {
        inputs,
        outputs,
        image: [height, width],
        kernel,
        stride: 2,
        padding,
    };
    let sizes = [2, 2, 4, 4, 2, 0];
    refuses("convolution", sizes, |sizes| {
        let _ = convolution(sizes).forward(&zeros(64), &zeros(16), &zeros(2));
    });
    refuses("convolution backward", sizes, |sizes| {
        let _ = convolution(sizes).backward(&zeros(64), &zeros(16), &zeros(16), WANTED);
    });
    refuses("convolution by a pixel", [2; 4], |[inputs, outputs, height, width]| {
        let case = Convolution { inputs, outputs, image: [height, width], kernel: 1, stride: 1, padding: 0 };
        let _ = case.forward(&zeros(16), &zeros(4), &zeros(2));
    });
}

#[test]
fn convolutions_and_pools_of_clips_refuse_sizes_that_wrap() {
    let convolution = |[frames, height, width, kernel, padding]: [usize; 5]| Convolution3d {
        inputs: 2,
        outputs: 2,
        clip: [frames, height, width],
        kernel: [kernel, 1, 2],
        stride: [1, 2, 2],
        padding: [padding, 0, 0],
    };
    let sizes = [2, 4, 4, 2, 0];
    refuses("convolution of clips", sizes, |sizes| {
        let _ = convolution(sizes).forward(&zeros(128), &zeros(16), &zeros(2));
    });
    refuses("convolution of clips backward", sizes, |sizes| {
        let _ = convolution(sizes).backward(&zeros(128), &zeros(16), &zeros(16), WANTED);
    });
    refuses("max pool", sizes, |[frames, height, width, kernel, padding]| {
        let kernel = [kernel, 2, 2];
        let case = MaxPool3d { clip: [frames, height, width], kernel, stride: [2; 3], padding: [padding, 0, 0] };
        let _ = case.backward(&zeros(64), &case.forward(&zeros(64)));
    });
    refuses("pair relu", [2; 4], |[batch, queries, keys, width]| {
        let case = PairRelu { batch, queries, keys, width };
        let _ = case.backward([&zeros(4), &zeros(4), &zeros(8)], &case.forward([&zeros(4), &zeros(4), &zeros(8)]));
    });
    refuses("average pool", [2, 4, 4, 2], |[frames, height, width, kernel]| {
        let case = AveragePool3d { clip: [frames, height, width], kernel: [2, kernel, 2], stride: [2; 3] };
        let _ = case.backward(&zeros(64), &case.forward(&zeros(64)));
    });
}

#[test]
fn rearrangements_and_pools_refuse_sizes_that_wrap() {
    refuses("channels", [4, 2, 2, 2], |[whole, first, count, pixels]| {
        let case = Channels { whole, first, count, pixels };
        let _ = case.place(&case.select(&zeros(16)));
    });
    // the whole may be as large as memory is
    refuses("channels placed", [2, 2, 2], |[first, count, pixels]| {
        let _ = Channels { whole: 4, first, count, pixels }.place(&zeros(8));
    });
    let blocks = |[batch, channels, height, width, block]: [usize; 5]| Blocks { batch, channels, height, width, block };
    refuses("blocks", [2; 5], |sizes| _ = blocks(sizes).interleave(&zeros(16)));
    refuses("blocks back", [2; 5], |sizes| _ = blocks(sizes).separate(&zeros(128)));
    refuses("block maximum", [2; 3], |[height, width, block]| {
        let _ = BlockMax { height, width, block }.forward(&zeros(8));
    });
    refuses("block maximum backward", [2; 3], |[height, width, block]| {
        let _ = BlockMax { height, width, block }.backward(&zeros(8), &zeros(2));
    });
    refuses("non-local means", [2, 4, 4, 3], |[channels, rows, columns, patch]| {
        let image = zeros(32);
        let case = NlMeans { image: &image, shape: [channels, rows, columns], patch, search: 3, sigma: 0.1, h: 1.0 };
        case.run(&mut zeros(32), None, &|_| ());
    });
    refuses("non-local means with weights", [3], |[search]| {
        let image = zeros(32);
        let case = NlMeans { image: &image, shape: [2, 4, 4], patch: 3, search, sigma: 0.1, h: 1.0 };
        case.run(&mut zeros(32), Some(&mut zeros(16 * 9)), &|_| ());
    });
}

#[test]
fn windows_refuse_sizes_that_wrap() {
    let local = |[batch, heads, width, value_width, height, columns, size]: [usize; 7], relative| Local {
        batch,
        heads,
        width,
        value_width,
        window: Window::new(height, columns, size),
        relative,
    };
    let (x, embedding) = (zeros(128), zeros(4));
    for relative in [false, true] {
        let (rows, columns) = if relative { (&embedding[..], &embedding[..]) } else { (&[][..], &[][..]) };
        refuses("local attention", [2, 2, 2, 2, 4, 4, 2], |sizes| {
            let _ = local(sizes, relative).forward([&x, &x, &x, rows, columns]);
        });
        refuses("local attention backward", [2, 2, 2, 2, 4, 4, 2], |sizes| {
            let _ = local(sizes, relative).backward([&x, &x, &x, rows, columns], &x);
        });
    }
    refuses("images side by side", [4, 4, 2], |[height, width, size]| {
        let window = Window::beside(height, width, size);
        let case = Local { batch: 2, heads: 2, width: 2, value_width: 2, window, relative: false };
        let x = zeros(128 * 16);
        let _ = case.forward([&x, &x, &x, &[], &[]]);
    });
}

#[test]
fn the_operators_of_san_refuse_sizes_that_wrap() {
    let moments = |rows: usize| Moments { mean: zeros(rows), variance: vec![1.0; rows], count: 1 };
    let pairwise = |[batch, features, values, weights, hidden, height, width, size]: [usize; 8], relation| Pairwise {
        batch,
        features,
        values,
        weights,
        hidden,
        window: Window::new(height, width, size),
        relation,
        position: Position::Relative,
        epsilon: 1e-5,
    };
    let (x, position) = (zeros(64), zeros(32));
    for relation in [pairwise::Relation::Subtraction, pairwise::Relation::Concatenation] {
        let sizes = [2, 2, 2, 2, 2, 4, 4, 2];
        let case = pairwise(sizes, relation);
        let (gamma, both) = (zeros(case.gamma()), [moments(case.delta()), moments(2)]);
        refuses("pairwise", sizes, |sizes| {
            let _ = pairwise(sizes, relation).forward([&x, &x, &x, &position, &gamma], &both);
        });
        refuses("pairwise moments", sizes, |sizes| {
            let _ = pairwise(sizes, relation).moments([&x, &x, &x, &position, &gamma]);
        });
        refuses("pairwise backward", sizes, |sizes| {
            let case = pairwise(sizes, relation);
            let _ = case.backward([&x, &x, &x, &position, &gamma], &both, Statistics::Batch, &x);
        });
    }
    let relate = |[batch, features, hidden, height, width, size]: [usize; 6], relation| PatchRelate {
        batch,
        features,
        hidden,
        window: Window::new(height, width, size),
        relation,
        epsilon: 1e-5,
    };
    for relation in [patchwise::Relation::Star, patchwise::Relation::Clique, patchwise::Relation::Concatenation] {
        let sizes = [2, 2, 2, 4, 4, 2];
        let case = relate(sizes, relation);
        let (gamma, moments) = (zeros(case.delta() * 4), moments(case.delta()));
        refuses("patchwise relation", sizes, |sizes| {
            let _ = relate(sizes, relation).forward([&x, &x, &gamma], &moments);
        });
        refuses("patchwise moments", sizes, |sizes| _ = relate(sizes, relation).moments([&x, &x, &gamma]));
        refuses("patchwise relation backward", sizes, |sizes| {
            let _ = relate(sizes, relation).backward([&x, &x, &gamma], &moments, Statistics::Batch, &x);
        });
    }
    let aggregate = |[batch, hidden, values, weights, height, width, size]: [usize; 7]| PatchAggregate {
        batch,
        hidden,
        values,
        weights,
        window: Window::new(height, width, size),
    };
    let sizes = [2, 2, 2, 2, 4, 4, 2];
    refuses("patchwise sum", sizes, |sizes| {
        let _ = aggregate(sizes).forward([&x, &zeros(16), &zeros(8), &x]);
    });
    refuses("patchwise sum backward", sizes, |sizes| {
        let _ = aggregate(sizes).backward([&x, &zeros(16), &zeros(8), &x], &x);
    });
}

#[test]
fn whole_networks_refuse_sizes_that_wrap() {
    let encoder = |[tokens, dim, heads, inner]: [usize; 4]| Encoder { tokens, dim, heads, inner, epsilon: 1e-5 };
    let sizes = [2, 4, 2, 4];
    let parameters: Vec<Vec<f32>> = encoder(sizes).lengths().into_iter().map(zeros).collect();
    let parameters: [&[f32]; 12] = std::array::from_fn(|i| parameters[i].as_slice());
    let x = zeros(16);
    let (_, kept) = encoder(sizes).forward(&x, parameters);
    refuses("encoder", sizes, |sizes| _ = encoder(sizes).forward(&x, parameters));
    refuses("encoder inference", sizes, |sizes| _ = encoder(sizes).infer(&x, parameters));
    refuses("encoder backward", sizes, |sizes| {
        let _ = encoder(sizes).backward(&x, parameters, &kept, &x, true);
    });

    refuses("transformer", [2, 4, 4, 2, 2], |[channels, height, width, patch, heads]| {
        let (dim, numbers) = (zeros(4), zeros(64));
        let parameters = Parameters {
            channels,
            image: [height, width],
            patch,
            heads,
            epsilon: 1e-5,
            embed: (&numbers[..32], &dim),
            prefix: dim.clone(),
            positions: &numbers[..16],
            blocks: Vec::new(),
            readout: Readout::Tokens,
            norm: (&dim, &dim),
            classifiers: vec![(&numbers[..8], &dim[..2])],
        };
        let _ = Transformer::new(&parameters, Precision::Float).forward(&zeros(32));
    });

    let folded = |[inputs, outputs, kernel]: [usize; 3], [kernel_size, stride, padding]: [usize; 3]| FoldedConv {
        weight: zeros(inputs * outputs * kernel * kernel),
        bias: zeros(outputs),
        kernel: kernel_size,
        stride,
        padding,
    };
    // a stride may be as large as it likes
    let network = |[channels, kernel, padding]: [usize; 3]| {
        Residual::new(&residual::Parameters {
            channels,
            stem: folded([2, 2, 2], [kernel, 2, padding]),
            pool: true,
            blocks: Vec::new(),
            classifier: [zeros(4), zeros(2)],
        })
    };
    refuses("residual network", [2, 2, 1], |sizes| _ = network(sizes).forward(&zeros(32), [4, 4]));
    refuses("residual network's pictures", [4, 4], |sides| _ = network([2, 2, 1]).forward(&zeros(32), sides));

    let map = |inputs: usize, outputs: usize| Conv1x1 { weight: zeros(inputs * outputs), bias: zeros(outputs) };
    let san = |channels: usize, window: usize| {
        let norm = Affine { scale: zeros(2), shift: zeros(2) };
        let stage = Stage { transition: map(2, 2), blocks: Vec::new(), norm, window };
        San::new(channels, map(2, 2), vec![stage], map(2, 2))
    };
    refuses("san", [2, 3], |[channels, window]| _ = san(channels, window).forward(&zeros(32), [4, 4]));
    refuses("san's pictures", [4, 4], |sides| _ = san(2, 3).forward(&zeros(32), sides));
}
