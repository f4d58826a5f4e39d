//! Plans: the best layouts of a model on a machine, for training or for generating texts.
pub mod notes;
pub mod planner;
mod proof;
pub mod texts;

use crate::event::{CellValue, Observer, RecordColumn, RunRecord, column, hidden};
use crate::price::PriceRun;
use crate::price::seconds::MachineTime;
use crate::records;
use crate::train::settings::Settings;
use crate::words::amount;
use layers::{Design, counted};
use parallel::dtype::DtypeName;
use parallel::{Error, Layout, Result, bail, with_dtype};
use plan::advice::{self, DecisionStep};
use plan::clock::time;
use plan::search::LayoutSearch;
use plan::step::{TrainingJob, model_flops};
use plan::watch::SearchWatch;
use plan::weighed::{Goal, SearchResult, Weighed};
use plan::{Machine, Part, morphing};
use prove::Verdict;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use std::sync::Arc;
use tensor::readable;

/// The most devices.
pub const MOST_DEVICES: usize = 1 << 17;
/// Sentence on a search that was cut.
const CUT: &str = "The search was cut: layouts that were not weighed may be better.";
/// The most tokens of a step.
const MOST_TOKENS: u128 = 1 << 26;

/// Training to plan.
pub struct PlanRun {
    /// The training.
    pub job: TrainingJob,
    /// Dtype of the run, that of the job.
    pub dtype: DtypeName,
    /// The devices.
    pub on: Devices,
    /// Measure of the best layout.
    pub goal: Goal,
}

/// The devices that a plan is for.
pub struct Devices {
    /// Their number.
    pub number: usize,
    /// True if a layout has to use all of them.
    pub all: bool,
    /// The machine that they are of.
    pub machine: Arc<Machine>,
    /// Memory of one, in bytes.
    pub memory: usize,
    /// True if the best layout is proven before it is recommended.
    pub proves: bool,
}

impl PlanRun {
    /// Checks the sizes of a step.
    ///
    /// # Errors
    /// If it has too many tokens.
    pub fn check(&self) -> Result<()> {
        let tokens = self.job.seq as u128 * self.job.batch_size as u128;
        if tokens > MOST_TOKENS {
            bail!("the step has {tokens} tokens; it may have at most {MOST_TOKENS}");
        }
        Ok(())
    }
    /// The step of a layout that was found, to be priced.
    #[must_use]
    pub fn step(&self, of: &Weighed) -> PriceRun {
        let (optimizer, scaling) = self.job.optimizer;
        let settings = Settings {
            seq: self.job.seq,
            batch_size: self.job.batch_size,
            microbatches: of.microbatches,
            optimizer,
            clip: of.layout.pipeline().clip(scaling.clip),
            loss_scaling: scaling.loss,
            number: self.dtype,
            ..Settings::default()
        };
        PriceRun { design: self.job.design.clone(), experts: None, settings, layout: of.layout }
    }
    fn search<'a>(&'a self, watch: SearchWatch<'a>) -> LayoutSearch<'a> {
        let &Devices { number: ranks, ref machine, memory, .. } = &self.on;
        let job = &self.job;
        LayoutSearch { job, machine, memory, ranks, microbatches: None, goal: self.goal, all: false, watch }
    }
    /// Finds the best layouts.
    ///
    /// # Errors
    /// If nothing fits: which memory would do, or what is known of that if the search was cut.
    pub fn find(&self, watch: SearchWatch) -> Result<SearchResult> {
        let search = self.search(watch);
        let all = self.on.all;
        if all {
            indivisible(self.on.number, &self.job.design, [self.job.batch_size, self.job.seq])?;
        }
        let found =
            with_dtype!(self.dtype, D => if all { search.find::<D>() } else { morphing::find::<D>(&search) });
        if found.best.is_empty() { Err(self.on.nothing_fits(&found)) } else { Ok(found) }
    }
    /// Tells the layouts that were found, and why the best is the best. Returns false if its proof fails.
    ///
    /// # Errors
    /// If the proof cannot be run, or the observer fails.
    pub fn tell(&self, found: &SearchResult, observer: &Observer) -> Result<bool> {
        let job = &self.job;
        let best = &found.best[0];
        let proof =
            self.on.proves.then(|| proof::of(job.design.shape(), &best.layout, observer)).transpose()?;
        let (flops, steps) = with_dtype!(self.dtype, D =>
            Ok::<_, Error>((model_flops::<D>(job)?, advice::steps::<D>(&self.search(&|_| true), best)?)))?;
        let row = |of| PlanRow::new(of, (job, flops), &self.on.machine);
        let rows: Vec<_> = found.best.iter().map(row).collect();
        observer.records(&rows)?;
        observer.record(&PlanEnd(json!({ "steps": steps, "proof": proof, "cut": found.cut })))?;
        self.tell_rows(&rows, found, observer)?;
        decided(&steps, observer)?;
        tell_proof(proof.as_ref(), observer)
    }
    fn tell_rows(&self, rows: &[PlanRow], found: &SearchResult, observer: &Observer) -> Result<()> {
        let Self { job, on, .. } = self;
        let words = format!(
            "Training in {} on {}: {} of {} in a step.\n{} layouts were weighed, {} bounded and {} refused.\n",
            job.dtype,
            on.words(),
            counted(job.batch_size, "sequence"),
            counted(job.seq, "token"),
            found.weighed,
            found.bounded,
            found.refused,
        );
        observer.say(&words)?;
        observer.table_of(rows)?;
        let best = &rows[0];
        let (tokens, spent) = (amount(best.time.tokens_per_second), best.time.spent());
        observer.say(&format!(
            "\nThe best makes {tokens} tokens a second. Its rank that ends last spends {spent}."
        ))?;
        if found.cut {
            observer.say(CUT)?;
        }
        if found.needed {
            observer
                .say("Nothing fits without strategies that only save memory, so they were tried, too.")?;
        }
        on.tell_idle(best.devices, observer)
    }
}

