//! Memory of several layouts as bars: what their fullest ranks hold, by category, one bar below the other.
use crate::picture::{INK, MUTED, Picture, round_numbers, shade};
use tensor::readable;

/// Sizes, in user units.
const LEFT: f64 = 250.0; // names of layouts
const WIDE: f64 = 560.0;
const ROW: f64 = 34.0;
const BOX: f64 = 24.0;
const TOP: f64 = 74.0;
const RIGHT: f64 = 96.0; // totals
const BOTTOM: f64 = 66.0;

/// Bytes of a layout's fullest rank: in total, and by category.
pub struct MemoryBar {
    /// The layout, with what else is asked for.
    pub name: String,
    /// Peak of all categories together.
    pub total: usize,
    /// Categories with their peaks, each at its own time.
    pub parts: Vec<(&'static str, usize)>,
}

/// Returns the picture as the text of an SVG file. A bar is as long as the peaks of its categories
/// together; a mark shows the peak of the total, which is less where categories peak at different times.
#[must_use]
pub fn draw(title: &str, bars: &[MemoryBar]) -> String {
    let sum = |bar: &MemoryBar| bar.parts.iter().map(|(_, bytes)| bytes).sum::<usize>();
    let most = bars.iter().map(|bar| sum(bar).max(bar.total)).max().unwrap_or(1).max(1) as f64;
    let (scale, bottom) = (WIDE / most, TOP + bars.len() as f64 * ROW);
    let mut picture = Picture::new([LEFT + WIDE + RIGHT, bottom + BOTTOM], title, &[]);
    for bytes in round_numbers([0.0, most], most / 6.0) {
        picture.upright(LEFT + bytes * scale, [TOP, bottom], &readable(bytes as u128));
    }
    let names: Vec<&str> =
        bars.first().map(|bar| bar.parts.iter().map(|(name, _)| *name).collect()).unwrap_or_default();
    let hue = |at: usize| 0.58 + at as f64 / names.len().max(1) as f64;
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + row as f64 * ROW + (ROW - BOX) / 2.0;
        picture.text([LEFT - 12.0, y + 16.0], "end", INK, &bar.name);
        let mut x = LEFT;
        for (at, (name, bytes)) in bar.parts.iter().enumerate() {
            let width = *bytes as f64 * scale;
            let letter = if width > 16.0 { &name[..1] } else { "" };
            let tip = format!("<title>{name}: {}</title>", readable(*bytes as u128));
            picture.boxed([x, y, width, BOX], [&shade(hue(at), 0.72), "", &tip], INK, letter);
            x += width;
        }
        let total = LEFT + bar.total as f64 * scale;
        picture.line(&format!("{total:.1} {:.1}V{:.1}", y - 3.0, y + BOX + 3.0), INK, r#" stroke-width="2""#);
        picture.text([x.max(total) + 8.0, y + 16.0], "start", INK, &readable(bar.total as u128));
    }
    let mut x = 16.0;
    for (at, name) in names.iter().enumerate() {
        x = picture.key([x, bottom + 38.0], &shade(hue(at), 0.72), &name[..1], name);
    }
    picture.line(&format!("{x:.1} {:.1}v18", bottom + 37.0), INK, r#" stroke-width="2""#);
    picture.text([x + 8.0, bottom + 50.0], "start", MUTED, "peak of the total");
    picture.file()
}
