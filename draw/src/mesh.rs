//! The ranks of a layout as boxes: a row for each place along the outer axes, a column for each along the
//! innermost, one colour for each place along the outermost.
use crate::picture::{INK, Picture, shade};
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
    let grids = [RankGrid::of(layout, &format!("Ranks of {}", sizes(layout)), |_| true)?];
    Some(sheet(&grids, grids[0].columns(), &words))
}

/// Returns the picture of ranks on nodes, a row for each node: for attention and, if the layout splits
/// experts, once more for these, as two grids of the same ranks. Nothing for more ranks than a picture has.
#[must_use]
pub fn on_nodes(layout: &Layout, node: usize) -> Option<String> {
    let is_of_experts = |axis: Axis| matches!(axis, Axis::Ep | Axis::Etp | Axis::Edp);
    let title = format!("Ranks of {} on nodes of {node}", sizes(layout));
    let mut grids = vec![RankGrid::of(layout, &title, |axis| !is_of_experts(axis))?];
    if [Axis::Ep, Axis::Etp].iter().any(|axis| layout.size(*axis) > 1) {
        let of_experts = |axis| axis == Axis::Pp || is_of_experts(axis);
        grids.push(RankGrid::of(layout, "The same ranks, for experts", of_experts)?);
    }
    let row = |rank: usize| format!("node {}", rank / node);
    Some(sheet(&grids, node, &row))
}

fn sizes(layout: &Layout) -> String {
    if layout.ranks() == 1 { "one rank".into() } else { layout.to_string() }
}

/// Ranks with their coordinates along some axes.
struct RankGrid {
    title: String,
    places: Vec<Vec<(Axis, usize)>>, // of each rank, the outermost first: axes that split
    sizes: Vec<usize>,
}

impl RankGrid {
    fn of(layout: &Layout, title: &str, takes: impl Fn(Axis) -> bool) -> Option<Self> {
        let ranks = Some(layout.ranks()).filter(|ranks| *ranks <= MOST[0])?;
        let mesh = layout.ghost(0).ok()?;
        let order: Vec<Axis> = mesh.coordinates().into_iter().map(|(axis, _)| axis).collect();
        let of_experts = [Axis::Edp, Axis::Ep, Axis::Etp].into_iter().filter(|axis| !order.contains(axis));
        let axes = order.iter().copied().chain(of_experts).filter(|axis| takes(*axis)).map(|axis| {
            let last = (0..ranks).map(|rank| mesh.coordinate(axis, rank)).max();
            (axis, last.unwrap_or(0) + 1)
        });
        let (axes, sizes): (Vec<_>, Vec<_>) = axes.filter(|(_, size)| *size > 1).unzip();
        let place = |rank: usize| axes.iter().map(|axis| (*axis, mesh.coordinate(*axis, rank))).collect();
        Some(Self { title: title.into(), places: (0..ranks).map(place).collect(), sizes })
    }
    /// Number of boxes in a row: the ranks of the innermost axis, or as many as fit.
    fn columns(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1).min(MOST[1])
    }
}

/// Draws grids below each other.
fn sheet(grids: &[RankGrid], columns: usize, words: &impl Fn(usize) -> String) -> String {
    let [width, height] = BOX;
    let each = TOP + grids[0].places.len().div_ceil(columns) as f64 * (height + GAP) + GAP;
    let size = [(LEFT + columns as f64 * (width + GAP) + GAP).max(NARROWEST), each * grids.len() as f64];
    let mut picture = Picture::new(size, &grids[0].title, &[]);
    for (number, grid) in grids.iter().enumerate() {
        let top = each * number as f64;
        if number > 0 {
            picture.heading(top, &grid.title);
        }
        for (rank, place) in grid.places.iter().enumerate() {
            let outer = place.first().map_or(0.0, |(_, at)| *at as f64 / grid.sizes[0] as f64);
            let x = LEFT + (rank % columns) as f64 * (width + GAP);
            let y = top + TOP + (rank / columns) as f64 * (height + GAP);
            let edge = format!(r#" rx="6" stroke="{}""#, shade(0.6 + outer, 0.42));
            picture.boxed([x, y, width, height], [&shade(0.6 + outer, 0.9), &edge, ""], INK, "");
            let place: Vec<_> = place.iter().map(|(axis, at)| format!("{axis} {at}")).collect();
            let lines = [format!("rank {rank}"), place.join(", "), words(rank)];
            for (line, below) in lines.iter().filter(|line| !line.is_empty()).zip([16.0, 31.0, 46.0]) {
                picture.text([x + width / 2.0, y + below], "middle", INK, line);
            }
        }
    }
    picture.file()
}
