//! Records of training: steps and epochs.
use super::epochs::EpochLine;
use super::run::StepLine;
use crate::event::{CellValue, Curve, RecordColumn, RunEvent, RunRecord, column};
use crate::words::speed;
use parallel::Result;
use std::any::Any;
use tensor::readable;

/// Makes an observer of the steps of a training run, and of nothing else.
pub fn of_steps(see: impl Fn(&StepLine) -> Result<()> + Sync) -> impl Fn(&RunEvent) -> Result<()> + Sync {
    move |event| match event {
        RunEvent::Record(record) => record.as_any().and_then(<dyn Any>::downcast_ref).map_or(Ok(()), &see),
        _ => Ok(()),
    }
}

impl RunRecord for StepLine {
    fn kind(&self) -> &'static str {
        "step"
    }
    fn is_step(&self) -> bool {
        true
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        use Curve::{FromLowest, FromZero, Measured};
        let peak = self.peak_bytes.iter().max().map_or(CellValue::None, |bytes| CellValue::Count(*bytes));
        let accuracy = CellValue::of(self.accuracy.map(|right| 100.0 * right));
        let speed = CellValue::Number(self.tokens_per_second);
        vec![
            (column("step", "step"), CellValue::Count(self.step)),
            (column("loss", "loss").drawn(FromLowest, "loss, nats"), CellValue::Number(self.loss)),
            (
                column("held_out_bits_per_byte", "held out").drawn(FromLowest, "held-out text, bits a byte"),
                CellValue::of(self.held_out_bits_per_byte),
            ),
            (column("accuracy", "accuracy").drawn(FromLowest, "test accuracy, %"), accuracy),
            (column("lr", "lr").drawn(FromZero, "learning rate"), CellValue::Number(self.lr)),
            (
                column("loss_scale", "loss scale").drawn(FromZero, "loss scale"),
                CellValue::of(self.loss_scale),
            ),
            (column("tokens_per_second", "token/s").drawn(Measured, "speed, tokens a second"), speed),
            (column("peak_bytes", "holds"), peak),
            (column("skipped", "skipped"), CellValue::Count(usize::from(self.skipped))),
        ]
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
    fn is_detail(&self) -> bool {
        self.of_pictures
    }
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl RunRecord for EpochLine {
    fn kind(&self) -> &'static str {
        "epoch"
    }
    fn cells(&self) -> Vec<(RecordColumn, CellValue)> {
        use Curve::{FromLowest, Measured};
        let Self { epoch, loss, accuracy, seconds, examples_per_second } = *self;
        let shown = |number, words| CellValue::Shown(number, words);
        let speed = column("examples_per_second", "pictures/s").drawn(Measured, "speed, pictures a second");
        let right = shown(100.0 * accuracy, format!("{:.2} %", 100.0 * accuracy));
        vec![
            (column("epoch", "epoch"), CellValue::Count(epoch)),
            (column("loss", "loss").drawn(FromLowest, "loss, nats"), shown(loss, format!("{loss:.4}"))),
            (column("accuracy", "accuracy").drawn(FromLowest, "test accuracy, %"), right),
            (
                column("seconds", "seconds").drawn(Measured, "time, s"),
                shown(seconds, format!("{seconds:.2}")),
            ),
            (speed, shown(examples_per_second, format!("{examples_per_second:.0}"))),
        ]
    }
    fn words(&self) -> String {
        self.to_string()
    }
}
