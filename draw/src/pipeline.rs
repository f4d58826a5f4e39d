//! Timeline of each rank of a pipeline: as lines of a terminal, and as a [diagram](svg).
//!
//! ```text
//! rank 0  F0 F1 F2 ·  ·  B0─── B1─── B2───
//! rank 1  ·  F0 F1 F2 B0─── B1─── B2─── ·
//! ```
//!
//! A column is a tick: the longest time that divides all times, if there is one. A step wider than the
//! terminal is folded into bands of ticks, below each other. In colour, the background of a microbatch's
//! number shows the act and the chunk.
pub mod svg;

use crate::picture::ground;
use layers::counted;
use parallel::Schedule;
use parallel::step::simulate::{CellTimes, Simulated, StepTimes, simulate};
use parallel::step::{Cell, PassKind, Plan};
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;

/// A simulated step.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Name of its schedule.
    pub name: &'static str,
    /// Sizes of its plan.
    pub plan: Plan,
    /// Result of the simulation.
    pub of: Simulated,
    /// The cells of each rank, or its first ones, in order.
    pub rows: Vec<Vec<Ran>>,
}

/// A cell with its start and end.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// The cell.
    pub cell: Cell,
    /// Version of the weights that it reads, if they change within the step.
    pub version: Option<usize>,
    /// Its start.
    pub start: f64,
    /// Its end.
    pub end: f64,
    /// Microbatches' activations that it adds to what its rank has saved, or frees if negative.
    pub saves: f64,
}

impl fmt::Display for Ran {
    /// As a table has it: "0F3", "0F3@2".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.cell)?;
        self.version.map_or(Ok(()), |version| write!(f, "@{version}"))
    }
}

/// Hues of cells, by the number of their kind.
const HUES: [f64; PassKind::ALL.len()] = [0.6, 0.38, 0.75, 0.12, 0.0];

/// Ranks that are shown in a terminal.
pub const MOST_RANKS: usize = 64;
/// The most bands that are shown in a terminal, half of them from the beginning of a step and half from its
/// end, and the most ticks of each.
const MOST_BANDS: usize = 8;
const MOST_TICKS: usize = 250;

