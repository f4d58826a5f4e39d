//! The ranks of a layout as boxes: a row for each place along the outer axes, a column for each along the
//! innermost, one colour for each place along the outermost.
use super::picture::{INK, Picture, shade};
use comm::Axis;
use parallel::Layout;

/// Sizes, in user units.
const BOX: [f64; 2] = [150.0, 54.0];
const GAP: f64 = 12.0;
const LEFT: f64 = 16.0;
const TOP: f64 = 66.0;
const NARROWEST: f64 = 420.0;
/// The most ranks of a picture, and the most columns.
const MOST: [usize; 2] = [256, 8];

/// Returns the picture as the text of an SVG file, with words below the name of each rank; nothing for more
/// ranks than a picture has.
#[must_use]
pub fn draw(layout: &Layout, words: impl Fn(usize) -> String) -> Option<String> {
    let ranks = layout.ranks();
    let places: Vec<Vec<(Axis, usize)>> = (0..ranks)
        .map(|rank| Some(layout.ghost(rank).ok()?.coordinates()))
        .collect::<Option<_>>()
        .filter(|_| ranks <= MOST[0])?;
    let split: Vec<_> =
        places[0].iter().map(|(axis, _)| *axis).filter(|axis| layout.size(*axis) > 1).collect();
    let columns = split.last().map_or(1, |axis| layout.size(*axis));
    let columns = if split.len() > 1 || columns > MOST[1] { columns.min(MOST[1]) } else { columns };
    let [width, height] = BOX;
    let sheet = [
        (LEFT + columns as f64 * (width + GAP) + GAP).max(NARROWEST),
        TOP + ranks.div_ceil(columns) as f64 * (height + GAP) + GAP,
    ];
    let sizes = if ranks == 1 { "one rank".into() } else { layout.to_string() };
    let mut picture = Picture::new(sheet, &format!("Ranks of {sizes}"), &[]);
    for (rank, place) in places.iter().enumerate() {
        let at = |axis: Axis| place.iter().find(|(other, _)| *other == axis).map_or(0, |(_, at)| *at);
        let outer = split.first().map_or(0.0, |axis| at(*axis) as f64 / layout.size(*axis) as f64);
        let corner =
            [LEFT + (rank % columns) as f64 * (width + GAP), TOP + (rank / columns) as f64 * (height + GAP)];
        let edge = format!(r#" rx="6" stroke="{}""#, shade(0.6 + outer, 0.42));
        picture.boxed([corner[0], corner[1], width, height], [&shade(0.6 + outer, 0.9), &edge, ""], INK, "");
        let place: Vec<_> = split.iter().map(|axis| format!("{axis} {}", at(*axis))).collect();
        let lines = [format!("rank {rank}"), place.join(", "), words(rank)];
        for (line, y) in lines.iter().filter(|line| !line.is_empty()).zip([16.0, 31.0, 46.0]) {
            picture.text([corner[0] + width / 2.0, corner[1] + y], "middle", INK, line);
        }
    }
    Some(picture.file())
}
