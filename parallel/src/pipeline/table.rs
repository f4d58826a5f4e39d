//! A user's schedule, read from a file as a table of cells; any schedule can be written as one.
//!
//! ```text
//! 0F0,0F1,,,0B0,0B1       one row a rank; an empty cell is a tick in which the rank waits
//! ,1F0,1F1,1B0,1B1
//! ```
//!
//! Cells are those of `torch.distributed.pipelining`: a chunk, a letter (`F` forward, `B` the whole backward,
//! `I` its input half, `W` its weight half), a microbatch; with `.1` at the end, its second slice.
//! `(0F7;7B3)OVERLAP_F_B` is both cells, one after the other. In a table with updates, such as `0U3`, `0F3@2`
//! reads version 2 of the weights. JSON has the same as a list of lists of texts.
//!
//! A table may also name its messages, as `_dump_csv` of that library does. Messages follow from the cells,
//! so the named ones are compared with the derived ones.
mod entry;

use super::phases::{about, chunks, of_whole_microbatches};
use crate::step::simulate::{CellTimes, simulate};
use crate::step::{Cell, PassKind, Plan, Schedule, Task, check, lowered};
use entry::{TableEntry, agree, cell, entries};
use layers::{Design, Sizes, StrategyInfo, counted};
use ops::DividedSize;
use std::collections::{BTreeMap, HashMap};
use tensor::mix;
use tensor::quoted::{quoted, sentence};

/// A table that has passed [`check()`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    rows: Vec<Vec<Cell>>,
    rank_of: Vec<usize>,
    plan: Plan,
    messages: usize,
    versions: BTreeMap<Cell, usize>, // that cells read, in a table with updates
}

const NAMES: [&str; 4] = ["from a file", "table", "", "schedules.md"];

/// Describes a table for whole sequences. A layout with a table has the table's chunks as its number.
static ABOUT: StrategyInfo = StrategyInfo { shares: chunks, ..about(NAMES) };

/// Describes a table for slices of sequences.
static SLICED: StrategyInfo = StrategyInfo {
    shares: |design: &Design, sizes: &Sizes| -> Vec<DividedSize> {
        chunks(design, sizes).into_iter().chain(of_whole_microbatches(design, 2)).collect()
    },
    ..about(NAMES)
};

impl Schedule for Table {
    fn about(&self) -> &'static StrategyInfo {
        if self.plan.slices > 1 { &SLICED } else { &ABOUT }
    }
    fn plan(&self, _: usize, microbatches: usize, _: Option<usize>) -> Plan {
        Plan { microbatches, ..self.plan }
    }
    fn fits(&self, plan: &Plan) -> Result<(), String> {
        let has = self.plan.microbatches;
        if has == plan.microbatches {
            return Ok(());
        }
        Err(format!("the table has {}, but the step has {}", counted(has, "microbatch"), plan.microbatches))
    }
    fn rank_of(&self, chunk: usize, _: &Plan) -> usize {
        self.rank_of[chunk]
    }
    fn updates_each(&self) -> bool {
        !self.versions.is_empty()
    }
    fn version(&self, cell: Cell, plan: &Plan) -> usize {
        if !self.updates_each() {
            return 0;
        }
        let written = self.versions.get(&cell).filter(|_| *plan == self.plan);
        *written.unwrap_or(&(cell.of.microbatch as usize)) // as in rows of other sizes
    }
    /// Its own cells. For other sizes, which occur only without training, such as for held-out text: all
    /// tasks in order, or one after the other if each is an update.
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        if *plan == self.plan {
            return Box::new(self.rows[rank].clone().into_iter());
        }
        let chunks = (0..self.rank_of.len()).filter(|chunk| self.rank_of[*chunk] == rank).collect::<Vec<_>>();
        let mut units = Vec::new();
        for (microbatch, slice) in
            (0..plan.microbatches).flat_map(|m| (0..plan.slices).map(move |slice| (m, slice)))
        {
            let of = |chunk: &usize| Task { slice: slice as u16, ..Task::new(*chunk, microbatch as u32) };
            units.extend(chunks.iter().map(of));
        }
        if self.updates_each() {
            let acts = [PassKind::F, PassKind::B, PassKind::U];
            return Box::new(units.into_iter().flat_map(move |of| acts.map(|act| Cell { act, of })));
        }
        let back = units.clone().into_iter().rev().map(|of| Cell { act: PassKind::B, of });
        Box::new(units.into_iter().map(|of| Cell { act: PassKind::F, of }).chain(back))
    }
}

/// Row and column, from 0.
type TablePlace = (usize, usize);

fn named((row, column): TablePlace) -> String {
    format!("row {}, column {}", row + 1, column + 1)
}

