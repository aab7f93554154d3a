//! Cosine and sine by sums and products alone, the same bits on every machine: those of the standard library are not.

/// Cosine and sine of so many quarter turns, within 1e-12.
pub fn turn(quarters: f64) -> [f64; 2] {
    let whole = quarters.floor();
    let angle = (quarters - whole) * std::f64::consts::FRAC_PI_2;
    let square = angle * angle;
    // Taylor's series, the last terms first
    let series = |first: u32| {
        (0..9).rev().fold(0.0, |sum, term| {
            let places = f64::from(2 * term + first);
            1.0 - sum * square / ((places + 1.0) * (places + 2.0))
        })
    };
    let (cos, sin) = (series(0), angle * series(1));
    match whole.rem_euclid(4.0) as u8 {
        0 => [cos, sin],
        1 => [-sin, cos],
        2 => [-cos, -sin],
        _ => [sin, -cos],
    }
}

#[cfg(test)]
mod tests {
    use super::turn;

    #[test]
    fn turns_are_those_of_the_standard_library() {
        for step in -1000..1000 {
            let quarters = f64::from(step) * 0.0137;
            let [cos, sin] = turn(quarters);
            let angle = quarters * std::f64::consts::FRAC_PI_2;
            assert!((cos - angle.cos()).abs() < 1e-11 && (sin - angle.sin()).abs() < 1e-11, "{quarters}");
        }
        assert_eq!(turn(0.0), [1.0, 0.0]);
    }
}
