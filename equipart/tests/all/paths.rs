//! Commands × entries of the lists: every layout, dtype, optimizer and kind of model goes through every
//! command, which gives what the unsplit run gives or refuses the layout as [`Layout::fits`] does. Cases are
//! made from the lists, so an entry that is added is tried. `cargo test` runs a part, `cargo xtask paths`
//! all.
mod case;
mod kind;
mod works;

use case::Case;
use kind::{Kind, Models};
use parallel::Layout;
use parallel::dtype::DtypeName;
use parallel::layout::covering::covering;
use parallel::layout::entry::StrategyEntry;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::scope;

/// Set by `cargo xtask paths`: of all cases those are run that have its text in their name.
const ONLY: &str = "EQUIPART_PATHS";

/// How often each command ran, and how often it refused.
#[derive(Default)]
struct Table(Mutex<BTreeMap<(&'static str, String), [usize; 2]>>);

impl Table {
    fn count(&self, command: &'static str, entries: &[String], ran: bool) {
        let mut rows = self.0.lock().unwrap();
        for entry in entries {
            rows.entry((command, entry.clone())).or_default()[usize::from(!ran)] += 1;
        }
    }
    fn print(&self) {
        let rows = self.0.lock().unwrap();
        println!("{:22} {:20} {:>7} {:>7}", "command", "entry", "ran", "refused");
        for ((command, entry), [ran, refused]) in rows.iter() {
            println!("{command:22} {entry:20} {ran:7} {refused:7}");
        }
    }
}

/// Every strategy alone, then layouts in which every two meet that can. A store in the host's memory is left
/// out: commands refuse it where that is the device.
fn layouts() -> Vec<Layout> {
    let alone = StrategyEntry::all().into_iter().map(|entry| entry.layout.parse().unwrap());
    let mut all = vec![Layout::UNSPLIT];
    let pinned = |layout: &Layout| layout.offload().is_some_and(|offload| offload.pinned);
    for layout in alone.chain(covering(8)) {
        if !all.contains(&layout) && !pinned(&layout) {
            all.push(layout);
        }
    }
    all
}

/// The product of the lists.
fn all(models: &Models) -> Vec<Case<'_>> {
    let mut cases = Vec::new();
    for layout in layouts() {
        for kind in Kind::ALL {
            for &(number, _) in DtypeName::ALL {
                let case = |optimizer| Case { models, layout, kind, number, optimizer };
                cases.extend(kind.optimizers().into_iter().map(case));
            }
        }
    }
    cases
}

/// Each strategy alone once: kinds of models, dtypes and optimizers take turns, so that every two of them
/// meet.
fn drawn(models: &Models) -> Vec<Case<'_>> {
    let of = |(i, layout): (usize, Layout)| {
        let kind = Kind::ALL[i % Kind::ALL.len()];
        let number = DtypeName::ALL[(i + i / Kind::ALL.len()) % DtypeName::ALL.len()].0;
        let optimizers = kind.optimizers();
        let optimizer = optimizers[i / 2 % optimizers.len()];
        Case { models, layout, kind, number, optimizer }
    };
    layouts().into_iter().enumerate().map(of).take(StrategyEntry::all().len()).collect()
}

/// Kills: a command that knows only some entries of a list: a checkpoint in the order of stages, a refusal
/// that is no sentence or that a command makes for itself, a flag that is forgotten under a layout.
#[test]
fn every_command_takes_every_entry_or_refuses_it() {
    let (models, table, next) = (Models::new(), Table::default(), AtomicUsize::new(0));
    let only = std::env::var(ONLY).ok();
    let is_full = only.is_some();
    let cases = match only {
        None => drawn(&models),
        Some(text) => all(&models).into_iter().filter(|case| case.to_string().contains(&text)).collect(),
    };
    let failures = Mutex::new(Vec::new());
    let work = || {
        while let at = next.fetch_add(1, Ordering::Relaxed)
            && let Some(case) = cases.get(at)
        {
            if is_full {
                eprintln!("{} of {}: {case}", at + 1, cases.len());
            }
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| case.run(&table, is_full))) {
                let why = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".into());
                failures.lock().unwrap().push(format!("{case}: {why}"));
            }
        }
    };
    scope(|threads| {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        (0..workers).for_each(|_| drop(threads.spawn(work)));
    });
    if is_full {
        table.print();
    }
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} wrong:\n{}", failures.len(), cases.len(), failures.join("\n"));
}
