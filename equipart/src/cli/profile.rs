//! Profiles: `bench --profile`, and the tables that `train --profile` prints, too.
use crate::cli::args::NetworkArgs;
use crate::cli::pictures::refuse;
use crate::cli::processes::ProcessesArgs;
use crate::terminal::out;
use crate::views::Views;
use bench::profile::{self, LayerTime, ProfileLine, RankProfile, Totals};
use bench::{self, Exposed};
use clap::Args;
use parallel::dtype::{DtypeName, RunDevice};
use parallel::{Error, Layout, Network, Result, layout};
use run::device::DeviceName;
use run::in_device;

/// Legend of the tables.
const LEGEND: &str = "\
ms: of a step, the mean of all ranks; least and most: with the rank. A row has its own time, without that of named rows\n\
within it, so each table adds up to the step. calls: kernels, calls and waits of a kind; passes through all\n\
layers of a row. GFLOP/s: of products and attention, while they run.";

#[derive(Args, Debug)]
pub(crate) struct ProfileArgs {
    /// Break down the time of a training step of shape L, instead of measuring figures
    #[arg(long, conflicts_with_all = ["only", "peers"])]
    profile: bool,
    #[arg(long, requires = "profile", default_value_t, help = layout::grammar())]
    #[arg(conflicts_with_all = ["only", "peers"])]
    layout: Layout,
    #[command(flatten)]
    network: NetworkArgs,
}

impl ProfileArgs {
    /// Returns true if `--profile` is given.
    ///
    /// # Errors
    /// If it is not given, but a flag that needs it is; or if turns are given, and no links are to be left
    /// out in some.
    pub(crate) fn asked(&self, turns: Option<usize>) -> Result<bool> {
        let unused = self.profile && self.network.link.is_empty() && turns.is_some();
        refuse(&[("turns", unused)], "the figures, or for --link; --profile without --link")?;
        match self.network.given().filter(|_| !self.profile) {
            Some(flag) => {
                Err(Error::new(format!("--{flag} is for bench --profile; the figures have no use for it")))
            }
            None => Ok(self.profile),
        }
    }
}

pub(crate) fn run(
    (a, processes): (&ProfileArgs, &ProcessesArgs),
    device: DeviceName,
    size: (usize, bool),
    views: &Views,
) -> Result<()> {
    let engine = device.open(a.layout.ranks(), &out::note)?;
    let network = processes.join(a.network.network(None)?, (&[a.layout], engine), None, &[])?;
    let of_core = || network.on_rank_0(|| Ok(bench::peak_gflops(network.here(&a.layout))));
    let peak = (device == DeviceName::Cpu).then(of_core).transpose()?;
    in_device!((device, DtypeName::F32), D => of::<D>((a, &network.profiling(profile::MOST)), peak, size, views))
}

fn of<D: RunDevice>(
    (a, network): (&ProfileArgs, &Network),
    peak: Option<f64>,
    (turns, small): (usize, bool),
    views: &Views,
) -> Result<()> {
    network.fits(&[a.layout])?;
    views.doing(&format!("training steps of shape L under {}", a.layout))?;
    a.network.keep_trace(network, bench::profiled::<D>(&a.layout, network, small))?;
    let exposed = bench::exposed::<D>(&a.layout, network, (turns, small), &|what| drop(views.doing(what)))?;
    tell(network, peak, views)?;
    let Some(of) = exposed else { return Ok(()) };
    let Exposed { linked_ms, unlinked_ms, exposed_ms, priced_ms, ratio } = of;
    views.record(&ProfileLine::Links(&of))?;
    views.say(&format!(
        "\nA step takes {linked_ms:.1} ms over the links and {unlinked_ms:.1} ms without them, each the best of all turns: \
         {exposed_ms:.1} ms are exposed\nof the {priced_ms:.1} ms that the links take for its calls, a ratio of {ratio:.2}.",
    ))
}

/// Prints the profile of the last run over a network, beside the peak of a core, if there is one for its
/// dtype.
///
/// # Errors
/// If its trace has no profile.
pub(crate) fn tell(network: &Network, peak: Option<f64>, views: &Views) -> Result<()> {
    let runs = network.trace.as_ref().map_or_else(Vec::new, comm::Trace::runs);
    let run = runs.last().ok_or_else(|| Error::new("no run was profiled"))?;
    let ranks = profile::of(run, network)?;
    lines(&ranks, peak, views)?;
    tables(&run.name, &ranks, peak, views)
}

fn lines(ranks: &[RankProfile], peak: Option<f64>, views: &Views) -> Result<()> {
    for (rank, of) in ranks.iter().enumerate() {
        views.record(&ProfileLine::Steps { rank, steps: of.steps, ms: of.ms(), peak_gflops: peak })?;
        for (kind, sum) in &of.kinds {
            views.record(&ProfileLine::Kind { rank, kind: kind.name(), row: of.row(sum, peak) })?;
        }
        for LayerTime { name: layer, layers, pass, sum } in &of.layers {
            let pass = pass.map(tensor::Direction::name);
            let row = of.row(sum, peak);
            views.record(&ProfileLine::Layer { rank, layer, pass, layers: *layers, row })?;
        }
    }
    Ok(())
}

