//! Proof of a layout: runs its program under each key, compares the ranks' tensors with the oracle's trace,
//! and bounds the probability of an error.
use crate::program::{logits_of, program};
use crate::subject::START;
use crate::trace::{Compared, Judge, TensorTrace, uncovered};
use crate::{Keys, ProofProgress, Subject, Verdict, locate, world};
use comm::{Axis, World};
use kernels::Meta;
use parallel::dump::{self, Provenance};
use parallel::{
    BuildContext, Entry, Error, Layout, Network, Result, Scheme, Trainer, budget, price, session,
};
use std::cell::LazyCell;
use std::fmt::Display;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use tensor::{Cpu, F61, Key, limits};

/// Oracle traces of each subject under each key, computed once and used for every layout.
#[derive(Default)]
pub struct OracleTraces {
    all: Mutex<Vec<(Subject, Key, Arc<OnceLock<TensorTrace>>)>>,
    only: Option<Subject>, // if any, its truth is used for every program
}

impl OracleTraces {
    /// Uses the truth of this subject for every program: shows what a proof tells apart.
    pub fn only(subject: Subject) -> Self {
        Self { only: Some(subject), ..Self::default() }
    }
    /// Returns the trace under `key`, which must be the key in force.
    fn of(&self, key: Key, subject: &Subject, watch: &ProofProgress) -> Result<Arc<OnceLock<TensorTrace>>> {
        let subject = self.only.as_ref().unwrap_or(subject);
        let place = {
            let mut all = self.all.lock().expect("nothing panics under this lock");
            let index =
                all.iter().position(|(of, under, _)| (of, *under) == (subject, key)).unwrap_or(all.len());
            if index == all.len() {
                all.push((subject.clone(), key, Arc::default()));
            }
            all[index].2.clone()
        };
        if place.get().is_none() {
            let start = subject.start()?;
            place.get_or_init(|| subject.truth(start, watch, &mut |_, _, _, _| ()));
        }
        Ok(place)
    }
}

/// Proves one layout under these keys, with the bound, over this network. Calls `watch` with each activity.
///
/// # Errors
/// As [`prove`], and if the machine has too little memory, before any of it is allocated.
pub fn certify<'a>(
    subject: &Subject,
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    keys: impl Into<Keys<'a>>,
    (network, watch): (&Network, &ProofProgress),
) -> Result<Verdict> {
    let scheme = scheme.into();
    check(subject, scheme, network)?;
    let subject = &subject.under(&scheme);
    let one = LazyCell::new(|| {
        watch("bounding the probability of an error");
        subject.bound_log2(1)
    });
    let keys = keys.into().all(|| vec![*one]);
    bounded(subject, scheme, (&keys, &|| *one), (network, watch))
}

/// Runs the proof under these keys; `one` returns the bound of one key.
pub(crate) fn bounded(
    subject: &Subject,
    scheme: Scheme<Cpu<F61>>,
    (keys, one): (&[Key], &dyn Fn() -> Option<f64>),
    (network, watch): (&Network, &ProofProgress),
) -> Result<Verdict> {
    let world = &world(scheme.layout, network)?;
    let mut verdict = prove_in(world, subject, scheme, keys, &OracleTraces::default(), watch)?;
    // The first of several processes locates a difference, with all ranks as threads, if it has the memory.
    let has_memory = || check(subject, scheme, &Network::default()).is_ok();
    let locates = || network.processes.as_ref().is_none_or(|all| all.rank() == 0 && has_memory());
    if let Some(seen) = verdict.first_difference.take_if(|_| locates()) {
        watch("locating the difference");
        verdict.first_difference = Some(locate::locate(subject, scheme, keys)?.unwrap_or(seen));
    }
    Ok(Verdict { bound_log2: one().map(|one| one * keys.len() as f64), ..verdict })
}

