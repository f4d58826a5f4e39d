//! Speed against memory: a point for each partitioning, and the Pareto front of those that no other beats in
//! both.
use crate::picture::{INK, MUTED, Picture, round_numbers};

/// One partitioning, as ratios to the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point<'a> {
    /// Its name.
    pub name: &'a str,
    /// Bytes of the rank that holds most.
    pub memory: f64,
    /// Tokens a second.
    pub speed: f64,
    /// True if it ran here; else it is a published result.
    pub ours: bool,
}

/// Returns the Pareto front, by growing memory: no other point is as fast in as little memory.
#[must_use]
pub fn front<'a>(points: &[Point<'a>]) -> Vec<Point<'a>> {
    let mut ours: Vec<_> = points.iter().copied().filter(|point| point.ours).collect();
    ours.sort_by(|a, b| a.memory.total_cmp(&b.memory).then(b.speed.total_cmp(&a.speed)));
    let mut best = 0.0;
    ours.retain(|point| {
        let beaten = point.speed <= best;
        best = point.speed.max(best);
        !beaten
    });
    ours
}

const LEFT: f64 = 64.0;
const TOP: f64 = 110.0;
const SIDE: [f64; 2] = [620.0, 400.0];
const RIGHT: f64 = 190.0;
/// The most numbers along an axis.
const NUMBERS: f64 = 8.0;
const LETTER: f64 = 6.2;
/// The colour of the front.
const BLUE: &str = "#0969da";

/// Left, upper, right and lower edge.
type Edges = [f64; 4];

/// Places a name outside the taken rooms: beside its point, or as near above or below as there is room. The
/// returned position is the start of the name, or its end on the left.
fn place([x, y]: [f64; 2], name: &str, taken: &[Edges]) -> ([f64; 2], &'static str, Edges) {
    let width = LETTER * name.chars().count() as f64;
    let beside = |n: i32| {
        let y = y + 4.0 + f64::from((n + 1) / 2 * if n % 2 == 0 { 6 } else { -6 });
        let room = |left: f64| [left, y - 10.0, left + width, y + 3.0];
        [([x + 9.0, y], "start", room(x + 9.0)), ([x - 9.0, y], "end", room(x - 9.0 - width))]
    };
    let inside = |[left, top, right, low]: Edges| {
        left > LEFT && right < LEFT + SIDE[0] + RIGHT && top > TOP && low < TOP + SIDE[1]
    };
    let apart = |a: &Edges, b: &Edges| a[2] < b[0] || b[2] < a[0] || a[3] < b[1] || b[3] < a[1];
    let free =
        |(.., room): &([f64; 2], &str, Edges)| inside(*room) && taken.iter().all(|other| apart(room, other));
    // on the right while that is near: a name on the left may be read as another point's
    (0..24).map(|n| beside(n)[0]).chain((0..150).flat_map(beside)).find(free).unwrap_or(beside(0)[0])
}