fn tables(name: &str, ranks: &[RankProfile], peak: Option<f64>, views: &Views) -> Result<()> {
    let together = RankProfile::together(ranks);
    let many = ranks.len() > 1;
    let steps = together.steps / ranks.len();
    let peak_told =
        peak.map_or_else(String::new, |peak| format!("; a core's measured peak is {peak:.0} GFLOP/s"));
    let of = if steps == 1 { "one step".into() } else { format!("mean of {steps} steps") };
    let ms = together.ms();
    views.say(&format!("{name}: {ms:.1} ms a step ({of}){peak_told}.\n"))?;
    let cells = |sum: &Totals, each: &[&Totals]| cells(&together, ranks, sum, each, peak);
    let mut head = vec!["ms", "share"];
    head.extend(if many { &["least", "most"][..] } else { &[] });
    head.extend(["calls", "GFLOP/s", "of peak"]);
    let kinds = together.kinds.iter().enumerate().map(|(at, (kind, sum))| {
        let each: Vec<_> = ranks.iter().map(|rank| &rank.kinds[at].1).collect();
        [vec![kind.name().to_string()], cells(sum, &each)].concat()
    });
    let heads = [&["By kind"], &head[..]].concat();
    views.table(&heads, kinds)?;
    views.say("")?;
    let layers = together.layers.iter().map(|row| {
        let each: Vec<_> = ranks.iter().filter_map(|rank| rank.layer(row)).collect();
        let pass = row.pass.map_or("-", tensor::Direction::name);
        let count = if row.layers > 1 { format!("{} x{}", row.name, row.layers) } else { row.name.clone() };
        [vec![count, pass.to_string()], cells(&row.sum, &each)].concat()
    });
    views.table(&[&["By layer", "pass"], &head[..]].concat(), layers)?;
    views.say(&format!("\n{LEGEND}"))?;
    beyond(&together, peak).map_or(Ok(()), |why| views.say(why))
}

/// Explains a row above the peak, if there is one.
fn beyond(of: &RankProfile, peak: Option<f64>) -> Option<&'static str> {
    let mut sums = of.kinds.iter().map(|(_, sum)| sum).chain(of.layers.iter().map(|row| &row.sum));
    sums.any(|sum| of.row(sum, peak).of_peak.is_some_and(|part| part > 1.05)).then_some(
        "More than 100 % of peak: the machine did other work while the peak was measured; run it again on an idle machine.",
    )
}

/// Cells of a row: all ranks together, and, if there are several, the ranks with the least and the most.
fn cells(
    together: &RankProfile,
    ranks: &[RankProfile],
    sum: &Totals,
    each: &[&Totals],
    peak: Option<f64>,
) -> Vec<String> {
    let share = together.row(sum, peak);
    let or_dash = |reported: Option<String>| reported.unwrap_or_else(|| "-".into());
    let mut row = vec![format!("{:.2}", share.ms), format!("{:.1} %", 100.0 * share.share)];
    if ranks.len() > 1 {
        let mut each: Vec<_> =
            each.iter().zip(ranks).map(|(sum, of)| of.row(sum, None).ms).zip(0..).collect();
        each.sort_by(|a, b| a.0.total_cmp(&b.0));
        let reported = |at: Option<&(f64, usize)>| or_dash(at.map(|(ms, rank)| format!("{ms:.2} ({rank})")));
        row.extend([reported(each.first()), reported(each.last())]);
    }
    let calls = if sum.calls == 0 { "-".into() } else { format!("{:.0}", share.calls) };
    let gflops = or_dash(share.gflops.map(|gflops| format!("{gflops:.0}")));
    row.extend([calls, gflops, or_dash(share.of_peak.map(|part| format!("{:.0} %", 100.0 * part)))]);
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use bench::profile::WorkKind;
    use std::time::Duration;
    use tensor::KernelKind;

    /// Kills: 425 % of the peak without an explanation, an explanation of a normal share or without a peak.
    #[test]
    fn more_than_the_peak_is_explained() {
        let time = Duration::from_secs(1);
        let sum = Totals { time, calls: 1, flops: 4_250_000_000, computing: time };
        let kinds = vec![(WorkKind::On(KernelKind::Product), sum)];
        let of = RankProfile { steps: 1, time, kinds, layers: vec![] };
        assert!(beyond(&of, Some(1.0)).unwrap().starts_with("More than 100 % of peak: "));
        assert!(beyond(&of, Some(4.2)).is_none() && beyond(&of, None).is_none());
    }
}
