//! The natural order of names: numbers in them count as numbers, so that `frame10` comes after `frame9`.

use std::cmp::Ordering;

pub fn compare(one: &str, other: &str) -> Ordering {
    let (mut left, mut right) = (one.as_bytes(), other.as_bytes());
    while let (Some(a), Some(b)) = (left.first(), right.first()) {
        let order = if a.is_ascii_digit() && b.is_ascii_digit() {
            let (first, second) = (number(&mut left), number(&mut right));
            // without leading zeros the longer number is the larger one
            first.len().cmp(&second.len()).then_with(|| first.cmp(second))
        } else {
            (left, right) = (&left[1..], &right[1..]);
            a.cmp(b)
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| one.cmp(other))
}

/// Takes the digits at the beginning, without leading zeros.
fn number<'a>(text: &mut &'a [u8]) -> &'a [u8] {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    *text = rest;
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    &digits[zeros..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_as_numbers_and_the_order_is_total() {
        let sorted = ["", "a", "a1", "a01b", "a2", "a9", "a10", "a10b", "a010c", "b1", "f00008_2", "f00008_10"];
        for (i, one) in sorted.iter().enumerate() {
            for (j, other) in sorted.iter().enumerate() {
                assert_eq!(compare(one, other), i.cmp(&j), "{one} {other}");
            }
        }
        assert_ne!(compare("a1", "a01"), Ordering::Equal);
    }
}
