//! What each rank of a pipeline does when: as lines of a terminal, and as a [diagram](svg).
//!
//! ```text
//! rank 0  F0 F1 F2 ·  ·  B0─── B1─── B2───
//! rank 1  ·  F0 F1 F2 B0─── B1─── B2─── ·
//! ```
//!
//! A column is a tick: the longest time of which all times are multiples, where there is one. In colour, numbers of
//! microbatches stand on grounds that say the act and the chunk.
pub mod svg;

use super::svg::rgb;
use layers::model::shape::counted;
use parallel::step::simulate::Simulated;
use parallel::step::{Act, Cell, Plan};

/// A step that was gone through.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// The name of its schedule.
    pub name: &'static str,
    /// Its sizes.
    pub plan: Plan,
    /// Its figures.
    pub of: Simulated,
    /// The cells of each rank, or its first ones, in order.
    pub rows: Vec<Vec<Ran>>,
}

/// A cell, from when to when.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Which.
    pub cell: Cell,
    /// Its start.
    pub start: f64,
    /// Its end.
    pub end: f64,
}

/// The acts, in the order of the legend: letter, meaning, hue.
const ACTS: [(Act, &str, &str, f64); 4] = [
    (Act::F, "F", "forward", 0.6),
    (Act::B, "B", "backward", 0.38),
    (Act::I, "I", "its input half", 0.45),
    (Act::W, "W", "its weight half", 0.12),
];

/// Ranks that are shown in a terminal.
const MOST_RANKS: usize = 64;

/// A number with as many digits as mean something.
fn short(x: f64) -> f64 {
    format!("{x:.5e}").parse().unwrap_or(x)
}

