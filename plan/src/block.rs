//! Costs of a block: from the program of a single one between two others, each a stage of its own.
use crate::clock::{Lap, Part, StepClock};
use crate::machine::Machine;
use crate::step::TrainingJob;
use comm::Axis;
use kernels::Kernels;
use layers::Choice;
use ops::TokenShards;
use parallel::price::MoveCosts;
use parallel::step::{Action, Cell, PassKind, Payload, Task};
use parallel::{Batch, Layout, Result, Schedule, pipeline};
use std::iter::zip;
use std::sync::Arc;

/// Blocks between two others, and what the last stage does beside its blocks, for one microbatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockCost {
    /// Blocks of each kind of the model by their number in it, modulo their number here: more than one where
    /// every second block is unlike the others.
    pub kinds: Vec<Vec<BlockTime>>,
    /// Kind of each block of the model.
    pub of_blocks: Vec<usize>,
    /// Seconds of the head, in the forward of the last chunk.
    pub head: f64,
    /// Seconds that a message occupies a link, and its latency.
    pub message: [f64; 2],
}

/// One block.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BlockTime {
    /// Seconds by `PassKind::number`, of each slice or of the whole; those of halves of a backward, if the
    /// layout's schedule has any.
    pub acts: Vec<[f64; 4]>,
    /// Seconds of attention within the whole, which slices of a sequence do not share evenly.
    pub attention: [f64; 4],
    /// Bytes that forward saves for backward, for the whole.
    pub saved: usize,
    /// Bytes of it that are left between both halves of a backward.
    pub halfway: usize,
    /// Bytes that a backward needs beside them while it lasts, at least: whole, and whole or the input half.
    /// 0 for slices, and for halves that were not priced.
    pub needs: [usize; 2],
}

/// Returns the first block of each kind.
pub(crate) fn first_of_kinds(kinds: &[usize]) -> impl Iterator<Item = usize> {
    (0..).map_while(|kind| kinds.iter().position(|of| *of == kind))
}

impl BlockTime {
    /// Seconds of a pass through a slice, at least.
    pub(crate) fn pass(&self, act: usize, (slice, slices): (usize, usize)) -> f64 {
        if self.acts.len() == slices {
            return self.acts[slice][act];
        }
        let whole: f64 = self.acts.iter().map(|acts| acts[act]).sum();
        (whole - self.attention[act]).max(0.0) / slices as f64
    }
}

impl BlockCost {
    /// Prices the middle ones of some blocks, each a stage of such a [layout](staged), with `sequences`
    /// sequences in a microbatch; and the head, or takes it for nothing.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(
        layout: (&Layout, usize),
        job: &TrainingJob,
        (sequences, has_head): (usize, bool),
        machine: &Arc<Machine>,
    ) -> Result<Self> {
        let mut all = Self { of_blocks: job.design.kinds(), ..Self::default() };
        for (kind, block) in first_of_kinds(&all.of_blocks.clone()).enumerate() {
            let has_head = has_head && kind == 0;
            let (blocks, head, message) =
                Self::of_kind::<D>(layout, job, block, (sequences, has_head), machine)?;
            all.kinds.push(blocks);
            if kind == 0 {
                (all.head, all.message) = (head, message);
            }
        }
        Ok(all)
    }
    /// Returns the blocks of one kind, the seconds of the head, and those of a message.
    fn of_kind<D: Kernels>(
        (staged, unlike): (&Layout, usize),
        job: &TrainingJob,
        block: usize,
        (sequences, has_head): (usize, bool),
        machine: &Arc<Machine>,
    ) -> Result<(Vec<BlockTime>, f64, [f64; 2])> {
        let stages = unlike + 2;
        let of_stage = |stage: usize| stage_of::<D>(staged, job, (block, stage), (sequences, false), machine);
        let middle = (1..=unlike).map(of_stage).collect::<Result<Vec<_>>>()?;
        let last = has_head.then(|| of_stage(stages - 1)).transpose()?;
        let slices = staged.pipeline().plan(stages, stages).slices;
        let times = (1..=unlike).zip(&middle).map(|(stage, costs)| block_time(costs, stage, slices));
        let mut blocks: Vec<_> = times.collect();
        if has_halves(staged) {
            let whole = staged.unscheduled(); // some schedules have both
            for (stage, times) in (1..=unlike).zip(&mut blocks) {
                let costs = stage_of::<D>(&whole, job, (block, stage), (sequences, false), machine)?;
                let BlockTime { acts, needs, .. } = block_time(&costs, stage, 1);
                times.acts[0][1] = acts[0][1];
                times.needs = [needs[0], times.needs[1].min(needs[0])];
            }
        }
        blocks.rotate_right(1 % unlike); // the first stage's block, number 0, is like the last one here
        let of_last = |slice: usize| {
            let lap = last.as_ref().and_then(|last| lap(last, PassKind::F, stages - 1, slice));
            let like = &blocks[(stages - 1) % unlike].acts[slice];
            lap.map_or(0.0, |lap| lap.seconds - like[PassKind::F.number()])
        };
        let head: f64 = (0..slices).map(of_last).sum();
        let sent = middle[0].cost(Action::Send(Payload::Activation, Task::new(2, 0), 2), true);
        let message = sent.and_then(|(_, lap)| lap.message).unwrap_or_default();
        Ok((blocks, head.max(0.0), message))
    }
    /// Number of slices that were priced one by one.
    pub(crate) fn sliced(&self) -> usize {
        self.kinds.first().map_or(1, |blocks| blocks[0].acts.len())
    }
    /// The least sum over `n` consecutive blocks.
    pub(crate) fn least(&self, n: usize, of: impl Fn(&BlockTime) -> f64) -> f64 {
        if let [blocks] = &self.kinds[..] {
            let costs = blocks.iter().map(&of);
            let (sum, least) =
                costs.fold((0.0, f64::INFINITY), |(sum, least), one| (sum + one, f64::min(least, one)));
            let rest = n % blocks.len();
            return (n / blocks.len()) as f64 * sum + if rest > 0 { rest as f64 * least } else { 0.0 };
        }
        let costs: Vec<_> = (0..self.of_blocks.len()).map(|number| of(self.block(number))).collect();
        let sum = |some: &[f64]| some.iter().sum();
        let n = n.min(costs.len());
        if n == 0 { 0.0 } else { costs.windows(n).map(sum).fold(f64::INFINITY, f64::min) }
    }
    /// Returns what the block of this number costs.
    pub(crate) fn block(&self, number: usize) -> &BlockTime {
        let blocks = &self.kinds[self.of_blocks[number]];
        &blocks[number % blocks.len()]
    }
}

