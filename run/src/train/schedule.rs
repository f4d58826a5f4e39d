//! The learning rate: linear warm-up, then one of four schedules.
//!
//! ```text
//! step < warmup    peak · (step + 1)/warmup
//! after it         peak · (floor + (1 − floor)·f(t)),   t = (step + 1 − begin)/(steps − begin), 0 before
//!
//! constant  peak           linear  f = 1 − t          begin = warmup
//! wsd       f = 1 − √t     cosine  f = (1 + cos πt)/2
//! ```
//! Wsd (warm-up, stable, decay) begins to decay a fifth of the steps before the end. A rate is a function of
//! the step alone: a resumed run continues as if it had not stopped. No warm-up equals one of 1 step.
//!
//! Source: cosine: Loshchilov, Hutter, "SGDR", arXiv:1608.03983; wsd: Hu et al., arXiv:2404.06395;
//! its root: Hägele et al., "Scaling laws and training beyond fixed durations", arXiv:2405.18392.
use layers::counted;
use parallel::{Error, Result};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::f64::consts::PI;
use std::fmt;

/// Course of the learning rate after its warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LrSchedule {
    /// The peak in all steps.
    Constant,
    /// Linear decay.
    Linear,
    /// Decay on half a cosine.
    #[default]
    Cosine,
    /// The peak, then decay by a square root in the last fifth of the steps (warm-up, stable, decay).
    Wsd,
}

impl LrSchedule {
    /// Every schedule, by name and with a description.
    pub const ALL: [(&'static str, &'static str, Self); 4] = [
        ("constant", "The peak in all steps", Self::Constant),
        ("linear", "Linear decay", Self::Linear),
        ("cosine", "Decay on half a cosine", Self::Cosine),
        (
            "wsd",
            "The peak, then decay by a square root in the last fifth of the steps (warm-up, stable, decay)",
            Self::Wsd,
        ),
    ];
    /// Reads the name of a schedule. Older files have a boolean in its place: true if the rate is constant.
    pub(super) fn stored<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        match Value::deserialize(from)? {
            Value::Bool(constant) => Ok(if constant { Self::Constant } else { Self::Cosine }),
            name => serde_json::from_value(name).map_err(D::Error::custom),
        }
    }
}

impl fmt::Display for LrSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::ALL[*self as usize].0)
    }
}

/// A learning rate with linear warm-up and a schedule. Steps count from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearningRate {
    /// Course after the warm-up.
    pub schedule: LrSchedule,
    /// The largest rate.
    pub peak: f64,
    /// Steps until the peak is reached: the first step's rate is `peak/warmup`, that of step `warmup − 1` is
    /// `peak`.
    pub warmup: usize,
    /// Total number of steps.
    pub steps: usize,
    /// The last step's rate, as a fraction of the peak; a constant rate ignores it.
    pub floor: f64,
}

