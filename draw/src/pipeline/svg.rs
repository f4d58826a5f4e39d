//! The diagram: a rank is a row from left to right, a cell a box as wide as its time, on a hatched background
//! while the rank waits between its first and its last cell. A long step is folded into bands of equal time,
//! below each other.
use super::{Ran, Timeline, hue, label, means, short};
use crate::picture::{HATCH, INK, MUTED, Picture, WAITS, round_numbers, shade};
use parallel::step::{Cell, PassKind, Plan, Task};

/// Sizes, in user units.
const ROW: f64 = 46.0;
const BOX: f64 = 26.0;
const STRIP: f64 = 12.0; // saved activations, below the boxes
const MARK: f64 = 4.0; // of a chunk, within its boxes
const LEFT: f64 = 76.0; // names of ranks
const RIGHT: f64 = 90.0; // waiting times
const TOP: f64 = 112.0; // titles
const BOTTOM: f64 = 92.0; // the axis and the legend
const AXIS: f64 = 48.0; // between two bands
const NARROWEST: f64 = 880.0; // in which titles and legend fit
const BAND: f64 = 1300.0; // the widest, without names and waits
const WIDEST: f64 = 20_000.0; // all bands together

/// Folding of the step into bands.
struct Fold {
    /// Units of width for a unit of time.
    scale: f64,
    /// Time of a band.
    each: f64,
    bands: usize,
    /// Distance from one band to the next.
    height: f64,
}

impl Fold {
    fn of(timeline: &Timeline) -> Self {
        let span = timeline.of.makespan;
        // The scale must leave room for the label of every cell.
        let needs = |ran: &Ran| (wide(&label(ran, 1, false)) + 9.0) / (ran.end - ran.start);
        let scales = timeline.rows.iter().flatten().map(needs);
        let scale = scales.filter(|scale| scale.is_finite()).fold(0.0, f64::max);
        let scale = scale.min(WIDEST / span).max((NARROWEST - LEFT - RIGHT) / span);
        let (tick, bands) = (timeline.tick(), (span * scale / BAND).ceil());
        let each = if bands > 1.0 { (span / bands / tick).ceil() * tick } else { span };
        let bands = (span / each - 1e-9).ceil() as usize;
        Self { scale, each, bands, height: timeline.rows.len() as f64 * ROW + AXIS }
    }
    /// Start and end of a band.
    fn times(&self, band: usize) -> [f64; 2] {
        [band, band + 1].map(|n| n as f64 * self.each)
    }
    /// Pieces of a row between two times: left edge, upper edge, width.
    fn pieces(&self, rank: usize, start: f64, end: f64) -> Vec<[f64; 3]> {
        let piece = |band: usize| {
            let [from, to] = self.times(band);
            let start = start.max(from);
            let width = (end.min(to) - start) * self.scale;
            (width > 1e-6).then_some([LEFT + (start - from) * self.scale, self.y(rank, band), width])
        };
        (0..self.bands).filter_map(piece).collect()
    }
    /// Upper edge of a rank's boxes.
    fn y(&self, rank: usize, band: usize) -> f64 {
        TOP + band as f64 * self.height + rank as f64 * ROW + 2.0
    }
}

/// Width of a cell's label.
fn wide(words: &str) -> f64 {
    words.len() as f64 * 7.5
}

/// Returns the diagram as the text of an SVG file.
pub fn draw(timeline: &Timeline) -> String {
    let fold = Fold::of(timeline);
    let [right, bottom] = [LEFT + fold.each * fold.scale, TOP + fold.bands as f64 * fold.height - AXIS];
    let size = [right + RIGHT, bottom + BOTTOM].map(f64::ceil);
    let mut picture = Picture::new(size, &timeline.title(), &timeline.figures());
    picture.add(HATCH);
    (0..fold.bands).for_each(|band| axis(&mut picture, timeline.of.makespan, &fold, band));
    for (rank, row) in timeline.rows.iter().enumerate() {
        let base = |band| fold.y(rank, band) + BOX / 2.0 + 4.0;
        for band in 0..fold.bands {
            picture.text([LEFT - 12.0, base(band)], "end", INK, &format!("rank {rank}"));
        }
        if let (Some(first), Some(last)) = (row.first(), row.last()) {
            for [x, y, width] in fold.pieces(rank, first.start, last.end) {
                picture.rect([x, y, width, BOX], WAITS);
            }
            let waits = format!("waits {}", short(timeline.of.bubbles[rank]).max(0.0));
            picture.text([right + 10.0, base(0)], "start", MUTED, &waits);
        }
        for ran in row.iter().filter(|ran| ran.end > ran.start) {
            cell(&mut picture, timeline, ran, fold.pieces(rank, ran.start, ran.end));
        }
        saved(&mut picture, timeline, &fold, rank);
    }
    legend(&mut picture, timeline, bottom + 62.0);
    picture.file()
}

