//! Versions of a rank's weights, under a schedule that updates them after each microbatch. The parameters
//! have the version that was read last; other versions that microbatches still need are beside them.
use crate::pipeline::Pipeline;
use crate::step::{Cell, PassKind, Plan};
use kernels::Kernels;
use ops::Param;
use tensor::Tensor;

/// Versions of all parameters of a rank.
pub(super) struct Versions<D: Kernels> {
    latest: usize, // number of updates since the pipeline was empty
    read: usize,   // the version that the parameters have
    beside: Vec<(usize, Vec<Tensor<D>>)>,
}

impl<D: Kernels> Versions<D> {
    /// The version of an empty pipeline.
    pub(super) fn new() -> Self {
        Self { latest: 0, read: 0, beside: Vec::new() }
    }
    /// Gives the parameters the version that a cell reads. Before an update, gives them the latest version,
    /// drops versions that no later microbatch reads, and keeps the latest one if some microbatch does.
    pub(super) fn before(
        &mut self,
        cell: Cell,
        (pipeline, plan): (&Pipeline, &Plan),
        params: &mut [&mut Param<D>],
    ) {
        if !cell.act.does(PassKind::U) {
            return self.take(pipeline.schedule.version(cell, plan), params);
        }
        self.take(self.latest, params);
        let oldest = plan.oldest(pipeline.schedule, cell.of);
        self.beside.retain(|(version, _)| *version >= oldest);
        if oldest <= self.latest {
            self.beside.push((self.latest, params.iter_mut().map(|param| param.version()).collect()));
        }
    }
    /// Counts an update, after which the parameters have the next version.
    pub(super) fn updated(&mut self) {
        self.latest += 1;
        self.read = self.latest;
    }
    /// Gives the parameters the latest version and drops all others, when the pipeline is empty.
    pub(super) fn end(&mut self, params: &mut [&mut Param<D>]) {
        self.take(self.latest, params);
        *self = Self::new();
    }
    fn take(&mut self, version: usize, params: &mut [&mut Param<D>]) {
        if version == self.read {
            return;
        }
        let at = self.beside.iter().position(|(kept, _)| *kept == version).expect("a version that is kept");
        let (kept, tensors) = &mut self.beside[at];
        params.iter_mut().zip(tensors).for_each(|(param, tensor)| param.exchange(tensor));
        *kept = std::mem::replace(&mut self.read, version);
    }
}
