//! Report on stragglers, for people and for scripts.
use crate::views::Views;
use comm::RankWaits;
use parallel::Result;
use run::records;
use run::train::stragglers::Straggler;
use serde::Serialize;
use serde_json::{Value, json};

/// How long others waited for each rank.
#[derive(Serialize)]
struct Stragglers(Value);

records!(Stragglers: "stragglers");

/// Shows the ranks, and the longest wait for the first of them.
pub(crate) fn tell(all: &[Straggler], views: &Views) -> Result<()> {
    views.record(&Stragglers(json!({ "stragglers": all })))?;
    let ms = |wait: &RankWaits| format!("{:.1} ms", 1e3 * wait.longest_seconds);
    let cells = |of: &Straggler| {
        let [others, own] = [of.seconds, of.own_seconds].map(|seconds| format!("{seconds:.3} s"));
        let longest = of.longest.as_ref().map_or("-".into(), ms);
        vec![of.rank.to_string(), of.waits.to_string(), others, longest, own]
    };
    views.table(&["rank", "waits for it", "others waited", "longest", "it waited"], all.iter().map(cells))?;
    let Some(longest) = all.first().and_then(|of| of.longest.as_ref()) else { return Ok(()) };
    let RankWaits { rank, on, longest_call, .. } = longest;
    views.say(&format!("longest for rank {on}: rank {rank} waited {} in {longest_call}", ms(longest)))
}
