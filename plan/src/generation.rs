//! Time of generating texts under a layout, and the search for the best layout and number of texts at once.
//!
//! ```text
//! text  = prompt + Σ over new tokens of token      every text is of the same length
//! each  = Σ over stages of (kernels + waits) + messages between them: one microbatch goes through all stages
//! token is priced after the prompt and before the last token; between, it grows evenly with the cache
//! ```
use crate::clock::{Lap, PARTS, Part, StepClock};
use crate::cores::each;
use crate::machine::Machine;
use crate::morphing;
use crate::search::BEST;
use crate::space::{WORK, divisions, variants};
use crate::step::{ChunkKind, chunk_kind, priced_ranks};
use crate::watch::{SearchEvent, SearchWatch};
use comm::Axis;
use kernels::{Kernels, MetaOf};
use layers::{Choice, Design};
use ops::{PassContext, TokenShards};
use parallel::{BuildContext, Error, Layout, Result, Stages, session};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tensor::{Device, TokenIds};

/// Largest logits that are read to choose the likeliest token, and to tell how much likelier it is.
const CANDIDATES: usize = 2;

/// Texts to generate.
#[derive(Clone, Debug)]
pub struct GenerationJob {
    /// The model.
    pub design: Design,
    /// Tokens of a prompt.
    pub prompt: usize,
    /// New tokens of a text.
    pub new: usize,
    /// The most texts at once.
    pub texts: usize,
    /// Name of the dtype.
    pub dtype: &'static str,
}

/// Time of texts that are generated at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationTime {
    /// Seconds until the first new token.
    pub first: f64,
    /// Seconds until the last.
    pub seconds: f64,
    /// Seconds by use, one stage after the other.
    pub parts: [f64; PARTS],
    /// Peak bytes of the fullest rank that was priced.
    pub peak: usize,
}

/// A layout, and the time of this number of texts at once.
#[derive(Clone, Debug)]
pub struct WeighedTexts {
    /// The layout.
    pub layout: Layout,
    /// Texts at once.
    pub texts: usize,
    /// Their time.
    pub time: GenerationTime,
}

impl WeighedTexts {
    /// New tokens of all texts per second.
    pub fn tokens_per_second(&self, job: &GenerationJob) -> f64 {
        (self.texts * job.new) as f64 / self.time.seconds
    }
}

/// Seconds of a pass through a stage, by use, with the message to the next stage.
type PassSeconds = [f64; PARTS];

/// Passes of a stage: the prompt, the token after it, and the last; and the peak bytes of its rank.
type StagePasses = ([PassSeconds; 3], usize);

/// Returns the time of this number of texts at once.
///
/// # Errors
/// If the layout does not fit the model, or there are fewer texts than data ranks.
pub fn time<D: Kernels>(
    (layout, texts): (&Layout, usize),
    job: &GenerationJob,
    machine: &Arc<Machine>,
) -> Result<GenerationTime> {
    layout.fits(&job.design)?;
    let (pipeline, stages) = (layout.pipeline(), layout.size(Axis::Pp));
    let plan = pipeline.plan(stages, 1);
    let mut known: HashMap<Vec<ChunkKind>, StagePasses> = HashMap::new();
    let (mut passes, mut peak) = ([[0.0; PARTS]; 3], 0);
    for stage in 0..stages {
        let own = pipeline.schedule.chunks_of(stage, &plan);
        let kinds: Vec<_> = own.iter().map(|chunk| chunk_kind(&job.design, layout, *chunk, &plan)).collect();
        let is_last = own.contains(&(plan.all_chunks() - 1));
        let (of_stage, held) = match known.get(&kinds) {
            Some(known) => *known,
            None => {
                *known.entry(kinds).or_insert(longest::<D>((layout, texts), job, (stage, is_last), machine)?)
            }
        };
        peak = peak.max(held);
        for (all, more) in passes.iter_mut().flatten().zip(of_stage.iter().flatten()) {
            *all += more;
        }
    }
    let [first, early, late] = passes;
    let more = job.new.saturating_sub(1) as f64;
    let parts = std::array::from_fn(|part| first[part] + more * (early[part] + late[part]) / 2.0);
    Ok(GenerationTime { first: first.iter().sum(), seconds: parts.iter().sum(), parts, peak })
}

