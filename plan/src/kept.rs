//! Prices that a search keeps: of blocks and heads, by the layout of their stages and the sequences of a
//! microbatch, and of the stages of steps, by core; and what ranks of tables have at once.
use crate::block::BlockCost;
use crate::hold::{HeldChunks, held};
use crate::machine::Machine;
use crate::space::head_key;
use crate::step::{KnownPrices, StepTime, TrainingJob};
use kernels::Kernels;
use parallel::step::Plan;
use parallel::{Layout, Pipeline, Result};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

/// The prices, which several threads look up and add to.
#[derive(Default)]
pub(crate) struct KeptPrices {
    blocks: Mutex<HashMap<(Layout, usize), Arc<BlockCost>>>,
    heads: Mutex<HashMap<(Layout, usize), f64>>,
    stages: Mutex<Vec<KnownPrices>>,
    held: Mutex<HashMap<(&'static str, usize, Plan), Arc<Vec<HeldChunks>>>>,
}

/// Returns what is kept under a key, or else makes it, which other threads do not wait for.
fn kept<K: Eq + Hash, T: Clone>(all: &Mutex<HashMap<K, T>>, key: K, make: impl FnOnce(&K) -> T) -> T {
    let entries = || all.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = entries().get(&key) {
        return known.clone();
    }
    let made = make(&key);
    entries().entry(key).or_insert(made).clone()
}

impl KeptPrices {
    /// Prices the unlike blocks and the head of such [stages](crate::block::staged); nothing if the layout
    /// does not fit.
    pub(crate) fn block<D: Kernels>(
        &self,
        (staged, unlike): (Layout, usize),
        job: &TrainingJob,
        sequences: usize,
        machine: &Arc<Machine>,
    ) -> Arc<BlockCost> {
        let price = |of: &Layout, has_head| {
            BlockCost::new::<D>((of, unlike), job, (sequences, has_head), machine).unwrap_or_default()
        };
        kept(&self.blocks, (staged, sequences), |_| {
            let head = kept(&self.heads, (head_key(&staged), sequences), |(of, _)| price(of, true).head);
            Arc::new(BlockCost { head, ..price(&staged, false) })
        })
    }
    /// Returns what ranks have at once, as [`held`].
    pub(crate) fn held(&self, pipeline: &Pipeline, blocks: usize, plan: &Plan) -> Arc<Vec<HeldChunks>> {
        let key = (pipeline.schedule.about().word, blocks, *plan);
        kept(&self.held, key, |_| held(pipeline, blocks, plan).into())
    }
    /// Returns the time of a step, as [`KnownPrices::step`].
    ///
    /// # Errors
    /// If the layout does not fit the model or the batch.
    pub(crate) fn step<D: Kernels>(
        &self,
        layout: &Layout,
        job: &TrainingJob,
        limits: (usize, usize),
        machine: &Arc<Machine>,
    ) -> Result<StepTime> {
        let stages = || self.stages.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = stages().pop().unwrap_or_default();
        let step = known.step::<D>(layout, job, limits, machine);
        stages().push(known);
        step
    }
}
