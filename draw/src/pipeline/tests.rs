//! Steps as lines of a terminal.
use super::*;
use parallel::pipeline;
use std::collections::BTreeMap;
use std::iter::once;

/// A schedule of the list, gone through.
pub(super) fn timeline(word: &str, sizes: [usize; 2], times: &CellTimes) -> Timeline {
    let schedule = *pipeline::ALL.iter().find(|schedule| schedule.about().word == word).unwrap();
    let plan = schedule.plan(sizes[0], sizes[1], None);
    Timeline::of(schedule, plan, times, [usize::MAX; 2]).unwrap()
}

fn plain(word: &str, sizes: [usize; 2], times: &CellTimes, width: usize) -> String {
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
    assert_eq!(format!("\n{}", plain("gpipe", [2, 3], &CellTimes::new(1.0, 1.0, 1.0), 80)), wanted);
    let wanted = "
rank 0  0F0 0F1 ·   3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 ·   0I1 0W1
rank 1  ·   1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 2I1 2W1 1I1 1W1 ·

F forward, I input half of backward, W weight half of backward
The number is the microbatch; before the letter, the chunk; · waits; a column is 1 of time.";
    assert_eq!(format!("\n{}", plain("zb-v", [2, 2], &CellTimes::new(2.0, 2.0, 2.0), 80)), wanted);
    let sliced = plain("seq1f1b", [1, 1], &CellTimes::new(2.0, 2.0, 2.0), 80);
    let wanted = "
rank 0  F0── F0.1 B0.1───── B0───────

F forward, B backward
The number is the microbatch, behind a point the slice; · waits; a column is 1 of time.";
    assert_eq!(format!("\n{sliced}"), wanted);
    let wanted = "
rank 0  F0─ · · · · · · · B0───
rank 1  · · · F0─ B0─── · · · ·";
    let slow = CellTimes { latency: 0.5, ..CellTimes::new(1.0, 1.0, 0.5) };
    let drawn = plain("1f1b", [2, 1], &slow, 80);
    assert!(
        format!("\n{drawn}").starts_with(wanted) && drawn.ends_with("a column is 0.5 of time."),
        "{drawn}"
    );
}

/// Kills: a line wider than the terminal, a tick that is in two bands or in none, the end of a step that is
/// not shown, a cell that loses its label or gets two at the end of a band.
#[test]
fn wide_steps_are_folded_into_bands() {
    let times = CellTimes::new(1.0, 1.0, 1.0);
    let wanted = "ticks 0 to 5 of 12
rank 0  F0 F1 F2 ·  ·  ·
rank 1  ·  F0 F1 F2 B0───

ticks 6 to 11 of 12
rank 0  B0─── B1─── B2───
rank 1  B1─── B2─── ·  ·

F forward, B backward
";
    let drawn = plain("gpipe", [2, 3], &times, 27);
    assert!(drawn.starts_with(wanted), "{drawn}");
    let wanted = "ticks 0 to 3 of 12
rank 0  F0 F1 F2 ·
rank 1  ·  F0 F1 F2

ticks 4 to 7 of 12
rank 0  ·  ·  B0───
rank 1  B0─── B1───
";
    assert!(plain("gpipe", [2, 3], &times, 22).starts_with(wanted));
    let cut = plain("gpipe", [2, 3], &times, 19); // three ticks
    assert!(cut.contains("\nrank 0  B0─── B1─\nrank 1  B1─── B2─\n"), "{cut}");
    assert!(cut.contains("\nrank 0  ── B2───\nrank 1  ── ·  ·\n"), "{cut}");
    for (word, width, colour) in pipeline::ALL
        .iter()
        .flat_map(|s| [(80, false), (100, false), (80, true)].map(|(w, c)| (s.about().word, w, c)))
    {
        let timeline = timeline(word, [4, 8], &times);
        let lines = timeline.lines(width, colour);
        let drawn: Vec<_> = lines.iter().filter(|line| line.starts_with("rank ")).collect();
        let displayed = |line: &str| {
            line.split("\x1b[")
                .map(|part| part.split_once('m').map_or(part, |(_, words)| words))
                .collect::<String>()
        };
        let wide =
            |line: &&String| if colour { displayed(line) } else { (*line).clone() }.chars().count() > width;
        assert!(drawn.len() >= 4 && !drawn.iter().any(wide), "{word}: {drawn:?}");
        let last = |line: &&String| format!("{line} ").matches("F7 ").count() + line.matches("F7@").count();
        let labels = drawn.iter().map(last).sum::<usize>();
        assert!(
            colour || labels == 4 * timeline.plan.chunks || timeline.plan.slices > 1,
            "{word}: {drawn:?}"
        );
        assert!(!lines.iter().any(|line| line.contains("left out")), "{word}");
    }
}