/// Returns the layout with a stage for each of the model's blocks, which are then the unlike ones and two
/// more, and the number of unlike ones. Its schedule has the layout's slices and halves of backwards.
///
/// # Errors
/// If the layout does not fit.
pub fn staged(layout: &Layout) -> Result<(Layout, usize)> {
    let recompute = layout.strategies().into_iter().find(|about| about.choice == Choice::Recompute);
    let unlike = recompute.and_then(|about| layout.number(about)).unwrap_or(1);
    let sizes: Vec<_> = layout.axes().into_iter().filter(|(axis, _)| *axis != Axis::Pp).collect();
    let bare = Layout::new(&[&[(Axis::Pp, unlike + 2)], &sizes[..]].concat())?;
    let plan = layout.pipeline().plan(layout.size(Axis::Pp), 1);
    let is_sliced = plan.slices > 1 && plan.chunks == 1;
    let words = if is_sliced { layout.named() } else { layout.unscheduled().named() };
    let staged = words.iter().try_fold(bare, |layout, word| layout.with(word))?;
    Ok((if has_halves(layout) && !is_sliced { halved(staged, unlike + 2)? } else { staged }, unlike))
}

/// Prices a stage of such a layout, all of whose blocks are as this one of the model.
pub(crate) fn stage_of<D: Kernels>(
    staged: &Layout,
    job: &TrainingJob,
    (block, stage): (usize, usize),
    (sequences, warm): (usize, bool),
    machine: &Arc<Machine>,
) -> Result<MoveCosts<Lap>> {
    let stages = staged.size(Axis::Pp);
    let clock = StepClock::new(machine, staged.ranks() / stages);
    let microbatches = stages.max(3);
    let batch = Batch::new(vec![job.sequence(); microbatches * sequences], microbatches)?;
    let timing = (Some(clock.of_rank()), move || clock.lap());
    let last = staged.size(TokenShards::SEQUENCES) - 1; // has the most sequences
    let rank = staged.rank_at(&[(Axis::Pp, stage), (TokenShards::SEQUENCES, last)]);
    let design = job.design.of_blocks(&vec![block; stages]);
    MoveCosts::of_step::<D>((staged, rank), design, job.optimizer, (&batch, warm), timing)
}

