//! The partitionings that the flags of `compare` ask for.
use super::CompareArgs;
use crate::cli::args::note;
use crate::cli::processes;
use layers::Design;
use parallel::{Layout, Result, bail};
use run::compare::Partitioning;

/// Returns the partitionings of the flags, and whether they are the experiment: it runs for a model with
/// experts if no layout is given.
///
/// # Errors
/// If a layout does not fit.
pub(super) fn asked(a: &CompareArgs, design: &Design) -> Result<(Vec<Partitioning>, bool)> {
    let usual: &[&str] = match a.epochs {
        None => &["tp=2", "tp=2,sp", "dp=2", "dp=2:zero1", "pp=2", "tp=2,sp,dp=2:zero1,pp=2"],
        Some(_) => &["dp=2", "tp=2", "pp=2:zb-h1"],
    };
    let usual = || usual.iter().map(|l| l.parse::<Layout>().expect("a layout").into()).collect();
    let experiment = a.layout.is_empty() && design.shape().is_some_and(|shape| shape.experts.is_some());
    let mut ways: Vec<Partitioning> = match (a.layout.is_empty(), experiment) {
        (_, true) => Partitioning::of_experiment(),
        (true, _) => usual(),
        _ => a.layout.iter().map(|layout| (*layout).into()).collect(),
    };
    if a.layout.is_empty() {
        if let (Design::Classifier { .. }, None) = (design, a.epochs) {
            let name = Some("found split, 2 ranks");
            let tensor = ways.first().filter(|way| way.layout.ranks() == 2).copied();
            ways.extend(tensor.map(|way| Partitioning { name, is_found: true, ..way }));
        }
        ways.retain(|way| way.layout.fits(design).is_ok());
        if let Some(launch) = processes::launch()? {
            ways.retain(|way| [1, launch.ranks].contains(&way.layout.ranks()));
            if ways.iter().all(|way| way.layout.ranks() < launch.ranks) {
                let ranks = launch.ranks;
                bail!("no layout that is compared by default has {ranks} ranks; give one with --layout");
            }
        }
    }
    let layouts = a.ranks.each.all(ways.iter().map(|way| way.layout).collect(), design)?;
    let layouts = a.offload.all(layouts, a.number.device)?;
    if !a.layout.is_empty() {
        note(&layouts, Some(design).filter(|_| a.ranks.each.split.is_none()));
    }
    ways.iter_mut().zip(layouts).for_each(|(way, layout)| way.layout = layout);
    if a.requests && !experiment {
        ways = Partitioning::in_every_order(&ways)?;
    }
    if let Some((axis, link)) = a.slow_link {
        let split: Vec<_> = ways.iter().filter(|way| way.layout.size(axis) > 1).copied().collect();
        if split.is_empty() {
            bail!(
                "--slow-link {axis}={link}: none of the compared layouts has {axis} ranks; split that axis, \
                 or leave the link out"
            );
        }
        ways.extend(split.into_iter().map(|way| Partitioning { slow: a.slow_link, ..way }));
    }
    Ok((ways, experiment))
}
