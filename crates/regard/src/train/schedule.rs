//! The learning rate at every step.

use serde::{Deserialize, Serialize};
use std::f64::consts::PI;

use crate::Error;

/// A learning rate schedule: a linear warm-up, then a decay. Lengths are in epochs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Schedule {
    pub shape: ScheduleShape,
    /// Epochs of linear warm-up.
    pub warmup: f64,
    /// The rate at the start of the warm-up, and the smallest at the end.
    pub warmup_from: f64,
    pub floor: f64,
    /// Whether the rate is constant within an epoch.
    pub by_epoch: bool,
}

/// The decay after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum ScheduleShape {
    Constant,
    /// Half a cosine to the floor.
    #[default]
    Cosine,
    /// Linear to the floor.
    Linear,
    /// Inverse square root of the step (Vaswani et al. 2017); the peak is at the end of the warm-up.
    InverseSquareRoot,
    /// Multiplied by `factor` every so many epochs: `{ step = { every = 30, factor = 0.1 } }`.
    Step {
        every: f64,
        factor: f64,
    },
    /// Multiplied by `factor` after each of two epochs: `{ milestones = { at = [11.0, 14.0], factor = 0.1 } }`.
    Milestones {
        at: [f64; 2],
        factor: f64,
    },
}

impl Default for Schedule {
    fn default() -> Self {
        Self { shape: ScheduleShape::default(), warmup: 0.0, warmup_from: 0.0, floor: 0.0, by_epoch: false }
    }
}

impl Schedule {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self, epochs: usize) -> Result<(), Error> {
        let not_negative = |field, value: f64| {
            let fine = value.is_finite() && value >= 0.0;
            if fine { Ok(()) } else { Err(Error::config(field, format!("must be at least 0, got {value}"))) }
        };
        not_negative("schedule.warmup", self.warmup)?;
        not_negative("schedule.warmup-from", self.warmup_from)?;
        not_negative("schedule.floor", self.floor)?;
        if self.warmup > epochs as f64 {
            let reason = format!("must be at most the {epochs} epochs of training, got {}", self.warmup);
            return Err(Error::config("schedule.warmup", reason));
        }
        match self.shape {
            ScheduleShape::Step { every, factor } => {
                not_negative("schedule.shape.step.factor", factor)?;
                let positive = every.is_finite() && every > 0.0;
                let reason = || Error::config("schedule.shape.step.every", format!("must be above 0, got {every}"));
                positive.then_some(()).ok_or_else(reason)
            }
            ScheduleShape::Milestones { at, factor } => {
                not_negative("schedule.shape.milestones.factor", factor)?;
                at.into_iter().try_for_each(|epoch| not_negative("schedule.shape.milestones.at", epoch))
            }
            ScheduleShape::InverseSquareRoot if self.warmup == 0.0 => {
                Err(Error::config("schedule.warmup", "must be above 0 for an inverse square root"))
            }
            _ => Ok(()),
        }
    }

    /// The rate of a step, counted from zero, of `epochs` epochs of `steps` steps; `peak` is the rate of the recipe.
    pub fn rate(&self, peak: f64, step: usize, steps: usize, epochs: usize) -> f64 {
        let epoch = if self.by_epoch { (step / steps) as f64 } else { step as f64 / steps as f64 };
        let end = epochs as f64;
        if epoch < self.warmup {
            return self.warmup_from + (peak - self.warmup_from) * epoch / self.warmup;
        }
        let done = if end > self.warmup { (epoch - self.warmup) / (end - self.warmup) } else { 1.0 };
        let share = match self.shape {
            ScheduleShape::Constant => return peak,
            ScheduleShape::Cosine => f64::midpoint(1.0, (PI * done).cos()),
            ScheduleShape::Linear => 1.0 - done,
            ScheduleShape::InverseSquareRoot => return (peak * (self.warmup / epoch).sqrt()).max(self.floor),
            ScheduleShape::Step { every, factor } => {
                return (peak * factor.powf((epoch / every).floor())).max(self.floor);
            }
            ScheduleShape::Milestones { at, factor } => {
                let passed = at.into_iter().filter(|milestone| epoch >= *milestone).count();
                return (peak * factor.powi(passed as i32)).max(self.floor);
            }
        };
        self.floor + (peak - self.floor) * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(schedule: Schedule, epochs: usize) -> Vec<f64> {
        (0..epochs * 4).map(|step| schedule.rate(1.0, step, 4, epochs)).collect()
    }

    #[test]
    fn a_warm_up_is_a_line_from_its_start_to_the_peak() {
        let schedule = Schedule { warmup: 2.0, warmup_from: 0.2, ..Schedule::default() };
        let rates = rates(schedule, 10);
        assert!((rates[0] - 0.2).abs() < 1e-12 && (rates[4] - 0.6).abs() < 1e-12 && (rates[8] - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_cosine_is_half_way_down_in_the_middle_and_ends_near_the_floor() {
        let schedule = Schedule { floor: 0.1, ..Schedule::default() };
        let rates = rates(schedule, 10);
        assert!((rates[20] - 0.55).abs() < 1e-12);
        assert!(rates.windows(2).all(|pair| pair[1] < pair[0]) && rates[39] < 0.102 && rates[39] > 0.1);
    }

    #[test]
    fn by_epoch_the_rate_stays_within_one() {
        let rates = rates(Schedule { by_epoch: true, ..Schedule::default() }, 5);
        assert!(rates.chunks(4).all(|epoch| epoch.iter().all(|rate| rate == &epoch[0])) && rates[4] < rates[0]);
    }

    #[test]
    fn steps_a_line_and_an_inverse_square_root_fall_as_they_say() {
        let of = |shape, warmup| rates(Schedule { shape, warmup, ..Schedule::default() }, 8);
        let steps = of(ScheduleShape::Step { every: 3.0, factor: 0.1 }, 0.0);
        assert_eq!((steps[11], steps[12] - 0.1 < 1e-12, steps[24] - 0.01 < 1e-12), (1.0, true, true));
        let milestones = of(ScheduleShape::Milestones { at: [2.0, 5.0], factor: 0.1 }, 0.0);
        let close = |step: usize, rate: f64| (milestones[step] - rate).abs() < 1e-12;
        assert!(close(7, 1.0) && close(8, 0.1) && close(19, 0.1) && close(20, 0.01) && close(31, 0.01));
        assert!((of(ScheduleShape::Linear, 0.0)[16] - 0.5).abs() < 1e-12);
        assert!((of(ScheduleShape::InverseSquareRoot, 1.0)[16] - 0.5).abs() < 1e-12);
        assert_eq!(of(ScheduleShape::Constant, 0.0)[31], 1.0);
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |schedule: Schedule| schedule.validate(5).unwrap_err().to_string();
        assert!(refused(Schedule { warmup: 6.0, ..Schedule::default() }).contains("schedule.warmup"));
        assert!(refused(Schedule { floor: f64::NAN, ..Schedule::default() }).contains("schedule.floor"));
        let shape = ScheduleShape::Step { every: 0.0, factor: 0.1 };
        assert!(refused(Schedule { shape, ..Schedule::default() }).contains("every"));
        let shape = ScheduleShape::InverseSquareRoot;
        assert!(refused(Schedule { shape, ..Schedule::default() }).contains("schedule.warmup"));
    }
}
