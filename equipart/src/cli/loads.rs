//! Loads of experts, for people.
use crate::views::Views;
use layers::counted;
use ops::LayerCounts;
use parallel::Result;

/// Shows the layer with the least even expert load; the JSON of a run has all layers.
pub(crate) fn loads(loads: &LayerCounts, views: &Views) -> Result<()> {
    let ends = |(layer, counts): (_, &[usize])| {
        let share = |count: &usize| 100.0 * *count as f64 / counts.iter().sum::<usize>().max(1) as f64;
        let [least, most] = [counts.iter().min(), counts.iter().max()].map(|count| count.map_or(0.0, share));
        (layer, [least, most, 100.0 / counts.len() as f64])
    };
    let spread = |[least, most, even]: [f64; 3]| (most - least) / even;
    let layers = counted(loads.iter().count(), "layer");
    let widest = loads.iter().map(ends).max_by(|a, b| spread(a.1).total_cmp(&spread(b.1)));
    let Some((layer, [least, most, even])) = widest else { return Ok(()) };
    views.say(&format!(
        "experts of {layer}, the least even of {layers}, each received {least:.1} % to {most:.1} % of the token copies ({even:.1} % is even)"
    ))
}
