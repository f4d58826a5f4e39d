//! A rank's step as two tracks: kernels above, calls below, at the times that a machine's file predicts.
use crate::picture::{HATCH, INK, Picture, WAITS, round_numbers, shade};
use comm::Op;
use plan::Part;
use plan::clock::time;
use plan::spans::{RankSpan, SpanWork};

/// Sizes, in user units.
const LEFT: f64 = 84.0;
const WIDE: f64 = 1000.0;
const ROW: f64 = 46.0;
const BOX: f64 = 34.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 76.0;

/// Words, letter and hue of a span.
fn look(work: SpanWork) -> (&'static str, &'static str, f64) {
    match work {
        SpanWork::Kernel(Part::Products) => ("products", "", 0.6),
        SpanWork::Kernel(Part::Attention) => ("attention", "", 0.75),
        SpanWork::Kernel(_) => ("other kernels", "", 0.5),
        SpanWork::Call { op: Op::AllGather, .. } => ("g: all-gather", "g", 0.1),
        SpanWork::Call { op: Op::ReduceScatter, .. } => ("r: reduce-scatter", "r", 0.0),
        SpanWork::Call { op: Op::AllReduce, .. } => ("s: all-reduce", "s", 0.93),
        SpanWork::Call { op: Op::AllToAll, .. } => ("x: all-to-all", "x", 0.3),
        SpanWork::Call { .. } => ("m: other calls", "m", 0.16),
    }
}

/// Returns the picture as the text of an SVG file, under a title and lines of words.
#[must_use]
pub fn draw(title: &str, lines: &[String], spans: &[RankSpan]) -> String {
    let end = spans.iter().map(|span| span.at[1]).fold(f64::MIN_POSITIVE, f64::max);
    let (scale, bottom) = (WIDE / end, TOP + 2.0 * ROW);
    let mut picture = Picture::new([LEFT + WIDE + 24.0, bottom + BOTTOM], title, lines);
    picture.add(HATCH);
    for seconds in round_numbers([0.0, end * 1e6], end * 1e6 / 10.0) {
        picture.upright(LEFT + seconds / 1e6 * scale, [TOP, bottom], &time(seconds / 1e6));
    }
    let mut seen: Vec<(&str, f64)> = Vec::new();
    for (row, name) in ["kernels", "calls"].into_iter().enumerate() {
        let y = TOP + row as f64 * ROW + (ROW - BOX) / 2.0;
        picture.text([LEFT - 12.0, y + 21.0], "end", INK, name);
        picture.rect([LEFT, y, WIDE, BOX], if row == 0 { WAITS } else { "#f3f6fa" });
        let is_here = |span: &&RankSpan| (row == 1) == matches!(span.work, SpanWork::Call { .. });
        for span in spans.iter().filter(is_here) {
            let ((words, letter, hue), width) = (look(span.work), (span.at[1] - span.at[0]) * scale);
            let letter = if width > 10.0 { letter } else { "" };
            let tip = format!("<title>{words}, {} to {}</title>", time(span.at[0]), time(span.at[1]));
            let place = [LEFT + span.at[0] * scale, y, (width - 0.4).max(0.3), BOX];
            picture.boxed(place, [&shade(hue, 0.66), "", &tip], INK, letter);
            if !seen.iter().any(|(other, _)| *other == words) {
                seen.push((words, hue));
            }
        }
    }
    let mut x = LEFT;
    for (words, hue) in seen {
        x = picture.key([x, bottom + 40.0], &shade(hue, 0.66), "", words);
    }
    picture.key([x, bottom + 40.0], WAITS, "", "the rank waits");
    picture.file()
}
