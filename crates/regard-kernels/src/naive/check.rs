//! Comparing a kernel with its definition.

/// Uniform numbers in [-1, 1) that depend on the seed only.
#[must_use]
pub fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x1234_5678_9ABC_DEF1);
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// The same numbers in f64.
#[must_use]
pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}

/// Asserts agreement element by element.
#[track_caller]
pub fn assert_close(actual: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(actual.len(), expected.len(), "numbers of elements differ");
    for (i, (&a, &e)) in actual.iter().zip(expected).enumerate() {
        let a = f64::from(a);
        assert!((a - e).abs() <= tolerance || (a.is_nan() && e.is_nan()), "element {i} is {a}, not {e}");
    }
}

/// Asserts that `grads` are the derivatives of `sum(seed * f(inputs))`, by central differences of the definition.
#[track_caller]
pub fn assert_differences(inputs: &[&[f32]], grads: &[&[f32]], seed: &[f32], f: impl Fn(&[Vec<f64>]) -> Vec<f64>) {
    const STEP: f64 = 1e-6;
    // under a tool that makes everything slow, some are enough
    let points = if std::env::var_os("REGARD_FEW_POINTS").is_some() { 2 } else { 41 };
    let mut point: Vec<Vec<f64>> = inputs.iter().map(|x| wide(x)).collect();
    let loss = |point: &[Vec<f64>]| -> f64 { f(point).iter().zip(seed).map(|(y, &s)| y * f64::from(s)).sum() };
    assert_eq!(inputs.len(), grads.len(), "one gradient for each input");
    for (which, grad) in grads.iter().enumerate() {
        assert_eq!(inputs[which].len(), grad.len(), "gradient {which} has the wrong length");
        let largest = grad.iter().fold(1e-2f64, |a, &g| a.max(f64::from(g).abs()));
        // a stride that shares no factor with the sizes of axes visits every row and column sooner or later
        let stride = (grad.len() / points).max(1) | 1;
        for i in (0..grad.len()).step_by(stride) {
            let start = point[which][i];
            point[which][i] = start + STEP;
            let above = loss(&point);
            point[which][i] = start - STEP;
            let below = loss(&point);
            point[which][i] = start;
            let slope = (above - below) / (2.0 * STEP);
            let error = (slope - f64::from(grad[i])).abs() / largest;
            assert!(error < 2e-4, "input {which}, element {i}: gradient {}, difference {slope}", grad[i]);
        }
    }
}

/// Asserts that one thread and two give the same bytes.
#[track_caller]
pub fn assert_same_on_threads(run: impl Fn() -> Vec<Vec<f32>> + Sync) {
    let bits = |threads: usize| -> Vec<Vec<u32>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads can be started");
        let out = pool.install(&run);
        out.iter().map(|values| values.iter().map(|value| value.to_bits()).collect()).collect()
    };
    assert!(bits(1) == bits(2), "one thread and two differ");
}
