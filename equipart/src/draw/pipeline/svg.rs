//! The diagram: a rank is a row from left to right, a cell a box as long as it takes, on hatched ground where the rank
//! waits between its first and its last cell.
use super::{Ran, Timeline, hue, label, short};
use crate::draw::svg::{INK, MUTED, head, shade, text};
use parallel::step::{Act, Cell, Unit};

/// Sizes, in user units.
const ROW: f64 = 32.0;
const BOX: f64 = 26.0;
const LEFT: f64 = 76.0; // names of ranks
const RIGHT: f64 = 90.0; // what they wait
const TOP: f64 = 112.0; // titles
const BOTTOM: f64 = 92.0; // the axis and the legend
const NARROWEST: f64 = 760.0; // in which titles and legend fit
const WIDEST: f64 = 20_000.0;
const DIGIT: f64 = 7.5;

/// The hatching of what is waited.
const HATCH: &str = r##"<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#f6f1f1"/><path d="M0 0V6" stroke="#cf9a9a" stroke-width="1.6"/></pattern></defs>"##;

/// The diagram, as the text of a file.
pub fn draw(timeline: &Timeline) -> String {
    let (all, span) = (|| timeline.rows.iter().flatten(), timeline.of.makespan);
    // The most characters that a cell has for what it takes, and so how long one of time is.
    let needs = |ran: &Ran| {
        let characters = label(ran.cell, 1, true).len() as f64;
        (characters * DIGIT + 9.0) / (ran.end - ran.start)
    };
    let scale = all().map(needs).filter(|scale| scale.is_finite()).fold(0.0, f64::max);
    let scale = scale.min(WIDEST / span).max((NARROWEST - LEFT - RIGHT) / span);
    let bottom = TOP + timeline.rows.len() as f64 * ROW;
    let size = [LEFT + span * scale + RIGHT, bottom + BOTTOM].map(f64::ceil);
    let mut parts = head(size, &timeline.title(), &timeline.figures());
    parts.push(HATCH.into());
    parts.extend(axis(span, scale, bottom));
    for (rank, row) in timeline.rows.iter().enumerate() {
        let y = TOP + rank as f64 * ROW + (ROW - BOX) / 2.0;
        parts.push(text(LEFT - 12.0, y + BOX / 2.0 + 4.0, "end", INK, &format!("rank {rank}")));
        if let (Some(first), Some(last)) = (row.first(), row.last()) {
            let (x, width) = (LEFT + first.start * scale, (last.end - first.start) * scale);
            parts.push(rect([x, y, width, BOX], "url(#wait)", ""));
            let waits = short(timeline.of.bubbles[rank]).max(0.0);
            parts.push(text(
                LEFT + span * scale + 10.0,
                y + BOX / 2.0 + 4.0,
                "start",
                MUTED,
                &format!("waits {waits}"),
            ));
        }
        parts.extend(row.iter().filter(|ran| ran.end > ran.start).map(|ran| cell(timeline, ran, scale, y)));
    }
    parts.extend(legend(timeline, bottom + 62.0));
    parts.push("</svg>\n".into());
    parts.join("\n")
}

/// A box with something in it.
fn rect([x, y, width, height]: [f64; 4], fill: &str, inside: &str) -> String {
    format!(
        r#"<rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{height}" fill="{fill}">{inside}</rect>"#
    )
}

/// A cell in its colour, with its microbatch where there is room for it; pointed at, it says all.
fn cell(timeline: &Timeline, ran: &Ran, scale: f64, y: f64) -> String {
    let (x, width) = (LEFT + ran.start * scale, (ran.end - ran.start) * scale);
    let lightness = timeline.lightness(ran.cell);
    let tip = format!("<title>{}, {} to {}</title>", ran.cell, short(ran.start), short(ran.end));
    let fill = shade(hue(ran.cell.act), lightness);
    let gap = if width > 4.0 { 1.0 } else { 0.0 };
    let ground = rect([x, y, width - gap, BOX], &fill, &tip);
    let words = label(ran.cell, 1, true);
    if words.len() as f64 * DIGIT > width {
        return ground;
    }
    let ink = if lightness > 0.6 { INK } else { "#ffffff" };
    ground + &text(x + (width - gap) / 2.0, y + BOX / 2.0 + 4.0, "middle", ink, &words)
}