impl LearningRate {
    /// Returns the rate of a step; it is constant from the last step on.
    pub fn at(&self, step: usize) -> f64 {
        let warmup = self.warmup.max(1);
        if step < warmup {
            return self.peak * (step + 1) as f64 / warmup as f64;
        }
        let begin = match self.schedule {
            LrSchedule::Constant => return self.peak,
            LrSchedule::Linear | LrSchedule::Cosine => warmup,
            LrSchedule::Wsd => warmup.max(self.steps.saturating_sub((self.steps / 5).max(1))),
        };
        let falling = self.steps.saturating_sub(begin).max(1);
        let t = step.saturating_add(1).saturating_sub(begin).min(falling) as f64 / falling as f64;
        let left = match self.schedule {
            LrSchedule::Linear => 1.0 - t,
            LrSchedule::Wsd => 1.0 - t.sqrt(),
            _ => f64::midpoint(1.0, (PI * t).cos()),
        };
        self.peak * (self.floor + (1.0 - self.floor) * left)
    }
    /// Validates the schedule.
    ///
    /// # Errors
    /// If the peak is not a positive number, the floor is not between 0 and 1, or the warm-up is longer than
    /// the run.
    pub fn validate(&self) -> Result<()> {
        let Self { peak, warmup, steps, floor, .. } = *self;
        let wrong = |what: &str, seen: String, wanted: &str| {
            Err(Error::new(format!("{what} is {seen}; it must be {wanted}")))
        };
        if !(peak.is_finite() && peak > 0.0) {
            return wrong("the peak learning rate", peak.to_string(), "a positive number");
        }
        if !(0.0..=1.0).contains(&floor) {
            return wrong("the floor of the learning rate", floor.to_string(), "between 0 and 1");
        }
        if warmup > steps {
            let wanted = format!("at most the {} of the run", counted(steps, "step"));
            return wrong("the warm-up", counted(warmup, "step"), &wanted);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(seen: f64, wanted: f64) {
        assert!((seen - wanted).abs() < 1e-15, "{seen} instead of {wanted}");
    }

    /// Kills: a warm-up from 0, one step too late or too early; a last step that is not the floor.
    #[test]
    fn the_ends_are_exact() {
        let rate = LearningRate { schedule: LrSchedule::Cosine, peak: 0.3, warmup: 4, steps: 13, floor: 0.1 };
        for (step, wanted) in
            [(0, 0.075), (1, 0.15), (2, 0.225), (3, 0.3), (12, 0.03), (13, 0.03), (1000, 0.03)]
        {
            close(rate.at(step), wanted);
        }
        let middle = LearningRate { steps: 12, ..rate }; // 8 steps down: the fourth is half-way
        close(middle.at(7), 0.3 * 0.55);
        close(middle.at(5), 0.3 * (0.1 + 0.9 * (1.0 + 0.5f64.sqrt()) / 2.0)); // a quarter: cos 45°
        assert!(rate.at(4) < 0.3 && rate.at(11) > 0.03);
    }

    #[test]
    fn the_rate_rises_then_falls() {
        let rate =
            LearningRate { schedule: LrSchedule::Cosine, peak: 1.0, warmup: 10, steps: 100, floor: 0.0 };
        let rates: Vec<_> = (0..100).map(|step| rate.at(step)).collect();
        assert!(rates[..10].is_sorted_by(|a, b| a < b) && rates[9..].is_sorted_by(|a, b| a > b));
        assert!(rates.iter().all(|r| (0.0..=1.0).contains(r)));
        close(rates[99], 0.0);
    }

    /// Kills: a decay by 1 − t² or 1 − t, one that lasts a step more or less than a fifth, a constant rate
    /// without its warm-up or with the floor, an end above or below the floor.
    #[test]
    fn schedules_fall_as_their_papers_say() {
        let cosine =
            LearningRate { schedule: LrSchedule::Cosine, peak: 0.4, warmup: 2, steps: 40, floor: 0.25 };
        let of = |schedule| LearningRate { schedule, ..cosine };
        let wsd = of(LrSchedule::Wsd); // 8 steps down
        for (step, wanted) in [(0, 0.2), (1, 0.4), (2, 0.4), (31, 0.4), (33, 0.25), (39, 0.1), (99, 0.1)] {
            close(wsd.at(step), wanted);
        }
        assert!(wsd.at(32) < 0.4 && wsd.at(38) > 0.1);
        let linear = of(LrSchedule::Linear); // 38 steps down
        for (step, wanted) in [(0, 0.2), (1, 0.4), (20, 0.25), (39, 0.1), (40, 0.1)] {
            close(linear.at(step), wanted);
        }
        let constant = of(LrSchedule::Constant);
        assert_eq!([0, 1, 2, 39, 99].map(|step| constant.at(step)), [0.2, 0.4, 0.4, 0.4, 0.4]);
        for steps in 0..7 {
            let short = LearningRate { steps, warmup: 0, ..wsd };
            close(short.at(steps.max(2) - 1), if steps > 1 { 0.1 } else { short.at(1) });
            close(short.at(0), 0.4);
        }
    }

    #[test]
    fn short_runs_have_their_rates() {
        let schedule = LrSchedule::Cosine;
        let rate = |warmup, steps| LearningRate { schedule, peak: 2.0, warmup, steps, floor: 0.5 };
        for warmup in [0, 1] {
            close(rate(warmup, 3).at(0), 2.0);
            close(rate(warmup, 3).at(1), 1.5);
            close(rate(warmup, 3).at(2), 1.0);
            close(rate(warmup, 1).at(0), 2.0);
        }
        close(rate(3, 3).at(2), 2.0);
        close(rate(3, 3).at(3), 1.0);
        close(rate(0, 0).at(5), 1.0);
        close(rate(7, 9).at(usize::MAX), 1.0);
        assert_eq!(LearningRate { floor: 1.0, ..rate(0, 9) }.at(4).to_bits(), 2f64.to_bits());
    }

    #[test]
    fn what_is_no_schedule_is_said_in_one_sentence() {
        let good = LearningRate { schedule: LrSchedule::Cosine, peak: 1e-3, warmup: 5, steps: 5, floor: 0.0 };
        assert_eq!(good.validate(), Ok(()));
        let why = |rate: LearningRate| rate.validate().unwrap_err().to_string();
        for peak in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let wanted = format!("the peak learning rate is {peak}; it must be a positive number");
            assert_eq!(why(LearningRate { peak, ..good }), wanted);
        }
        for floor in [-0.1, 1.1, f64::NAN] {
            let wanted = format!("the floor of the learning rate is {floor}; it must be between 0 and 1");
            assert_eq!(why(LearningRate { floor, ..good }), wanted);
        }
        let long = "the warm-up is 6 steps; it must be at most the 5 steps of the run";
        assert_eq!(why(LearningRate { warmup: 6, ..good }), long);
    }
}
