//! Curves of runs over their steps or epochs, in one panel for each quantity, with one colour for each run;
//! and a bar for the time of each.
use crate::picture::{FAINT, INK, MUTED, Picture, round_numbers, round_step, shade};

/// A quantity of several runs.
#[derive(Clone, Debug)]
pub struct Quantity {
    /// Title with the unit.
    pub title: String,
    /// True if its axis begins at 0.
    pub from_0: bool,
    /// For each run: steps or epochs in order, each with the value.
    pub runs: Vec<Vec<(usize, f64)>>,
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
/// The most characters of a title.
const TITLE: usize = 64;

/// Returns the picture as the text of an SVG file: `names` of the runs, and what their values are of, steps
/// or epochs. Quantities without values are left out. There may be a bar for each run: seconds, and words.
#[must_use]
pub fn draw(
    title: &str,
    (names, over): (&[String], &str),
    quantities: &[Quantity],
    bars: &[(f64, String)],
) -> String {
    let has_values = |quantity: &&Quantity| quantity.runs.iter().any(|run| !run.is_empty());
    let panels: Vec<_> = quantities.iter().filter(has_values).collect();
    let top = 60.0 + LINE * names.len() as f64 + 30.0;
    let bottom = top + (SIDE[1] + GAP) * panels.len() as f64;
    let height = bottom + (LINE + 8.0) * bars.len() as f64;
    let mut picture = Picture::new([LEFT + SIDE[0] + 30.0, height], &cut(title), &[]);
    let colour = |run: usize| shade(0.6 + run as f64 / names.len() as f64, 0.42);
    for (at, name) in names.iter().enumerate() {
        let y = 56.0 + LINE * at as f64;
        picture.rect([16.0, y, 24.0, 4.0], &colour(at));
        picture.text([48.0, y + 6.0], "start", INK, name);
    }
    let points = || panels.iter().flat_map(|panel| panel.runs.iter().flatten());
    let steps = points().map(|(step, _)| *step).max().unwrap_or(1).max(1) as f64;
    for (at, Quantity { title, from_0, runs }) in panels.iter().enumerate() {
        let y = top + (SIDE[1] + GAP) * at as f64;
        let range = range(runs.iter().flatten().map(|(_, value)| *value), *from_0);
        axes(&mut picture, y, (title, over), steps, range);
        for (number, points) in runs.iter().enumerate() {
            curve(&mut picture, points, &colour(number), |point| place(y, point, steps, range));
        }
    }
    let longest = bars.iter().map(|(seconds, _)| *seconds).fold(f64::MIN_POSITIVE, f64::max);
    for (run, (seconds, words)) in bars.iter().enumerate() {
        let (y, length) = (bottom - 16.0 + (LINE + 8.0) * run as f64, 0.75 * SIDE[0] * seconds / longest);
        picture.rect([LEFT, y, length, LINE], &colour(run));
        picture.text([LEFT + length + 8.0, y + 13.0], "start", MUTED, words);
    }
    picture.file()
}

/// A title that fits; the end of a longer one is cut.
fn cut(title: &str) -> String {
    match title.char_indices().nth(TITLE) {
        Some((at, _)) => format!("{}…", &title[..at]),
        None => title.into(),
    }
}

/// Lowest and highest value of an axis, with a margin; the highest is a round number.
fn range(values: impl Iterator<Item = f64>, from_0: bool) -> [f64; 2] {
    let [low, high] = values.fold([f64::INFINITY, 0.0], |[low, high], x| [x.min(low), x.max(high)]);
    let low = if from_0 { 0.0 } else { low };
    let margin = if high - low > f64::MIN_POSITIVE / f64::EPSILON {
        0.05 * (high - low)
    } else {
        0.05 * high.max(1e-9)
    };
    let [low, high] = [(low - margin).max(0.0), high + margin];
    let step = round_step((high - low) / NUMBERS[1]);
    [low, (high / step - 1e-9).ceil() * step]
}

/// Position of a value in the panel whose top is at `y`.
fn place(y: f64, (step, value): (usize, f64), steps: f64, [low, high]: [f64; 2]) -> [f64; 2] {
    [LEFT + step as f64 / steps * SIDE[0], y + SIDE[1] * (1.0 - (value - low) / (high - low))]
}

/// Draws the axes of a panel: numbers of steps below, of values on the left, on lines across.
fn axes(picture: &mut Picture, y: f64, (title, over): (&str, &str), steps: f64, [low, high]: [f64; 2]) {
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
    picture.text([right, bottom + 32.0], "end", MUTED, over);
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
    use crate::svg::tests::texts;

    /// Kills: a panel without values, a name that is not escaped, two runs of one colour, a curve upside down
    /// or shifted by a step, a constant that divides by 0, a last step that is left out, a number with noise
    /// in its last digit.
    #[test]
    fn a_panel_has_a_curve_for_each_run() {
        let line = |steps: usize| (1..=steps).map(|step| (step, 3.0 - 0.002 * step as f64)).collect();
        let rate = |steps: usize| (1..=steps).map(|step| (step, 0.3)).collect();
        let quantity = |title: &str, from_0, runs: [Vec<_>; 2]| Quantity {
            title: title.into(),
            from_0,
            runs: runs.to_vec(),
        };
        let quantities = [
            quantity("loss, nats", false, [line(1000), line(3)]),
            quantity("held-out text", false, [vec![], vec![(3, 1.5)]]),
            quantity("test accuracy, %", false, [vec![], vec![]]),
            quantity("learning rate", true, [rate(1000), rate(3)]),
        ];
        let names = ["a<b>&c", "two"].map(String::from);
        let bars = [(2.0, "2 s".to_string()), (1.0, "1 s".to_string())];
        let xml = draw("training", (&names, "steps"), &quantities, &bars);
        let bare = xml.replace("&lt;", "").replace("&gt;", "").replace("&amp;", "");
        let words = texts(&bare);
        for word in ["abc", "two", "loss, nats", "learning rate", "steps", "0.3", "1000", "1.5", "1 s"] {
            assert!(words.contains(&word), "{word}: {words:?}");
        }
        assert!(
            !xml.contains("NaN") && !xml.contains("inf") && !words.contains(&"test accuracy, %"),
            "{words:?}"
        );
        assert!(words.iter().all(|word| word.len() < 30), "{words:?}");
        let colours = [0.6, 1.1].map(|hue| shade(hue, 0.42));
        // loss and rate of two runs, the held-out text of one
        assert_eq!(
            colours.clone().map(|colour| xml.matches(&format!(r#"stroke="{colour}""#)).count()),
            [2, 3]
        );
        let way = xml.lines().find(|line| line.contains(&colours[0]) && line.starts_with("<path")).unwrap();
        let way = way.split('"').nth(1).unwrap().trim_start_matches('M');
        let points: Vec<_> = way.split('L').map(|at| at.split_once(' ').unwrap()).collect();
        let y = |at: usize| points[at].1.parse::<f64>().unwrap();
        assert_eq!((points.len(), points[0].0, points[999].0), (1000, "90.8", "850.0"));
        assert!(y(0) < y(500) && y(500) < y(999), "losses fall, and y grows downwards");
        let bar = |width: &str| xml.contains(&format!("width=\"{width}.00\""));
        assert!(bar("570") && bar("285"), "as long as the times");
    }
}
