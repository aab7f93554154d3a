//! Shape checks whose message names the operator, the axis and both sizes.

/// Panics unless two tensors agree on an axis.
#[track_caller]
pub(crate) fn agree(operator: &str, axis: &str, left: (&str, usize), right: (&str, usize)) {
    assert!(left.1 == right.1, "{operator}: {} has {axis} {}, {} has {axis} {}", left.0, left.1, right.0, right.1);
}

/// Panics when an axis is empty.
#[track_caller]
pub(crate) fn not_empty(operator: &str, tensor: &str, axes: &[(&str, usize)]) {
    for (axis, size) in axes {
        assert!(*size > 0, "{operator}: {tensor} has {axis} 0, needs at least 1");
    }
}

/// Panics unless `part` divides `whole`.
#[track_caller]
pub(crate) fn divides(operator: &str, part: (&str, usize), whole: (&str, usize)) {
    assert!(
        part.1 > 0 && whole.1.is_multiple_of(part.1),
        "{operator}: {} {} do not divide {} {}",
        part.1,
        part.0,
        whole.0,
        whole.1
    );
}
