//! Records of training: steps and epochs.
use super::StepLine;
use super::epochs::EpochLine;
use crate::event::{CellValue, Curve, RecordColumn, RunEvent, RunRecord, speed};
use comm::readable;
use parallel::Result;
use std::any::Any;

const fn column(
    key: &'static str,
    title: &'static str,
    unit: &'static str,
    curve: Option<Curve>,
) -> RecordColumn {
    RecordColumn { key, title, unit, curve }
}

/// Makes an observer of the steps of a training run, and of nothing else.
pub fn of_steps(see: impl Fn(&StepLine) -> Result<()> + Sync) -> impl Fn(&RunEvent) -> Result<()> + Sync {
    move |event| match event {
        RunEvent::Record(record) => (*record as &dyn Any).downcast_ref().map_or(Ok(()), &see),
        RunEvent::Progress { .. } | RunEvent::Note(_) => Ok(()),
    }
}

impl RunRecord for StepLine {
    fn kind(&self) -> &'static str {
        "step"
    }
    fn columns(&self) -> &'static [RecordColumn] {
        use Curve::{FromLowest, FromZero};
        const COLUMNS: [RecordColumn; 9] = [
            column("step", "step", "", None),
            column("loss", "loss", "nats", Some(FromLowest)),
            column("held_out_bits_per_byte", "held-out text", "bits a byte", Some(FromLowest)),
            column("accuracy", "test accuracy", "%", Some(FromLowest)),
            column("lr", "learning rate", "", Some(FromZero)),
            column("loss_scale", "loss scale", "", Some(FromZero)),
            column("tokens_per_second", "speed", "tokens a second", Some(FromZero)),
            column("peak_bytes", "peak of the fullest rank", "bytes", None),
            column("skipped", "skipped", "", None),
        ];
        &COLUMNS
    }
    fn cells(&self) -> Vec<CellValue> {
        vec![
            CellValue::Count(self.step),
            CellValue::Number(self.loss),
            CellValue::of(self.held_out_bits_per_byte),
            CellValue::of(self.accuracy.map(|right| 100.0 * right)),
            CellValue::Number(self.lr),
            CellValue::of(self.loss_scale),
            CellValue::Number(self.tokens_per_second),
            self.peak_bytes.iter().max().map_or(CellValue::None, |bytes| CellValue::Count(*bytes)),
            CellValue::Count(usize::from(self.skipped)),
        ]
    }
    fn json(&self) -> String {
        serde_json::to_string(self).expect("plain values")
    }
    fn words(&self) -> String {
        let memory = readable(self.peak_bytes.iter().max().copied().unwrap_or(0) as u128);
        let held_out = self.held_out_bits_per_byte.map(|bits| format!(", held out {bits:.3}"));
        let held_out = held_out.unwrap_or_default();
        let scale = self.loss_scale.map(|scale| format!(", loss scale {scale}")).unwrap_or_default();
        let skipped = if self.skipped { " (skipped, as gradients overflow)" } else { "" };
        let (loss, lr, speed) = (self.loss, self.lr, speed(self.tokens_per_second));
        format!("loss {loss:.4}{held_out}, lr {lr:.1e}{scale}{skipped}, {speed} token/s, {memory}")
    }
    fn is_notable(&self) -> bool {
        self.held_out_bits_per_byte.is_some() || self.skipped
    }
}

impl RunRecord for EpochLine {
    fn kind(&self) -> &'static str {
        "epoch"
    }
    fn columns(&self) -> &'static [RecordColumn] {
        use Curve::{FromLowest, FromZero};
        const COLUMNS: [RecordColumn; 5] = [
            column("epoch", "epoch", "", None),
            column("loss", "loss", "nats", Some(FromLowest)),
            column("accuracy", "test accuracy", "%", Some(FromLowest)),
            column("seconds", "time", "s", Some(FromZero)),
            column("examples_per_second", "speed", "pictures a second", Some(FromZero)),
        ];
        &COLUMNS
    }
    fn cells(&self) -> Vec<CellValue> {
        let Self { epoch, loss, accuracy, seconds, examples_per_second } = *self;
        let numbers = [loss, 100.0 * accuracy, seconds, examples_per_second];
        std::iter::once(CellValue::Count(epoch)).chain(numbers.map(CellValue::Number)).collect()
    }
    fn json(&self) -> String {
        serde_json::to_string(self).expect("plain values")
    }
    fn words(&self) -> String {
        self.to_string()
    }
}
