//! Maps values to positions on an axis, and chooses tick marks.

use serde::{Deserialize, Serialize};

/// Linear or logarithmic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scale {
    #[default]
    Linear,
    /// Values of 0 or below are gaps.
    Logarithmic,
}

impl Scale {
    /// Whether a value can be drawn; extremely large ones cannot, so that differences stay finite.
    pub fn shows(self, value: f64) -> bool {
        match self {
            Self::Linear => value.is_finite() && value.abs() < 1e300,
            Self::Logarithmic => value > 1e-200 && value < 1e200,
        }
    }
}

/// A range of values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    scale: Scale,
    pub low: f64,
    pub high: f64,
    /// Whether all values are integers, so that ticks are too.
    whole: bool,
}

/// A tick mark.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    pub value: f64,
    pub label: String,
}

impl Axis {
    /// The range of the values that the scale can show; none if there are none.
    pub fn around(values: impl Iterator<Item = f64>, scale: Scale) -> Option<Self> {
        let (mut low, mut high, mut whole) = (f64::INFINITY, f64::NEG_INFINITY, true);
        for value in values.filter(|value| scale.shows(*value)) {
            (low, high) = (low.min(value), high.max(value));
            whole &= value.fract() == 0.0;
        }
        if low > high {
            return None;
        }
        // equal or nearly equal values get a margin
        if high - low <= 1e-9 * low.abs().max(high.abs()) {
            (low, high) = match scale {
                Scale::Linear if whole => (low - 1.0f64.max(low.abs() * 1e-3), high + 1.0f64.max(high.abs() * 1e-3)),
                Scale::Linear => (low - 0.1 * low.abs(), high + 0.1 * high.abs()),
                Scale::Logarithmic => (low / 2.0, high * 2.0),
            };
        }
        Some(Self { scale, low, high, whole })
    }

    /// Adds a small margin at both ends.
    pub fn with_room(self) -> Self {
        match self.scale {
            Scale::Linear => {
                let room = 0.04 * (self.high - self.low);
                // no margin below zero
                let low = if self.low >= 0.0 { (self.low - room).max(0.0) } else { self.low - room };
                Self { low, high: self.high + room, ..self }
            }
            Scale::Logarithmic => {
                let room = (0.04 * (self.high.ln() - self.low.ln())).exp();
                Self { low: self.low / room, high: self.high * room, ..self }
            }
        }
    }

    /// The position from 0 to 1; none if the scale cannot show the value.
    pub fn share(&self, value: f64) -> Option<f64> {
        self.scale.shows(value).then(|| match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Logarithmic => (value.ln() - self.low.ln()) / (self.high.ln() - self.low.ln()),
        })
    }

    /// At most `most` round values within the range.
    pub fn ticks(&self, most: usize) -> Vec<Tick> {
        let values = match self.scale {
            Scale::Linear => self.linear(most),
            Scale::Logarithmic => self.decades(most),
        };
        let values: Vec<f64> = values.into_iter().filter(|value| (self.low..=self.high).contains(value)).collect();
        labelled(&values)
    }

    fn linear(&self, most: usize) -> Vec<f64> {
        let rough = (self.high - self.low) / most as f64;
        let power = 10f64.powi(rough.log10().floor() as i32);
        let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(10.0 * power).max(if self.whole { 1.0 } else { 0.0 });
        let (first, last) = ((self.low / step).ceil(), (self.high / step).floor());
        (0..=most).map(|i| first + i as f64).take_while(|i| *i <= last).map(|i| i * step).collect()
    }

    fn decades(&self, most: usize) -> Vec<f64> {
        let [low, high] = [self.low.log10().floor() as i32, self.high.log10().ceil() as i32];
        let inside = |value: &f64| (self.low..=self.high).contains(value);
        for leading in [&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0][..], &[1.0, 2.0, 3.0, 5.0], &[1.0, 2.0, 5.0], &[1.0, 3.0]]
        {
            let values = |power: i32| leading.iter().map(move |digit| digit * 10f64.powi(power));
            let values: Vec<f64> = (low..=high).flat_map(values).filter(inside).collect();
            // within a narrow range a logarithm is nearly linear
            if values.len() < 3 {
                return self.linear(most);
            }
            if values.len() <= most {
                return values;
            }
        }
        let stride = (high - low) as usize / most + 1;
        (low..=high).step_by(stride).map(|power| 10f64.powi(power)).collect()
    }
}

