//! Results of crates below that are records as they are.
use crate::records;
use layers::graph::lines::GraphLine;
use models::generate::Line;
use parallel::layout::entry::StrategyEntry;
use plan::Machine;

records!(GraphLine: "step", Line<'_>: "text", Machine: "machine", StrategyEntry: "strategy");
