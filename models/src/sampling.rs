//! Choice of the next token from logits, the same on every layout, and the margin of that choice.
//!
//! Greedy: the largest logit, ties to the lower id. Sampling, at temperature `T`: candidates by descending
//! logit (ties to the lower id); the first `top_k` of them; of these, the smallest prefix with a share of at
//! least `top_p` of their mass `Σ e^(l/T)`. Of the remaining, the candidate is chosen whose interval of the
//! cumulative shares contains `u`, a uniform number that is a hash of (seed, sequence, position).
use parallel::{Error, Result, bail};
use std::cmp::Ordering;
use std::fmt::Display;
use tensor::mix;

mod margin;

/// Method of choosing the next token from logits. The default is greedy.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampling {
    /// Divisor of the logits before they become probabilities; `None`: the largest logit is chosen.
    pub temperature: Option<f64>,
    /// Number of candidates: only those with the largest logits.
    pub top_k: Option<usize>,
    /// Share of the probability: only the fewest candidates that have it.
    pub top_p: Option<f64>,
    /// Seed of the draws.
    pub seed: u64,
}

/// A chosen token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampledToken {
    /// Id of the token.
    pub id: u32,
    /// Stability of the choice: no other id is chosen as long as no *difference between two logits* changes
    /// by this much. So the choice is safe while every logit changes by less than half of it. Infinite if no
    /// other id could be chosen. Greedy: exactly the distance of the two largest logits; sampling: a lower
    /// bound.
    pub margin: f64,
}

/// Returns the error for a setting of sampling without a temperature.
#[must_use]
pub fn no_temperature(what: &str, seen: impl Display) -> Error {
    Error::new(format!(
        "{what} is {seen}, but there is no temperature; without one the likeliest token is chosen, so give both or neither"
    ))
}

impl Sampling {
    /// Checks that the settings are in range and go together.
    ///
    /// # Errors
    /// If one is out of range, or `top_k` or `top_p` is given without a temperature.
    pub fn validate(&self) -> Result<()> {
        let wrong = |what: &str, seen: String, wanted: &str| {
            Err(Error::new(format!("{what} is {seen}; it must be {wanted}")))
        };
        match (self.temperature, self.top_k, self.top_p) {
            (Some(t), _, _) if !(t.is_finite() && t > 0.0) => wrong(
                "the temperature",
                t.to_string(),
                "a number above 0, or left out for the likeliest token",
            ),
            (_, Some(0), _) => wrong("top_k", "0".into(), "at least 1"),
            (_, _, Some(p)) if !(p > 0.0 && p <= 1.0) => {
                wrong("top_p", p.to_string(), "above 0 and at most 1")
            }
            (None, Some(k), _) => Err(no_temperature("top_k", k)),
            (None, _, Some(p)) => Err(no_temperature("top_p", p)),
            _ => Ok(()),
        }
    }
    /// Chooses the token that follows `position` (counted from 0, in the whole sequence) of a sequence
    /// (counted over the whole batch), from one row of logits. The same logits give the same choice on every
    /// rank.
    ///
    /// # Errors
    /// If the settings are not valid, or a logit is not finite.
    pub fn choose(&self, logits: &[f32], sequence: usize, position: usize) -> Result<SampledToken> {
        self.choose_in(&mut SamplingRoom::default(), Logits::All(logits), sequence, position)
    }
    /// Number of a row's first logits that a choice needs: those that may be chosen and the next one, to
    /// which the margin is measured. `None` if it needs all of them.
    pub fn needs(&self, vocabulary: usize) -> Option<usize> {
        let chosen = if self.temperature.is_some() { self.top_k? } else { 1 };
        (chosen < vocabulary).then(|| chosen + 1)
    }
    /// Chooses the next token from a whole row or its first logits, in the caller's memory, so that later
    /// choices allocate nothing.
    ///
    /// # Errors
    /// As [`choose`](Self::choose).
    pub fn choose_in(
        &self,
        room: &mut SamplingRoom,
        logits: Logits,
        sequence: usize,
        position: usize,
    ) -> Result<SampledToken> {
        self.validate()?;
        if let Some((id, seen)) = logits.improper()? {
            bail!(
                "the logit of token {id} is {seen} in sequence {sequence} at position {position}; logits must be finite \
                 numbers"
            );
        }
        let Some(temperature) = self.temperature else {
            let (values, ids, _) = room.first(logits, 2);
            let next = values.get(1).map_or(f64::NEG_INFINITY, |&next| f64::from(next));
            return Ok(SampledToken { id: ids[0], margin: f64::from(values[0]) - next });
        };
        Ok(Candidates::new(room, logits, temperature, self.top_k, self.top_p)
            .choose(uniform(self.seed, sequence, position)))
    }
}

