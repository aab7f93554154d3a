//! How much memory the operators need, by a counting allocator. One test, so that nothing else allocates meanwhile.

use burn::tensor::{Distribution, Tensor};
use peak_alloc::PeakAlloc;
use regard::attention::{Affinity, DotProduct, Local, dot_product, local};
use regard::layers::NonLocalConfig;
use regard::{Pass, device};

#[global_allocator]
static PEAK: PeakAlloc = PeakAlloc;

/// Bytes that a run holds at its peak beyond what was there before.
fn peak(run: impl FnOnce()) -> usize {
    PEAK.reset_peak_usage();
    let before = PEAK.current_usage();
    run();
    PEAK.peak_usage() - before
}

/// Three tensors to attend, tracked.
fn inputs(shape: [usize; 4]) -> [Tensor<4>; 3] {
    let device = device::cpu().autodiff();
    [(); 3].map(|()| Tensor::random(shape, Distribution::Default, &device).require_grad())
}

fn attend(tokens: usize, mut pass: Pass) -> usize {
    let [query, key, value] = inputs([1, 1, tokens, 32]);
    peak(move || {
        let out = dot_product(query, key, value, &DotProduct::default(), &mut pass).out;
        drop(out.sum().backward());
    })
}

fn look_around(mut pass: Pass) -> usize {
    let [query, key, value] = inputs([1, 64, 56, 56]);
    let options = Local { heads: 8, window: 7, relative: None, scale: None };
    peak(move || {
        let out = local(query, key, value, &options, &mut pass).out;
        drop(out.sum().backward());
    })
}

/// A non-local block over a clip, forward and backward.
fn look_everywhere(affinity: Affinity, mut pass: Pass) -> usize {
    let device = device::cpu().autodiff();
    let block = NonLocalConfig { affinity, ..NonLocalConfig::new(16, 3) }.init(&device).unwrap();
    let clip = Tensor::<5>::random([1, 16, 4, 32, 32], Distribution::Default, &device).require_grad();
    peak(move || {
        let out = block.forward(clip, &mut pass).out;
        drop(out.sum().backward());
    })
}

#[test]
fn fused_attention_needs_memory_linear_in_tokens_and_windows_a_fifth_of_the_plain_path() {
    let (short, long) = (attend(1024, Pass::silent()), attend(4096, Pass::silent()));
    assert!(long < 5 * short, "1024 tokens took {short} bytes, four times as many {long}");
    let scores = 4096 * 4096 * size_of::<f32>();
    assert!(long < scores / 8, "{long} bytes, the scores alone would be {scores}");
    let plain = attend(4096, Pass::recording());
    assert!(plain > 2 * scores, "the plain path keeps scores and weights, yet took only {plain} bytes");

    for affinity in [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation] {
        let silent = look_everywhere(affinity, Pass::silent());
        assert!(silent < scores / 8, "{affinity:?}: {silent} bytes, the affinities alone would be {scores}");
    }

    let (fused, plain) = (look_around(Pass::silent()), look_around(Pass::recording()));
    assert!(fused * 5 < plain, "windows took {fused} bytes fused and {plain} plain");
}
