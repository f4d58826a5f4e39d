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
    (Act::I, "I", "input half of backward", 0.75),
    (Act::W, "W", "weight half of backward", 0.12),
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
        let more = [(self.plan.chunks, "chunk", "rank"), (self.plan.slices, "slice", "sequence")];
        let more = more.into_iter().filter(|(n, ..)| *n > 1);
        let more = more.map(|(n, what, of)| format!(", {} of each {of}", counted(n, what)));
        format!("{}: {}{}", self.name, self.plan, more.collect::<String>())
    }
    /// What it takes and what ranks hold, in two lines.
    pub fn figures(&self) -> [String; 2] {
        let Simulated { makespan, bubble_time, bubble_fraction, peak_saved, .. } = &self.of;
        let bubble = if *bubble_time > 1e-9 * makespan {
            let (time, share) = (short(*bubble_time), 100.0 * bubble_fraction);
            format!("a rank waits at most {time} ({share:.1} %)")
        } else {
            "no rank waits".into()
        };
        let most = peak_saved.iter().copied().fold(0.0, f64::max);
        let each = peak_saved.iter().map(|saved| short(*saved).to_string()).collect::<Vec<_>>().join(", ");
        let each = if peak_saved.len() > 16 { String::new() } else { format!("; by rank: {each}") };
        [
            format!("it takes {}; between its first and its last cell {bubble}", short(*makespan)),
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
    /// Lines of at most so many columns, with letters or in colour, and what they mean.
    pub fn lines(&self, width: usize, colour: bool) -> Vec<String> {
        let tick = self.tick();
        let column = |time: f64| (time / tick).round() as usize;
        let share = |ran: &Ran| {
            let ticks = column(ran.end) - column(ran.start);
            (label(ran.cell, self.plan.chunks, colour).len() + 1).div_ceil(ticks.max(1))
        };
        let per = self.rows.iter().flatten().map(share).max().unwrap_or(2);
        let name = format!("rank {}", self.plan.ranks - 1).len();
        let (all, fit) = (column(self.of.makespan), width.saturating_sub(name + 2) / per);
        let (ticks, ranks) = (all.min(fit.max(1)), self.plan.ranks.min(MOST_RANKS));
        let line = |rank| {
            let cells = self.line(rank, tick, [ticks, per], colour);
            format!("{:<name$}  {}", format!("rank {rank}"), cells.trim_end())
        };
        let mut lines: Vec<_> = (0..ranks).map(line).chain(self.legend(tick, colour)).collect();
        if (ticks, ranks) != (all, self.plan.ranks) {
            let [ticks_of, ranks_of] =
                [(ticks, all), (ranks, self.plan.ranks)].map(|(n, of)| format!("{n} of {of}"));
            lines.push(format!(
                "Shown are the first {ticks_of} ticks of {ranks_of} ranks; --svg FILE draws more."
            ));
        }
        lines
    }
    /// What a rank does, in so many ticks of so many characters.
    fn line(&self, rank: usize, tick: f64, [ticks, per]: [usize; 2], colour: bool) -> String {
        let (mut line, mut at) = (String::new(), 0);
        let wait = |ticks: usize| format!("{:<per$}", "·").repeat(ticks);
        for ran in &self.rows[rank] {
            let [from, to] = [ran.start, ran.end].map(|time| ticks.min((time / tick).round() as usize));
            if to > from {
                line += &(wait(from - at) + &self.cell(ran.cell, (to - from) * per, colour));
                at = to;
            }
        }
        line + &wait(ticks - at)
    }
    /// A cell, so many characters wide.
    fn cell(&self, cell: Cell, width: usize, colour: bool) -> String {
        let label = label(cell, self.plan.chunks, colour);
        if colour {
            return ground(cell.act, self.lightness(cell), &format!("{label:<width$.width$}"));
        }
        let mut line = format!("{label:─<width$.width$}");
        if width > label.len() {
            line.pop();
            line.push(' ');
        }
        line
    }
    fn legend(&self, tick: f64, colour: bool) -> [String; 3] {
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
        let slices = if self.plan.slices > 1 { ", behind a point the slice" } else { "" };
        let rest = format!(
            "The number is the microbatch{slices}{chunks}; · waits; a column is {} of time.",
            short(tick)
        );
        [String::new(), acts, rest]
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

#[cfg(test)]
mod tests {
    use super::*;
    use parallel::pipeline;
    use parallel::step::simulate::{Times, simulate};
    use std::collections::BTreeMap;

    /// A schedule of the list, gone through.
    pub(super) fn timeline(word: &str, sizes: [usize; 2], times: &Times) -> Timeline {
        let schedule = *pipeline::ALL.iter().find(|schedule| schedule.about().word == word).unwrap();
        let plan = schedule.plan(sizes[0], sizes[1], None);
        let mut rows = vec![vec![]; plan.ranks];
        let mut see = |rank: usize, cell, start, end| rows[rank].push(Ran { cell, start, end });
        let of = simulate(schedule, &plan, times, &mut see).unwrap();
        Timeline { name: schedule.about().name, plan, of, rows }
    }

    fn plain(word: &str, sizes: [usize; 2], times: &Times, width: usize) -> String {
        timeline(word, sizes, times).lines(width, false).join("\n")
    }

    /// Kills: a cell in another rank's line or at another time, a tick that is not one, a wait that is not drawn.
    #[test]
    fn lines_say_who_does_what_when() {
        let wanted = "
rank 0  F0 F1 F2 ·  ·  ·  B0─── B1─── B2───
rank 1  ·  F0 F1 F2 B0─── B1─── B2─── ·  ·

F forward, B backward
The number is the microbatch; · waits; a column is 1 of time.";
        assert_eq!(format!("\n{}", plain("gpipe", [2, 3], &Times::new(1.0, 1.0, 1.0), 80)), wanted);
        let wanted = "
rank 0  0F0 0F1 ·   3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 ·   0I1 0W1
rank 1  ·   1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1 ·

F forward, I input half of backward, W weight half of backward
The number is the microbatch; before the letter, the chunk; · waits; a column is 1 of time.";
        assert_eq!(format!("\n{}", plain("zb-v", [2, 2], &Times::new(2.0, 2.0, 2.0), 80)), wanted);
        let sliced = plain("seq1f1b", [1, 1], &Times::new(2.0, 2.0, 2.0), 80);
        let wanted = "
rank 0  F0── F0.1 B0.1───── B0───────

F forward, B backward
The number is the microbatch, behind a point the slice; · waits; a column is 1 of time.";
        assert_eq!(format!("\n{sliced}"), wanted);
        let wanted = "
rank 0  F0─ · · · · · · · B0───
rank 1  · · · F0─ B0─── · · · ·";
        let slow = Times { latency: 0.5, ..Times::new(1.0, 1.0, 0.5) };
        let drawn = plain("1f1b", [2, 1], &slow, 80);
        assert!(
            format!("\n{drawn}").starts_with(wanted) && drawn.ends_with("a column is 0.5 of time."),
            "{drawn}"
        );
    }

    /// Kills: a line that is wider than the terminal, a cut that is not told, a cell at the edge that becomes a wait.
    #[test]
    fn what_does_not_fit_is_cut_and_said() {
        let times = Times::new(1.0, 1.0, 1.0);
        let drawn = plain("gpipe", [2, 3], &times, 27);
        let wanted = "rank 0  F0 F1 F2 ·  ·  ·\nrank 1  ·  F0 F1 F2 B0───\n";
        assert!(drawn.starts_with(wanted) && drawn.lines().all(|line| line.len() < 400), "{drawn}");
        assert!(
            drawn.ends_with("\nShown are the first 6 of 12 ticks of 2 of 2 ranks; --svg FILE draws more."),
            "{drawn}"
        );
        let most = timeline("1f1b", [65, 1], &times).lines(2000, false);
        assert_eq!(most.len(), 64 + 4);
        assert!(most[67].ends_with(" ticks of 64 of 65 ranks; --svg FILE draws more."), "{}", most[67]);
        assert_eq!(plain("naive", [1, 1], &times, 0).lines().next(), Some("rank 0  F0"));
    }

    /// Kills: acts or chunks of one colour, a colour that goes on behind its cell, a microbatch that is not said.
    #[test]
    fn colours_say_act_and_chunk() {
        let drawn = timeline("zb-v", [1, 1], &Times::new(1.0, 1.0, 1.0)).lines(80, true);
        let grounds = |line: &str| -> BTreeMap<String, String> {
            let parts = line.split("\x1b[").filter(|part| part.starts_with("48"));
            parts
                .map(|part| part.split_once('m').unwrap())
                .map(|(code, words)| (code.into(), words.into()))
                .collect()
        };
        let all = grounds(&drawn[0]);
        assert!(all.len() == 6 && all.values().all(|words| words == "0 "), "{drawn:?}");
        assert_eq!(drawn[0].matches("\x1b[0m").count(), 6, "{drawn:?}");
        let all = timeline("dualpipe-v", [2, 5], &Times::new(1.0, 1.0, 1.0)).lines(80, true);
        assert_eq!(grounds(&all[0]).len(), 8, "four acts of two chunks: {all:?}");
        assert!(drawn[3].contains("the darker, the later the chunk"), "{drawn:?}");
    }

    /// Kills: figures of another schedule, a wait of nothing that is told as one.
    #[test]
    fn figures_read_as_sentences() {
        let of = |word| timeline(word, [3, 5], &Times::new(0.1, 0.1, 0.1));
        assert_eq!(of("zb-v").title(), "ZB-V: 3 ranks, 5 microbatches, 2 chunks of each rank");
        assert_eq!(of("seq1f1b").title(), "Seq1F1B: 3 ranks, 5 microbatches, 2 slices of each sequence");
        let none = [
            "it takes 1.6; between its first and its last cell no rank waits",
            "a rank has saved at most what 3 microbatches need; by rank: 3, 3, 3",
        ];
        assert_eq!(of("zb-v").figures(), none);
        let waits = [
            "it takes 2.1; between its first and its last cell a rank waits at most 0.6 (28.6 %)",
            "a rank has saved at most what 3 microbatches need; by rank: 3, 2, 1",
        ];
        assert_eq!(of("1f1b").figures(), waits);
    }
}
