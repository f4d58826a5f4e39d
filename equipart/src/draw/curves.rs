//! Curves over epochs, one for each run, side by side for each quantity; and a bar for the time of each run.
use super::picture::{FAINT, INK, MUTED, Picture, round_numbers, shade};

/// The values of one run after each epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name of the run.
    pub name: String,
    /// Value after each epoch.
    pub values: Vec<f64>,
}

const LEFT: f64 = 64.0;
const TOP: f64 = 76.0;
const SIDE: [f64; 2] = [360.0, 260.0];
const GAP: f64 = 80.0;
const ROW: f64 = 26.0; // a bar, with the name of its run
/// The most numbers along an axis.
const NUMBERS: f64 = 8.0;

/// Returns the picture as the text of an SVG file: `quantities` with a title each, the same runs in all, and
/// under them a bar of seconds and words for each run.
#[must_use]
pub fn draw(title: &str, quantities: &[(&str, Vec<Curve>)], bars: &[(String, f64, String)]) -> String {
    let (n, bottom) = (quantities.len() as f64, TOP + SIDE[1]);
    let size = [LEFT + n * (SIDE[0] + GAP), bottom + 66.0 + ROW * bars.len() as f64];
    let mut picture = Picture::new(size, title, &[]);
    for (left, (name, curves)) in (0..).map(|i| LEFT + f64::from(i) * (SIDE[0] + GAP)).zip(quantities) {
        panel(&mut picture, left, name, curves);
    }
    let longest = bars.iter().map(|(_, seconds, _)| *seconds).fold(f64::MIN_POSITIVE, f64::max);
    let width = size[0] - 2.0 * LEFT - 2.0 * GAP;
    picture.text([LEFT + GAP, bottom + 50.0], "start", INK, "training time");
    for (i, (name, seconds, words)) in bars.iter().enumerate() {
        let y = bottom + 56.0 + ROW * i as f64;
        let length = seconds / longest * width;
        picture.rect([LEFT + GAP, y, length, ROW - 8.0], &colour(i, bars.len()));
        picture.text([LEFT + GAP - 8.0, y + 13.0], "end", INK, name);
        picture.text([LEFT + GAP + length + 8.0, y + 13.0], "start", MUTED, words);
    }
    picture.file()
}

/// Colour of a run.
fn colour(run: usize, runs: usize) -> String {
    shade(run as f64 / runs.max(1) as f64 + 0.6, 0.45)
}

/// Draws the curves of one quantity between the least and the largest value.
fn panel(picture: &mut Picture, left: f64, name: &str, curves: &[Curve]) {
    let all = || curves.iter().flat_map(|curve| &curve.values).copied();
    let (least, most) = (all().fold(f64::INFINITY, f64::min), all().fold(f64::NEG_INFINITY, f64::max));
    let margin = ((most - least) * 0.05).max(most.abs() * 1e-3).max(1e-6);
    let [from, to] = [(least - margin).max(0.0), most + margin];
    let epochs = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0) as f64;
    let (bottom, right) = (TOP + SIDE[1], left + SIDE[0]);
    let x = |epoch: f64| left + (epoch - 0.5) / epochs * SIDE[0];
    let y = |value: f64| bottom - (value - from) / (to - from) * SIDE[1];
    for number in round_numbers([from, to], (to - from) / NUMBERS) {
        picture.line(&format!("{left} {:.1}H{right}", y(number)), FAINT, "");
        picture.text(
            [left - 8.0, y(number) + 4.0],
            "end",
            MUTED,
            &format!("{}", (number * 1e6).round() / 1e6),
        );
    }
    for epoch in round_numbers([1.0, epochs], (epochs / NUMBERS).max(1.0)) {
        picture.text([x(epoch), bottom + 16.0], "middle", MUTED, &format!("{epoch}"));
    }
    picture.line(&format!("{left} {TOP}L{left} {bottom}L{right} {bottom}"), MUTED, "");
    picture.text([left, TOP - 12.0], "start", INK, name);
    picture.text([left + SIDE[0] / 2.0, bottom + 34.0], "middle", INK, "epoch");
    for (run, curve) in curves.iter().enumerate() {
        let points = curve.values.iter().zip(1..).map(|(value, epoch)| [x(f64::from(epoch)), y(*value)]);
        let way: Vec<_> = points.map(|[x, y]| format!("{x:.1} {y:.1}")).collect();
        let about = r#" stroke-width="2" stroke-linecap="round""#;
        picture.line(&(way.join("L") + "h0"), &colour(run, curves.len()), about);
    }
}