/// Checks that a proof is possible, and that the machine has the memory for it.
///
/// # Errors
/// If the layout does not fit the model or the batch; if memory is too small, with both numbers of bytes.
pub fn check<'a>(
    subject: &Subject,
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    network: &Network,
) -> Result<()> {
    let scheme = scheme.into();
    fits(subject, scheme)?;
    let ranks = [network.here(scheme.layout), scheme.layout.ranks()];
    budget::fits::<tensor::Host>(format_args!("proving {scheme}"), ranks, bytes(subject, scheme)?)
}

/// Checks that the ranks fit the model, and that a table of its stages covers all of each step.
fn fits(subject: &Subject, scheme: Scheme<Cpu<F61>>) -> Result<()> {
    scheme.fits(&subject.model)?;
    let schedule = scheme.pipeline().schedule;
    if schedule.updates_each() && subject.under(&scheme).stale.is_none() {
        let name = schedule.about().name;
        return Err(Error::new(format!(
            "the schedule {name} updates after each microbatch in an order of its own, so there is no reference \
             to compare it with; pipedream and pipedream-vertical have one"
        )));
    }
    let stages = scheme.layout.size(Axis::Pp);
    let mut steps = subject.steps.iter().map(|(batch, _)| batch.microbatches().len());
    steps.try_for_each(|n| scheme.pipeline().check(stages, n)).map_err(Error::new)
}

/// Returns the peak bytes of a proof under one key: those of all ranks, and those that ranks share.
///
/// # Errors
/// If the layout does not fit the model or the batch, or 64 bits do not count the bytes of a rank.
pub fn bytes<'a>(subject: &Subject, scheme: impl Into<Scheme<'a, Cpu<F61>>>) -> Result<u128> {
    let scheme = scheme.into();
    let subject = &subject.under(&scheme);
    let dealt =
        |tokens| -> Result<Vec<_>> { subject.steps.iter().map(|(batch, _)| batch.dealt(&tokens)).collect() };
    let homes = subject.optimizer.0.info().matrices.is_some();
    let ranks = price::peak_with(scheme, homes, dealt, |at: BuildContext<Meta<F61>>| {
        program(subject, &at, (&mut |_, _| (), None), &|_| ()).map(drop)
    })?;
    let rows: usize = subject.rows_read().iter().sum();
    let compared = [
        (price::sizes(&subject.model)?, 2 * subject.steps.len()),
        (vec![rows.saturating_mul(subject.model.outputs())], 2), // read as a batch and in turns
    ];
    Ok(ranks.all + on_host(scheme.layout, &compared))
}

/// Returns the host's bytes during a proof: the oracle's trace, with tensors of these sizes, each this number
/// of times; the oracle's weights; and on every rank the tensor that is being compared.
fn on_host(layout: &Layout, compared: &[(Vec<usize>, usize)]) -> u128 {
    let counts = compared
        .iter()
        .flat_map(|(sizes, times)| sizes.iter().map(move |n| *n as u128 * (*times as u128 + 1)));
    let largest = compared.iter().flat_map(|(sizes, _)| sizes).max().copied().unwrap_or(0);
    (counts.sum::<u128>() + layout.ranks() as u128 * largest as u128) * size_of::<F61>() as u128
}

/// Proves one layout under these keys, without the bound. The oracle's traces are kept in `truths` for the
/// next proof.
///
/// # Errors
/// If the layout does not fit the model or the batch, or a rank fails.
pub fn prove<'a>(
    subject: &Subject,
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    keys: &[Key],
    truths: &OracleTraces,
) -> Result<Verdict> {
    let scheme = scheme.into();
    prove_in(&world(scheme.layout, &Network::default())?, subject, scheme, keys, truths, &|_| ())
}

