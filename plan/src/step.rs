//! Time of a training step: the shape-only program of one rank of each kind of stage gives the time and the
//! memory of each kind of move, and the simulation of the schedule combines them.
//!
//! ```text
//! step = max over ranks of (end of its last cell + gradients that are still summed then) + update
//! ```
use crate::clock::{Lap, PARTS, Part, StepClock};
use crate::machine::Machine;
use comm::Axis;
use kernels::{Kernels, MetaOf};
use layers::{Design, OptimizerKind};
use ops::{GradientScaling, TokenShards};
use parallel::price::{MoveCosts, shows};
use parallel::step::simulate::{StepTimes, simulate};
use parallel::step::{Action, ActionPhase, Cell, Payload, Plan, moves_of_all};
use parallel::{Batch, BuildContext, Error, Layout, Result, Schedule, Sequence, Trainer, session};
use std::collections::HashMap;
use std::sync::Arc;
use tensor::Device;

/// Training job: the model, and the work of each step.
#[derive(Clone, Debug)]
pub struct TrainingJob {
    /// The model.
    pub design: Design,
    /// The optimizer, and how it scales gradients.
    pub optimizer: (OptimizerKind, GradientScaling),
    /// Tokens of a sequence.
    pub seq: usize,
    /// Sequences of a step.
    pub batch_size: usize,
    /// Name of the dtype.
    pub dtype: &'static str,
}

impl TrainingJob {
    /// Returns a sequence of the step; all are alike.
    pub fn sequence(&self) -> Sequence {
        match self.design.features() {
            Some(features) => Sequence::example(vec![0.0; features], 0),
            None => Sequence::new(vec![0; self.seq], vec![0; self.seq]),
        }
    }
}

/// Time of a step under a layout.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Seconds of the step.
    pub seconds: f64,
    /// Seconds by use, of the rank that ends last.
    pub parts: [f64; PARTS],
    /// Seconds that this rank waits for other stages.
    pub bubble: f64,
    /// Operations of all ranks.
    pub flops: f64,
    /// Peak bytes of the fullest rank of those that were priced.
    pub peak: usize,
    /// The most bytes that one of them sends.
    pub sent: usize,
}

