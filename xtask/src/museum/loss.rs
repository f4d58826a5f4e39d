//! Comparison of losses in f32 under an exhibit, from the last line of the example `losses`, and its
//! agreement with the label.

/// The largest relative difference of a split run's loss from the unsplit one's.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Loss {
    difference: f64,
    place: String, // ` at step 3 under tp=2`
}

/// Text for equal losses.
const SAME: &str = "the same to the last digit";
/// Text for losses that differ about as much as without any exhibit: up to 8 times as much, as one run is no
/// bound.
const ROUNDING: &str = "as much as rounding";

impl Loss {
    /// Reads `largest: 1.2e-3 at step 3 under tp=2`, or `largest: 0`.
    pub(super) fn read(output: &str) -> Option<Self> {
        let line = output.lines().find_map(|line| line.strip_prefix("largest: "))?;
        let (number, place) = line.split_at(line.find(' ').unwrap_or(line.len()));
        Some(Self { difference: number.parse().ok()?, place: place.into() })
    }
    /// Describes the difference, compared with that of rounding alone.
    pub(super) fn beside(&self, rounding: &Loss) -> String {
        match self.difference {
            0.0 => SAME.into(),
            difference if difference <= 8.0 * rounding.difference => ROUNDING.into(),
            difference => format!("{difference:.0e}{}", self.place),
        }
    }
}

/// Returns true if a label agrees with a measurement: the same words, or a number that is at most half or
/// twice as large. The last digits of a run depend on the machine.
pub(super) fn agrees(label: &str, measured: &str) -> bool {
    let number = |text: &str| text.split(' ').next().and_then(|word| word.parse::<f64>().ok());
    match (number(label), number(measured)) {
        (Some(label), Some(measured)) => (0.5..=2.0).contains(&(measured / label)),
        (None, None) => label.starts_with(measured),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: rounding reported as a difference, a difference reported as rounding, a label that agrees with
    /// any measurement.
    #[test]
    fn losses_are_told_in_words_and_labels_agree() {
        let read = |line: &str| Loss::read(&format!("x\nlargest: {line}\n")).unwrap();
        let rounding = read("3.1e-7 at step 4 under tp=2");
        let says = |line: &str| read(line).beside(&rounding);
        assert_eq!(says("0"), SAME);
        assert_eq!(says("2e-6 at step 1 under dp=2"), ROUNDING);
        assert_eq!(says("0.0123 at step 2 under tp=2,sp"), "1e-2 at step 2 under tp=2,sp");
        assert_eq!(says("3e-6 at step 2 under tp=2"), "3e-6 at step 2 under tp=2");
        for (label, measured, agree) in [
            ("as much as rounding; nobody looks", ROUNDING, true),
            (SAME, ROUNDING, false),
            ("2e-3 at step 1 under tp=2", "1e-3 at step 2 under tp=4", true),
            ("2e-3", "9e-4", false),
            ("2e-3", SAME, false),
            ("none", "1e-3", false),
        ] {
            assert_eq!(agrees(label, measured), agree, "{label:?} {measured:?}");
        }
        assert_eq!(Loss::read("no such line"), None);
    }
}
