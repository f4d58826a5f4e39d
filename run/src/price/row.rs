//! Prices as records: one for each kind of rank.
use super::cost::Price;
use super::seconds::MachineTime;
use crate::event::{CellValue, RecordColumn, RunRecord, column};
use serde::Serialize;
use tensor::Category;

/// A price, and the time of the step if it is known.
#[derive(Serialize)]
pub struct PriceRow {
    /// The price.
    #[serde(flatten)]
    pub price: Price,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<MachineTime>,
    /// True if some ranks are alike, so that each row is of a kind.
    #[serde(skip)]
    pub(super) alike: bool,
}

impl PriceRow {
    /// The rows of a step's prices.
    #[must_use]
    pub fn all(prices: Vec<Price>, time: Option<&MachineTime>) -> Vec<Self> {
        let alike = prices.iter().any(|price| price.ranks > 1);
        prices.into_iter().map(|price| Self { price, time: time.cloned(), alike }).collect()
    }
}

impl RunRecord for PriceRow {
    fn kind(&self) -> &'static str {
        "price"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let price = &self.price;
        let bytes = |bytes| CellValue::bytes(bytes);
        let first = if self.alike { "first rank" } else { "rank" };
        let mut cells = vec![
            (column("rank", first), CellValue::Count(price.rank)),
            (column("ranks", "ranks").hidden_if(!self.alike), CellValue::Count(price.ranks)),
        ];
        for name in Category::ALL.iter().map(|category| category.name()).chain(["total"]) {
            let held = price.peak_bytes[name];
            cells.push((column(name, name).hidden_if(held == 0 && name != "total"), bytes(held as u128)));
        }
        let is_here = price.away_bytes == 0;
        let gflop = price.flops as f64 / 1e9;
        cells.extend([
            (column("away_bytes", "off device").hidden_if(is_here), bytes(price.away_bytes as u128)),
            (column("moved_bytes", "moves").hidden_if(is_here), bytes(price.moved_bytes.into())),
            (column("gflop", "GFLOP"), CellValue::Shown(gflop, format!("{gflop:.2}"))),
            (column("traffic_bytes", "sends"), bytes(price.traffic_bytes as u128)),
        ]);
        cells
    }
}
