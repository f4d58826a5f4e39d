//! Prices for people: a summary, a row for each kind of rank, and the traffic of all ranks.
use super::cost::{Price, RankTraffic};
use super::row::PriceRow;
use crate::event::Observer;
use crate::train::settings::Settings;
use crate::words::amount;
use layers::counted;
use parallel::Result;
use std::collections::BTreeMap;
use tensor::readable;

/// Tells the prices of kinds of ranks.
pub(super) fn tell(rows: &[PriceRow], of: &Settings, observer: &Observer) -> Result<()> {
    let prices: Vec<_> = rows.iter().map(|row| &row.price).collect();
    let layout = prices.first().map_or("none", |p| &p.layout);
    let ranks: usize = prices.iter().map(|p| p.ranks).sum();
    let step = format!(
        "A training step in {} under {layout}, {}: {} in {}.",
        of.number,
        counted(ranks, "rank"),
        counted(of.batch_size, "sequence"),
        counted(of.microbatches, "microbatch"),
    );
    observer.say(&step)?;
    observer.say(&summary(&prices))?;
    let each = if rows.iter().any(|row| row.alike) { "each kind of rank" } else { "each rank" };
    observer.say(&format!("\nPeak memory of {each}, in total and by category, each at its own time:\n"))?;
    observer.table_of(rows)?;
    // summed over ranks, counts may overflow 64 bits
    let mut rank_traffic: Vec<(&RankTraffic, [u128; 3])> = Vec::new();
    for (more, ranks) in prices.iter().flat_map(|p| p.traffic.iter().map(move |more| (more, p.ranks))) {
        let counts = [more.calls, more.payload_bytes, more.wire_bytes].map(|n| n as u128 * ranks as u128);
        match rank_traffic.iter_mut().find(|(s, _)| (s.axis, s.operation) == (more.axis, more.operation)) {
            None => rank_traffic.push((more, counts)),
            Some((_, all)) => all.iter_mut().zip(counts).for_each(|(all, more)| *all += more),
        }
    }
    if rank_traffic.is_empty() {
        return Ok(());
    }
    let cells = |(s, [calls, given, sent]): &(&RankTraffic, [u128; 3])| {
        vec![format!("{} {}", s.axis, s.operation), calls.to_string(), readable(*given), readable(*sent)]
    };
    observer.say("\nTraffic of all ranks:\n")?;
    observer.table(&["call", "calls", "given", "sent"], rank_traffic.iter().map(cells))
}

/// Describes the model, the fullest rank, and the work and the traffic of all ranks.
fn summary(prices: &[&Price]) -> String {
    let sum = |of: &dyn Fn(&Price) -> u128| prices.iter().map(|p| of(p) * p.ranks as u128).sum::<u128>();
    let mut by_axis: BTreeMap<&str, u128> = BTreeMap::new();
    for (more, ranks) in prices.iter().flat_map(|p| p.traffic.iter().map(move |more| (more, p.ranks))) {
        *by_axis.entry(more.axis).or_default() += more.wire_bytes as u128 * ranks as u128;
    }
    let fullest = prices.iter().max_by_key(|p| p.peak_bytes["total"]).expect("a rank");
    let over = |(axis, bytes): (&&str, &u128)| format!("{} over {axis}", readable(*bytes));
    let mut text = format!(
        "The model has {} parameters. The fullest rank, {}, holds {}. All ranks do {} operations and send ",
        amount(fullest.parameters as f64),
        fullest.rank,
        readable(fullest.peak_bytes["total"] as u128),
        amount(sum(&|p| p.flops.into()) as f64),
    );
    let traffic = by_axis.iter().map(over).collect::<Vec<_>>().join(", ");
    text += if traffic.is_empty() { "nothing" } else { &traffic };
    wrapped(&(text + "."))
}

/// Breaks a text into lines of at most 80 columns, between words.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let last = lines.last_mut().expect("one at least");
        if last.len() + word.len() >= 80 {
            lines.push(word.into());
        } else {
            *last += if last.is_empty() { "" } else { " " };
            *last += word;
        }
    }
    lines.join("\n")
}
