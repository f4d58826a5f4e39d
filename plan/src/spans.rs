//! Timeline of one rank's step on a machine: every kernel and every call of the shape-only program, with its
//! begin and its end.
//!
//! ```text
//! compute   kernels, one after the other
//! link      calls: started ones run beside kernels, others between them
//! ```
//! Messages between pipeline stages are left out: the [simulation](crate::step) of all stages has them.
use crate::clock::{Part, StepClock};
use crate::machine::Machine;
use crate::step::TrainingJob;
use comm::{Axes, CallClock, GhostCall, Op};
use kernels::{Kernels, MetaOf};
use parallel::{Batch, BuildContext, Layout, Result, Trainer, session};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tensor::{Clock, KernelWork, StoreKind};

/// Work of a span.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SpanWork {
    /// A kernel, and the use of time that it counts as.
    Kernel(Part),
    /// A call.
    Call {
        /// Axes of the group.
        axes: Axes,
        /// Operation.
        op: Op,
        /// Bytes that the rank sends.
        bytes: usize,
        /// Index of the machine's level of links that it crosses.
        level: usize,
    },
}

/// One kernel or one call.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankSpan {
    /// Its work.
    pub work: SpanWork,
    /// Begin and end, in seconds.
    pub at: [f64; 2],
}

/// A clock that also records.
struct RecordingClock {
    clock: Arc<StepClock>,
    spans: Mutex<Vec<RankSpan>>,
}

impl RecordingClock {
    fn spans(&self) -> MutexGuard<'_, Vec<RankSpan>> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for RecordingClock {
    fn kernel(&self, work: &KernelWork) {
        let begin = self.clock.now();
        self.clock.kernel(work);
        let kernel = SpanWork::Kernel(Part::of(work.kind));
        self.spans().push(RankSpan { work: kernel, at: [begin, self.clock.now()] });
    }
    fn start_move(&self, kind: StoreKind, bytes: usize) -> usize {
        self.clock.start_move(kind, bytes)
    }
    fn finish_move(&self, number: usize) {
        self.clock.finish_move(number);
    }
}

impl CallClock for RecordingClock {
    fn call(&self, call: &GhostCall) {
        self.finish(self.start(call));
    }
    fn start(&self, call: &GhostCall) -> usize {
        let number = self.clock.start(call);
        if let Some((level, at)) = self.clock.under_way(number) {
            let GhostCall { axes, op, bytes, .. } = *call;
            self.spans().push(RankSpan { work: SpanWork::Call { axes, op, bytes, level }, at });
        }
        number
    }
    fn finish(&self, number: usize) {
        self.clock.finish(number);
    }
}

/// Returns the spans of a step of rank 0, in the order in which they begin on the rank.
///
/// # Errors
/// If the layout does not fit the model or the batch.
pub fn spans_of_step<D: Kernels>(
    layout: &Layout,
    job: &TrainingJob,
    microbatches: usize,
    machine: &Arc<Machine>,
) -> Result<Vec<RankSpan>> {
    let batch = Batch::new(vec![job.sequence(); job.batch_size], microbatches)?;
    batch.deals(&layout.tokens())?;
    let clock = StepClock::new(machine, layout.ranks());
    let recording = Arc::new(RecordingClock { clock, spans: Mutex::default() });
    let both = Some((recording.clone() as Arc<dyn Clock>, recording.clone() as Arc<dyn CallClock>));
    session::timed::<D, _>(layout, (0, None), both, |at: BuildContext<MetaOf<D>>| {
        Trainer::new(&at, &job.design, job.optimizer)?.step(&batch, 0.0).map(drop)
    })?;
    let spans = std::mem::take(&mut *recording.spans());
    Ok(spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use comm::Axis;
    use layers::Shape;
    use ops::{ADAMW, GradientScaling};
    use tensor::Cpu;

    fn spans_of(layout: &str, blocks: usize) -> Vec<RankSpan> {
        let machine = Arc::new(Machine::named("h100").unwrap());
        let heads = kernels::Heads::new(4, 4, 16);
        let sizes = Shape { width: 64, blocks, heads, hidden: 128, vocabulary: 32, ..Shape::LLAMA };
        let design = sizes.into();
        let optimizer = (ADAMW, GradientScaling { clip: None, loss: None });
        let job = TrainingJob { design, optimizer, seq: 64, batch_size: 8, dtype: "f32" };
        spans_of_step::<Cpu<f32>>(&layout.parse().unwrap(), &job, 1, &machine).unwrap()
    }

    fn spans(layout: &str) -> Vec<RankSpan> {
        spans_of(layout, 3)
    }

    /// Kills: a kernel without its time, calls on the track of kernels, a gather that waits for the kernels
    /// of the block before.
    #[test]
    fn gathers_run_beside_kernels_and_the_others_between() {
        let is_call = |span: &&RankSpan| matches!(span.work, SpanWork::Call { .. });
        let unsplit = spans("none");
        assert!(!unsplit.is_empty() && !unsplit.iter().any(|span| is_call(&span)));
        assert!(unsplit.windows(2).all(|two| two[0].at[1] <= two[1].at[0] && two[0].at[0] < two[0].at[1]));
        let beside = |layout: &str, wanted: Op| {
            let spans = spans(layout);
            let (calls, kernels): (Vec<RankSpan>, Vec<_>) = spans.iter().partition(is_call);
            let of = |call: &&RankSpan| matches!(call.work, SpanWork::Call { op, .. } if op == wanted);
            let runs = |call: &RankSpan| kernels.iter().any(|k| k.at[0] < call.at[1] && call.at[0] < k.at[1]);
            let calls: Vec<_> = calls.iter().filter(of).collect();
            (calls.iter().filter(|call| runs(call)).count(), calls.len())
        };
        let (hidden, gathers) = beside("dp=4:zero3", Op::AllGather);
        assert!(hidden > 0 && hidden < gathers, "{hidden} of {gathers}");
        let gathers = |blocks: usize| {
            let is = |span: &&RankSpan| matches!(span.work, SpanWork::Call { op: Op::AllGather, .. });
            spans_of("tp=2,sp", blocks).iter().filter(is).count()
        };
        assert_eq!(gathers(3) - gathers(2), 6, "a block gathers two inputs twice, and two gradients");
        assert!(spans("tp=2").iter().all(|span| match span.work {
            SpanWork::Call { axes, .. } => axes == Axis::Tp,
            SpanWork::Kernel(_) => true,
        }));
    }
}