/// Returns the passes of the slowest of a stage's ranks that are priced.
fn longest<D: Kernels>(
    of: (&Layout, usize),
    job: &GenerationJob,
    (stage, is_last): (usize, bool),
    machine: &Arc<Machine>,
) -> Result<StagePasses> {
    let ranks = priced_ranks(of.0, &job.design, stage).into_iter();
    let all = ranks.map(|rank| passes::<D>(of, job, (rank, is_last), machine)).collect::<Result<Vec<_>>>()?;
    let seconds = |(passes, _): &StagePasses| passes.iter().flatten().sum::<f64>();
    let peak = all.iter().map(|(_, peak)| *peak).max().unwrap_or(0);
    let slower = all.into_iter().max_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    Ok((slower.expect("a stage has a rank").0, peak))
}

/// Runs the shape-only program of a rank.
fn passes<D: Kernels>(
    (layout, texts): (&Layout, usize),
    job: &GenerationJob,
    (rank, is_last): (usize, bool),
    machine: &Arc<Machine>,
) -> Result<StagePasses> {
    let clock = StepClock::new(machine, layout.ranks() / layout.size(Axis::Pp));
    session::timed::<D, _>(layout, (rank, None), Some(clock.of_rank()), |at: BuildContext<MetaOf<D>>| {
        let mut model = Stages::new(&at, &job.design)?;
        let vocabulary = job.design.outputs();
        let mut two = |prompt: usize| {
            let dealt = |tokens: &TokenShards| vec![prompt; tokens.sequences(texts).len()];
            let lengths = dealt(&at.tokens);
            let all = (0..at.tokens.data_ranks()).map(|rank| dealt(&at.tokens.of_data_rank(rank)));
            let cx = PassContext::infer(&lengths).sharded(at.tokens).among(all);
            let mut cx = cx.with_cache(job.prompt + job.new);
            let mut pass = |cx: &PassContext<_>| {
                let ids = TokenIds::new(at.device.place(), &vec![0; cx.rows()], vocabulary)?;
                clock.lap();
                drop(ops::top_k(&model.logits(cx, ids, false)?, CANDIDATES));
                Ok::<_, Error>(pass_of(&clock.lap(), is_last))
            };
            let prompt = pass(&cx)?;
            cx.advance(&vec![1; lengths.len()]);
            Ok::<_, Error>([prompt, pass(&cx)?])
        };
        let [prompt, early] = two(job.prompt)?;
        let peak = at.device.meter().peaks_of_all().total;
        let [_, late] = two(job.prompt + job.new.saturating_sub(2))?;
        Ok(([prompt, early, late], peak))
    })
}

/// Returns a stage's seconds by use. Logits come from the last stage once, whoever waits for them.
fn pass_of(lap: &Lap, is_last: bool) -> PassSeconds {
    let mut pass = lap.parts;
    if !is_last {
        pass[Part::Pp as usize] = lap.message.map_or(0.0, |message| message.iter().sum());
    }
    pass
}

/// Measure of the best layout of texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextsGoal {
    /// The most new tokens per second.
    Throughput,
    /// The shortest time until a text is whole.
    Latency,
    /// The least memory of the fullest rank.
    Memory,
}

/// A search for the layout of texts.
pub struct GenerationSearch<'a> {
    /// Texts to generate.
    pub job: &'a GenerationJob,
    /// The machine.
    pub machine: &'a Arc<Machine>,
    /// Bytes that a rank may hold.
    pub memory: usize,
    /// Number of ranks.
    pub ranks: usize,
    /// Measure of the best layout.
    pub goal: TextsGoal,
    /// Receiver of the search's events.
    pub watch: SearchWatch<'a>,
}

/// Result of a search.
#[derive(Clone, Debug, Default)]
pub struct FoundTexts {
    /// The best, the best first; of each layout, with the best number of texts.
    pub best: Vec<WeighedTexts>,
    /// Number of layouts and numbers of texts that were weighed.
    pub weighed: usize,
    /// Number of them that do not fit.
    pub refused: usize,
    /// The least peak of those that do not fit into memory, and its layout.
    pub least: Option<(usize, Layout)>,
    /// True if the search was cut: better layouts may exist.
    pub cut: bool,
}