/// Proves one layout under these keys, in a world of its ranks that may be on trial (`World::on_trial`), or
/// slow. Calls `watch` with each activity.
///
/// # Errors
/// If the layout does not fit the model or the batch, or a rank fails.
pub fn prove_in<'a>(
    world: &World,
    subject: &Subject,
    scheme: impl Into<Scheme<'a, Cpu<F61>>>,
    keys: &[Key],
    truths: &OracleTraces,
    watch: &ProofProgress,
) -> Result<Verdict> {
    let scheme = scheme.into();
    fits(subject, scheme)?;
    let subject = &subject.under(&scheme);
    let network = Network { processes: world.processes().cloned(), ..Network::default() };
    let one = |key: Key| {
        let _key = key.enter();
        let watch = |what: &str| watch(&format!("proving {scheme} under {key}: {what}"));
        let truth = truths.of(key, subject, &watch)?;
        let truth = truth.get().expect("just computed");
        let ranks = session::run((scheme, world), &START, |at: BuildContext<Cpu<F61>>| {
            let mut judge = Judge::new(truth, logits_of(subject, &at.tokens), at.mesh.rank());
            let mut results = |name: String, whole: Vec<_>| judge.sees(&name, &whole);
            program(subject, &at, (&mut results, None), &watch)?;
            network.of_all(at.mesh, judge.compared)
        })?;
        let mut ranks = ranks.into_iter().flatten().collect::<Vec<_>>();
        if ranks.iter().all(|rank| rank.first.is_none()) {
            ranks[0].first = uncovered(truth, &ranks);
        }
        Ok(ranks)
    };
    // processes run one world at a time
    let by_threads = network.processes.is_none() && keys.len() > 1;
    let two = by_threads && budget::fits_in_free(bytes(subject, scheme)? * 2, budget::free());
    Ok(Verdict { window: subject.narrowed, ..under_keys((&scheme, subject), (keys, two), &one)? })
}

/// Runs `one` under each key, two at once if `two`, and combines the comparisons of its ranks.
fn under_keys(
    (scheme, subject): (&dyn Display, &dyn Display),
    (keys, two): (&[Key], bool),
    one: &(dyn Fn(Key) -> Result<Vec<Compared>> + Sync),
) -> Result<Verdict> {
    let mut verdict = Verdict::of((scheme, subject), keys);
    for keys in keys.chunks(if two { 2 } else { 1 }) {
        let under_all: Vec<Result<_>> = std::thread::scope(|scope| {
            let runs: Vec<_> = keys.iter().map(|&key| limits::scoped(scope, move || one(key))).collect();
            runs.into_iter().map(|run| run.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
        });
        for ranks in under_all.into_iter().collect::<Result<Vec<_>>>()? {
            for rank in &ranks {
                verdict.tensors += rank.seen.iter().filter(|seen| **seen).count();
                verdict.elements += rank.elements;
            }
            let first = ranks.into_iter().filter_map(|rank| rank.first).min_by_key(|(place, _)| *place);
            verdict.first_difference = verdict.first_difference.or(first.map(|(_, difference)| difference));
        }
    }
    verdict.equal = verdict.first_difference.is_none();
    Ok(verdict)
}

/// Writes the tensors of the layout's first step under a key, as elements of the field: inputs and outputs of
/// layers, gradients, and weights before and after. The folder must have been prepared.
///
/// # Errors
/// As [`prove`], and if a file cannot be written.
pub fn dump(subject: &Subject, layout: &Layout, key: Key, dir: &Path, entries: &[Entry]) -> Result<()> {
    fits(subject, layout.into())?;
    let subject = &subject.under(&layout.into());
    let _key = key.enter();
    let ranks = session::run(
        (layout, &world(layout, &Network::default())?),
        &START,
        |at: BuildContext<Cpu<F61>>| {
            let Some((batch, lr)) = subject.steps.first() else { return Ok(None) };
            let mut trainer = Trainer::new(&at, &subject.model, subject.optimizer)?;
            let (report, recorded) = dump::step(&mut trainer, at.mesh, batch, *lr)?;
            let after = dump::after(&report, trainer.model().params(), at.mesh)?;
            Ok(Some(dump::Recorded { after: Some(after), ..recorded }))
        },
    )?;
    let (kind, scaling) = subject.optimizer;
    let lr = subject.steps.first().map(|(_, lr)| *lr);
    let optimizer = lr.map(|lr| (kind, scaling.clip, lr));
    let about = Provenance { key: Some(key.0), layout: layout.to_string(), step: Some(0), optimizer };
    dump::write(dir, entries, ranks.into_iter().flatten().collect(), &about)
}