impl Timeline {
    /// The schedule and its sizes.
    pub fn title(&self) -> String {
        let more = [(self.plan.chunks, "chunk"), (self.plan.slices, "slice")].into_iter();
        let more = more.filter(|(n, _)| *n > 1).map(|(n, what)| format!(", {}", counted(n, what)));
        format!("{}: {}{}", self.name, self.plan, more.collect::<String>())
    }
    /// What it takes and what ranks hold, in two lines.
    pub fn figures(&self) -> [String; 2] {
        let Simulated { makespan, bubble_time, bubble_fraction, peak_saved, .. } = &self.of;
        let bubble = if *bubble_time > 0.0 {
            format!("waits {} ({:.1} %)", short(*bubble_time), 100.0 * bubble_fraction)
        } else {
            "does not wait".into()
        };
        let most = peak_saved.iter().copied().fold(0.0, f64::max);
        let each = peak_saved.iter().map(|saved| short(*saved).to_string()).collect::<Vec<_>>().join(", ");
        let each = if peak_saved.len() > 16 { String::new() } else { format!("; by rank: {each}") };
        [
            format!(
                "it takes {}; between its first and its last cell, the rank that waits longest {bubble}",
                short(*makespan)
            ),
            format!("a rank has saved at most what {} microbatches need{each}", short(most)),
        ]
    }
    /// The acts that occur.
    fn acts(&self) -> impl Iterator<Item = &(Act, &'static str, &'static str, f64)> {
        let has = |act| self.rows.iter().flatten().any(|ran| ran.cell.act == act);
        ACTS.iter().filter(move |(act, ..)| has(*act))
    }
    /// How light a cell's ground is: a rank's first chunk is lightest.
    fn lightness(&self, cell: Cell) -> f64 {
        let (chunk, others) = (usize::from(cell.of.chunk) / self.plan.ranks, self.plan.chunks.max(2) - 1);
        0.78 - 0.3 * chunk as f64 / others as f64
    }
    /// The longest time of which all times are multiples; of very different times, a fraction of the shortest.
    fn tick(&self) -> f64 {
        let cells = || self.rows.iter().flatten();
        let shortest = cells().map(|ran| ran.end - ran.start).filter(|t| *t > 1e-9 * self.of.makespan);
        let shortest = shortest.fold(f64::INFINITY, f64::min);
        let fits = |tick: f64| {
            let whole = |time: f64| ((time / tick).round() - time / tick).abs() < 1e-6;
            cells().all(|ran| whole(ran.start) && whole(ran.end))
        };
        (1..=8).map(|parts| shortest / f64::from(parts)).find(|tick| fits(*tick)).unwrap_or(shortest)
    }
    /// Lines of at most so many columns, or colour in place of letters, with what they mean.
    pub fn lines(&self, width: usize, colour: bool) -> Vec<String> {
        let tick = self.tick();
        let column = |time: f64| (time / tick).round() as usize;
        let ran = || self.rows.iter().flatten();
        let share = |ran: &Ran| {
            let ticks = column(ran.end) - column(ran.start);
            (label(ran.cell, self.plan.chunks, colour).len() + 1).div_ceil(ticks.max(1))
        };
        let (per, name) =
            (ran().map(share).max().unwrap_or(2), format!("rank {}", self.plan.ranks - 1).len());
        let (all, fit) = (column(self.of.makespan), width.saturating_sub(name + 2) / per);
        let (ticks, ranks) = (all.min(fit.max(1)), self.plan.ranks.min(MOST_RANKS));
        let mut lines = Vec::new();
        for (rank, row) in self.rows.iter().enumerate().take(ranks) {
            let (mut line, mut at) = (format!("{:<name$}  ", format!("rank {rank}")), 0);
            let wait = |until: usize, at: usize| format!("{:<per$}", "·").repeat(until.saturating_sub(at));
            for ran in row {
                let (from, to) = (column(ran.start), column(ran.end));
                if to > ticks {
                    break;
                }
                if to > from {
                    line += &(wait(from, at) + &self.cell(ran.cell, (to - from) * per, colour));
                    at = to;
                }
            }
            line += &wait(ticks, at);
            lines.push(line.trim_end().into());
        }
        lines.push(String::new());
        lines.push(self.legend(tick, colour));
        if (ticks, ranks) != (all, self.plan.ranks) {
            let of_ranks =
                if ranks < self.plan.ranks { format!(" of ranks 0 to {}", ranks - 1) } else { String::new() };
            lines
                .push(format!("Shown are the first {ticks} of {all} ticks{of_ranks}; --svg FILE draws all."));
        }
        lines
    }
    /// A cell, so many characters wide.
    fn cell(&self, cell: Cell, width: usize, colour: bool) -> String {
        let label = label(cell, self.plan.chunks, colour);
        if colour {
            return ground(cell.act, self.lightness(cell), &format!("{label:<width$}"));
        }
        let line = "─".repeat((width - label.len()).saturating_sub(1));
        format!("{label}{line} ")
    }
    fn legend(&self, tick: f64, colour: bool) -> String {
        let first = Cell { act: Act::F, of: parallel::step::Unit::new(0, 0) };
        let word = |(act, letter, means, _): &(Act, &str, &str, f64)| {
            let sample =
                if colour { ground(*act, self.lightness(first), "  ") } else { (*letter).to_string() };
            format!("{sample} {means}")
        };
        let acts = self.acts().map(word).collect::<Vec<_>>().join(", ");
        let chunks = match (self.plan.chunks, colour) {
            (1, _) => "",
            (_, true) => "; the darker, the later the chunk",
            (_, false) => "; before the letter, the chunk",
        };
        format!("{acts}; then the microbatch{chunks}; · waits; a column is {} of time", short(tick))
    }
}

/// What stands in a cell.
fn label(cell: Cell, chunks: usize, colour: bool) -> String {
    let whole = cell.to_string();
    let letter = whole.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
    let from = if colour {
        letter + 1
    } else if chunks == 1 {
        letter
    } else {
        0
    };
    whole[from..].to_string()
}

fn hue(act: Act) -> f64 {
    ACTS.iter().find(|(of, ..)| *of == act).map_or(0.0, |(.., hue)| *hue)
}

/// Words on the ground of an act, in the nearest of a terminal's 6³ colours.
fn ground(act: Act, lightness: f64, words: &str) -> String {
    let [red, green, blue] = rgb(hue(act), lightness).map(|part| (u16::from(part) + 25) / 51);
    let ink = if lightness > 0.6 { 16 } else { 231 };
    format!("\x1b[48;5;{};38;5;{ink}m{words}\x1b[0m", 16 + 36 * red + 6 * green + blue)
}