/// A kind of stage under a layout: priced once.
type StageKey = (String, &'static str, [usize; 3], Vec<ChunkKind>);

/// A kind of chunk: the kinds of its blocks, and whether it has the embedding, the head, and its neighbours
/// on its rank.
pub(crate) type ChunkKind = (Vec<usize>, [bool; 4]);

/// Moves of all ranks in a step.
struct StepTable {
    own: Vec<Vec<usize>>, // chunks of each rank
    moves: Vec<Vec<ActionPhase>>,
    few: usize, // microbatches of a step that has moves of the same kinds
}

impl StepTable {
    fn new(schedule: &dyn Schedule, plan: &Plan) -> Result<Self> {
        let own: Vec<Vec<usize>> = (0..plan.ranks).map(|rank| schedule.chunks_of(rank, plan)).collect();
        let moves = moves_of_all(schedule, plan).map_err(Error::new)?;
        let is_enough = |few: &usize| {
            let few = Plan { microbatches: *few, ..*plan };
            let known = schedule.fits(&few).is_ok().then(|| moves_of_all(schedule, &few).ok()).flatten();
            known.is_some_and(|few| (0..plan.ranks).all(|rank| shows(&own[rank], &few[rank], &moves[rank])))
        };
        let tries = (3..=2 * plan.ranks + 1).chain((3..=8).map(|times| times * plan.ranks));
        let few = tries.take_while(|few| *few < plan.microbatches).find(is_enough);
        Ok(Self { few: few.unwrap_or(plan.microbatches), own, moves })
    }
}

/// A table, by schedule, its number and the sizes of its table.
type TableKey = (&'static str, Option<usize>, Plan);

/// Prices of stages and tables of schedules, kept for other layouts.
#[derive(Default)]
pub struct KnownPrices {
    stages: HashMap<StageKey, Arc<Vec<MoveCosts<Lap>>>>,
    tables: HashMap<TableKey, Arc<StepTable>>,
    batches: HashMap<[usize; 3], Arc<Batch>>,
}

impl KnownPrices {
    /// Returns the moves of all ranks in a step.
    fn table(
        &mut self,
        schedule: &dyn Schedule,
        number: Option<usize>,
        plan: Plan,
    ) -> Result<Arc<StepTable>> {
        let key = (schedule.about().word, number, plan);
        if let Some(known) = self.tables.get(&key) {
            return Ok(known.clone());
        }
        let table = Arc::new(StepTable::new(schedule, &plan)?);
        if self.tables.len() > 64 {
            self.tables.clear();
        }
        Ok(self.tables.entry(key).or_insert(table).clone())
    }
    /// Returns a batch of equal sequences.
    fn batch(&mut self, job: &TrainingJob, [sequences, microbatches]: [usize; 2]) -> Result<Arc<Batch>> {
        let key = [job.seq, sequences, microbatches];
        if let Some(known) = self.batches.get(&key) {
            return Ok(known.clone());
        }
        self.batches.clear();
        let batch = Batch::new(vec![job.sequence(); sequences * microbatches], microbatches)?;
        Ok(self.batches.entry(key).or_insert(Arc::new(batch)).clone())
    }
    /// Returns the time of a step in this number of microbatches. If a rank holds more than `most` bytes, the
    /// time is infinite, and the peak is that of this rank.
    ///
    /// # Errors
    /// If the layout does not fit the model or the batch.
    pub fn step<D: Kernels>(
        &mut self,
        layout: &Layout,
        job: &TrainingJob,
        (microbatches, most): (usize, usize),
        machine: &Arc<Machine>,
    ) -> Result<StepTime> {
        layout.fits(&job.design)?;
        let pipeline = layout.pipeline();
        let stages = layout.size(Axis::Pp);
        let plan = pipeline.plan(stages, microbatches);
        let table = self.table(pipeline.schedule, pipeline.number, plan)?;
        let mut rows = Vec::new();
        for stage in 0..stages {
            let (own, moves) = (&table.own[stage], &table.moves[stage]);
            let mut costs =
                |again| self.stage::<D>(layout, job, (stage, own, table.few, again), &plan, machine);
            let row = match RankRow::longest(&costs(false)?, own, moves) {
                Ok(row) => row,
                // a stage with the same chunks has shown other kinds of moves
                Err(_) => RankRow::longest(&costs(true)?, own, moves)?,
            };
            if row.peak > most {
                return Ok(StepTime { seconds: f64::INFINITY, peak: row.peak, ..StepTime::default() });
            }
            rows.push(row);
        }
        combined(rows, pipeline.schedule, &plan, (layout.ranks(), machine))
    }
    /// Returns the costs of the moves of a stage: of its first rank, and of the last one of those that share
    /// a sequence. With `again`, measures them even if they are known.
    fn stage<D: Kernels>(
        &mut self,
        layout: &Layout,
        job: &TrainingJob,
        (stage, own, few, again): (usize, &[usize], usize, bool),
        plan: &Plan,
        machine: &Arc<Machine>,
    ) -> Result<Arc<Vec<MoveCosts<Lap>>>> {
        let kinds = own.iter().map(|chunk| chunk_kind(&job.design, layout, *chunk, plan)).collect();
        let sequences = job.batch_size.div_ceil(plan.microbatches);
        let sizes = [job.seq, sequences, plan.slices];
        let key = (layout.unscheduled().to_string(), layout.pipeline().schedule.about().word, sizes, kinds);
        if let Some(known) = self.stages.get(&key).filter(|_| !again) {
            return Ok(known.clone());
        }
        let batch = self.batch(job, [sequences, few])?;
        batch.deals(&layout.tokens())?;
        let mut costs = Vec::new();
        for rank in priced_ranks(layout, &job.design, stage) {
            let clock = StepClock::new(machine, layout.ranks() / plan.ranks);
            let lap = {
                let clock = clock.clone();
                move || clock.lap()
            };
            let timing = (Some(clock.of_rank()), lap);
            costs.push(MoveCosts::new::<D>((layout, rank), &job.design, job.optimizer, &batch, timing)?);
        }
        let costs = Arc::new(costs);
        self.stages.insert(key, costs.clone());
        Ok(costs)
    }
}

/// Returns the ranks of a stage that are priced: of its last data rank, which has the most sequences, and
/// where experts are dealt unevenly also of its first, which has the most of them: the first and the last of
/// those that share a sequence.
pub(crate) fn priced_ranks(layout: &Layout, design: &Design, stage: usize) -> Vec<usize> {
    let data = layout.size(TokenShards::SEQUENCES) - 1;
    let experts = design.shape().and_then(|shape| shape.experts);
    let uneven = experts.is_some_and(|experts| !experts.count.is_multiple_of(layout.size(Axis::Ep)));
    let context = layout.size(TokenShards::CONTEXT) - 1;
    let of_data = [data, 0].into_iter().take(if uneven { 1 + data.min(1) } else { 1 });
    let of_context = move |data| [0, context].map(|cp| (cp, data)).into_iter().take(1 + context.min(1));
    let place = |(cp, data)| [(Axis::Pp, stage), (TokenShards::CONTEXT, cp), (TokenShards::SEQUENCES, data)];
    of_data.flat_map(of_context).map(|of| layout.rank_at(&place(of))).collect()
}

/// Returns the operations of a step of the unsplit model, without recomputation.
///
/// # Errors
/// If the design has an invalid size.
pub fn model_flops<D: Kernels>(job: &TrainingJob) -> Result<f64> {
    let batch = Batch::new(vec![job.sequence()], 1)?;
    let flops = session::ghost::<D, _>(&Layout::UNSPLIT, (0, None), |at: BuildContext<MetaOf<D>>| {
        Trainer::new(&at, &job.design, job.optimizer)?.step(&batch, 0.0)?;
        Ok(at.device.meter().flops())
    })?;
    Ok(flops as f64 * job.batch_size as f64)
}

/// Returns the kind of a chunk.
pub(crate) fn chunk_kind(design: &Design, layout: &Layout, chunk: usize, plan: &Plan) -> ChunkKind {
    let pipeline = layout.pipeline();
    let all = plan.all_chunks();
    let blocks = pipeline.blocks(design.parts(layout.size(Axis::Tp)), chunk, all);
    let kinds = design.kinds();
    let rank = |chunk: usize| pipeline.schedule.rank_of(chunk, plan);
    let beside = |other: Option<usize>| other.is_some_and(|other| other < all && rank(other) == rank(chunk));
    let ends = [chunk == 0, chunk + 1 == all, beside(chunk.checked_sub(1)), beside(Some(chunk + 1))];
    // parts of a classifier are all different
    let rest = if design.shape().is_none() { vec![0; chunk] } else { Vec::new() };
    (blocks.map(|block| kinds[block]).chain(rest).collect(), ends)
}

/// The times of a stage's rank in a step.
struct RankRow {
    cells: Vec<f64>,
    messages: [Option<[f64; 2]>; 2], // by payload
    late: Vec<(usize, f64, f64)>,    // cell, seconds after its start, seconds that the call takes
    tail: f64,                       // from its last cell to the update
    update: f64,
    parts: [f64; PARTS],
    flops: f64,
    peak: usize,
    sent: usize,
}

impl RankRow {
    /// Returns the row of the rank that takes longest, with the peak of the fullest.
    fn longest(all: &[MoveCosts<Lap>], own: &[usize], moves: &[ActionPhase]) -> Result<Self> {
        let rows = all.iter().map(|costs| Self::new(costs, own, moves)).collect::<Result<Vec<_>>>()?;
        let [peak, sent] = Self::most(&rows);
        let longest = rows.into_iter().max_by(|a, b| a.seconds().total_cmp(&b.seconds()));
        Ok(Self { peak, sent, ..longest.expect("a stage has a rank") })
    }
    fn new(costs: &MoveCosts<Lap>, own: &[usize], moves: &[ActionPhase]) -> Result<Self> {
        let mut row = Self {
            cells: Vec::new(),
            messages: [None; 2],
            late: Vec::new(),
            tail: 0.0,
            update: 0.0,
            parts: [0.0; PARTS],
            flops: 0.0,
            sent: 0,
            peak: costs.peak_over(costs.along(own, moves)?.map(|(adds, _)| *adds)),
        };
        for (at, (_, lap)) in moves.iter().zip(costs.along(own, moves)?) {
            let begun = row.tail;
            row.tail += lap.seconds;
            row.flops += lap.flops as f64;
            row.sent += lap.sent;
            row.parts.iter_mut().zip(lap.parts).for_each(|(all, more)| *all += more);
            match at {
                ActionPhase::Begin(Action::Run { .. }) => {
                    row.late.extend(lap.late.iter().map(|(at, takes)| (row.cells.len(), begun + at, *takes)));
                    row.cells.push(std::mem::take(&mut row.tail));
                }
                ActionPhase::Begin(Action::Send(what, ..)) => row.messages[*what as usize] = lap.message,
                ActionPhase::Begin(Action::Update) => {
                    row.update = lap.seconds;
                    row.tail = begun;
                }
                _ => {}
            }
        }
        Ok(row)
    }
    /// The largest peak, and the most bytes that one sends.
    fn most(rows: &[Self]) -> [usize; 2] {
        rows.iter().fold([0; 2], |[peak, sent], row| [peak.max(row.peak), sent.max(row.sent)])
    }
    fn seconds(&self) -> f64 {
        self.cells.iter().sum::<f64>() + self.tail + self.update
    }
    /// Seconds from the end of the last cell until all late calls have ended, if cells start at these times.
    fn waits(&self, starts: &[f64]) -> f64 {
        let end = starts.last().zip(self.cells.last()).map_or(0.0, |(start, cell)| start + cell);
        let after = |free: f64, (cell, at, takes): &(usize, f64, f64)| free.max(starts[*cell] + at) + takes;
        (self.late.iter().fold(0.0, after) - end).max(0.0)
    }
}

/// The rows of all stages.
struct RankRows(Vec<RankRow>);

impl StepTimes for RankRows {
    fn cell(&self, rank: usize, n: usize, _: Cell) -> f64 {
        self.0[rank].cells[n]
    }
    fn message(&self, from: usize, _: usize, what: Payload, _: &Plan) -> Option<[f64; 2]> {
        self.0[from].messages[what as usize]
    }
}

/// Combines the rows of all stages.
fn combined(
    rows: Vec<RankRow>,
    schedule: &dyn Schedule,
    plan: &Plan,
    (ranks, machine): (usize, &Machine),
) -> Result<StepTime> {
    let rows = RankRows(rows);
    let mut starts: Vec<Vec<f64>> = rows.0.iter().map(|row| Vec::with_capacity(row.cells.len())).collect();
    let mut edges = Vec::new(); // starts and ends of cells
    let mut see = |rank: usize, _: Cell, start, end| {
        starts[rank].push(start);
        if machine.cores.is_some() {
            edges.extend([(start, true), (end, false)]);
        }
    };
    simulate(schedule, plan, &rows, &mut see).map_err(Error::new)?;
    let shared = shared(edges, |stages| machine.slower_beside(stages, ranks / plan.ranks));
    let together = machine.slower_beside(plan.ranks, ranks / plan.ranks);
    let RankRows(rows) = rows;
    let end = |(row, starts): (&RankRow, &Vec<f64>)| {
        let begun: Vec<f64> = row
            .cells
            .iter()
            .scan(0.0, |at, cell| {
                let start = *at;
                *at += cell;
                Some(start)
            })
            .collect();
        let saved = row.waits(&begun) - row.waits(starts); // calls that end during bubbles
        let saved = saved.clamp(0.0, row.tail);
        let last = starts.last().zip(row.cells.last()).map_or(0.0, |(start, cell)| start + cell);
        (last + row.tail - saved, saved)
    };
    let ends: Vec<(f64, f64)> = rows.iter().zip(&starts).map(end).collect();
    let last = (0..rows.len()).max_by(|a, b| ends[*a].0.total_cmp(&ends[*b].0)).expect("a stage");
    let update = rows.iter().map(|row| row.update).fold(0.0, f64::max);
    let row = &rows[last];
    let seconds = ends[last].0 + shared + row.tail * (together - 1.0) + update * together;
    let mut parts = row.parts;
    parts[Part::Dp as usize] = (parts[Part::Dp as usize] - ends[last].1).max(0.0);
    let flops = rows.iter().map(|row| row.flops).sum::<f64>() * (ranks / plan.ranks) as f64;
    let bubble = (seconds - parts.iter().sum::<f64>()).max(0.0);
    let [peak, sent] = RankRow::most(&rows);
    Ok(StepTime { seconds, parts, bubble, flops, peak, sent })
}

/// Seconds that the stages' cells take longer because cells that are under way at once share cores: with this
/// number of them, each is slower by a factor.
fn shared(mut edges: Vec<(f64, bool)>, slower: impl Fn(usize) -> f64) -> f64 {
    edges.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut more, mut running) = (0.0, 0usize);
    for two in edges.windows(2) {
        running = if two[0].1 { running + 1 } else { running.saturating_sub(1) };
        more += (two[1].0 - two[0].0) * (slower(running.max(1)) - 1.0);
    }
    more
}

#[cfg(test)]
mod tests;