impl Devices {
    fn words(&self) -> String {
        let memory = readable(self.memory as u128);
        format!("{} of {}, with {memory} each", counted(self.number, "device"), self.machine.about)
    }
    /// Says that nothing fits, and which memory would do; or what a search that was cut knows of that.
    fn nothing_fits(&self, found: &SearchResult) -> Error {
        let least = found.least.as_ref().map(|of| (of.step.peak, of.layout));
        match (least, found.cut) {
            (least, false) => self.too_large(least),
            (Some((peak, layout)), true) => Error::new(format!(
                "the search was cut: without strategies that only save memory nothing fits into {}; with them, \
                 the least so far is {} each, under {layout}",
                self.room(),
                readable(peak as u128)
            )),
            (None, true) if found.weighed == 0 => {
                Error::new("the search was cut before it weighed a layout that fits")
            }
            (None, true) => Error::new(format!(
                "the search was cut after {}, none of which fits into {}",
                counted(found.weighed, "layout"),
                self.room()
            )),
        }
    }
    /// Says that nothing fits, and the least peak of a layout, if one divides the model.
    fn too_large(&self, least: Option<(usize, Layout)>) -> Error {
        let would = match least {
            Some((peak, layout)) => format!("the least is {} each, under {layout}", readable(peak as u128)),
            None => "no layout divides the model over them; use another number of devices".into(),
        };
        Error::new(format!("nothing fits into {}: {would}", self.room()))
    }
    fn room(&self) -> String {
        format!("{} on {}", readable(self.memory as u128), counted(self.number, "device"))
    }
    /// Says how many devices stay idle.
    fn tell_idle(&self, used: usize, observer: &Observer) -> Result<()> {
        let ranks = self.number;
        if used == ranks {
            return Ok(());
        }
        observer.say(&format!("It uses {used} of {ranks} devices; {} idle.", stay(ranks - used)))
    }
}

fn stay(devices: usize) -> String {
    let stay = if devices == 1 { "stays" } else { "stay" };
    format!("{} {stay}", counted(devices, "device"))
}