/// Labels with just enough decimals to distinguish all values.
fn labelled(values: &[f64]) -> Vec<Tick> {
    let plain = values.iter().all(|value| *value == 0.0 || (1e-4..1e6).contains(&value.abs()));
    let tell = |decimals: usize, value: f64| match plain {
        _ if value == 0.0 => "0".into(),
        true => format!("{value:.decimals$}"),
        false => format!("{value:.decimals$e}"),
    };
    let exact = |decimals: usize| {
        let near = |value: &f64| {
            let shown: f64 = tell(decimals, *value).parse().unwrap_or(f64::NAN);
            (shown - value).abs() <= 1e-9 * value.abs()
        };
        values.iter().all(near)
    };
    let decimals = (0..12).find(|decimals| exact(*decimals)).unwrap_or(12);
    values.iter().map(|value| Tick { value: *value, label: tell(decimals, *value) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(values: &[f64], scale: Scale, most: usize) -> Vec<String> {
        let axis = Axis::around(values.iter().copied(), scale).unwrap();
        axis.ticks(most).into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn marks_are_round_numbers_with_the_decimals_they_need() {
        assert_eq!(labels(&[0.0, 1.0], Scale::Linear, 6), ["0", "1"], "whole values have whole marks");
        assert_eq!(labels(&[0.0, 0.97], Scale::Linear, 5), ["0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(labels(&[1.0, 30.0], Scale::Linear, 7), ["5", "10", "15", "20", "25", "30"]);
        assert_eq!(labels(&[-0.31, 0.3], Scale::Linear, 4), ["-0.2", "0", "0.2"]);
        assert_eq!(labels(&[0.0, 2.5e7], Scale::Linear, 3), ["0", "1e7", "2e7"]);
    }

    #[test]
    fn a_logarithmic_axis_has_marks_in_a_decade_and_over_many() {
        assert_eq!(labels(&[0.4, 2.4], Scale::Logarithmic, 7), ["0.4", "0.5", "0.6", "0.8", "1.0", "2.0"]);
        assert_eq!(labels(&[1e-6, 1e-3], Scale::Logarithmic, 5), ["1e-6", "1e-5", "1e-4", "1e-3"]);
        assert_eq!(labels(&[1.11, 1.92], Scale::Logarithmic, 5), ["1.2", "1.4", "1.6", "1.8"]);
    }

    #[test]
    fn the_ends_are_at_zero_and_one_and_gaps_are_nowhere() {
        let axis = Axis::around([f64::NAN, 0.1, 10.0, -1.0].into_iter(), Scale::Logarithmic).unwrap();
        let share = |value| axis.share(value).map(|share| (share * 1e9).round() / 1e9);
        assert_eq!((share(0.1), share(1.0), share(10.0)), (Some(0.0), Some(0.5), Some(1.0)));
        assert_eq!((share(0.0), share(-1.0), share(f64::INFINITY)), (None, None, None));
        assert!(Axis::around([f64::NAN].into_iter(), Scale::Linear).is_none());
    }

    #[test]
    fn no_range_is_too_narrow_or_too_wide() {
        let numbers =
            [0.0, -0.0, 1.0, 1.0 + 1e-15, 3.5, -1e-299, 1e-199, 1e199, -1e299, 1e299, 1e15, 1e15 + 0.25, f64::MAX];
        for low in numbers {
            for high in numbers {
                for scale in [Scale::Linear, Scale::Logarithmic] {
                    for most in [1, 5, 8] {
                        let Some(axis) = Axis::around([low, high].into_iter(), scale) else { continue };
                        let ticks = axis.with_room().ticks(most);
                        assert!(ticks.len() <= most + 1, "{low} to {high}: {ticks:?}");
                        assert!([axis.low, axis.high].iter().all(|end| axis.share(*end).unwrap().is_finite()));
                    }
                }
            }
        }
    }
}
