//! Scaled dot-product attention by its definition.

/// Who may look where: row-major `[N, M]`, for one head.
#[allow(missing_debug_implementations)] // closures have nothing to show
pub struct Masks<'a> {
    pub scale: f64,
    pub hidden: &'a dyn Fn(usize, usize) -> bool,
    pub bias: &'a dyn Fn(usize, usize) -> f64,
}

/// One head: `[N, K], [M, K], [M, V] -> [N, V]`.
#[must_use]
pub fn attention(q: &[f64], k: &[f64], v: &[f64], [keys, width, values]: [usize; 3], masks: &Masks) -> Vec<f64> {
    let queries = q.len() / width;
    let mut out = vec![0.0; queries * values];
    for n in 0..queries {
        let scores: Vec<f64> = (0..keys)
            .map(|m| {
                let dot: f64 = (0..width).map(|c| q[n * width + c] * k[m * width + c]).sum();
                if (masks.hidden)(n, m) { f64::NEG_INFINITY } else { masks.scale * dot + (masks.bias)(n, m) }
            })
            .collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if largest == f64::NEG_INFINITY {
            continue; // no key at all: zeros
        }
        let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
        for m in 0..keys {
            for c in 0..values {
                out[n * values + c] += (scores[m] - largest).exp() / sum * v[m * values + c];
            }
        }
    }
    out
}
