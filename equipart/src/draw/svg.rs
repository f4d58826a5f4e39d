//! A space-time diagram: a rank is a line from left to right, a step is a column, a message an arrow from the rank that
//! sends to the rank that receives, in the colour of its first chunk. What is sent stands where the arrow begins.
//!
//! Text is made of names and numbers of this project only, none of which needs escaping in XML.
use crate::commands::collectives::{AllReducePlan, chunk_names};
use comm::{Arrival, CommStep, Transfer};

/// Sizes, in user units.
const ROW: f64 = 40.0;
const PILL: (f64, f64) = (48.0, 20.0);
const GAP: f64 = 60.0; // between a step's labels and the next step's
const COLUMN: f64 = PILL.0 + GAP;
const LEFT: f64 = 76.0; // names of ranks
const TOP: f64 = 158.0; // titles, phases, numbers of steps
const LEGEND: f64 = 100.0; // what the marks mean, below
const NARROWEST: f64 = 640.0; // in which the titles fit
/// Colours, and the lightness of a chunk's.
pub(super) const INK: &str = "#1f2328";
pub(super) const MUTED: &str = "#59636e";
const EDGE: f64 = 0.42;
const GROUND: f64 = 0.88;

/// Where a step's labels begin.
fn x_of(step: usize) -> f64 {
    LEFT + step as f64 * COLUMN
}
/// Where a rank's line is.
fn y_of(rank: usize) -> f64 {
    TOP + (rank as f64 + 0.5) * ROW
}

/// The diagram, as the text of a file.
pub fn draw(plan: &AllReducePlan) -> String {
    let (ranks, steps) = (plan.schedule.ranks(), plan.schedule.steps());
    let bottom = TOP + ranks as f64 * ROW;
    let (width, height) = ((x_of(steps.len()) + 24.0).max(NARROWEST), bottom + LEGEND);
    let [steps_line, time] = plan.figures();
    let mut parts = head([width, height], &plan.name(), &[plan.data(), steps_line, time]);
    parts.extend(phases(steps, bottom));
    parts.extend((0..ranks).map(|rank| lifeline(rank, x_of(steps.len()))));
    parts.extend(nodes(plan, x_of(steps.len())));
    for (column, step) in steps.iter().enumerate() {
        parts.push(text(x_of(column) + PILL.0 / 2.0, TOP - 8.0, "middle", MUTED, &format!("{}", column + 1)));
        parts.extend(step.transfers.iter().map(|t| arrow(column, t, &colour(t, plan, EDGE))));
        parts.extend(step.transfers.iter().map(|t| pill(column, t, step, plan)));
    }
    parts.extend(legend(bottom));
    parts.push("</svg>\n".into());
    parts.join("\n")
}

/// Words at a place, in a colour: `start`, `middle` or `end` of them.
pub(super) fn text(x: f64, y: f64, anchor: &str, fill: &str, words: &str) -> String {
    format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}">{words}</text>"#)
}

/// The least of 1, 2 and 5 times a power of ten that is this or more.
pub(super) fn round_step(least: f64) -> f64 {
    let ten = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|n| n * ten).into_iter().find(|step| *step >= least).unwrap_or(10.0 * ten)
}

/// How a diagram of this width and height begins: its title, and lines below it.
pub(super) fn head([width, height]: [f64; 2], name: &str, lines: &[String]) -> Vec<String> {
    let mut parts = vec![
        format!(
            r#"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">"#
        ),
        format!("<title>{name}</title>"),
        r##"<rect width="100%" height="100%" fill="#ffffff"/>"##.into(),
        format!(r#"<text x="16" y="30" font-size="18" font-weight="bold">{name}</text>"#),
    ];
    parts.extend(lines.iter().zip([52.0, 70.0, 88.0]).map(|(line, y)| text(16.0, y, "start", MUTED, line)));
    parts
}

/// Steps of one phase stand on one ground, under its name.
fn phases(steps: &[CommStep], bottom: f64) -> Vec<String> {
    let mut parts = Vec::new();
    let mut first = 0;
    for (number, of_phase) in steps.chunk_by(|a, b| a.phase == b.phase).enumerate() {
        let heads = if first + of_phase.len() == steps.len() { 10.0 } else { 0.0 }; // of the last arrows
        let (x, width) = (x_of(first) - 6.0, of_phase.len() as f64 * COLUMN + heads);
        let fill = ["#f3f6fa", "#faf5ec"][number % 2];
        let (y, height) = (TOP - 54.0, bottom - TOP + 58.0);
        parts.push(format!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        ));
        for (line, words) in wrapped(of_phase[0].phase, (width / 6.6) as usize).iter().enumerate() {
            parts.push(text(x + 6.0, y + 14.0 + 14.0 * line as f64, "start", INK, words));
        }
        first += of_phase.len();
    }
    parts
}