/// Draws a cell in its colour, with its microbatch in its widest piece if there is room. A tooltip has its
/// name and times.
fn cell(picture: &mut Picture, timeline: &Timeline, ran: &Ran, pieces: Vec<[f64; 3]>) {
    let words = label(ran, 1, false);
    let lightness = timeline.lightness(ran.cell);
    let tip = format!("<title>{ran}, {} to {}</title>", short(ran.start), short(ran.end));
    let fill = shade(hue(ran.cell.act), lightness);
    let ink = if lightness > 0.6 { INK } else { "#ffffff" };
    let widest = pieces.iter().map(|[.., width]| *width).fold(wide(&words), f64::max);
    let labelled = pieces.iter().position(|[.., width]| *width == widest);
    for (n, [x, y, width]) in pieces.into_iter().enumerate() {
        let gap = if width > 4.0 { 1.0 } else { 0.0 };
        let words = if labelled == Some(n) { &*words } else { "" };
        picture.boxed([x, y, width - gap, BOX], [&fill, "", &tip], ink, words);
        if timeline.plan.chunks > 1 {
            let down = timeline.depth(ran.cell) * (BOX - MARK);
            picture.rect([x, y + down, width - gap, MARK], &shade(hue(ran.cell.act), 0.25));
        }
    }
}

/// Draws what a rank has saved over time, below its boxes: a forward adds from its start, a backward frees at
/// its end. The highest strip of the step is full.
fn saved(picture: &mut Picture, timeline: &Timeline, fold: &Fold, rank: usize) {
    let most = timeline.of.peak_saved.iter().copied().fold(0.0, f64::max);
    let change = |ran: &Ran| (if ran.saves > 0.0 { ran.start } else { ran.end }, ran.saves);
    let mut changes: Vec<_> = timeline.rows[rank].iter().map(change).filter(|(_, by)| *by != 0.0).collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut now, mut level) = (0.0, 0.0f64);
    for (time, by) in changes {
        if level > 1e-9 && time > now {
            for [x, y, width] in fold.pieces(rank, now, time) {
                let height = STRIP * level / most;
                picture.rect([x, y + BOX + 2.0 + STRIP - height, width, height], MUTED);
            }
        }
        (now, level) = (time, level + by);
    }
}

/// Draws a line at every round number of a band that has room, with the number below.
fn axis(picture: &mut Picture, span: f64, fold: &Fold, band: usize) {
    let [from, to] = fold.times(band);
    let top = TOP + band as f64 * fold.height;
    let bottom = top + fold.height - AXIS;
    for time in round_numbers([from, to.min(span)], 48.0 / fold.scale) {
        picture.upright(LEFT + (time - from) * fold.scale, [top, bottom], &short(time).to_string());
    }
    picture.text([LEFT - 12.0, bottom + 18.0], "end", MUTED, "time");
}