/// Kills: a cut that is not told, or told of other ticks or ranks; a long step whose end is not shown.
#[test]
fn what_is_left_out_of_very_long_steps_is_said() {
    let times = CellTimes::new(1.0, 1.0, 1.0);
    let drawn = plain("1f1b", [2, 99], &times, 27);
    assert!(
        drawn.contains(
            "\nTicks 16 to 283 of 300 are left out; --svg FILE draws them.\n\nticks 284 to 287 of 300\n"
        ),
        "{drawn}"
    );
    assert!(drawn.contains("\nticks 296 to 299 of 300\nrank 0  ─── ·   B98────\n"), "{drawn}");
    let most = timeline("1f1b", [65, 1], &times).lines(2000, false);
    assert_eq!(most.len(), 64 + 1 + 1 + 2);
    assert_eq!(most[65], "Ranks 64 to 64 are left out; --svg FILE draws them.\n");
    assert_eq!(plain("naive", [1, 1], &times, 0).lines().nth(1), Some("rank 0  F0"));
    assert_eq!(
        (bands(7, 3), bands(1, 9), bands(9, 9)),
        (vec![0..3, 3..6, 6..7], once(0..1).collect(), once(0..9).collect())
    );
    assert_eq!(bands(900, 100), [0, 100, 200, 300, 500, 600, 700, 800].map(|start| start..start + 100));
}

/// Kills: acts or chunks of one colour, a colour that goes on behind its cell, a microbatch that is not said.
#[test]
fn colours_say_act_and_chunk() {
    let drawn = timeline("zb-v", [1, 1], &CellTimes::new(1.0, 1.0, 1.0)).lines(80, true);
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
    let all = timeline("dualpipe-v", [2, 5], &CellTimes::new(1.0, 1.0, 1.0)).lines(80, true);
    assert_eq!(grounds(&all[0]).len(), 8, "four acts of two chunks: {all:?}");
    assert!(drawn[3].contains("the darker, the later the chunk"), "{drawn:?}");
}

/// Kills: figures of another schedule, a wait of nothing that is told as one.
#[test]
fn figures_read_as_sentences() {
    let of = |word| timeline(word, [3, 5], &CellTimes::new(0.1, 0.1, 0.1));
    assert_eq!(of("zb-v").title(), "ZB-V: 3 ranks, 5 microbatches, 2 chunks of each rank");
    assert_eq!(of("seq1f1b").title(), "Seq1F1B: 3 ranks, 5 microbatches, 2 slices of each sequence");
    let none = [
        "it takes 1.6; between its first and its last cell no rank waits",
        "a rank saves at most the activations of 3 microbatches; by rank: 3, 3, 3",
    ];
    assert_eq!(of("zb-v").figures(), none);
    let waits = [
        "it takes 2.1; between its first and its last cell a rank waits at most 0.6 (28.6 %)",
        "a rank saves at most the activations of 3 microbatches; by rank: 3, 2, 1",
    ];
    assert_eq!(of("1f1b").figures(), waits);
}