/// Returns the picture as the text of an SVG file. `by` names the reference point.
#[must_use]
pub fn draw(points: &[Point], by: &str, title: &str, lines: &[String]) -> String {
    let most = |of: fn(&Point) -> f64| points.iter().map(of).fold(1.0, f64::max) * 1.1;
    let [memory, speed] = [most(|p| p.memory), most(|p| p.speed)];
    let [right, bottom] = [LEFT + SIDE[0], TOP + SIDE[1]];
    let x = |ratio: f64| LEFT + ratio / memory * SIDE[0];
    let y = |ratio: f64| bottom - ratio / speed * SIDE[1];
    let mut picture = Picture::new([right + RIGHT, bottom + 60.0], title, lines);
    picture.line(&format!("{LEFT} {TOP}L{LEFT} {bottom}L{right} {bottom}"), MUTED, "");
    for number in round_numbers([0.0, memory], memory / NUMBERS) {
        picture.text([x(number), bottom + 16.0], "middle", MUTED, &format!("{number:.1}"));
    }
    for number in round_numbers([0.0, speed], speed / NUMBERS) {
        picture.text([LEFT - 8.0, y(number) + 4.0], "end", MUTED, &format!("{number:.1}"));
    }
    let under = format!("bytes of the rank that holds most, of {by}'s");
    picture.text([LEFT + SIDE[0] / 2.0, bottom + 38.0], "middle", INK, &under);
    picture.text([LEFT, TOP - 10.0], "start", INK, &format!("tokens a second, of {by}'s"));
    let front = front(points);
    let way: Vec<_> = front.iter().map(|p| format!("{:.1} {:.1}", x(p.memory), y(p.speed))).collect();
    picture.line(&way.join("L"), BLUE, r#" stroke-dasharray="4 3""#);
    let spots: Vec<_> = points.iter().map(|p| [x(p.memory), y(p.speed)]).collect();
    let mut taken: Vec<Edges> = spots.iter().map(|[x, y]| [x - 6.0, y - 6.0, x + 6.0, y + 6.0]).collect();
    for (point, [x, y]) in points.iter().zip(spots) {
        let fill = match (point.ours, front.contains(point)) {
            (false, _) => "none",
            (_, true) => BLUE,
            _ => MUTED,
        };
        let (to, anchor, room) = place([x, y], point.name, &taken);
        if (to[1] - y - 4.0).abs() > 1.0 {
            picture.line(&format!("{x:.1} {y:.1}L{:.1} {:.1}", to[0], to[1] - 4.0), MUTED, "");
        }
        picture.add(&format!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="5" fill="{fill}" stroke="{INK}"/>"#));
        picture.text(to, anchor, INK, point.name);
        taken.push(room);
    }
    picture.file()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(memory: f64, speed: f64) -> Point<'static> {
        Point { name: "one", memory, speed, ours: true }
    }

    /// Kills: a point that another beats in both, one that is equal in speed and larger, one that did not run
    /// here; a point that is not drawn, an axis in units of another row.
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

    /// Kills: a name on another name, on a point or outside of the picture; a shifted name without a line to
    /// its point; too many numbers along an axis.
    #[test]
    fn names_are_apart_and_lead_to_their_points() {
        let names =
            ["none", "tensor-, sequence- and expert-parallel", "another program's (new)", "new", "tp=2"];
        let at = [(1.0, 1.0), (3.0, 1.0), (3.0, 1.01), (2.9, 1.0), (2.85, 1.02)];
        let points: Vec<_> =
            names.into_iter().zip(at).map(|(name, (m, s))| Point { name, ..point(m, s) }).collect();
        let spots = [[600.0, 300.0], [600.0, 300.0], [606.0, 302.0], [560.0, 300.0], [660.0, 300.0]];
        let mut taken: Vec<Edges> = spots.iter().map(|[x, y]| [x - 6.0, y - 6.0, x + 6.0, y + 6.0]).collect();
        for (spot, name) in spots.iter().zip(names) {
            let (_, anchor, room) = place(*spot, name, &taken);
            let right = if anchor == "start" { room[0] - 9.0 } else { room[2] + 9.0 };
            assert!(
                (right - spot[0]).abs() < 1e-9 && room[2] - room[0] > 6.0 * name.len() as f64 - 20.0,
                "{name}"
            );
            let meets = |other: &&Edges| {
                room[0] <= other[2] && other[0] <= room[2] && room[1] <= other[3] && other[1] <= room[3]
            };
            assert_eq!(taken.iter().find(meets), None, "{name}");
            assert!(room[0] > LEFT && room[2] < LEFT + SIDE[0] + RIGHT, "{name}: {room:?}");
            taken.push(room);
        }
        let picture = draw(&points, "none", "speed and memory", &[]);
        assert!(picture.matches('L').count() > 3, "lines to names");
        let far = draw(&[point(1.0, 1.0), point(1.2, 15.5)], "one", "t", &[]);
        assert!(far.matches("text-anchor=\"end\"").count() <= 12, "{far}");
        assert!(far.contains(">15.0<") && !far.contains(">0.5<"), "{far}");
    }
}