/// Rounds a number to its significant digits.
fn short(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

impl Timeline {
    /// Simulates a step. Of the first ranks, as many as `kept` says, it keeps cells: so many first ones, and
    /// so many last ones.
    ///
    /// # Errors
    /// If the schedule's cells wait for each other in vain.
    pub fn of(
        schedule: &dyn Schedule,
        plan: Plan,
        times: &CellTimes,
        [ranks, kept]: [usize; 2],
    ) -> Result<Self, String> {
        let mut ends = vec![(Vec::new(), VecDeque::new()); ranks.min(plan.ranks)];
        let mut see = |rank: usize, cell: Cell, start, end| {
            let Some((first, last)) = ends.get_mut(rank) else { return };
            let saves = times.saves(cell.act) / times.parts(&plan);
            let ran = Ran { cell, version: schedule.read_by(cell, &plan), start, end, saves };
            if first.len() < kept {
                first.push(ran);
            } else {
                last.push_back(ran);
                last.drain(..last.len().saturating_sub(kept));
            }
        };
        let simulated = simulate(schedule, &plan, times, &mut see)?;
        let rows = ends.into_iter().map(|(first, last)| first.into_iter().chain(last).collect()).collect();
        Ok(Self { name: schedule.about().name, plan, of: simulated, rows })
    }
    /// Name and sizes of the schedule.
    pub fn title(&self) -> String {
        let more = [(self.plan.chunks, "chunk", "rank"), (self.plan.slices, "slice", "sequence")];
        let more = more.into_iter().filter(|(n, ..)| *n > 1);
        let more = more.map(|(n, what, of)| format!(", {} of each {of}", counted(n, what)));
        format!("{}: {}{}", self.name, self.plan, more.collect::<String>())
    }
    /// Time of the step and memory of the ranks, in two lines.
    pub fn figures(&self) -> [String; 2] {
        let Simulated { makespan, bubble_time, bubble_fraction, peak_saved, .. } = &self.of;
        let time = short(*bubble_time);
        let waits = if *bubble_time > 1e-9 * makespan {
            format!("a rank waits at most {time} ({:.1} %)", 100.0 * bubble_fraction)
        } else {
            "no rank waits".into()
        };
        let most = short(peak_saved.iter().copied().fold(0.0, f64::max));
        let each = peak_saved.iter().map(|saved| short(*saved).to_string()).collect::<Vec<_>>().join(", ");
        let each = if peak_saved.len() > 16 { String::new() } else { format!("; by rank: {each}") };
        let need = if most == 1.0 { "" } else { "es" };
        [
            format!("it takes {}; between its first and its last cell {waits}", short(*makespan)),
            format!("a rank saves at most the activations of {most} microbatch{need}{each}"),
        ]
    }
    /// Acts that occur, in the order of the legend.
    fn acts(&self) -> BTreeSet<PassKind> {
        self.rows.iter().flatten().map(|ran| ran.cell.act).collect()
    }
    /// Lightness of a cell's background: a rank's first chunk is lightest.
    fn lightness(&self, cell: Cell) -> f64 {
        0.78 - 0.3 * self.depth(cell)
    }
    /// Place of a cell's chunk among those of its rank, from 0, the first of the model, to 1.
    fn depth(&self, cell: Cell) -> f64 {
        let chunk = usize::from(cell.of.chunk) / self.plan.ranks;
        chunk as f64 / (self.plan.chunks.max(2) - 1) as f64
    }
    /// The longest time that divides all times; if times differ too much, the shortest time.
    fn tick(&self) -> f64 {
        let cells = || self.rows.iter().flatten();
        let shortest = cells().map(|ran| ran.end - ran.start).filter(|t| *t > 1e-9 * self.of.makespan);
        let shortest = shortest.reduce(f64::min).unwrap_or(self.of.makespan);
        let fits = |tick: f64| {
            let whole = |time: f64| ((time / tick).round() - time / tick).abs() < 1e-6;
            cells().all(|ran| whole(ran.start) && whole(ran.end))
        };
        (1..=8).map(|parts| shortest / f64::from(parts)).find(|tick| fits(*tick)).unwrap_or(shortest)
    }
    /// Lines of at most `width` columns, with letters or in colour, followed by a legend.
    pub fn lines(&self, width: usize, colour: bool) -> Vec<String> {
        let tick = self.tick();
        let all = (self.of.makespan / tick).round() as usize;
        let characters = |ran: &Ran| label(ran, self.plan.chunks, colour).len();
        let most = |of: &dyn Fn(&Ran) -> usize| self.rows.iter().flatten().map(of).max();
        let share = |ran: &Ran| (characters(ran) + 1).div_ceil(ticks(ran, tick).len().max(1));
        let name = format!("rank {}", self.plan.ranks - 1).len();
        let room = width.saturating_sub(name + 2);
        let mut per = most(&share).unwrap_or(2);
        if all * per > room {
            // at the end of a band a cell may have a single tick
            per = per.max(most(&characters).unwrap_or(2));
        }
        let bands = bands(all, (room / per).clamp(1, MOST_TICKS));
        let (mut lines, mut now) = (Vec::new(), 0);
        for band in &bands {
            if band.start > now {
                let last = band.start - 1;
                lines.push(format!("Ticks {now} to {last} of {all} are left out; --svg FILE draws them.\n"));
            }
            if bands.len() > 1 {
                lines.push(format!("ticks {} to {} of {all}", band.start, band.end - 1));
            }
            lines.extend((0..self.plan.ranks.min(MOST_RANKS)).map(|rank| {
                let cells = self.line(rank, (tick, band), per, colour);
                format!("{:<name$}  {}", format!("rank {rank}"), cells.trim_end())
            }));
            lines.push(String::new());
            now = band.end;
        }
        if self.plan.ranks > MOST_RANKS {
            let last = self.plan.ranks - 1;
            lines.push(format!("Ranks {MOST_RANKS} to {last} are left out; --svg FILE draws them.\n"));
        }
        lines.extend(self.legend(tick, colour));
        lines
    }
    /// One rank's row of a band of ticks, with `per` characters a tick. Only the first part of a cell has the
    /// label.
    fn line(&self, rank: usize, (tick, band): (f64, &Range<usize>), per: usize, colour: bool) -> String {
        let (mut line, mut now) = (String::new(), band.start);
        let wait = |ticks: usize| format!("{:<per$}", "·").repeat(ticks);
        for ran in &self.rows[rank] {
            let whole = ticks(ran, tick);
            let part = whole.start.max(band.start)..whole.end.min(band.end);
            if part.is_empty() {
                continue;
            }
            let mut words = label(ran, self.plan.chunks, colour);
            if part.start > whole.start {
                words.clear();
            }
            let width = part.len() * per;
            let gap = usize::from(width > words.len() && part.end == whole.end);
            let cell = if colour {
                ground(hue(ran.cell.act), self.lightness(ran.cell), &format!("{words:<width$.width$}"))
            } else {
                format!("{words:─<0$.0$}{1:2$}", width - gap, "", gap)
            };
            line += &(wait(part.start - now) + &cell);
            now = part.end;
        }
        line + &wait(band.end - now)
    }
    fn legend(&self, tick: f64, colour: bool) -> [String; 2] {
        let first = self.lightness(Cell { act: PassKind::F, of: parallel::step::Task::new(0, 0) });
        let word = |act: PassKind| {
            let sample = if colour { ground(hue(act), first, "  ") } else { format!("{act:?}") };
            format!("{sample} {}", means(act))
        };
        let acts = self.acts().into_iter().map(word).collect::<Vec<_>>().join(", ");
        let chunks = match (self.plan.chunks, colour) {
            (1, _) => "",
            (_, true) => "; the darker, the later the chunk",
            (_, false) => "; before the letter, the chunk",
        };
        let slices = if self.plan.slices > 1 { ", behind a point the slice" } else { "" };
        let versioned = self.rows.iter().flatten().any(|ran| ran.version.is_some());
        let versions = if versioned { ", behind @ the version of the weights" } else { "" };
        let tick = short(tick);
        let number = format!("The number is the microbatch{slices}{versions}{chunks}");
        [acts, format!("{number}; · waits; a column is {tick} of time.")]
    }
}

/// Ticks of a cell.
fn ticks(ran: &Ran, tick: f64) -> Range<usize> {
    let [start, end] = [ran.start, ran.end].map(|time| (time / tick).round() as usize);
    start..end
}

/// Splits a step's ticks into bands of at most `most`, of about equal length; a long step has only the first
/// bands and the last ones.
fn bands(all: usize, most: usize) -> Vec<Range<usize>> {
    let n = all.div_ceil(most).max(1);
    if n > MOST_BANDS {
        let half = MOST_BANDS / 2;
        let starts = (0..half).map(|i| i * most).chain((1..=half).rev().map(|i| all - i * most));
        return starts.map(|start| start..start + most).collect();
    }
    let each = all.div_ceil(n);
    (0..n).map(|i| i * each..all.min((i + 1) * each)).filter(|band| !band.is_empty()).collect()
}

/// Label of a cell.
fn label(ran: &Ran, chunks: usize, colour: bool) -> String {
    let whole = ran.to_string();
    let letter = whole.find(char::is_alphabetic).unwrap_or(0);
    let from = match (colour, chunks) {
        (true, _) => letter + 1,
        (false, 1) => letter,
        _ => 0,
    };
    whole[from..].to_string()
}

fn hue(act: PassKind) -> f64 {
    HUES[act.number()]
}

/// Meaning of an act in a legend: its name, and whose half it is.
fn means(act: PassKind) -> String {
    let half = act.does(PassKind::I) != act.does(PassKind::W);
    format!("{}{}", act.name, if half { " of backward" } else { "" })
}

#[cfg(test)]
mod tests;
