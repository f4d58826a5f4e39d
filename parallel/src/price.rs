//! Peak memory of ranks, from shapes alone: runs the program on the meta device, one rank at a time, so the
//! world can have any size.
mod held;
pub mod kinds;
pub mod largest;

pub use held::{MoveCosts, shows};

use crate::{
    Batch, BuildContext, Error, Layout, Result, Scheme, Stages, Trainer, budget, checkpoint, session,
};
use comm::{Axis, Mesh};
use kernels::{Kernels, Meta, MetaOf};
use layers::Design;
use ops::{GradientScaling, Param, ShardingStrategy, TokenShards, UpdateRule};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::iter::successors;
use tensor::count::{self, Overflow};
use tensor::{Category, Cpu, Device, Peaks, Scalar, Tensor};

/// Number of steps that a price runs. From the second step on, everything that a step holds is allocated.
pub const STEPS: usize = 2;

/// Peak bytes of ranks, each at its own moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peak {
    /// Sum over all ranks, in bytes.
    pub all: u128,
    /// Rank that holds the most.
    pub rank: usize,
    /// Peaks of that rank.
    pub largest: Peaks,
    /// Bytes of offloaded state of all ranks, off their devices.
    pub away: u128,
}

/// Returns the peak bytes of the ranks if every rank runs this program. Ranks with the same coordinates on
/// all axes but that of sequences, and the same `dealt`, are priced once. If ranks have experts for each
/// other, every rank is priced, since it also holds tokens that other ranks are dealt; and so it is if only
/// the first one keeps the model.
///
/// # Errors
/// The error of the program, or if the bytes of a rank overflow 64 bits, or a rank exceeds its memory limit.
pub fn peak_of_all<'a, D: Kernels, K: Ord>(
    scheme: impl Into<Scheme<'a, D>>,
    dealt: impl Fn(TokenShards) -> Result<K>,
    program: impl Fn(BuildContext<MetaOf<D>>) -> Result<()>,
) -> Result<Peak> {
    peak_with(scheme, false, dealt, program)
}

/// Returns the peak bytes as [`peak_of_all`] does. If ranks are `homes` of matrices, every rank is priced.
///
/// # Errors
/// As [`peak_of_all`].
pub fn peak_with<'a, D: Kernels, K: Ord>(
    scheme: impl Into<Scheme<'a, D>>,
    homes: bool,
    dealt: impl Fn(TokenShards) -> Result<K>,
    program: impl Fn(BuildContext<MetaOf<D>>) -> Result<()>,
) -> Result<Peak> {
    let scheme = scheme.into();
    let mut kinds = BTreeMap::new();
    let mut peak = Peak::default();
    let layout = scheme.layout;
    for rank in 0..layout.ranks() {
        let mesh = layout.ghost(rank)?;
        let tokens = layout.tokens().at(&mesh);
        let mut others = mesh.coordinates();
        others.retain(|(axis, _)| *axis != TokenShards::SEQUENCES);
        let rooted = layout.rests() == ShardingStrategy::ROOT;
        let alone = (rooted || homes || mesh.group(Axis::Ep).size() > 1).then_some(rank);
        let (held, away) = match kinds.entry((alone, others, dealt(tokens)?)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                let held = |at: BuildContext<MetaOf<D>>| {
                    let device = at.device;
                    program(at).map(|()| (device.meter().peaks_of_all(), device.meter().away()))
                };
                let (held, away) = session::ghost(scheme, (rank, None), held)?;
                if held.total > peak.largest.total {
                    (peak.rank, peak.largest) = (rank, held);
                }
                *new.insert((held.total as u128, away as u128))
            }
        };
        (peak.all, peak.away) = (peak.all + held, peak.away + away);
    }
    budget::check_limit(scheme, (peak.rank, peak.largest.total), program)?;
    Ok(peak)
}

/// Returns the peak bytes of ranks that train on such batches and then run `after` with the trainer.
///
/// # Errors
/// As [`peak_of_all`].
pub fn training<'a, D: Kernels>(
    scheme: impl Into<Scheme<'a, D>>,
    design: impl Into<Design>,
    (rule, scaling): (impl UpdateRule<MetaOf<D>> + Clone + 'static, impl Into<GradientScaling>),
    batch: &Batch,
    after: impl Fn(&mut Trainer<MetaOf<D>>, &Mesh<tensor::MetaPlace>) -> Result<()>,
) -> Result<Peak> {
    training_and(scheme, design, (rule, scaling), (batch, None), after)
}

