//! How row-wise kernels are cut into tasks: by shapes alone, so that thread counts change nothing.

/// Rows of one task: about 16 Ki elements, enough to pay for a task, few enough to share out.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (16_384 / width.max(1)).max(1)
}

/// Adds partial sums in the order of their tasks.
pub(crate) fn add_all(into: &mut [f32], partials: impl IntoIterator<Item = Vec<f32>>) {
    for partial in partials {
        for (sum, part) in into.iter_mut().zip(&partial) {
            *sum += part;
        }
    }
}
