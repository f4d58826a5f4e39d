//! Contents of a table's cell, and the messages that tables of `torch.distributed.pipelining` name.
//!
//! ```text
//! 0F3                     a cell
//! (0F7;7B3)OVERLAP_F_B    two, one after the other
//! 0SEND_F3, 1RECV_F3      the activation that chunk 0 gives for microbatch 3, and what chunk 1 receives
//! 1SEND_B3, 0RECV_B3      the gradient that chunk 1 gives, and what chunk 0 receives
//! ```
//!
//! `UNSHARD`, `RESHARD`, `REDUCE_GRAD` and waits are read and ignored: a schedule does not decide where
//! parameters are sharded at rest, and waits are [moves](crate::step::moves()).
use super::{Table, TablePlace, named};
use crate::step::{Action, Cell, PassKind, Payload, Task};

/// One item that a table names.
#[derive(Clone, Copy, Debug)]
pub(super) enum TableEntry {
    /// A cell, and the version of the weights that it reads, if it is written.
    Cell(Cell, Option<usize>),
    /// A message, and the task that needs it; true if it is sent, false if it is received.
    Message(bool, Payload, Task),
    /// Anything that has no counterpart here.
    Other,
}

/// Parses the items that a cell's text names; none if it is no such text.
pub(super) fn entries(text: &str) -> Option<Vec<TableEntry>> {
    let Some(both) = text.strip_prefix('(') else { return Some(vec![entry(text)?]) };
    both.strip_suffix(")OVERLAP_F_B")?
        .split(';')
        .map(|part| entry(part.trim()).filter(|entry| entry.cell().is_some()))
        .collect()
}

impl TableEntry {
    /// Returns the cell, and the version that it reads.
    pub(super) fn cell(self) -> Option<(Cell, Option<usize>)> {
        if let Self::Cell(cell, version) = self { Some((cell, version)) } else { None }
    }
}

/// Parses a cell.
pub(super) fn cell(text: &str) -> Option<Cell> {
    entry(text)?.cell().map(|(cell, _)| cell)
}

fn entry(text: &str) -> Option<TableEntry> {
    let digit = |c: char| c.is_ascii_digit();
    let (text, version) = text.split_once('@').map_or((text, None), |(text, version)| (text, Some(version)));
    let version = version.map(|version| version.parse().ok().filter(|_| version.starts_with(digit)));
    if version == Some(None) {
        return None;
    }
    let (chunk, rest) = text.split_at(text.find(|c| !digit(c))?);
    let (word, number) = rest.split_at(rest.find(digit).unwrap_or(rest.len()));
    let chunk: u16 = chunk.parse().ok()?;
    let task = |chunk: Option<u16>| {
        let (microbatch, slice) = number.split_once('.').unwrap_or((number, "0"));
        let plain = !number.contains('+'); // Rust's numbers may begin with it
        let task = Task { chunk: chunk?, slice: slice.parse().ok()?, microbatch: microbatch.parse().ok()? };
        Some(task).filter(|_| plain)
    };
    let own = Some(chunk);
    if let Some(act) = PassKind::ALL.into_iter().find(|act| word.chars().eq([act.letter])) {
        return Some(TableEntry::Cell(Cell { act, of: task(own)? }, version.flatten()));
    }
    match word {
        _ if version.is_some() => None,
        "SEND_F" => Some(TableEntry::Message(true, Payload::Activation, task(chunk.checked_add(1))?)),
        "SEND_B" => Some(TableEntry::Message(true, Payload::Gradient, task(chunk.checked_sub(1))?)),
        "RECV_F" => Some(TableEntry::Message(false, Payload::Activation, task(own)?)),
        "RECV_B" => Some(TableEntry::Message(false, Payload::Gradient, task(own)?)),
        "WAIT_SEND_F" | "WAIT_SEND_B" => task(own).map(|_| TableEntry::Other),
        "UNSHARD" | "RESHARD" | "REDUCE_GRAD" | "WAIT_REDUCE_GRAD" => {
            number.is_empty().then_some(TableEntry::Other)
        }
        _ => None,
    }
}

/// Compares the messages that the rows name, if they name any, with those of the table's lowered actions. For
/// each kind and each pair of ranks they must be the same in the same order, sends after the cells that give
/// them and receives before the cells that take them. Returns the number of messages.
///
/// # Errors
/// One sentence with the first message that differs, seen and wanted.
pub(super) fn agree(
    table: &Table,
    (texts, rows): (&[Vec<String>], &[Vec<(TablePlace, TableEntry)>]),
    steps: &[Vec<Action>],
) -> Result<usize, String> {
    if !rows.iter().flatten().any(|(_, entry)| matches!(entry, TableEntry::Message(..))) {
        return Ok(0);
    }
    let mut total = 0;
    for (rank, (row, steps)) in rows.iter().zip(steps).enumerate() {
        let mut wanted: Vec<Action> = steps.iter().copied().filter(|step| end(*step).is_some()).collect();
        total += wanted.len();
        let mut given = Vec::new();
        for &(place, entry) in row {
            let text = &texts[place.0][place.1];
            let wrong =
                |what: String| Err(format!("rank {rank} ({}) has {text}; wanted {what}", named(place)));
            match entry {
                TableEntry::Cell(cell, _) => match wanted.iter().find(|step| step.is_for(cell)) {
                    Some(lacks) => return wrong(format!("to {lacks} before it")),
                    None => given.extend(cell.gives(&table.plan)),
                },
                TableEntry::Message(sends, what, of) => {
                    let seen = step(table, sends, what, of);
                    let Some(next) = wanted.iter().position(|step| seen.and_then(end) == end(*step)) else {
                        return wrong("no such message here".into());
                    };
                    if seen != Some(wanted[next]) {
                        return wrong(format!("to {}", wanted[next]));
                    }
                    if sends && !given.contains(&(what, of)) {
                        return wrong("it after the cell that gives it".into());
                    }
                    wanted.remove(next);
                }
                TableEntry::Other => {}
            }
        }
        if let Some(step) = wanted.first() {
            return Err(format!("rank {rank} (row {}) lacks a message; wanted to {step}", rank + 1));
        }
    }
    Ok(total)
}

/// Returns the action of a message, if there are ranks at both of its ends.
fn step(table: &Table, sends: bool, what: Payload, of: Task) -> Option<Action> {
    let giver = if what == Payload::Activation { of.chunk.checked_sub(1) } else { of.chunk.checked_add(1) };
    let rank = |chunk: u16| table.rank_of.get(usize::from(chunk)).copied();
    let (to, from) = (rank(of.chunk)?, rank(giver?)?);
    Some(if sends { Action::Send(what, of, to) } else { Action::Receive(what, of, from) })
}

/// Returns the kind of a message, and the rank at its other end.
fn end(step: Action) -> Option<(bool, Payload, usize)> {
    match step {
        Action::Send(what, _, to) => Some((true, what, to)),
        Action::Receive(what, _, from) => Some((false, what, from)),
        _ => None,
    }
}