impl Table {
    /// Reads CSV, or JSON if the text begins with a bracket.
    ///
    /// # Errors
    /// One sentence with the row and the column, counted from 1, of the first cell that is wrong.
    pub fn read(text: &str) -> Result<Self, String> {
        let texts = fields(text)?;
        let (entries, places) = placed(&texts)?;
        let cell_of = |(_, entry): &(TablePlace, TableEntry)| match entry {
            TableEntry::Cell(cell, _) => Some(*cell),
            _ => None,
        };
        let rows: Vec<Vec<Cell>> =
            entries.iter().map(|row| row.iter().filter_map(cell_of).collect()).collect();
        let (plan, rank_of) = sizes(&rows, &places)?;
        complete(&plan, &rank_of, &places)?;
        let versions = versions(&entries)?;
        let table = Self { rows, rank_of, plan, messages: 0, versions };
        let found = |word: &str| {
            let bare = word.trim_end_matches(',');
            let place = cell(bare).and_then(|cell| places.get(&cell));
            place.map_or(word.into(), |place| format!("{bare} ({}){}", named(*place), &word[bare.len()..]))
        };
        let located = |why: String| why.split(' ').map(found).collect::<Vec<_>>().join(" ");
        check(&table, &plan).map_err(located)?;
        let messages = agree(&table, (&texts, &entries), &lowered(&table, &plan, true)?)?;
        Ok(Self { messages, ..table })
    }
    /// Sizes that the table is made for.
    pub fn sizes(&self) -> Plan {
        self.plan
    }
    /// Number of messages that it names; all of them follow from its cells.
    pub fn messages(&self) -> usize {
        self.messages
    }
    /// Returns a hash of its cells in order, to recognize the table. Ticks in which ranks wait and messages
    /// are not part of it. It has 64 bits, like the hash of a text that is kept beside it: it detects
    /// mistakes, and is no signature.
    pub fn digest(&self) -> u64 {
        let numbers = |cell: &Cell| {
            let Task { chunk, slice, microbatch } = cell.of;
            [
                (cell.act.number() as u64) << 32 | u64::from(microbatch),
                u64::from(chunk) << 16 | u64::from(slice),
            ]
        };
        let row = |row: &Vec<Cell>| row.iter().flat_map(numbers).chain([u64::MAX]).collect::<Vec<_>>();
        let versions = self.versions.values().map(|version| *version as u64);
        self.rows.iter().flat_map(row).chain(versions).fold(1, |hash, number| mix(hash ^ number))
    }
}

/// Returns the version that each cell reads, if the table has updates.
fn versions(rows: &[Vec<(TablePlace, TableEntry)>]) -> Result<BTreeMap<Cell, usize>, String> {
    let cells = || rows.iter().flatten().filter_map(|(place, entry)| entry.cell().map(|of| (*place, of)));
    let updates = cells().any(|(_, (cell, _))| cell.act == PassKind::U);
    let mut versions = BTreeMap::new();
    for (place, (cell, version)) in cells() {
        match (version, updates && cell.act != PassKind::U) {
            (Some(version), true) => drop(versions.insert(cell, version)),
            (None, false) => {}
            (None, true) => {
                let place = named(place);
                return Err(format!(
                    "{place} is {cell}, and the table has updates; wanted the version of the weights that it \
                     reads, such as {cell}@0"
                ));
            }
            (Some(version), false) => {
                let place = named(place);
                let why = if updates { "an update reads none" } else { "the table has no updates" };
                return Err(format!("{place} is {cell}@{version}, but {why}; wanted {cell}"));
            }
        }
    }
    Ok(versions)
}

/// Returns the texts of all cells, a row for each rank.
fn fields(text: &str) -> Result<Vec<Vec<String>>, String> {
    if text.trim_start().starts_with('[') {
        let why =
            |why: serde_json::Error| format!("not a list of lists of cells: {}", sentence(&why.to_string()));
        return serde_json::from_str(text).map_err(why);
    }
    let row = |line: &str| line.split(',').map(|cell| cell.trim().into()).collect();
    Ok(text.trim_end().lines().map(row).collect())
}

/// The entries of each row, each with its place, and the places of the cells.
type PlacedEntries = (Vec<Vec<(TablePlace, TableEntry)>>, HashMap<Cell, TablePlace>);

fn placed(rows: &[Vec<String>]) -> Result<PlacedEntries, String> {
    let mut places = HashMap::new();
    let mut table = vec![vec![]; rows.len()];
    for (row, texts) in rows.iter().enumerate() {
        for (column, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            let place = (row, column);
            let wanted =
                "wanted a chunk, F, B, I, W or U, and a microbatch, such as 0F0 (or 0F0.1, its second slice)";
            let parsed =
                entries(text).ok_or_else(|| format!("{} is {}; {wanted}", named(place), quoted(text)))?;
            for entry in parsed {
                if let TableEntry::Cell(cell, _) = entry
                    && let Some(first) = places.insert(cell, place)
                {
                    let [place, first] = [place, first].map(named);
                    return Err(format!("{place} is {cell}, as is {first}; wanted each cell once"));
                }
                table[row].push((place, entry));
            }
        }
    }
    Ok((table, places))
}