/// A line at every round number that there is room for, with the number below.
fn axis(span: f64, scale: f64, bottom: f64) -> Vec<String> {
    let least = 48.0 / scale;
    let ten = 10f64.powf(least.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|n| n * ten).into_iter().find(|step| *step >= least).unwrap_or(10.0 * ten);
    let line = |n: usize| {
        let (time, top) = (n as f64 * step, TOP - 4.0);
        let x = LEFT + time * scale;
        let number = text(x, bottom + 20.0, "middle", MUTED, &short(time).to_string());
        format!(r##"<path d="M{x:.1} {top:.1}V{:.1}" stroke="#d0d7de"/>{number}"##, bottom + 5.0)
    };
    let mut parts: Vec<_> = (0..=(span / step + 1e-9) as usize).map(line).collect();
    parts.push(text(LEFT - 12.0, bottom + 20.0, "end", MUTED, "time"));
    parts
}

/// The acts that occur, each in the colours of a rank's chunks, and the hatching.
fn legend(timeline: &Timeline, y: f64) -> Vec<String> {
    let (mut x, mut parts) = (LEFT, Vec::new());
    for (act, _, means, hue) in timeline.acts() {
        for chunk in 0..timeline.plan.chunks {
            let cell = Cell { act: *act, of: Unit::new(chunk * timeline.plan.ranks, 0) };
            parts.push(rect([x, y - 12.0, 16.0, 16.0], &shade(*hue, timeline.lightness(cell)), ""));
            x += 17.0;
        }
        let slice = if timeline.plan.slices > 1 { ".slice" } else { "" };
        let what = if *act == Act::F {
            format!("{means} (number: microbatch{slice})")
        } else {
            (*means).to_string()
        };
        parts.push(text(x + 6.0, y, "start", MUTED, &what));
        x += 30.0 + 6.2 * what.len() as f64;
    }
    parts.push(rect([x, y - 12.0, 24.0, 16.0], "url(#wait)", ""));
    parts.push(text(x + 30.0, y, "start", MUTED, "waits"));
    if timeline.plan.chunks > 1 {
        parts.push(text(LEFT, y + 20.0, "start", MUTED, "the darker, the later the chunk of the model"));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::super::tests::timeline;
    use super::*;
    use crate::draw::svg::tests::texts;
    use parallel::step::simulate::Times;

    /// Kills: a tag left open, a cell that is not drawn or at another place, one that ends before the next begins, a wait
    /// outside of a rank's time, a number that is another microbatch's.
    #[test]
    fn every_cell_has_its_box() {
        for (word, sizes, times) in [
            ("gpipe", [3, 4], Times::new(1.0, 1.0, 1.0)),
            ("zb-v", [4, 12], Times::new(1.0, 2.0, 0.5)),
            ("seq1f1b", [2, 3], Times { latency: 3e-3, ..Times::new(1e-3, 1e-3, 1e-3) }),
            ("1f1b", [1, 1], Times::new(1.0, 1000.0, 0.0)),
        ] {
            let timeline = timeline(word, sizes, &times);
            let xml = draw(&timeline);
            let (words, cells) = (texts(&xml), timeline.rows.iter().flatten().count());
            let tips = words.iter().filter(|words| words.contains(" to ") && words.contains(", ")).count();
            assert_eq!((tips, xml.matches("url(#wait)").count()), (cells, sizes[0] + 1), "{word}");
            for (rank, row) in timeline.rows.iter().enumerate() {
                assert!(words.contains(&format!("rank {rank}").as_str()), "{word}");
                for ran in row {
                    let tip =
                        format!("<title>{}, {} to {}</title>", ran.cell, short(ran.start), short(ran.end));
                    let line =
                        xml.lines().find(|line| line.contains(&tip)).unwrap_or_else(|| panic!("{tip}"));
                    let y = TOP + rank as f64 * ROW + (ROW - BOX) / 2.0;
                    assert!(line.contains(&format!("y=\"{y:.1}\"")), "{line}");
                    let number = format!(">{}</text>", label(ran.cell, 1, true));
                    assert!(line.contains(&number) || times.acts[1] > 100.0, "{line}");
                }
            }
        }
    }

    /// Kills: a diagram as wide as its longest cell asks for, an axis without round numbers.
    #[test]
    fn diagrams_are_no_wider_than_they_may_be() {
        let xml = draw(&timeline("1f1b", [2, 50], &Times::new(1.0, 1e6, 1.0)));
        let width: f64 = xml.split('"').nth(3).unwrap().parse().unwrap();
        assert!(width <= WIDEST + LEFT + RIGHT + 1.0, "{width}");
        let axis = axis(33.0, 20.0, 100.0);
        assert_eq!(axis.len(), 8, "0 to 30 by 5, and what it is");
    }
}