/// Returns a middle stage's block.
fn block_time(costs: &MoveCosts<Lap>, stage: usize, slices: usize) -> BlockTime {
    let measured = |act, slice| lap(costs, act, stage, slice);
    let seconds = |slice| ACTS.map(|act| measured(act, slice).map_or(0.0, |lap| lap.seconds));
    let attention = |act| measured(act, 0).map_or(0.0, |lap| lap.parts[Part::Attention as usize]);
    let adds = |act, slice| costs.cost(run(act, stage, slice), false).map(|(change, _)| change.adds);
    let saved = (0..slices).filter_map(|slice| adds(PassKind::F, slice)).sum::<isize>();
    let halfway = adds(PassKind::I, 0).filter(|_| slices == 1).map_or(0, |freed| saved + freed);
    let needs = |act| costs.cost(run(act, stage, 0), false).map_or(0, |(adds, _)| adds.needs);
    BlockTime {
        acts: (0..slices).map(seconds).collect(),
        attention: if slices > 1 { [0.0; 4] } else { ACTS.map(attention) },
        saved: saved.max(0) as usize,
        halfway: halfway.max(0) as usize,
        needs: if slices > 1 { [0; 2] } else { [needs(PassKind::B), needs(PassKind::I)] },
    }
}

/// Runs a cell for a microbatch that is not the last.
pub(crate) fn run(act: PassKind, chunk: usize, slice: usize) -> Action {
    let task = Task { slice: slice as u16, ..Task::new(chunk, 0) };
    Action::Run { cell: Cell { act, of: task }, last: false, done: false }
}

fn lap(costs: &MoveCosts<Lap>, act: PassKind, chunk: usize, slice: usize) -> Option<&Lap> {
    costs.cost(run(act, chunk, slice), false).map(|(_, lap)| lap)
}

/// True if the layout's schedule has backwards in halves.
pub fn has_halves(layout: &Layout) -> bool {
    let pipeline = layout.pipeline();
    pipeline.schedule.row(0, &pipeline.plan(layout.size(Axis::Pp), 1)).any(|cell| cell.act == PassKind::I)
}

/// Returns the layout with a schedule of one chunk a rank whose backwards are in halves.
fn halved(layout: Layout, stages: usize) -> Result<Layout> {
    let is_halved = |schedule: &&&dyn Schedule| {
        let plan = schedule.plan(stages, stages, None);
        plan.chunks == 1 && schedule.row(0, &plan).any(|cell| cell.act == PassKind::I)
    };
    pipeline::ALL.iter().find(is_halved).map_or(Ok(layout), |schedule| layout.with(schedule.about().word))
}

/// Costs for any number of sequences in a microbatch: those of one and of two, and no less than the line
/// through both, on a machine whose times are [ideal](Machine::ideal).
#[derive(Clone, Debug, Default)]
pub struct CostLine([BlockCost; 2]);

impl CostLine {
    /// Prices a block, and the head or nothing for it, for one and for two sequences on each data rank.
    ///
    /// # Errors
    /// If the layout does not fit.
    pub fn new<D: Kernels>(
        layout: &Layout,
        job: &TrainingJob,
        has_head: bool,
        ideal: &Arc<Machine>,
    ) -> Result<Self> {
        let (staged, unlike) = staged(layout)?;
        let cost = |n: usize| {
            let sequences = n * layout.size(TokenShards::SEQUENCES);
            BlockCost::new::<D>((&staged, unlike), job, (sequences, has_head), ideal)
        };
        Ok(Self([cost(1)?, cost(2)?]))
    }
    /// Returns the same block with another one's head.
    #[must_use]
    pub fn with_head(mut self, of: &Self) -> Self {
        zip(&mut self.0, &of.0).for_each(|(cost, other)| cost.head = other.head);
        self
    }
    /// Lower bounds for this number of sequences on each data rank.
    pub fn at(&self, sequences: usize) -> BlockCost {
        let Self([one, two]) = self;
        let more = sequences.saturating_sub(1);
        let time = |a: f64, b: f64| (a + more as f64 * (b - a)).max(0.0);
        let bytes = |a: usize, b: usize| a + more * b.saturating_sub(a);
        let acts = |a: &[f64; 4], b: &[f64; 4]| std::array::from_fn(|act| time(a[act], b[act]));
        let block = |(a, b): (&BlockTime, &BlockTime)| BlockTime {
            acts: zip(&a.acts, &b.acts).map(|(a, b)| acts(a, b)).collect(),
            attention: a.attention,
            saved: bytes(a.saved, b.saved),
            halfway: bytes(a.halfway, b.halfway),
            needs: std::array::from_fn(|of| bytes(a.needs[of], b.needs[of])),
        };
        BlockCost {
            kinds: zip(&one.kinds, &two.kinds).map(|(a, b)| zip(a, b).map(block).collect()).collect(),
            of_blocks: one.of_blocks.clone(),
            head: time(one.head, two.head),
            message: one.message,
        }
    }
}

/// The kinds of passes, by their numbers.
const ACTS: [PassKind; 4] = [PassKind::F, PassKind::B, PassKind::I, PassKind::W];
