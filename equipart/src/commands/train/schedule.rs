//! The learning rate: linear warm-up, then decay on half a cosine.
//!
//! ```text
//! step < warmup    peak · (step + 1)/warmup
//! after it         peak · (floor + (1 − floor)·(1 + cos πt)/2),   t = (step + 1 − warmup)/(steps − warmup)
//! ```
//! The rate is a function of the step alone: a resumed run continues as if it had not stopped. A warm-up of 0
//! steps equals one of 1 step, so the first step is at the peak.
//!
//! Source: Loshchilov, Hutter, "SGDR", arXiv:1608.03983.
use parallel::{Error, Result};
use std::f64::consts::PI;

/// A learning rate with linear warm-up and cosine decay. Steps count from 0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warmup {
    /// The largest rate.
    pub peak: f64,
    /// Steps until the peak is reached: the first step's rate is `peak/warmup`, that of step `warmup − 1` is
    /// `peak`.
    pub warmup: usize,
    /// Total number of steps.
    pub steps: usize,
    /// The last step's rate, as a fraction of the peak.
    pub floor: f64,
}

impl Warmup {
    /// Returns the rate of a step; it is constant from the last step on.
    pub fn at(&self, step: usize) -> f64 {
        let warmup = self.warmup.max(1);
        if step < warmup {
            return self.peak * (step + 1) as f64 / warmup as f64;
        }
        let falling = self.steps.saturating_sub(warmup).max(1);
        let t = (step - (warmup - 1)).min(falling) as f64 / falling as f64;
        self.peak * (self.floor + (1.0 - self.floor) * f64::midpoint(1.0, (PI * t).cos()))
    }
    /// Validates the schedule.
    ///
    /// # Errors
    /// If the peak is not a positive number, the floor is not between 0 and 1, or the warm-up is longer than
    /// the run.
    pub fn validate(&self) -> Result<()> {
        let Self { peak, warmup, steps, floor } = *self;
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
            let wanted = format!("at most the {steps} steps of the run");
            return wrong("the warm-up", format!("{warmup} steps"), &wanted);
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
        let rate = Warmup { peak: 0.3, warmup: 4, steps: 13, floor: 0.1 };
        for (step, wanted) in
            [(0, 0.075), (1, 0.15), (2, 0.225), (3, 0.3), (12, 0.03), (13, 0.03), (1000, 0.03)]
        {
            close(rate.at(step), wanted);
        }
        let middle = Warmup { steps: 12, ..rate }; // 8 steps down: the fourth is half-way
        close(middle.at(7), 0.3 * 0.55);
        close(middle.at(5), 0.3 * (0.1 + 0.9 * (1.0 + 0.5f64.sqrt()) / 2.0)); // a quarter: cos 45°
        assert!(rate.at(4) < 0.3 && rate.at(11) > 0.03);
    }

    #[test]
    fn the_rate_rises_then_falls() {
        let rate = Warmup { peak: 1.0, warmup: 10, steps: 100, floor: 0.0 };
        let rates: Vec<_> = (0..100).map(|step| rate.at(step)).collect();
        assert!(rates[..10].is_sorted_by(|a, b| a < b) && rates[9..].is_sorted_by(|a, b| a > b));
        assert!(rates.iter().all(|r| (0.0..=1.0).contains(r)));
        close(rates[99], 0.0);
    }

    #[test]
    fn short_runs_have_their_rates() {
        let rate = |warmup, steps| Warmup { peak: 2.0, warmup, steps, floor: 0.5 };
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
        assert_eq!(Warmup { floor: 1.0, ..rate(0, 9) }.at(4).to_bits(), 2f64.to_bits());
    }

    #[test]
    fn what_is_no_schedule_is_said_in_one_sentence() {
        let good = Warmup { peak: 1e-3, warmup: 5, steps: 5, floor: 0.0 };
        assert_eq!(good.validate(), Ok(()));
        let why = |rate: Warmup| rate.validate().unwrap_err().to_string();
        for peak in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let wanted = format!("the peak learning rate is {peak}; it must be a positive number");
            assert_eq!(why(Warmup { peak, ..good }), wanted);
        }
        for floor in [-0.1, 1.1, f64::NAN] {
            let wanted = format!("the floor of the learning rate is {floor}; it must be between 0 and 1");
            assert_eq!(why(Warmup { floor, ..good }), wanted);
        }
        let long = "the warm-up is 6 steps; it must be at most the 5 steps of the run";
        assert_eq!(why(Warmup { warmup: 6, ..good }), long);
    }
}
