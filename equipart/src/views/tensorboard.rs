//! Events of `TensorBoard`: each value of a column with a curve is a scalar at its step. A folder may have
//! the files of several runs, and of a run that was resumed.
//!
//! A file is a list of records: length, checksum, event, checksum. An event is a message of protocol buffers
//! (`tensorboard/compat/proto/{event,summary}.proto`); the record is that of `TFRecord`.
use super::view::{CURVES, RunView, ViewInfo, appended, of_records};
use crc::{CRC_32_ISCSI, Crc};
use parallel::{Error, Result};
use prost::Message;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The view and its flag.
pub static TENSORBOARD: ViewInfo = ViewInfo {
    flag: "tensorboard",
    value: "DIR",
    help: "Write loss, learning rate and speed of the steps to a file in this folder, for TensorBoard",
    needs: CURVES,
    open: |folder, context| Ok(Box::new(view(folder, context.without)?)),
};

/// An event: the file's version, or the scalars of a step.
#[derive(Clone, PartialEq, Message)]
struct EventMessage {
    #[prost(double, tag = "1")]
    wall_time: f64,
    #[prost(int64, tag = "2")]
    step: i64,
    #[prost(string, optional, tag = "3")]
    file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    summary: Option<SummaryMessage>,
}

/// Scalars of a step.
#[derive(Clone, PartialEq, Message)]
struct SummaryMessage {
    #[prost(message, repeated, tag = "1")]
    value: Vec<ScalarMessage>,
}

/// A scalar and its name.
#[derive(Clone, PartialEq, Message)]
struct ScalarMessage {
    #[prost(string, tag = "1")]
    tag: String,
    #[prost(float, optional, tag = "2")]
    simple_value: Option<f32>,
}

/// Begins a file in a folder, which is made if there is none.
fn view(folder: &Path, without: &'static str) -> Result<impl RunView + use<>> {
    let cannot = |why| Error::new(format!("{} cannot be made a folder: {why}", folder.display()));
    fs::create_dir_all(folder).map_err(cannot)?;
    let (now, process) = (since_epoch(), std::process::id());
    let path = folder.join(format!("events.out.tfevents.{now:.6}.equipart.{process}"));
    let version =
        EventMessage { wall_time: now, file_version: Some("brain.Event:2".into()), ..Default::default() };
    let mut append = appended(&path, &framed(&version))?;
    Ok(of_records(move |record| {
        if record.kind() == without {
            return Ok(());
        }
        let drawn = record.cells().into_iter().filter(|(column, _)| column.curve.is_some());
        let numbers = drawn.filter_map(|(column, cell)| Some((column.key, cell.number()? as f32)));
        let scalar = |(key, value)| ScalarMessage {
            tag: format!("{}/{key}", record.kind()),
            simple_value: Some(value),
        };
        let value: Vec<_> = numbers.map(scalar).collect();
        if value.is_empty() {
            return Ok(());
        }
        let (wall_time, step) = (since_epoch(), record.number() as i64);
        append(&framed(&EventMessage {
            wall_time,
            step,
            summary: Some(SummaryMessage { value }),
            file_version: None,
        }))
    }))
}

fn since_epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns an event with its length and their checksums.
fn framed(event: &EventMessage) -> Vec<u8> {
    let event = event.encode_to_vec();
    let length = (event.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), &event, &checksum(&event)].concat()
}

/// The checksum of `TFRecord`: a CRC-32C, rotated and shifted, so that one of a checksum is no special case.
fn checksum(bytes: &[u8]) -> [u8; 4] {
    const SHIFT: u32 = 0xa282_ead8;
    let sum = Crc::<u32>::new(&CRC_32_ISCSI).checksum(bytes);
    sum.rotate_right(15).wrapping_add(SHIFT).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use run::event::RunEvent;
    use run::train::StepLine;

    /// Kills: another polynomial, another rotation, a length or a tag of another width.
    #[test]
    fn a_file_begins_as_those_of_tensorboard() {
        let version =
            EventMessage { wall_time: 1.5, file_version: Some("brain.Event:2".into()), ..Default::default() };
        let bytes = framed(&version);
        let event = [&b"\x09\0\0\0\0\0\0\xf8\x3f\x1a\x0d"[..], b"brain.Event:2"].concat();
        assert_eq!((&bytes[..8], &bytes[12..36]), (&[24, 0, 0, 0, 0, 0, 0, 0][..], &event[..]));
        // known values of CRC-32C: of "123456789" it is e3069283
        assert_eq!(
            checksum(b"123456789"),
            (0xe306_9283_u32.rotate_right(15).wrapping_add(0xa282_ead8)).to_le_bytes()
        );
        assert_eq!(bytes[36..], checksum(&event));
    }

    /// Kills: another step, a value of another column, a name without its kind, an event of a record without
    /// curves, half an event.
    #[test]
    fn each_curve_is_a_scalar_at_its_step() {
        let folder = tempfile::tempdir().unwrap();
        let mut view = view(folder.path(), "epoch").unwrap();
        let step = StepLine { step: 7, loss: 2.5, lr: 0.125, tokens_per_second: 64.0, ..StepLine::default() };
        view.see(&RunEvent::Record(&step)).unwrap();
        let file = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap();
        let bytes = fs::read(file.path()).unwrap();
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            events.push(EventMessage::decode(&bytes[at + 12..at + 12 + length]).unwrap());
            at += length + 16;
        }
        assert_eq!((events.len(), events[1].step), (2, 7));
        let values = events[1].summary.as_ref().unwrap().value.iter();
        let values: Vec<_> = values.map(|of| (&*of.tag, of.simple_value.unwrap())).collect();
        assert_eq!(values, [("step/loss", 2.5), ("step/lr", 0.125), ("step/tokens_per_second", 64.0)]);
    }
}