/// Returns the peak bytes as [`training`] does, if `after` has a batch of its own, which may be dealt to
/// ranks in another way.
///
/// # Errors
/// As [`peak_of_all`].
pub fn training_and<'a, D: Kernels>(
    scheme: impl Into<Scheme<'a, D>>,
    design: impl Into<Design>,
    (rule, scaling): (impl UpdateRule<MetaOf<D>> + Clone + 'static, impl Into<GradientScaling>),
    (batch, own): (&Batch, Option<&Batch>),
    after: impl Fn(&mut Trainer<MetaOf<D>>, &Mesh<tensor::MetaPlace>) -> Result<()>,
) -> Result<Peak> {
    let (scheme, design, scaling) = (scheme.into(), &design.into(), scaling.into());
    let peak = peak_with(
        scheme,
        rule.matrices().is_some(),
        |tokens| Ok((batch.dealt(&tokens)?, own.map(|own| own.dealt(&tokens)).transpose()?)),
        |at: BuildContext<MetaOf<D>>| {
            let mut trainer = Trainer::new(&at, design, (rule.clone(), scaling))?;
            let mut running = None;
            for _ in 0..STEPS + trainer.filling(batch) {
                trainer.next_step(&mut running, batch, 0.0)?;
            }
            trainer.last_step(running)?;
            after(&mut trainer, at.mesh)
        },
    );
    peak.map_err(|why| with_fitting_blocks(why, scheme, design, &rule))
}

/// Adds the largest blocks of optimizer state that all cuts of a layout leave whole to the error of a rule
/// whose blocks are larger.
pub fn with_fitting_blocks<'a, D: Kernels>(
    why: Error,
    scheme: impl Into<Scheme<'a, D>>,
    design: &Design,
    rule: &(impl UpdateRule<MetaOf<D>> + Clone + 'static),
) -> Error {
    let scheme = scheme.into();
    let builds = |rule: &_| {
        let build =
            |at: BuildContext<MetaOf<D>>| Trainer::new(&at, design, (Clone::clone(rule), None)).map(drop);
        peak_of_all(scheme, |_| Ok(()), build).is_ok()
    };
    if rule.halved().is_none() || builds(rule) {
        return why;
    }
    let fits = successors(rule.halved(), UpdateRule::halved).find(|rule| builds(rule));
    fits.map_or(why.clone(), |rule| Error {
        why: format!("{}; blocks of {} fit all cuts", why.why, rule.states().grain()),
        ..why
    })
}

/// Gathers this rank's parameters one after the other, and holds as much as the largest parameter of other
/// stages takes: the price of assembling the model on every rank.
///
/// # Errors
/// If a collective fails.
pub fn gathering<S: Scalar>(trainer: &mut Trainer<Meta<S>>, mesh: &Mesh<tensor::MetaPlace>) -> Result<()> {
    let design = trainer.model().design().clone();
    let params = trainer.model().params();
    params.iter().try_for_each(|param| param.gather(mesh).map(drop))?;
    if mesh.group(Axis::Pp).size() > 1 {
        let largest = sizes(&*design)?.into_iter().max().unwrap_or(0);
        drop(Tensor::empty(params[0].device().wide(), Category::Buffers, 1, largest));
    }
    Ok(())
}

/// Holds what saving a checkpoint takes, from a trainer's state: in the background a copy of it, during a
/// step on this batch.
///
/// # Errors
/// If a collective fails.
pub fn saving<S: Scalar>(trainer: &mut Trainer<Meta<S>>, background: Option<&Batch>) -> Result<()> {
    let copies = checkpoint::copies(&trainer.model().params(), background.is_some());
    background.map_or(Ok(()), |batch| trainer.step(batch, 0.0).map(drop))?;
    drop(copies);
    Ok(())
}

/// Returns the number of elements of all parameters of a model together.
///
/// # Errors
/// As [`sizes`].
pub fn parameters(design: impl Into<Design>) -> Result<usize> {
    let sizes = sizes(design)?;
    Ok(Overflow::caught(|| count::sum("the parameters of a model", sizes))?)
}

/// Returns the number of elements of each parameter of a model, in program order.
///
/// # Errors
/// If the design has an invalid size, or the bytes of all parameters overflow 64 bits.
pub fn sizes(design: impl Into<Design>) -> Result<Vec<usize>> {
    let design = design.into();
    session::ghost::<Cpu<f32>, _>(&Layout::UNSPLIT, (0, None), |at: BuildContext<Meta<f32>>| {
        let size = |param: &mut Param<_>| param.shape().into_iter().product();
        Ok(Stages::new(&at, &design)?.params().into_iter().map(size).collect())
    })
}
