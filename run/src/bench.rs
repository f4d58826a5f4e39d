//! Figures of `bench` as records.
use crate::event::{CellValue, RecordColumn, RunRecord, column, hidden};
use crate::records;
use crate::words::digits;
use bench::Figure;
use bench::profile::ProfileLine;
use tensor::quoted::displayed;

impl RunRecord for Figure {
    fn kind(&self) -> &'static str {
        "figure"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        let number = |x: f64| CellValue::Shown(x, digits(x));
        let ratio = |x: f64| CellValue::Shown(x, format!("{x:.2}"));
        let or_none = |cell: Option<CellValue>| cell.unwrap_or(CellValue::None);
        let peer = self.peer.as_ref();
        let of_peer = |key, title: &'static str| column(key, title).hidden_if(peer.is_none());
        let times = |x: f64| CellValue::Shown(x, format!("x{x:.2}"));
        vec![
            (column("name", "figure"), CellValue::word(self.name)),
            (column("value", "value"), number(self.value)),
            (column("unit", "unit"), CellValue::word(self.unit)),
            (column("limit", "limit"), or_none(self.limit.map(number))),
            (column("ratio", "of limit"), or_none(self.ratio.map(ratio))),
            (of_peer("peer", "peer"), or_none(peer.map(|peer| CellValue::Word(displayed(&peer.name))))),
            (of_peer("peer_value", "its value"), or_none(peer.map(|peer| number(peer.value)))),
            (of_peer("peer_ratio", "better"), or_none(peer.map(|peer| times(peer.ratio)))),
            (hidden("processor"), CellValue::word(&self.processor)),
        ]
    }
}

records!(ProfileLine<'_>: "profile");