/// Draws the acts that occur, each in the colours of a rank's chunks, and the hatching.
fn legend(picture: &mut Picture, timeline: &Timeline, y: f64) {
    let mut x = LEFT;
    let Plan { ranks, chunks, slices, .. } = timeline.plan;
    for act in timeline.acts() {
        for chunk in 0..chunks {
            let cell = Cell { act, of: Task::new(chunk * ranks, 0) };
            picture.rect([x, y - 12.0, 16.0, 16.0], &shade(hue(act), timeline.lightness(cell)));
            x += 17.0;
        }
        let versioned = timeline.rows.iter().flatten().any(|ran| ran.version.is_some());
        let number = match (act, slices) {
            (PassKind::F, 1) if versioned => " (number: microbatch@version of the weights)",
            (PassKind::F, 1) => " (number: microbatch)",
            (PassKind::F, _) => " (number: microbatch.slice)",
            _ => "",
        };
        let what = format!("{}{number}", means(act));
        picture.text([x + 6.0, y], "start", MUTED, &what);
        x += 30.0 + 6.2 * what.len() as f64;
    }
    x = picture.key([x, y - 12.0], WAITS, "", "waits");
    picture.key([x, y - 12.0], MUTED, "", "saved activations");
    if chunks > 1 {
        let words = "the darker, and the lower its bar, the later the chunk of the model";
        picture.text([LEFT, y + 20.0], "start", MUTED, words);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::timeline;
    use super::*;
    use crate::svg::tests::texts;
    use parallel::step::simulate::CellTimes;

    /// Kills: a tag left open, a cell that is missing or misplaced, one that ends before the next begins, a
    /// wait outside of a rank's time, a number of another microbatch.
    #[test]
    fn every_cell_has_its_box() {
        for (word, sizes, times) in [
            ("gpipe", [3, 4], CellTimes::new(1.0, 1.0, 1.0)),
            ("zb-v", [4, 12], CellTimes::new(1.0, 2.0, 0.5)),
            ("seq1f1b", [2, 3], CellTimes { latency: 3e-3, ..CellTimes::new(1e-3, 1e-3, 1e-3) }),
            ("1f1b", [1, 1], CellTimes::new(1.0, 1000.0, 0.0)),
            ("interleaved", [3, 30], CellTimes::new(1.0, 1.0, 1.0)),
        ] {
            let timeline = timeline(word, sizes, &times);
            let xml = draw(&timeline);
            let (words, cells) = (texts(&xml), timeline.rows.iter().flatten().count());
            let tips = words.iter().filter(|words| words.contains(" to ") && words.contains(", ")).count();
            let fold = Fold::of(&timeline);
            let pieces = |(rank, row): (usize, &Vec<Ran>)| -> usize {
                row.iter().map(|ran| fold.pieces(rank, ran.start, ran.end).len()).sum()
            };
            let all: usize = timeline.rows.iter().enumerate().map(pieces).sum();
            assert_eq!(tips, all.max(cells), "{word}");
            assert!(word != "interleaved" || fold.bands > 1, "{word}");
            assert!(xml.matches("url(#wait)").count() > sizes[0], "{word}");
            for (rank, row) in timeline.rows.iter().enumerate() {
                assert!(words.contains(&format!("rank {rank}").as_str()), "{word}");
                for ran in row {
                    let tip =
                        format!("<title>{}, {} to {}</title>", ran.cell, short(ran.start), short(ran.end));
                    let lines: Vec<_> = xml.lines().filter(|line| line.contains(&tip)).collect();
                    let time: f64 =
                        fold.pieces(rank, ran.start, ran.end).iter().map(|piece| piece[2] / fold.scale).sum();
                    assert!((time - (ran.end - ran.start)).abs() < 1e-6 * ran.end, "{tip}: {time}");
                    let ys = (0..fold.bands).map(|band| {
                        format!(
                            "y=\"{:.1}\"",
                            TOP + band as f64 * (sizes[0] as f64 * ROW + AXIS) + rank as f64 * ROW + 2.0
                        )
                    });
                    let ys: Vec<_> = ys.collect();
                    assert!(
                        !lines.is_empty() && lines.iter().all(|line| ys.iter().any(|y| line.contains(y))),
                        "{lines:?}"
                    );
                    let number = format!(">{}</text>", label(ran, 1, false));
                    let numbers = lines.iter().filter(|line| line.contains(&number)).count();
                    assert!(numbers == 1 || times.acts[1] > 100.0, "{lines:?}");
                }
            }
        }
    }

    /// Kills: a diagram as wide as its longest cell requires, an axis without round numbers.
    #[test]
    fn diagrams_are_no_wider_than_they_may_be() {
        let xml = draw(&timeline("1f1b", [2, 50], &CellTimes::new(1.0, 1e6, 1.0)));
        let size =
            |xml: &str| -> [f64; 2] { [3, 5].map(|n| xml.split('"').nth(n).unwrap().parse().unwrap()) };
        let [width, height] = size(&xml);
        assert!(width <= BAND + LEFT + RIGHT + 1.0 && height > 16.0 * 2.0 * ROW, "{width} × {height}");
        let [width, _] = size(&draw(&timeline("zb-v", [16, 64], &CellTimes::new(1.0, 1.0, 1.0))));
        assert!(width <= 1500.0, "{width}");
        let fold = Fold { scale: 20.0, each: 33.0, bands: 2, height: 100.0 };
        let said = |span, band| {
            let mut picture = Picture::default();
            axis(&mut picture, span, &fold, band);
            texts(&picture.0).join(" ")
        };
        assert_eq!(said(66.0, 0), "0 5 10 15 20 25 30 time");
        assert_eq!(said(64.0, 1), "35 40 45 50 55 60 time");
    }
}
