//! Results of a generation: texts, times, memory.
use super::text::Text;
use parallel::dump::Recorded;
use parallel::measure::{self, PeakBytes, RankMeasurements};
use serde::{Deserialize, Serialize};
use tensor::Scalar;

/// All continued prompts, with measurements.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct Generated<E: Scalar> {
    /// Texts, in the order of the prompts.
    pub texts: Vec<Text>,
    /// Times of the new tokens of each text.
    pub times: Vec<TokenTimes>,
    /// Measurements of each rank.
    pub taken: Vec<RankMeasurements>,
    /// Seconds of that time until every rank had read its prompts.
    pub prefill_seconds: f64,
    /// Activations of each data rank's layers, if recorded.
    #[serde(skip)]
    pub seen: Vec<Recorded<E>>,
}

/// Times of a text's new tokens, in seconds since the work began; 0 without new tokens.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct TokenTimes {
    /// Time of the first token; includes the wait for earlier requests.
    pub first: f64,
    /// Time of the last token.
    pub last: f64,
}

/// Mean latencies over texts, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TokenLatency {
    /// Mean time of a text's first token, since the work began; `None` without new tokens.
    pub first_token_seconds: Option<f64>,
    /// Mean time between two tokens of a text; `None` if no text has two new tokens.
    pub token_seconds: Option<f64>,
}

/// Output for scripts: one JSON object per text.
#[derive(Serialize)]
pub struct Line<'a> {
    ids: &'a [u32],
    prompt_logits: &'a [f32],
    seconds: f64,
    tokens_per_second: f64,
    #[serde(flatten)]
    latency: TokenLatency,
    peak_bytes: PeakBytes,
}

impl TokenTimes {
    /// Counts a token at this time.
    pub(super) fn add(&mut self, now: f64, is_first: bool) {
        self.last = now;
        self.first = if is_first { now } else { self.first };
    }
}

impl<E: Scalar> Generated<E> {
    /// Creates the result of no ranks.
    pub(super) fn new() -> Self {
        let taken = Vec::new();
        Self { texts: Vec::new(), times: Vec::new(), taken, prefill_seconds: 0.0, seen: Vec::new() }
    }
    /// Returns the number of new tokens of all texts.
    pub fn new_tokens(&self) -> usize {
        self.texts.iter().map(|t| t.margins.len()).sum()
    }
    /// Returns the number of new tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.new_tokens() as f64 / measure::seconds(&self.taken)
    }
    /// Returns the mean latencies of a token.
    pub fn latency(&self) -> TokenLatency {
        let with = |least: usize| {
            let texts = self.texts.iter().zip(&self.times).map(|(text, times)| (text.margins.len(), times));
            texts.filter(move |(new, _)| *new >= least)
        };
        let between = with(2).map(|(new, TokenTimes { first, last })| (last - first) / (new - 1) as f64);
        TokenLatency {
            first_token_seconds: mean(with(1).map(|(_, times)| times.first)),
            token_seconds: mean(between),
        }
    }
    /// Returns the output for scripts.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.texts.iter().map(|text| Line {
            ids: &text.ids,
            prompt_logits: &text.prompt_logits,
            seconds: measure::seconds(&self.taken),
            tokens_per_second: self.tokens_per_second(),
            latency: self.latency(),
            peak_bytes: PeakBytes::of(&self.taken),
        })
    }
}

fn mean(seconds: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, n) = seconds.fold((0.0, 0), |(sum, n), x| (sum + x, n + 1));
    (n > 0).then(|| sum / f64::from(n))
}
