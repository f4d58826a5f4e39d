//! A space-time diagram: a rank is a line from left to right, a round is a column, a message an arrow from
//! the sending rank to the receiving rank, in the colour of its first chunk. The label of a message is at the
//! start of its arrow.
use crate::picture::{FAINT, INK, MUTED, Picture, shade};
use algorithms::{Arrival, CommRound, Transfer};
use run::collectives::{AllReducePlan, chunk_names};

/// Sizes, in user units.
const ROW: f64 = 40.0;
const PILL: (f64, f64) = (48.0, 20.0);
const GAP: f64 = 60.0; // between a step's labels and the next step's
const COLUMN: f64 = PILL.0 + GAP;
const LEFT: f64 = 76.0; // names of ranks
const TOP: f64 = 158.0; // titles, phases, numbers of steps
const LEGEND: f64 = 100.0; // what the marks mean, below
const NARROWEST: f64 = 640.0; // in which the titles fit
/// Lightness of a chunk's two colours.
const EDGE: f64 = 0.42;
const GROUND: f64 = 0.88;

/// Left edge of a round's labels.
fn x_of(step: usize) -> f64 {
    LEFT + step as f64 * COLUMN
}
/// Height of a rank's line.
fn y_of(rank: usize) -> f64 {
    TOP + (rank as f64 + 0.5) * ROW
}

