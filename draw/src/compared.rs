//! The rows of a comparison as points: speed against memory.
use crate::front::{self, Point};
use parallel::{Result, bail};
use run::compare::{LayoutRow, Workload};

/// Result of another program's `new`, from an unpublished measurement, as ratios to its `standard`: 3.333 of
/// 4.331 GB a device, and 0.38 of the tokens a second.
const ELSEWHERE: Point<'static> =
    Point { name: "another program's (new)", memory: 3.333 / 4.331, speed: 0.38, ours: false };

/// Draws the rows of generation as ratios to `standard`, or to the unsplit model if there is no such row.
///
/// # Errors
/// If nothing was generated.
pub fn draw(rows: &[LayoutRow]) -> Result<String> {
    let rows: Vec<_> = rows.iter().filter(|row| row.workload == Workload::Inference).collect();
    let standard = rows.iter().find(|row| row.name == "standard");
    let Some(by) = standard.or(rows.first()) else {
        bail!("--svg draws generation, but this model generates no text; leave --svg out");
    };
    let point = |row: &&LayoutRow| {
        (row.name.clone(), row.most_bytes() / by.most_bytes(), row.rate.number() / by.rate.number())
    };
    let points: Vec<_> = rows.iter().map(point).collect();
    let ours =
        points.iter().map(|(name, memory, speed)| Point { name, memory: *memory, speed: *speed, ours: true });
    let points: Vec<_> = ours.chain(standard.map(|_| ELSEWHERE)).collect();
    let held = tensor::readable(by.most_bytes() as u128);
    let lines = [
        format!("measured by {}: {:.0} token/s in {held}", by.name, by.rate.number()),
        "blue: no other is as fast in as little memory; hollow: a figure from elsewhere".into(),
    ];
    Ok(front::draw(&points, &by.name, "Tokens a second against memory", &lines))
}
