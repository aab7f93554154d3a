//! Products of sizes from callers, checked for overflow.
//!
//! The loops below this crate's operators read and write without a check of every element. They rely on checks of whole
//! arrays, and these are worth nothing when a product of sizes wraps around to a small number.

/// The product of sizes, as long as an array of so many floats can exist.
///
/// Every product of some of the sizes is then exact as well, even when another one is zero.
///
/// # Panics
/// When it cannot, with the name of the operator.
#[inline]
#[track_caller]
pub(crate) fn product<const N: usize>(operator: &str, sizes: &[usize; N]) -> usize {
    checked(sizes).unwrap_or_else(|| too_large(operator, "product", sizes))
}

/// A sum of sizes, as long as an array of so many floats can exist.
///
/// # Panics
/// When it cannot, with the name of the operator.
#[inline]
#[track_caller]
pub(crate) fn sum<const N: usize>(operator: &str, sizes: &[usize; N]) -> usize {
    let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size)).filter(|&sum| sum <= LARGEST);
    sum.unwrap_or_else(|| too_large(operator, "sum", sizes))
}

#[cold]
#[track_caller]
fn too_large(operator: &str, kind: &str, sizes: &[usize]) -> ! {
    panic!("{operator}: the {kind} of {sizes:?} is more than any array holds")
}

/// The most floats that an array can have.
const LARGEST: usize = isize::MAX as usize / size_of::<f32>();

#[inline(always)]
fn checked<const N: usize>(sizes: &[usize; N]) -> Option<usize> {
    let mut largest = 1usize;
    for &size in sizes {
        largest = largest.checked_mul(size.max(1)).filter(|&product| product <= LARGEST)?;
    }
    Some(if sizes.contains(&0) { 0 } else { largest })
}

/// `(count - 1) * stride + width`: the elements of `count` rows a stride apart, the last of which is `width` long; none
/// when that wraps. Cheap enough for the innermost calls.
#[inline(always)]
pub(crate) fn strided(count: usize, stride: usize, width: usize) -> Option<usize> {
    count.checked_sub(1)?.checked_mul(stride)?.checked_add(width)
}

/// Whether an array of `len` elements holds as many as the product says.
#[inline(always)]
pub(crate) fn holds<const N: usize>(len: usize, sizes: [usize; N]) -> bool {
    exact(sizes).is_some_and(|product| product <= len)
}

/// The product of sizes; none when it wraps. Cheap enough for the innermost calls.
#[inline(always)]
pub(crate) fn exact<const N: usize>(sizes: [usize; N]) -> Option<usize> {
    let mut product = 1usize;
    for size in sizes {
        product = product.checked_mul(size)?;
    }
    Some(product)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_that_no_array_can_have_are_none() {
        assert_eq!(checked(&[3, 4, 5]), Some(60));
        assert_eq!(checked(&[3, 0, 5]), Some(0));
        assert_eq!(checked(&[]), Some(1));
        for sizes in [[usize::MAX, 2, 1], [6_148_914_691_236_517_206, 3, 1], [1 << 62, 4, 1], [0, 1 << 40, 1 << 40]] {
            assert_eq!(checked(&sizes), None, "{sizes:?}");
        }
        assert_eq!(checked(&[LARGEST]), Some(LARGEST));
        assert_eq!(checked(&[LARGEST + 1]), None);
    }

    #[test]
    #[should_panic(expected = "attention: the product of [4611686018427387904, 4] is more than any array holds")]
    fn a_product_that_wraps_names_the_operator() {
        let _ = product("attention", &[1 << 62, 4]);
    }

    #[test]
    fn rows_that_wrap_hold_nothing() {
        assert_eq!(strided(3, 10, 4), Some(24));
        assert_eq!([strided(0, 10, 4), strided(3, 1 << 63, 4)], [None, None]);
        assert!(holds(24, [2, 3, 4]) && !holds(23, [2, 3, 4]) && !holds(24, [1 << 62, 4, 1]));
    }
}
