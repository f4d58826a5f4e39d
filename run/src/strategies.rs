//! Lists of the strategies, and of the optimizers whose state they split.
use crate::event::Observer;
use crate::records;
use layers::{OptimizerInfo, OptimizerKind, StateInfo};
use ops::OPTIMIZERS;
use parallel::Result;
use parallel::layout::entry::StrategyEntry;
use serde::Serialize;

/// An optimizer, and what it keeps.
#[derive(Serialize)]
struct OptimizerEntry {
    optimizer: &'static str,
    rule: &'static str,
    keeps: String,
    paper: &'static str,
}

records!(OptimizerEntry: "optimizer", StrategyEntry: "strategy");

/// Describes an optimizer.
fn optimizer(info: &'static OptimizerInfo) -> OptimizerEntry {
    let words = |states: &[StateInfo]| match states {
        [] => "nothing".into(),
        all => all.iter().map(|state| state.name).collect::<Vec<_>>().join(", "),
    };
    let others = words(OptimizerKind::usual(info).states().others);
    let keeps = match info.matrices {
        Some(matrices) => format!("{} for matrices of blocks; {others} for others", words(matrices)),
        None => others,
    };
    OptimizerEntry { optimizer: info.name, rule: info.title, keeps, paper: info.paper }
}

/// Tells the strategies and the optimizers.
///
/// # Errors
/// If the observer fails.
pub fn tell(observer: &Observer) -> Result<()> {
    let entries = StrategyEntry::all();
    observer.records(&entries)?;
    let row = |e: &StrategyEntry| vec![e.layout.clone(), e.name.clone(), e.shards.join(", "), e.fits.clone()];
    let head = ["layout", "strategy", "sharded over its ranks", "its ranks divide"];
    observer.text_table(&head, entries.iter().map(row))?;
    observer.say(
        "\nStrategies of experts need a model with experts: --model moe. --json has papers and chapters.\n",
    )?;
    let optimizers: Vec<_> = OPTIMIZERS.iter().map(|info| optimizer(info)).collect();
    observer.records(&optimizers)?;
    let row = |of: &OptimizerEntry| vec![of.optimizer.into(), of.rule.into(), of.keeps.clone()];
    let head = ["--optimizer", "rule", "keeps for each parameter, like it, in the wide dtype"];
    observer.text_table(&head, optimizers.iter().map(row))
}