/// Words in lines of so many characters, where no word is longer.
fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => *line = format!("{line} {word}"),
            _ => lines.push(word.into()),
        }
    }
    lines
}

fn lifeline(rank: usize, end: f64) -> String {
    let (y, begin) = (y_of(rank), LEFT - 10.0);
    let name = text(LEFT - 16.0, y + 4.0, "end", INK, &format!("rank {rank}"));
    format!(r##"<path d="M{begin:.1} {y:.1}H{end:.1}" stroke="#d0d7de"/>{name}"##)
}

/// A border between any two nodes.
fn nodes(plan: &AllReducePlan, end: f64) -> Vec<String> {
    let firsts = plan.algorithm.node().into_iter().flat_map(|node| (0..plan.schedule.ranks()).step_by(node));
    let border = |rank: usize| {
        let y = TOP + rank as f64 * ROW;
        format!(r#"<path d="M16 {y:.1}H{end:.1}" stroke="{MUTED}" stroke-dasharray="1 3"/>"#)
    };
    firsts.skip(1).map(border).collect()
}

/// The hue goes once around the circle with the chunks. Lightness 0 is black, 1 white.
fn colour(transfer: &Transfer, plan: &AllReducePlan, lightness: f64) -> String {
    let hue = transfer.chunks.start as f64 / plan.schedule.chunks() as f64;
    shade(hue, lightness)
}

/// A colour as XML has it.
pub(super) fn shade(hue: f64, lightness: f64) -> String {
    let [red, green, blue] = rgb(hue, lightness);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// From hue and lightness at a saturation of 0.65, as CSS Color 4, §7.1, has it.
pub(super) fn rgb(hue: f64, lightness: f64) -> [u8; 3] {
    let channel = |n: f64| {
        let k = (n + hue * 12.0) % 12.0;
        let part =
            lightness - 0.65 * lightness.min(1.0 - lightness) * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        (part * 255.0).round() as u8
    };
    [0.0, 8.0, 4.0].map(channel)
}

/// What a rank sends, on its line; of several messages of one step, below each other around it.
fn pill(column: usize, transfer: &Transfer, step: &CommStep, plan: &AllReducePlan) -> String {
    let all: Vec<_> = step.transfers.iter().filter(|t| t.from == transfer.from).map(|t| t.to).collect();
    let number = all.iter().position(|&to| to == transfer.to).expect("one of these");
    let aside = (number as f64 + 0.5) / all.len() as f64 - 0.5;
    label(
        x_of(column),
        y_of(transfer.from) + aside * ROW,
        &chunk_names(&transfer.chunks),
        [EDGE, GROUND].map(|l| colour(transfer, plan, l)),
    )
}

fn label(x: f64, y: f64, words: &str, [edge, ground]: [String; 2]) -> String {
    let (width, height) = PILL;
    let words = text(x + width / 2.0, y + 4.0, "middle", INK, words);
    let top = y - height / 2.0;
    format!(
        r#"<rect x="{x:.1}" y="{top:.1}" width="{width}" height="{height}" rx="6" fill="{ground}" stroke="{edge}"/>{words}"#
    )
}

fn arrow(column: usize, transfer: &Transfer, colour: &str) -> String {
    let from = (x_of(column) + PILL.0, y_of(transfer.from));
    line(from, (x_of(column + 1) - 3.0, y_of(transfer.to)), transfer.how, colour)
}

/// Additions are whole lines with a full head, replacements broken ones with an empty head.
fn line(from: (f64, f64), to: (f64, f64), how: Arrival, colour: &str) -> String {
    let (dx, dy) = (to.0 - from.0, to.1 - from.1);
    let length = dx.hypot(dy);
    let (ux, uy) = (dx / length, dy / length);
    let back = |along: f64, aside: f64| (to.0 - along * ux - aside * uy, to.1 - along * uy + aside * ux);
    let (end, left, right) = (back(9.0, 0.0), back(9.0, 4.0), back(9.0, -4.0));
    let (dashes, fill) = match how {
        Arrival::Add => ("", colour),
        Arrival::Replace => (r#" stroke-dasharray="5 3""#, "#ffffff"),
    };
    format!(
        r#"<path d="M{:.1} {:.1}L{:.1} {:.1}" stroke="{colour}" stroke-width="1.4"{dashes}/><path d="M{:.1} {:.1}L{:.1} {:.1}L{:.1} {:.1}Z" fill="{fill}" stroke="{colour}"/>"#,
        from.0, from.1, end.0, end.1, to.0, to.1, left.0, left.1, right.0, right.1
    )
}

fn legend(bottom: f64) -> Vec<String> {
    let [edge, ground] = [EDGE, GROUND].map(|lightness| shade(0.6, lightness));
    let rows = [28.0, 54.0, 76.0].map(|y| bottom + y);
    let words = |y: f64, words: &str| text(84.0, y + 4.0, "start", MUTED, words);
    let sample = |y: f64, how| line((16.0, y), (72.0, y), how, &edge);
    vec![
        label(20.0, rows[0], "c0-3", [edge.clone(), ground]),
        words(
            rows[0],
            "what the rank sends in this step: chunks 0 to 3; arrows have the colour of the first",
        ),
        sample(rows[1], Arrival::Add),
        words(rows[1], "the receiver adds it to its own"),
        sample(rows[2], Arrival::Replace),
        words(rows[2], "the receiver puts it in the place of its own"),
    ]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// By every algorithm.
    fn plans(ranks: usize) -> Vec<AllReducePlan> {
        AllReducePlan::all(ranks, None, 100, "5us,25GB/s".parse().unwrap()).unwrap()
    }

    /// Tags that open and close as XML wants them, attributes in quotes, and the texts between.
    pub(crate) fn texts(xml: &str) -> Vec<&str> {
        let (mut open, mut texts) = (Vec::new(), Vec::new());
        for part in xml.trim().split('<').skip(1) {
            let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("{part}"));
            assert!(tag.matches('"').count().is_multiple_of(2), "{tag}");
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "{part}"),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split(' ').next().unwrap()),
            }
            assert!(!text.contains(['&', '>']), "{text}");
            assert!(open.is_empty() <= text.trim().is_empty(), "{text} after the end");
            texts.extend(Some(text.trim()).filter(|text| !text.is_empty()));
        }
        assert!(open.is_empty(), "{open:?} are never closed");
        texts
    }

    /// Kills: a tag left open, a message without its arrow or label, a copy drawn as an addition.
    #[test]
    fn every_message_has_its_label_and_its_arrow() {
        for plan in [1, 2, 6, 8, 64].into_iter().flat_map(plans) {
            let xml = draw(&plan);
            let texts = texts(&xml);
            let all = || plan.schedule.steps().iter().flat_map(|step| &step.transfers);
            for chunk in 0..plan.schedule.chunks() {
                let name = chunk_names(&(chunk..chunk + 1));
                let sent = all().filter(|t| chunk_names(&t.chunks) == name).count();
                assert_eq!(
                    texts.iter().filter(|text| **text == name).count(),
                    sent,
                    "{name} in {}",
                    plan.name()
                );
            }
            let copies = all().filter(|t| t.how == Arrival::Replace).count();
            assert_eq!(xml.matches("stroke-dasharray=\"5 3\"").count(), copies + 1); // one in the legend
            assert_eq!(xml.matches("stroke-width=\"1.4\"").count(), all().count() + 2);
        }
    }

    /// Kills: an arrow to the wrong rank, from the wrong rank, or in another step's column.
    #[test]
    fn arrows_go_from_the_sender_to_the_receiver() {
        for plan in plans(6) {
            let xml = draw(&plan);
            for (column, step) in plan.schedule.steps().iter().enumerate() {
                for t in &step.transfers {
                    let begins = format!("<path d=\"M{:.1} {:.1}L", x_of(column) + PILL.0, y_of(t.from));
                    let ends = format!("M{:.1} {:.1}L", x_of(column + 1) - 3.0, y_of(t.to));
                    let drawn = xml.lines().filter(|line| line.starts_with(&begins) && line.contains(&ends));
                    assert_eq!(drawn.count(), 1, "{t:?} in {}", plan.name());
                }
            }
        }
    }

    /// Kills: colours of two chunks that are the same, phases that run out of their column.
    #[test]
    fn colours_differ_and_words_are_wrapped() {
        assert_eq!(
            [0.0, 1.0 / 3.0, 2.0 / 3.0].map(|hue| shade(hue, EDGE)),
            ["#b12525", "#25b125", "#2525b1"]
        );
        let mut colours: Vec<_> = (0..64).map(|chunk| shade(f64::from(chunk) / 64.0, EDGE)).collect();
        colours.sort();
        colours.dedup();
        assert_eq!(colours.len(), 64);
        assert_eq!(wrapped("reduce-scatter across nodes", 16), ["reduce-scatter", "across nodes"]);
        assert_eq!(wrapped("reduce-scatter across nodes", 27), ["reduce-scatter across nodes"]);
        assert_eq!(wrapped("unfold", 3), ["unfold"]);
    }
}
