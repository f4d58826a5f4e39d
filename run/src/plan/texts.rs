//! The best layout for generating texts.
use super::{CUT, Devices, indivisible, proof, tell_proof};
use crate::event::{CellValue, Observer, RecordColumn, RunRecord, column, hidden};
use crate::price::seconds::{spent, used};
use crate::records;
use crate::words::amount;
use layers::counted;
use parallel::dtype::DtypeName;
use parallel::{Result, bail, with_dtype};
use plan::clock::time;
use plan::generation::{FoundTexts, GenerationJob, GenerationSearch, TextsGoal, WeighedTexts};
use plan::watch::SearchWatch;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

/// Generation to plan.
pub struct TextsPlanRun {
    /// The generation.
    pub job: GenerationJob,
    /// Dtype of the run, that of the job.
    pub dtype: DtypeName,
    /// The devices.
    pub on: Devices,
    /// Measure of the best layout.
    pub goal: TextsGoal,
}

impl TextsPlanRun {
    /// Finds the best layouts.
    ///
    /// # Errors
    /// If nothing fits: which memory would do; or if the search was cut before that.
    pub fn find(&self, watch: SearchWatch) -> Result<FoundTexts> {
        let Self { job, on, goal, .. } = self;
        if on.all {
            indivisible(on.number, &job.design, [job.texts, job.prompt])?;
        }
        let Devices { number: ranks, machine, memory, .. } = on;
        let search = GenerationSearch { job, machine, memory: *memory, ranks: *ranks, goal: *goal, watch };
        let found = with_dtype!(self.dtype, D => search.find::<D>(!on.all));
        if found.best.is_empty() && found.cut {
            let refused = counted(found.refused, "layout");
            bail!("the search was cut after {refused}, none of which fits into {}", on.room());
        }
        if found.best.is_empty() { Err(on.too_large(found.least)) } else { Ok(found) }
    }
    /// Tells the layouts that were found. Returns false if the proof of the best one fails.
    ///
    /// # Errors
    /// If the proof cannot be run, or the observer fails.
    pub fn tell(&self, found: &FoundTexts, observer: &Observer) -> Result<bool> {
        let (Self { job, on, .. }, best) = (self, &found.best[0]);
        let proof = on.proves.then(|| proof::of(job.design.shape(), &best.layout, observer)).transpose()?;
        let rows: Vec<_> = found.best.iter().map(|of| TextsRow::new(of, job)).collect();
        observer.records(&rows)?;
        if let Some(proof) = &proof {
            observer.record(&TextsPlanEnd(json!({ "proof": proof })))?;
        }
        self.tell_rows(&rows, found, observer)?;
        tell_proof(proof.as_ref(), observer)
    }
    fn tell_rows(&self, rows: &[TextsRow], found: &FoundTexts, observer: &Observer) -> Result<()> {
        let Self { job, on, .. } = self;
        let words = format!(
            "Generating in {} on {}: {} after a prompt of {}, at most {} at once.\n{} layouts and \
             numbers of texts were weighed, and {} refused.\n",
            job.dtype,
            on.words(),
            counted(job.new, "token"),
            job.prompt,
            counted(job.texts, "text"),
            found.weighed,
            found.refused,
        );
        observer.say(&words)?;
        observer.table_of(rows)?;
        let best = &found.best[0];
        let parts = used(&best.time.parts, 0.0);
        observer.say(&format!("\nWith the best, a text spends {}.", spent(&parts, best.time.seconds)))?;
        if found.cut {
            observer.say(CUT)?;
        }
        on.tell_idle(best.layout.ranks(), observer)
    }
}

/// A layout and a number of texts that were found.
struct TextsRow {
    layout: String,
    devices: usize,
    texts: usize,
    /// Seconds until the first token, until each later one, and of all.
    seconds: [f64; 3],
    tokens_per_second: f64,
    peak_bytes: usize,
    parts: Parts,
}

/// Proof of the best layout.
#[derive(Serialize)]
struct TextsPlanEnd(Value);

records!(TextsPlanEnd: "plan's end");

/// Seconds by use.
type Parts = std::collections::BTreeMap<&'static str, f64>;

impl TextsRow {
    fn new(of: &WeighedTexts, job: &GenerationJob) -> Self {
        let later = job.new.saturating_sub(1).max(1) as f64;
        let (first, all) = (of.time.first, of.time.seconds);
        Self {
            layout: of.layout.to_string(),
            devices: of.layout.ranks(),
            texts: of.texts,
            seconds: [first, (all - first) / later, all],
            tokens_per_second: of.tokens_per_second(job),
            peak_bytes: of.time.peak,
            parts: used(&of.time.parts, 0.0),
        }
    }
}

impl Serialize for TextsRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self { layout, devices, texts, seconds, tokens_per_second, peak_bytes, parts } = self;
        let object = json!({
            "layout": layout, "devices": devices, "texts": texts, "first_token_seconds": seconds[0],
            "seconds": seconds[2], "tokens_per_second": tokens_per_second, "peak_bytes": peak_bytes, "parts": parts,
        });
        object.serialize(serializer)
    }
}

impl RunRecord for TextsRow {
    fn kind(&self) -> &'static str {
        "plan of texts"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let [first, later, all] = self.seconds.map(|seconds| CellValue::Shown(seconds, time(seconds)));
        let rate = self.tokens_per_second;
        vec![
            (column("layout", "layout"), CellValue::word(&self.layout)),
            (hidden("devices"), CellValue::Count(self.devices)),
            (column("texts", "texts at once"), CellValue::Count(self.texts)),
            (column("first_token_seconds", "first token"), first),
            (column("later_token_seconds", "each later one"), later),
            (column("seconds", "all"), all),
            (column("tokens_per_second", "tokens/s"), CellValue::Shown(rate, amount(rate))),
            (column("peak_bytes", "holds"), CellValue::bytes(self.peak_bytes as u128)),
        ]
    }
}