/// Refuses devices that no layout uses fully, and says which number some layout does.
fn indivisible(devices: usize, design: &Design, sizes: [usize; 2]) -> Result<()> {
    let would = match morphing::divisible(devices, design, sizes) {
        Some(all) if all == devices => return Ok(()),
        Some(fewer) => format!("{} could be used fully", counted(fewer, "device")),
        None => "no number of devices could".into(),
    };
    bail!(
        "no layout of the model uses all {} for {}; {would}, or leave --all-devices out",
        counted(devices, "device"),
        counted(sizes[0], "sequence")
    );
}

/// A layout that was found, and the time of its step.
struct PlanRow {
    layout: String,
    devices: usize,
    microbatches: usize,
    time: MachineTime,
    peak_bytes: usize,
    sent_bytes: usize,
    bubble: f64,
    waits: f64,
}

impl PlanRow {
    fn new(of: &Weighed, (job, flops): (&TrainingJob, f64), machine: &Machine) -> Self {
        let devices = of.layout.ranks();
        let waits = [Part::Tp, Part::Cp, Part::Ep, Part::Dp, Part::Pp];
        Self {
            layout: of.layout.to_string(),
            devices,
            microbatches: of.microbatches,
            time: MachineTime::new(&of.step, (job, flops), (machine, devices)),
            peak_bytes: of.step.peak,
            sent_bytes: of.step.sent,
            bubble: of.step.bubble,
            waits: waits.iter().map(|part| of.step.parts[*part as usize]).sum(),
        }
    }
}

impl Serialize for PlanRow {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let Self { layout, devices, microbatches, time, peak_bytes, sent_bytes, .. } = self;
        let object = json!({
            "layout": layout, "devices": devices, "microbatches": microbatches, "seconds": time.seconds,
            "tokens_per_second": time.tokens_per_second, "share_of_peak": time.share_of_peak,
            "peak_bytes": peak_bytes, "sent_bytes": sent_bytes, "parts": time.parts,
        });
        object.serialize(serializer)
    }
}

impl RunRecord for PlanRow {
    fn kind(&self) -> &'static str {
        "plan"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let MachineTime { seconds, share_of_peak, tokens_per_second, .. } = self.time;
        let percent = |part: f64| CellValue::Shown(part, format!("{:.1} %", 100.0 * part));
        vec![
            (column("layout", "layout"), CellValue::word(&self.layout)),
            (hidden("devices"), CellValue::Count(self.devices)),
            (column("microbatches", "microbatches"), CellValue::Count(self.microbatches)),
            (column("seconds", "step"), CellValue::Shown(seconds, time(seconds))),
            (hidden("tokens_per_second"), CellValue::Number(tokens_per_second)),
            (column("share_of_peak", "of peak"), percent(share_of_peak)),
            (column("peak_bytes", "holds"), CellValue::bytes(self.peak_bytes as u128)),
            (column("sent_bytes", "sends"), CellValue::bytes(self.sent_bytes as u128)),
            (column("bubble", "bubble"), percent(self.bubble / seconds)),
            (column("other_waits", "other waits"), percent(self.waits / seconds)),
        ]
    }
}

/// End of a plan: the steps of the decision, the proof of the best layout, and whether the search was cut.
#[derive(Serialize)]
struct PlanEnd(Value);

records!(PlanEnd: "plan's end");

/// Tells the steps of the decision.
fn decided(steps: &[DecisionStep], observer: &Observer) -> Result<()> {
    observer.say("\nBy the usual decision trees:")?;
    let step =
        |DecisionStep { question, answer }: &DecisionStep| observer.say(&format!("- {question} {answer}"));
    steps.iter().try_for_each(step)
}

/// Tells the proof, if there is one. Returns false if it fails.
fn tell_proof(proof: Option<&Verdict>, observer: &Observer) -> Result<bool> {
    let Some(proof) = proof else { return Ok(true) };
    observer.say(&format!("\n{}", proof::sentence(proof)))?;
    Ok(proof.equal)
}