/// Returns the diagram as the text of an SVG file; with a chunk, messages without it are grey.
pub fn draw(plan: &AllReducePlan, chunk: Option<usize>) -> String {
    let ranks = plan.schedule.ranks();
    let steps = plan.schedule.rounds();
    let bottom = TOP + ranks as f64 * ROW;
    let end = x_of(steps.len());
    let [steps_line, time] = plan.figures();
    let size = [(end + 24.0).max(NARROWEST), bottom + LEGEND];
    let mut picture = Picture::new(size, &plan.name(), &[plan.data(), steps_line, time]);
    phases(&mut picture, steps, bottom);
    for rank in 0..ranks {
        let y = y_of(rank);
        picture.line(&format!("{:.1} {y:.1}H{end:.1}", LEFT - 10.0), FAINT, "");
        picture.text([LEFT - 16.0, y + 4.0], "end", INK, &format!("rank {rank}"));
        if rank > 0 && plan.algorithm.node().is_some_and(|node| rank.is_multiple_of(node)) {
            picture.line(&format!("16 {:.1}H{end:.1}", y - ROW / 2.0), MUTED, r#" stroke-dasharray="1 3""#);
        }
    }
    let hue = |t: &Transfer| {
        let is_shown = chunk.is_none_or(|chunk| t.chunks.contains(&chunk));
        is_shown.then(|| t.chunks.start as f64 / plan.schedule.chunks() as f64) // once around the circle
    };
    for (column, step) in steps.iter().enumerate() {
        let x = x_of(column);
        picture.text([x + PILL.0 / 2.0, TOP - 8.0], "middle", MUTED, &(column + 1).to_string());
        for t in &step.transfers {
            let end = [x_of(column + 1) - 3.0, y_of(t.to)];
            arrow(&mut picture, [x + PILL.0, y_of(t.from)], end, t.how, hue(t));
        }
        for t in &step.transfers {
            // The labels of several messages of one rank are stacked around its line.
            let of_rank: Vec<_> = step.transfers.iter().filter(|other| other.from == t.from).collect();
            let number = of_rank.iter().position(|other| other.to == t.to).expect("one of these");
            let aside = (number as f64 + 0.5) / of_rank.len() as f64 - 0.5;
            pill(&mut picture, [x, y_of(t.from) + aside * ROW], &chunk_names(&t.chunks), hue(t));
        }
    }
    legend(&mut picture, bottom);
    picture.file()
}

/// Draws one background for all rounds of a phase, under its name.
fn phases(picture: &mut Picture, steps: &[CommRound], bottom: f64) {
    let mut first = 0;
    for (number, of_phase) in steps.chunk_by(|a, b| a.phase == b.phase).enumerate() {
        let heads = if first + of_phase.len() == steps.len() { 10.0 } else { 0.0 }; // of the last arrows
        let (x, y, width) = (x_of(first) - 6.0, TOP - 54.0, of_phase.len() as f64 * COLUMN + heads);
        picture.rect([x, y, width, bottom - TOP + 58.0], ["#f3f6fa", "#faf5ec"][number % 2]);
        for (line, words) in wrapped(of_phase[0].phase, (width / 6.6) as usize).iter().enumerate() {
            picture.text([x + 6.0, y + 14.0 + 14.0 * line as f64], "start", INK, words);
        }
        first += of_phase.len();
    }
}

/// Wraps words into lines of at most `width` characters; a longer word has its own line.
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

/// Draws the label of a message, centered at this height.
fn pill(picture: &mut Picture, [x, y]: [f64; 2], words: &str, hue: Option<f64>) {
    let edge = format!(r#" rx="6" stroke="{}""#, colour(hue, EDGE));
    let ink = if hue.is_some() { INK } else { MUTED };
    picture.boxed([x, y - PILL.1 / 2.0, PILL.0, PILL.1], [&colour(hue, GROUND), &edge, ""], ink, words);
}

/// Colour of a chunk; grey without one.
fn colour(hue: Option<f64>, lightness: f64) -> String {
    let grey = if lightness > 0.5 { "#ffffff" } else { FAINT };
    hue.map_or_else(|| grey.into(), |hue| shade(hue, lightness))
}

/// Draws an arrow: solid with a filled head for an addition, dashed with an empty head for a replacement.
fn arrow(picture: &mut Picture, [x0, y0]: [f64; 2], [x, y]: [f64; 2], how: Arrival, hue: Option<f64>) {
    let length = (x - x0).hypot(y - y0);
    let [ux, uy] = [x - x0, y - y0].map(|along| along / length);
    let back = |aside: f64| format!("{:.1} {:.1}", x - 9.0 * ux - aside * uy, y - 9.0 * uy + aside * ux);
    let [end, left, right] = [0.0, 4.0, -4.0].map(back);
    let ink = colour(hue, EDGE);
    let (dashes, fill) = match how {
        Arrival::Add => ("", &*ink),
        Arrival::Replace => (r#" stroke-dasharray="5 3""#, "#ffffff"),
    };
    picture.add(&format!(
        r#"<path d="M{x0:.1} {y0:.1}L{end}" stroke="{ink}" stroke-width="1.4"{dashes}/><path d="M{x:.1} {y:.1}L{left}L{right}Z" fill="{fill}" stroke="{ink}"/>"#
    ));
}

fn legend(picture: &mut Picture, bottom: f64) {
    let sent = "the rank sends chunks 0 to 3 in this round; arrows have the colour of the first";
    for (y, how, words) in [
        (bottom + 28.0, None, sent),
        (bottom + 54.0, Some(Arrival::Add), "the receiver adds it to its own"),
        (bottom + 76.0, Some(Arrival::Replace), "the receiver replaces its own"),
    ] {
        match how {
            None => pill(picture, [20.0, y], "c0-3", Some(0.6)),
            Some(how) => arrow(picture, [16.0, y], [72.0, y], how, Some(0.6)),
        }
        picture.text([84.0, y + 4.0], "start", MUTED, words);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Plans of every algorithm.
    fn plans(ranks: usize) -> Vec<AllReducePlan> {
        AllReducePlan::all(ranks, None, 100, "5us,25GB/s".parse().unwrap()).unwrap()
    }

    /// Texts of an XML document; checks that tags are closed and attributes quoted.
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
            let xml = draw(&plan, None);
            let texts = texts(&xml);
            let all = || plan.schedule.rounds().iter().flat_map(|step| &step.transfers);
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
            let xml = draw(&plan, None);
            for (column, step) in plan.schedule.rounds().iter().enumerate() {
                for t in &step.transfers {
                    let begins = format!("<path d=\"M{:.1} {:.1}L", x_of(column) + PILL.0, y_of(t.from));
                    let ends = format!("M{:.1} {:.1}L", x_of(column + 1) - 3.0, y_of(t.to));
                    let drawn = xml.lines().filter(|line| line.starts_with(&begins) && line.contains(&ends));
                    assert_eq!(drawn.count(), 1, "{t:?} in {}", plan.name());
                }
            }
        }
    }

    /// Kills: a chunk that is not highlighted, or another that is.
    #[test]
    fn one_chunk_is_highlighted() {
        let ring = &plans(4)[2];
        let [all, one] = [None, Some(1)].map(|chunk| draw(ring, chunk));
        let grey = format!("stroke=\"{FAINT}\" stroke-width=\"1.4\"");
        let own = format!("stroke=\"{}\" stroke-width=\"1.4\"", shade(0.25, EDGE));
        assert_eq!((all.matches(&grey).count(), all.matches(&own).count()), (0, 6));
        assert_eq!((one.matches(&grey).count(), one.matches(&own).count()), (18, 6));
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
