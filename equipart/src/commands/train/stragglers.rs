//! Report on stragglers, for people and for scripts.
use crate::cli::{out, show};
use comm::RankWaits;
use run::train::stragglers::Straggler;

/// Prints the ranks, and the longest wait for the first of them.
pub(crate) fn tell(all: &[Straggler], json: bool) {
    if json {
        return show::json(&serde_json::json!({ "stragglers": all }));
    }
    let ms = |wait: &RankWaits| format!("{:.1} ms", 1e3 * wait.longest_seconds);
    let cells = |of: &Straggler| {
        let [others, own] = [of.seconds, of.own_seconds].map(|seconds| format!("{seconds:.3} s"));
        let longest = of.longest.as_ref().map_or("-".into(), ms);
        vec![of.rank.to_string(), of.waits.to_string(), others, longest, own]
    };
    let head = ["rank", "waits for it", "others waited", "longest", "it waited"];
    out::line(&format!("{}", show::table(&head, all.iter().map(cells))));
    if let Some(longest) = all.first().and_then(|of| of.longest.as_ref()) {
        let RankWaits { rank, on, longest_call, .. } = longest;
        out::line(&format!("longest for rank {on}: rank {rank} waited {} in {longest_call}", ms(longest)));
    }
}
