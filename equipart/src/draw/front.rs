//! Speed against memory: a point for each way of splitting, and the front of those that no other beats in both.
//!
//! Text is made of names and numbers of this project only, none of which needs escaping in XML.
use super::svg::{INK, MUTED, head, text};

/// One way, as ratios to the one that all are measured by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point<'a> {
    /// Its name.
    pub name: &'a str,
    /// Bytes of the rank that holds most.
    pub memory: f64,
    /// Tokens a second.
    pub speed: f64,
    /// Whether it ran here; if not, it is a figure from elsewhere.
    pub ours: bool,
}

/// Of these, by growing memory, those that none beats: no other is as fast in as little memory.
#[must_use]
pub fn front<'a>(points: &[Point<'a>]) -> Vec<Point<'a>> {
    let mut own: Vec<_> = points.iter().copied().filter(|point| point.ours).collect();
    own.sort_by(|a, b| a.memory.total_cmp(&b.memory).then(b.speed.total_cmp(&a.speed)));
    let mut best = 0.0;
    own.retain(|point| {
        let beats = point.speed > best;
        best = if beats { point.speed } else { best };
        beats
    });
    own
}

const LEFT: f64 = 64.0;
const TOP: f64 = 110.0;
const SIDE: [f64; 2] = [620.0, 400.0];

/// The picture, as the text of a file. All is measured by the point of this name.
#[must_use]
pub fn draw(points: &[Point], by: &str, title: &str, lines: &[String]) -> String {
    let most = |of: fn(&Point) -> f64| points.iter().map(of).fold(1.0, f64::max) * 1.1;
    let [memory, speed] = [most(|p| p.memory), most(|p| p.speed)];
    let x = |point: &Point| LEFT + point.memory / memory * SIDE[0];
    let y = |point: &Point| TOP + SIDE[1] * (1.0 - point.speed / speed);
    let mut parts = head([LEFT + SIDE[0] + 190.0, TOP + SIDE[1] + 60.0], title, lines);
    let [right, bottom] = [LEFT + SIDE[0], TOP + SIDE[1]];
    parts.push(format!(
        r#"<path d="M{LEFT} {TOP} L{LEFT} {bottom} L{right} {bottom}" fill="none" stroke="{MUTED}"/>"#
    ));
    for (i, most) in [memory, speed].into_iter().enumerate() {
        for tenth in (0..).map(|n| f64::from(n) * 0.5).take_while(|n| *n < most) {
            let at = tenth / most;
            parts.push(match i {
                0 => text(LEFT + at * SIDE[0], bottom + 16.0, "middle", MUTED, &format!("{tenth:.1}")),
                _ => text(LEFT - 8.0, TOP + SIDE[1] * (1.0 - at) + 4.0, "end", MUTED, &format!("{tenth:.1}")),
            });
        }
    }
    let under = format!("bytes of the rank that holds most, of {by}'s");
    parts.push(text(LEFT + SIDE[0] / 2.0, bottom + 38.0, "middle", INK, &under));
    parts.push(text(LEFT, TOP - 10.0, "start", INK, &format!("tokens a second, of {by}'s")));
    let front = front(points);
    let line: Vec<_> = front.iter().map(|p| format!("{:.1} {:.1}", x(p), y(p))).collect();
    parts.push(format!(
        r##"<path d="M{}" fill="none" stroke="#0969da" stroke-dasharray="4 3"/>"##,
        line.join(" L")
    ));
    let mut taken: Vec<[f64; 2]> = Vec::new(); // where names stand: no two on the same spot
    for point in points {
        let fill = match (point.ours, front.contains(point)) {
            (false, _) => "none",
            (_, true) => "#0969da",
            _ => MUTED,
        };
        let (x, y) = (x(point), y(point));
        parts.push(format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="5" fill="{fill}" stroke="{INK}"/>"#));
        let mut beside = [x + 9.0, y + 4.0];
        while taken.iter().any(|[u, v]| (u - beside[0]).abs() < 180.0 && (v - beside[1]).abs() < 12.0) {
            beside[1] -= 2.0;
        }
        parts.push(text(beside[0], beside[1], "start", INK, point.name));
        taken.push(beside);
    }
    parts.push("</svg>\n".into());
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(memory: f64, speed: f64) -> Point<'static> {
        Point { name: "one", memory, speed, ours: true }
    }

    /// Kills: a point that another beats in both, one that is equal and larger, one that did not run here; a point that is not drawn,
    /// an axis in another row's measure.
    #[test]
    fn the_front_has_what_nothing_beats() {
        let elsewhere = Point { ours: false, ..point(0.1, 9.0) };
        let all =
            [point(1.0, 1.0), point(0.5, 0.8), point(0.6, 0.7), elsewhere, point(1.2, 1.0), point(2.0, 1.5)];
        assert_eq!(front(&all), [point(0.5, 0.8), point(1.0, 1.0), point(2.0, 1.5)]);
        let picture = draw(&all, "one", "speed and memory", &["a line".into()]);
        assert_eq!(picture.matches("<circle").count(), all.len());
        assert_eq!(picture.matches(", of one's<").count(), 2);
        assert_eq!(
            picture.matches("fill=\"none\" stroke=\"#1f2328\"").count(),
            1,
            "a figure from elsewhere is hollow"
        );
    }
}
