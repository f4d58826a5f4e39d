//! A picture of a planned graph: every matrix in its blocks, each with the ranks that have it.
use crate::picture::{INK, MUTED, Picture, shade};
use layers::graph::planned::PlannedGraph;
use layers::graph::sharding::Sharding;

/// Sizes, in user units.
const SIDE: f64 = 148.0; // of a matrix
const GAP: f64 = 36.0;
const LEFT: f64 = 16.0;
const TOP: f64 = 92.0;
const WIDE: usize = 5; // matrices side by side

/// Ranks in a list that are named one by one.
const NAMED: usize = 8;

/// Returns the picture of these matrices as the text of an SVG file.
pub fn draw(plan: &PlannedGraph, shown: &[(usize, Sharding)]) -> String {
    let ranks: usize = plan.mesh.iter().map(|(_, size)| size).product();
    let axes: Vec<_> = plan.mesh.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
    let rows = shown.len().div_ceil(WIDE);
    let sheet = [LEFT + WIDE as f64 * (SIDE + GAP), TOP + rows as f64 * (SIDE + 2.0 * GAP)];
    let lines = ["a block names the ranks that have it; its colour is that of the first".into()];
    let mut picture = Picture::new(sheet, &format!("Blocks on the mesh {}", axes.join(" x ")), &lines);
    for (n, (tensor, at)) in shown.iter().enumerate() {
        let (x, y) = (LEFT + (n % WIDE) as f64 * (SIDE + GAP), TOP + (n / WIDE) as f64 * (SIDE + 2.0 * GAP));
        let of = &plan.graph.tensors[*tensor];
        picture.text([x, y - 6.0], "start", INK, &format!("{} {}x{}", of.name, of.shape[0], of.shape[1]));
        picture.text([x, y + SIDE + 16.0], "start", MUTED, &plan.blocks(at));
        let [down, across] = at.blocks(&plan.mesh);
        for block in 0..down * across {
            let place = [block / across, block % across];
            let owners: Vec<_> = (0..ranks).filter(|rank| block_of(plan, at, *rank) == place).collect();
            let [height, width] = [SIDE / down as f64, SIDE / across as f64];
            let corner = [x + place[1] as f64 * width, y + place[0] as f64 * height];
            let fill = shade(owners[0] as f64 / ranks as f64, 0.85);
            let names: Vec<_> = owners.iter().take(NAMED).map(usize::to_string).collect();
            let more = if owners.len() > NAMED { ",…" } else { "" };
            let words = format!("{}{more}", names.join(","));
            let fits = width > 7.0 * words.len() as f64 && height > 13.0;
            let edge = format!(
                r#" stroke="{INK}" stroke-width="0.6"><title>ranks {words}</title></rect><rect width="0" height="0""#
            );
            let edge = if fits { r##" stroke="#1f2328" stroke-width="0.6""##.to_string() } else { edge };
            picture.boxed(
                [corner[0], corner[1], width, (height * 100.0).round() / 100.0],
                [&fill, &edge, ""],
                INK,
                if fits { &words } else { "" },
            );
        }
    }
    picture.file()
}

/// Row and column of the block that a rank has.
fn block_of(plan: &PlannedGraph, at: &Sharding, rank: usize) -> [usize; 2] {
    let coordinate = |axis: comm::Axis| {
        let place = plan.mesh.iter().position(|(of, _)| *of == axis).unwrap_or_default();
        let inner: usize = plan.mesh[place + 1..].iter().map(|(_, size)| size).product();
        rank / inner % plan.mesh[place].1
    };
    let blocks = at.blocks(&plan.mesh);
    [0, 1].map(|dim| at.range(dim, blocks[dim], &plan.mesh, &coordinate).start)
}
