//! Elements of every diagram: words, boxes and lines on a sheet under a title, as SVG.
//!
//! Words are escaped here, so callers pass them as they are.
use tensor::quoted::escaped_lines;

/// Colours of words, and of lines that other things stand on.
pub(crate) const INK: &str = "#1f2328";
pub(crate) const MUTED: &str = "#59636e";
pub(crate) const FAINT: &str = "#d0d7de";

/// Fill of waiting time, and its definition.
pub(crate) const WAITS: &str = "url(#wait)";
pub(crate) const HATCH: &str = r##"<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#f6f1f1"/><path d="M0 0V6" stroke="#cf9a9a" stroke-width="1.6"/></pattern></defs>"##;

/// A diagram under construction, each element on a line of its own.
#[derive(Default)]
pub(crate) struct Picture(pub(crate) String);

impl Picture {
    /// A sheet of this width and height, with a title and lines below it.
    pub(crate) fn new([width, height]: [f64; 2], title: &str, lines: &[String]) -> Self {
        let mut new = Self(format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="12" fill="{INK}">
<title>{}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
"##,
            escaped(title)
        ));
        new.heading(0.0, title);
        lines.iter().zip([52.0, 70.0, 88.0]).for_each(|(line, y)| new.text([16.0, y], "start", MUTED, line));
        new
    }
    /// Adds a title below this height.
    pub(crate) fn heading(&mut self, y: f64, words: &str) {
        let y = y + 30.0;
        let words = escaped(words);
        self.add(&format!(r#"<text x="16" y="{y}" font-size="18" font-weight="bold">{words}</text>"#));
    }
    /// Adds an element.
    pub(crate) fn add(&mut self, element: &str) {
        self.0.extend([element, "\n"]);
    }
    /// Adds words in a colour, with their `start`, `middle` or `end` at a position.
    pub(crate) fn text(&mut self, at: [f64; 2], anchor: &str, fill: &str, words: &str) {
        self.add(&text(at, anchor, fill, words));
    }
    /// Adds a box with words in its middle, and with more attributes and elements.
    pub(crate) fn boxed(&mut self, place: [f64; 4], [fill, more, inside]: [&str; 3], ink: &str, words: &str) {
        let [x, y, width, height] = place;
        let mut element = format!(
            r#"<rect x="{x:.2}" y="{y:.1}" width="{width:.2}" height="{height}" fill="{fill}"{more}>{inside}</rect>"#
        );
        if !words.is_empty() {
            element += &text([x + width / 2.0, y + height / 2.0 + 4.0], "middle", ink, words);
        }
        self.add(&element);
    }
    /// Adds a box of one colour.
    pub(crate) fn rect(&mut self, place: [f64; 4], fill: &str) {
        self.boxed(place, [fill, "", ""], "", "");
    }
    /// Adds a line along a path, in a colour and with more attributes.
    pub(crate) fn line(&mut self, way: &str, stroke: &str, more: &str) {
        self.add(&format!(r#"<path d="M{way}" fill="none" stroke="{stroke}"{more}/>"#));
    }
    /// Adds a line across an axis, between two heights, with its number below.
    pub(crate) fn upright(&mut self, x: f64, [top, bottom]: [f64; 2], number: &str) {
        self.line(&format!("{x:.1} {:.1}V{:.1}", top - 4.0, bottom + 4.0), FAINT, "");
        self.text([x, bottom + 18.0], "middle", MUTED, number);
    }
    /// Adds an entry of a legend: a box with a letter or none, and words. Returns the place of the next one.
    pub(crate) fn key(&mut self, [x, y]: [f64; 2], fill: &str, letter: &str, words: &str) -> f64 {
        self.boxed([x, y, 20.0, 16.0], [fill, "", ""], INK, letter);
        self.text([x + 26.0, y + 12.0], "start", MUTED, words);
        x + 46.0 + 6.6 * words.chars().count() as f64
    }
    /// Returns the text of the SVG file.
    pub(crate) fn file(mut self) -> String {
        self.add("</svg>");
        self.0
    }
}

fn text([x, y]: [f64; 2], anchor: &str, fill: &str, words: &str) -> String {
    format!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="{fill}">{}</text>"#, escaped(words))
}

/// Words as the text of XML or HTML, which has no control characters.
pub fn escaped(words: &str) -> String {
    escaped_lines(words)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// The least of 1, 2 and 5 times a power of ten that is at least `nearest`.
pub(crate) fn round_step(nearest: f64) -> f64 {
    let ten = 10f64.powf(nearest.log10().floor());
    [1.0, 2.0, 5.0].map(|n| n * ten).into_iter().find(|step| *step >= nearest).unwrap_or(10.0 * ten)
}

/// The most numbers of an axis: more come only from numbers that a step of floats does not tell apart.
const MOST_NUMBERS: f64 = 1000.0;

/// Numbers of an axis: multiples of 1, 2 or 5 times a power of ten, at least `nearest` apart. None if there
/// is no such step, as between subnormal numbers.
pub(crate) fn round_numbers([from, to]: [f64; 2], nearest: f64) -> impl Iterator<Item = f64> {
    let step = round_step(nearest);
    let numbers = (from / step - 1e-9).ceil() as usize..=(to / step + 1e-9) as usize;
    ((to - from) / step < MOST_NUMBERS).then_some(numbers).into_iter().flatten().map(move |n| n as f64 * step)
}

/// Returns a colour in XML notation.
pub(crate) fn shade(hue: f64, lightness: f64) -> String {
    let [red, green, blue] = rgb(hue, lightness);
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// Converts hue and lightness (0 is black, 1 white) at a saturation of 0.65 to RGB. Source: CSS Color 4,
/// §7.1.
fn rgb(hue: f64, lightness: f64) -> [u8; 3] {
    [0.0, 8.0, 4.0].map(|n| {
        let k = (n + hue * 12.0) % 12.0;
        let part = 0.65 * lightness.min(1.0 - lightness) * (k - 3.0).min(9.0 - k).clamp(-1.0, 1.0);
        ((lightness - part) * 255.0).round() as u8
    })
}

/// Words on a background, in the nearest of a terminal's 6³ colours.
pub(crate) fn ground(hue: f64, lightness: f64, words: &str) -> String {
    let [red, green, blue] = rgb(hue, lightness).map(|part| (u16::from(part) + 25) / 51);
    let ink = if lightness > 0.6 { 16 } else { 231 };
    format!("\x1b[48;5;{};38;5;{ink}m{words}\x1b[0m", 16 + 36 * red + 6 * green + blue)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: numbers without end where a step is 0 or lost in the ends, an axis without its numbers.
    #[test]
    fn an_axis_has_few_numbers_between_any_two_floats() {
        let subnormal = 5e-324;
        for [from, to] in [
            [0.0, subnormal],
            [0.0, 1e-320],
            [1e-320, 1e-319],
            [0.0, f64::INFINITY],
            [0.0, f64::NAN],
            [0.0, 0.0],
            [3.0, 3.0],
            [1.0 - f64::EPSILON, 1.0],
            [0.0, f64::MAX],
        ] {
            for nearest in [(to - from) / 8.0, 0.0, subnormal] {
                let numbers = round_numbers([from, to], nearest).take(2000).count();
                assert!(numbers < 1001, "{from} to {to} by {nearest}: {numbers}");
            }
        }
        assert_eq!(round_numbers([0.0, 1e-300], 2e-301).count(), 6);
        assert_eq!(round_numbers([0.0, 10.0], 3.0).collect::<Vec<_>>(), [0.0, 5.0, 10.0]);
    }
}
