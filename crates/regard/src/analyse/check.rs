//! Laws that a result must fulfil, and its deviation from them.

use serde::Serialize;
use std::fmt::{self, Display};

/// A law, and how far a result deviates from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Check {
    /// The law, such as `rows sum to one`.
    pub law: String,
    /// The largest deviation that was found.
    pub deviation: f64,
    /// The largest deviation that counts as rounding.
    pub tolerance: f64,
}

impl Check {
    #[must_use]
    pub fn new(law: impl Into<String>, deviation: f64, tolerance: f64) -> Self {
        Self { law: law.into(), deviation, tolerance }
    }

    /// Whether the law holds; it does not when the deviation is NaN.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.deviation <= self.tolerance
    }

    /// The check with the largest deviation.
    #[must_use]
    pub fn worst(checks: impl IntoIterator<Item = Self>) -> Option<Self> {
        let key =
            |check: &Self| if check.deviation.is_nan() { f64::INFINITY } else { check.deviation / check.tolerance };
        checks.into_iter().max_by(|a, b| key(a).total_cmp(&key(b)))
    }
}

impl Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { law, deviation, tolerance } = self;
        let verdict = if self.holds() { "ok" } else { "FAILED" };
        write!(f, "{verdict}: {law}: off by {deviation:.1e} of {tolerance:.0e}")
    }
}

/// The largest deviation of a row's sum from one.
pub(super) fn rows_sum_to_one<'a>(rows: impl Iterator<Item = &'a [f32]>) -> f64 {
    rows.map(|row| (row.iter().map(|value| f64::from(*value)).sum::<f64>() - 1.0).abs()).fold(0.0, largest)
}

/// The larger of two numbers; NaN is larger than all.
pub(super) fn largest(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_fails_and_is_the_worst() {
        let check = |deviation| Check::new("law", deviation, 1e-5);
        assert!(check(1e-6).holds() && !check(1e-4).holds() && !check(f64::NAN).holds());
        let worst = Check::worst([check(1e-6), check(f64::NAN), check(1.0)]).unwrap();
        assert!(worst.deviation.is_nan());
        assert!(rows_sum_to_one([&[0.5, f32::NAN][..], &[0.5, 0.5]].into_iter()).is_nan());
    }

    #[test]
    fn a_check_says_whether_it_holds_by_how_much_and_of_what() {
        assert_eq!(
            Check::new("rows sum to one", 1.25e-7, 1e-5).to_string(),
            "ok: rows sum to one: off by 1.2e-7 of 1e-5"
        );
        assert!(Check::new("x", 1.0, 1e-5).to_string().starts_with("FAILED: x: "));
    }
}