impl GenerationSearch<'_> {
    /// Weighs every layout of all ranks and, with `fewer`, of fewer ranks where they do not divide evenly;
    /// each with one text on a data rank, for throughput also with 2, 4, … until they do not fit. More texts
    /// take no less memory, and no less time once each tensor rank has rows: before, calls are uneven.
    pub fn find<D: Kernels>(&self, fewer: bool) -> FoundTexts {
        let numbers = if fewer { morphing::numbers(self.ranks) } else { vec![self.ranks] };
        let work: Vec<Choice> = WORK.iter().copied().filter(|choice| *choice != Choice::Recompute).collect();
        let all = numbers.into_iter().flat_map(|ranks| {
            // a prompt's tokens bound the ranks that share them
            let layouts = divisions(ranks, &self.job.design, [self.job.texts, self.job.prompt]);
            layouts.into_iter().flat_map(|layout| variants(layout, &work, &self.job.design, false))
        });
        let mut found = FoundTexts::default();
        let all: Vec<Layout> = all.collect();
        let seen = Mutex::new((all.len(), None, true));
        let each = each(&all, |layout| self.watched::<D>(layout, &seen));
        found.cut = each.iter().any(Option::is_none);
        for (layout, (weighed, over)) in all.iter().zip(each).filter_map(|(layout, of)| Some((layout, of?))) {
            found.weighed += weighed.len();
            found.refused += usize::from(over.is_some() || weighed.is_empty());
            let is_less = |over: &usize| found.least.is_none_or(|(least, _)| *over < least);
            if let Some(over) = over.filter(|over| weighed.is_empty() && is_less(over)) {
                found.least = Some((over, *layout));
            }
            found.best.extend(weighed.into_iter().min_by(|a, b| self.order(a, b)));
        }
        found.best.sort_by(|a, b| self.order(a, b));
        found.best.truncate(BEST);
        found
    }
    /// Weighs a layout, unless the search is cut, and tells so. `seen`: number of layouts that are left, the
    /// best so far, and whether the search goes on.
    fn watched<D: Kernels>(
        &self,
        layout: &Layout,
        seen: &Mutex<(usize, Option<WeighedTexts>, bool)>,
    ) -> Option<(Vec<WeighedTexts>, Option<usize>)> {
        let seen = || seen.lock().unwrap_or_else(PoisonError::into_inner);
        let weighed = seen().2.then(|| self.of_layout::<D>(layout))?;
        let (left, best, goes_on) = &mut *seen();
        *left -= 1;
        *best = weighed.0.iter().chain(best.as_ref()).min_by(|a, b| self.order(a, b)).cloned();
        let best = best.as_ref().map(|of| (of.layout, of.tokens_per_second(self.job)));
        *goes_on &= (self.watch)(&SearchEvent::WeighingTexts { left: *left, best });
        Some(weighed)
    }
    /// Returns what a layout generates with each number of texts that fits, and the peak of the first one
    /// that does not.
    fn of_layout<D: Kernels>(&self, layout: &Layout) -> (Vec<WeighedTexts>, Option<usize>) {
        let data = layout.size(TokenShards::SEQUENCES);
        let most = match self.goal {
            TextsGoal::Throughput => self.job.texts,
            TextsGoal::Latency => self.job.texts.min(data * layout.size(Axis::Tp)),
            TextsGoal::Memory => self.job.texts.min(data),
        };
        let mut weighed = Vec::new();
        for texts in (0..usize::BITS).map(|power| data << power).take_while(|n| *n <= most) {
            let Ok(time) = time::<D>((layout, texts), self.job, self.machine) else { break };
            if time.peak > self.memory {
                return (weighed, Some(time.peak));
            }
            weighed.push(WeighedTexts { layout: *layout, texts, time });
        }
        (weighed, None)
    }
    /// Compares by the goal, then by time, memory and text.
    fn order(&self, a: &WeighedTexts, b: &WeighedTexts) -> Ordering {
        let score = |of: &WeighedTexts| match self.goal {
            TextsGoal::Throughput => -of.tokens_per_second(self.job),
            TextsGoal::Latency => of.time.seconds,
            TextsGoal::Memory => of.time.peak as f64,
        };
        let keys = |of: &WeighedTexts| [score(of), of.time.seconds, of.time.peak as f64];
        let numbers =
            keys(a).into_iter().zip(keys(b)).map(|(a, b)| a.total_cmp(&b)).find(|order| order.is_ne());
        numbers.unwrap_or_else(|| a.layout.to_string().cmp(&b.layout.to_string()))
    }
}