/// Logits that a token is chosen from.
#[derive(Clone, Copy, Debug)]
pub enum Logits<'a> {
    /// A logit of every token.
    All(&'a [f32]),
    /// The first logits of a row, in the order of [`kernels::OrderedKernels::top_k`], and the ids of their
    /// tokens: the number of logits that [`Sampling::needs`] returns.
    First(&'a [f32], &'a [u32]),
}

impl Logits<'_> {
    /// Returns the first logit, by id, that is not finite.
    fn improper(self) -> Result<Option<(usize, f32)>> {
        match self {
            Logits::All([]) | Logits::First([], _) => Err(Error::new("there are no logits to choose from")),
            // This check of all logits vectorises; the search below does not.
            Logits::All(all) if all.iter().fold(true, |finite, logit| finite & logit.is_finite()) => Ok(None),
            Logits::All(all) => Ok(all.iter().copied().enumerate().find(|(_, logit)| !logit.is_finite())),
            Logits::First(values, ids) => Ok((!values[0].is_finite()).then(|| (ids[0] as usize, values[0]))),
        }
    }
}

/// Returns a number in [0, 1): a hash of (seed, sequence, position).
fn uniform(seed: u64, sequence: usize, position: usize) -> f64 {
    let hash = mix(mix(mix(seed) ^ sequence as u64) ^ position as u64);
    (hash >> 11) as f64 * (f64::EPSILON / 2.0) // 53 bits
}

/// Reusable memory for a choice.
#[derive(Debug, Default)]
pub struct SamplingRoom {
    ids: Vec<u32>,
    values: Vec<f32>,
    sums: Vec<f64>,
}

impl SamplingRoom {
    /// Returns the first `n` tokens by descending logit (ties to the lower id), or as many as are given:
    /// their logits and their ids; and memory for sums.
    fn first<'a>(&'a mut self, logits: Logits<'a>, n: usize) -> (&'a [f32], &'a [u32], &'a mut Vec<f64>) {
        let Self { ids, values, sums } = self;
        let logits = match logits {
            Logits::First(values, ids) => return (values, ids, sums),
            Logits::All(logits) => logits,
        };
        let order = |a: &u32, b: &u32| {
            let descending = logits[*b as usize].partial_cmp(&logits[*a as usize]);
            descending.unwrap_or(Ordering::Equal).then(a.cmp(b)) // finite: always comparable
        };
        ids.clear();
        ids.extend(0..logits.len() as u32);
        if n < ids.len() {
            ids.select_nth_unstable_by(n, order);
            ids.truncate(n);
        }
        ids.sort_unstable_by(order);
        values.clear();
        values.extend(ids.iter().map(|&id| logits[id as usize]));
        (values, ids, sums)
    }
}

/// Candidates that may be drawn, and those that were cut off.
struct Candidates<'a> {
    temperature: f64,
    p: f64,            // the share that is kept; 1 keeps all
    ids: &'a [u32],    // by descending logit: the first `kept` may be drawn
    values: &'a [f32], // their logits
    sums: &'a [f64],   // of the first top_k: Σ e^((l−max)/T) of the candidates up to each
    kept: usize,
}

impl<'a> Candidates<'a> {
    fn new(
        room: &'a mut SamplingRoom,
        logits: Logits<'a>,
        temperature: f64,
        top_k: Option<usize>,
        top_p: Option<f64>,
    ) -> Self {
        // The first candidate that is cut off is needed, too.
        let (values, ids, sums) = room.first(logits, top_k.map_or(usize::MAX, |k| k.saturating_add(1)));
        let k = top_k.unwrap_or(ids.len()).min(ids.len());
        let max = f64::from(values[0]);
        let weights = values[..k].iter().map(|&logit| ((f64::from(logit) - max) / temperature).exp());
        sums.clear();
        sums.extend(weights.scan(0.0, |sum, w| {
            *sum += w;
            Some(*sum)
        }));
        let p = top_p.unwrap_or(1.0);
        let kept = if p < 1.0 { sums.partition_point(|sum| sum / sums[k - 1] < p) + 1 } else { k };
        Self { temperature, p, ids, values, sums, kept: kept.min(k) }
    }
    /// Returns the candidate whose interval contains `u`.
    fn choose(&self, u: f64) -> SampledToken {
        let total = self.sums[self.kept - 1];
        let index = self.sums[..self.kept].partition_point(|sum| sum / total <= u).min(self.kept - 1);
        SampledToken { id: self.ids[index], margin: self.margin(index, u) }
    }
}

#[cfg(test)]
mod tests;
