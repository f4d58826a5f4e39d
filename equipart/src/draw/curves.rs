//! Curves of training runs over their steps, in one panel for each quantity, with one colour for each run.
use super::picture::{FAINT, INK, MUTED, Picture, round_numbers, shade};
use crate::commands::train::run::StepLine;

/// The steps of a run, and its name.
#[derive(Clone, Debug)]
pub struct Curves {
    /// Name for the legend.
    pub name: String,
    /// Steps in order.
    pub lines: Vec<StepLine>,
}

/// Sizes, in user units.
const LEFT: f64 = 90.0; // numbers of an axis
const SIDE: [f64; 2] = [760.0, 180.0];
const GAP: f64 = 52.0; // between panels: steps below one, the title of the next
const LINE: f64 = 18.0; // of the legend
/// The most numbers along an axis: steps, values.
const NUMBERS: [f64; 2] = [10.0, 8.0];
/// The most points of a curve; of more, every n-th is drawn.
const POINTS: usize = 2000;

/// A panel: its title with the unit, the value of a step, and true if the axis begins at 0.
type CurvePanel = (&'static str, fn(&StepLine) -> Option<f64>, bool);

const PANELS: [CurvePanel; 5] = [
    ("loss, nats", |line| Some(line.loss), false),
    ("held-out text, bits a byte", |line| line.held_out_bits_per_byte, false),
    ("test accuracy, %", |line| line.accuracy.map(|right| 100.0 * right), false),
    ("learning rate", |line| Some(line.lr), true),
    ("speed, tokens a second", |line| Some(line.tokens_per_second), true),
];

/// Returns the picture as the text of an SVG file. Panels without values are left out.
#[must_use]
pub fn draw(runs: &[Curves]) -> String {
    let all = || runs.iter().flat_map(|run| &run.lines);
    let panels: Vec<_> =
        PANELS.iter().filter(|(_, value, _)| all().any(|line| value(line).is_some())).collect();
    let top = 60.0 + LINE * runs.len() as f64 + 30.0;
    let height = top + (SIDE[1] + GAP) * panels.len() as f64;
    let mut picture = Picture::new([LEFT + SIDE[0] + 30.0, height], "training", &[]);
    let colour = |run: usize| shade(0.6 + run as f64 / runs.len() as f64, 0.42);
    for (at, run) in runs.iter().enumerate() {
        let y = 56.0 + LINE * at as f64;
        picture.rect([16.0, y, 24.0, 4.0], &colour(at));
        let name = run.name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        picture.text([48.0, y + 6.0], "start", INK, &name);
    }
    let steps = all().map(|line| line.step).max().unwrap_or(1).max(1) as f64;
    for (at, (title, value, from_0)) in panels.into_iter().enumerate() {
        let y = top + (SIDE[1] + GAP) * at as f64;
        let range = range(all().filter_map(value), *from_0);
        axes(&mut picture, y, (title, steps, range));
        for (number, run) in runs.iter().enumerate() {
            let points: Vec<_> =
                run.lines.iter().filter_map(|line| Some((line.step, value(line)?))).collect();
            curve(&mut picture, &points, &colour(number), |(step, value)| {
                place(y, (step, value), steps, range)
            });
        }
    }
    picture.file()
}

/// Lowest and highest value of an axis, with a margin.
fn range(values: impl Iterator<Item = f64>, from_0: bool) -> [f64; 2] {
    let [low, high] = values.fold([f64::INFINITY, 0.0], |[low, high], x| [x.min(low), x.max(high)]);
    let low = if from_0 { 0.0 } else { low };
    let margin = if high > low { 0.05 * (high - low) } else { 0.05 * high.max(1e-9) };
    [(low - margin).max(0.0), high + margin]
}

/// Position of a value in the panel whose top is at `y`.
fn place(y: f64, (step, value): (usize, f64), steps: f64, [low, high]: [f64; 2]) -> [f64; 2] {
    [LEFT + step as f64 / steps * SIDE[0], y + SIDE[1] * (1.0 - (value - low) / (high - low))]
}

/// Draws the axes of a panel: numbers of steps below, of values on the left, on lines across.
fn axes(picture: &mut Picture, y: f64, (title, steps, [low, high]): (&str, f64, [f64; 2])) {
    let (bottom, right) = (y + SIDE[1], LEFT + SIDE[0]);
    picture.text([LEFT, y - 8.0], "start", INK, title);
    let nearest = (high - low) / NUMBERS[1];
    let decimals = (1.0 - nearest.log10().floor()).max(0.0) as usize;
    for number in round_numbers([low, high], nearest) {
        let [_, at] = place(y, (0, number), steps, [low, high]);
        picture.line(&format!("{LEFT} {at:.1}H{right}"), FAINT, "");
        let words = format!("{number:.decimals$}");
        let words =
            if words.contains('.') { words.trim_end_matches('0').trim_end_matches('.') } else { &words };
        picture.text([LEFT - 8.0, at + 4.0], "end", MUTED, words);
    }
    for step in round_numbers([0.0, steps], (steps / NUMBERS[0]).max(1.0)) {
        let [x, _] = place(y, (step as usize, low), steps, [low, high]);
        picture.text([x, bottom + 16.0], "middle", MUTED, &format!("{step:.0}"));
    }
    picture.line(&format!("{LEFT} {y:.1}V{bottom:.1}H{right}"), MUTED, "");
    picture.text([right, bottom + 32.0], "end", MUTED, "steps");
}

/// Draws a line through points, with a dot on each if they are few.
fn curve(
    picture: &mut Picture,
    points: &[(usize, f64)],
    colour: &str,
    place: impl Fn((usize, f64)) -> [f64; 2],
) {
    let apart = points.len().div_ceil(POINTS).max(1);
    let drawn: Vec<_> = points.iter().rev().step_by(apart).rev().map(|point| place(*point)).collect();
    let way: Vec<_> = drawn.iter().map(|[x, y]| format!("{x:.1} {y:.1}")).collect();
    if !way.is_empty() {
        picture.line(&way.join("L"), colour, r#" stroke-width="1.5" stroke-opacity="0.8""#);
    }
    for [x, y] in drawn.iter().filter(|_| points.len() <= 30) {
        picture.add(&format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="2.5" fill="{colour}"/>"#));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draw::svg::tests::texts;

    /// Kills: a panel without values, a name that is not escaped, two runs of one colour, a curve upside down
    /// or shifted by a step, a constant that divides by 0, a last step that is left out, a number with noise
    /// in its last digit.
    #[test]
    fn a_panel_has_a_curve_for_each_run() {
        let line =
            |step: usize| StepLine { step, loss: 3.0 - 0.002 * step as f64, lr: 0.3, ..StepLine::default() };
        let run =
            |name: &str, steps: usize| Curves { name: name.into(), lines: (1..=steps).map(line).collect() };
        let mut runs = [run("a<b>&c", 1000), run("two", 3)];
        runs[1].lines[2].held_out_bits_per_byte = Some(1.5);
        let xml = draw(&runs);
        let bare = xml.replace("&lt;", "").replace("&gt;", "").replace("&amp;", "");
        let words = texts(&bare);
        for word in
            ["abc", "two", "loss, nats", "learning rate", "speed, tokens a second", "0.3", "1000", "1.5"]
        {
            assert!(words.contains(&word), "{word}: {words:?}");
        }
        assert!(
            !xml.contains("NaN") && !xml.contains("inf") && !words.contains(&"test accuracy, %"),
            "{words:?}"
        );
        assert!(words.iter().all(|word| word.len() < 30), "{words:?}");
        let colours = [0.6, 1.1].map(|hue| shade(hue, 0.42));
        // loss, rate and speed of two runs, the held-out text of one
        assert_eq!(
            colours.clone().map(|colour| xml.matches(&format!(r#"stroke="{colour}""#)).count()),
            [3, 4]
        );
        let way = xml.lines().find(|line| line.contains(&colours[0]) && line.starts_with("<path")).unwrap();
        let way = way.split('"').nth(1).unwrap().trim_start_matches('M');
        let points: Vec<_> = way.split('L').map(|at| at.split_once(' ').unwrap()).collect();
        let y = |at: usize| points[at].1.parse::<f64>().unwrap();
        assert_eq!((points.len(), points[0].0, points[999].0), (1000, "90.8", "850.0"));
        assert!(y(0) < y(500) && y(500) < y(999), "losses fall, and y grows downwards");
    }
}
