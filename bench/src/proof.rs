//! A certificate of `prove`: a stack of two blocks under tp=2, per key and step.
use super::machine::{Bound, Probe, cores};
use super::model;
use super::scale::Scale;
use kernels::Meta;
use parallel::{BuildContext, Layout, Result, Trainer, bail};
use prove::{self, OracleTraces, Subject};
use std::time::Instant;
use tensor::{Cpu, F61, Key};

/// Certificates of a turn.
const TRIES: usize = 3;

fn subject(scale: &Scale) -> Result<(Layout, Subject)> {
    let layout = "tp=2".parse()?;
    Ok((layout, Subject::small(scale.proven, &layout)?))
}

/// Best time of a step under one key: the run of all ranks, the oracle's run, and the comparison.
pub(super) fn seconds(scale: &Scale) -> Result<f64> {
    let (layout, subject) = subject(scale)?;
    let mut best = f64::INFINITY;
    for turn in 0..TRIES {
        let start = Instant::now();
        let verdict = prove::prove(&subject, &layout, &[Key(1 + turn as u64)], &OracleTraces::default())?;
        let seconds = start.elapsed().as_secs_f64();
        if !verdict.equal {
            bail!("the proof that is timed found a difference: run equipart prove");
        }
        best = best.min(seconds);
    }
    Ok(best / subject.steps.len() as f64)
}

/// Lower bound: the multiply-adds of all ranks' products and of the oracle's, at the rate of products in the
/// field on this number of cores.
pub(super) fn bound(scale: &Scale) -> Result<Bound> {
    let (layout, subject) = subject(scale)?;
    let flops = flops(&subject, &layout)? + flops(&subject, &Layout::default())?;
    let cores = cores(layout.ranks());
    Ok(vec![(Probe::Field { cores }, flops / 2.0 / (cores * subject.steps.len()) as f64)])
}

/// FLOPs of all ranks.
fn flops(subject: &Subject, layout: &Layout) -> Result<f64> {
    model::metered::<Cpu<F61>>(layout, |at: &BuildContext<Meta<F61>>| {
        let mut trainer = Trainer::new(at, &subject.model, subject.optimizer)?;
        prove::read(subject, at, trainer.model(), None)?;
        subject.steps.iter().try_for_each(|(batch, rate)| trainer.step(batch, *rate).map(drop))
    })
}