/// Returns the table's sizes and the rank of each chunk, as the cells imply them.
fn sizes(table: &[Vec<Cell>], places: &HashMap<Cell, TablePlace>) -> Result<(Plan, Vec<usize>), String> {
    let cells = || table.iter().flatten().map(|cell| cell.of);
    let Some(last) = cells().map(|of| of.chunk).max() else {
        return Err("it has no cells; wanted a row of cells for each rank, such as 0F0,0B0".into());
    };
    let mut rank_of = vec![None; usize::from(last) + 1];
    for (rank, cell) in
        table.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |cell| (rank, cell)))
    {
        let known: &mut Option<(usize, Cell)> = &mut rank_of[usize::from(cell.of.chunk)];
        let (other, first) = *known.get_or_insert((rank, *cell));
        if other != rank {
            let [place, first_place] = [cell, &first].map(|cell| named(places[cell]));
            let chunk = cell.of.chunk;
            return Err(format!(
                "{place} is {cell}, but {first_place} is {first}; wanted chunk {chunk} in one row"
            ));
        }
    }
    let none = |chunk| {
        let cell = rank_of[usize::from(last)]
            .map_or(String::new(), |(_, cell)| format!("{} is {cell}", named(places[&cell])));
        format!("no row has chunk {chunk}; wanted it as {cell}")
    };
    let of = |chunk: usize| rank_of[chunk].map(|(rank, _)| rank).ok_or_else(|| none(chunk));
    let rank_of = (0..rank_of.len()).map(of).collect::<Result<Vec<_>, String>>()?;
    let ranks = table.len();
    let len = rank_of.len();
    let chunks = len.div_ceil(ranks);
    for rank in 0..ranks {
        let has = rank_of.iter().filter(|at| **at == rank).count();
        if has != chunks {
            let (row, has) = (rank + 1, counted(has, "chunk"));
            return Err(format!("row {row} has {has} of {len} in {ranks} rows; wanted as many in each row"));
        }
    }
    let slices = cells().map(|of| usize::from(of.slice) + 1).max().unwrap_or(1);
    let microbatches = cells().map(|of| of.microbatch as usize + 1).max().unwrap_or(1);
    Ok((Plan { ranks, chunks, slices, microbatches }, rank_of))
}

/// Checks that each chunk has each slice of each microbatch, forward and backward.
fn complete(plan: &Plan, rank_of: &[usize], places: &HashMap<Cell, TablePlace>) -> Result<(), String> {
    let all = (0..plan.all_chunks()).flat_map(|chunk| (0..plan.slices).map(move |slice| (chunk, slice)));
    let tasks = all.flat_map(|of| (0..plan.microbatches).map(move |microbatch| (of, microbatch)));
    for ((chunk, slice), microbatch) in tasks {
        let of = Task { slice: slice as u16, ..Task::new(chunk, microbatch as u32) };
        let all @ [f, b, i, w] =
            [PassKind::F, PassKind::B, PassKind::I, PassKind::W].map(|act| Cell { act, of });
        let at = |cell: &Cell| named(places[cell]);
        let lacks = |missing: String, other: &Cell| {
            let place = at(other);
            Err(format!("row {} has no {missing}; wanted it as {place} is {other}", rank_of[chunk] + 1))
        };
        match all.map(|cell| places.contains_key(&cell)) {
            [true, true, false, false] | [true, false, true, true] => {}
            [false, ..] => {
                let behind = places.keys().filter(|cell| cell.of.microbatch >= of.microbatch);
                return lacks(f.to_string(), behind.min_by_key(|cell| places[*cell]).expect("the last one"));
            }
            [_, false, false, false] => return lacks(format!("{b}, nor {i} and {w}"), &f),
            [_, false, true, _] => return lacks(w.to_string(), &i),
            [_, false, ..] => return lacks(i.to_string(), &w),
            [_, true, has, _] => {
                let half = if has { i } else { w };
                let [whole, place] = [&b, &half].map(at);
                return Err(format!(
                    "{place} is {half}, but {whole} is {b}; wanted one backward or its halves"
                ));
            }
        }
    }
    Ok(())
}

/// Returns any schedule as CSV. A cell takes a tick; its output is on other ranks in the next one.
///
/// # Errors
/// If a rank waits for ever.
pub fn csv(schedule: &dyn Schedule, plan: &Plan) -> Result<String, String> {
    let mut lines = vec![(String::new(), 0); plan.ranks];
    let ticks = simulate(schedule, plan, &CellTimes::ticks(plan), &mut |rank, cell, start, _| {
        let (line, columns) = &mut lines[rank];
        let waits = start as usize + 1 - *columns; // the first cell has no comma before it
        line.extend(std::iter::repeat_n(',', waits - usize::from(*columns == 0)));
        line.push_str(&cell.to_string());
        line.extend(schedule.read_by(cell, plan).map(|version| format!("@{version}")));
        *columns += waits;
    })?;
    let filled = |(line, columns): (String, usize)| {
        line + &",".repeat(ticks.makespan as usize - columns.max(1)) + "\n"
    };
    Ok(lines.into_iter().map(filled).collect())
}

#[cfg(test)]
mod tests;
