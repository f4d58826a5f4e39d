//! Events of `TensorBoard`: each value of a column with a curve is a scalar at its step. A folder may have
//! the files of a run that was resumed: each begins with the start of a session at its first step, so that
//! `TensorBoard` drops this step and later ones of older files.
//!
//! A file is a list of records: length, checksum, event, checksum. An event is a message of protocol buffers
//! (`tensorboard/compat/proto/{event,summary}.proto`); the record is that of `TFRecord`.
use super::view::{AppendedFile, CURVES, RecordFile, RunView, ViewInfo};
use crc::{CRC_32_ISCSI, Crc};
use parallel::{Error, Result};
use prost::Message;
use run::event::RunRecord;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The view and its flag.
pub static TENSORBOARD: ViewInfo = ViewInfo {
    flag: "tensorboard",
    value: "DIR",
    help: "Write loss, learning rate and speed of the steps to a file in this folder, for TensorBoard",
    needs: CURVES,
    wants_details: false,
    open: |folder, _| Ok(Box::new(view(folder)?)),
};

/// An event: the file's version, the start of a session, or the scalars of a step.
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
    #[prost(message, optional, tag = "7")]
    session_log: Option<SessionLogMessage>,
}

/// A session's state.
#[derive(Clone, PartialEq, Message)]
struct SessionLogMessage {
    /// 1: it starts.
    #[prost(int32, tag = "1")]
    status: i32,
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

/// Prepares a file in a folder, which is made if there is none.
fn view(folder: &Path) -> Result<impl RunView + use<>> {
    let cannot = |why| Error::new(format!("{} cannot be made a folder: {why}", folder.display()));
    fs::create_dir_all(folder).map_err(cannot)?;
    let old = fs::read_dir(folder).map_err(cannot)?.flatten();
    // a folder with an older file has the steps of earlier runs
    let with_earlier = !old.into_iter().any(|file| file.file_name().to_string_lossy().starts_with(NAME));
    let now = since_epoch();
    let process = std::process::id();
    let mut file = AppendedFile::at(&folder.join(format!("{NAME}.{now:.6}.equipart.{process}")))?;
    file.begin_with(&framed(&EventMessage { file_version: Some("brain.Event:2".into()), ..at_step(0) }));
    let mut has_begun = false;
    let text = move |record: &dyn RunRecord| {
        let shown = (!record.is_detail()).then(|| events(record, !has_begun)).flatten();
        has_begun |= shown.is_some();
        shown.unwrap_or_default()
    };
    Ok(RecordFile { file, with_earlier, text })
}

/// Beginning of the names of files of events.
const NAME: &str = "events.out.tfevents";

/// Returns the events of a record, if it has curves.
fn events(record: &dyn RunRecord, is_start: bool) -> Option<Vec<u8>> {
    let drawn = record.cells().into_iter().filter(|(column, _)| column.curve.is_some());
    let numbers = drawn.filter_map(|(column, cell)| Some((column.key, cell.number()? as f32)));
    let scalar =
        |(key, value)| ScalarMessage { tag: format!("{}/{key}", record.kind()), simple_value: Some(value) };
    let value: Vec<_> = numbers.map(scalar).collect();
    let event = (!value.is_empty()).then(|| at_step(record.number()))?;
    let session_log = is_start.then_some(SessionLogMessage { status: 1 });
    let start = session_log.map(|log| EventMessage { session_log: Some(log), ..event.clone() });
    let scalars = EventMessage { summary: Some(SummaryMessage { value }), ..event };
    Some(start.iter().chain([&scalars]).flat_map(framed).collect())
}

/// Makes an event of a step that says nothing yet.
fn at_step(step: usize) -> EventMessage {
    EventMessage { wall_time: since_epoch(), step: step as i64, ..Default::default() }
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
    Crc::<u32>::new(&CRC_32_ISCSI).checksum(bytes).rotate_right(15).wrapping_add(SHIFT).to_le_bytes()
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

    /// Returns the events of the only file in a folder, after that of its version, and removes it.
    fn taken(folder: &Path) -> Vec<EventMessage> {
        let files: Vec<_> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 1);
        let bytes = fs::read(&files[0]).unwrap();
        fs::remove_file(&files[0]).unwrap();
        let (mut at, mut events) = (0, Vec::new());
        while at < bytes.len() {
            let length = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap()) as usize;
            events.push(EventMessage::decode(&bytes[at + 12..at + 12 + length]).unwrap());
            at += length + 16;
        }
        assert_eq!(events.remove(0).file_version.as_deref(), Some("brain.Event:2"));
        events
    }

    /// Kills: another step, a value of another column, a name without its kind, an event of a record without
    /// curves, half an event; a file that does not drop later steps of older ones, or does so again; earlier
    /// steps that are lost, or repeated where an older file has them.
    #[test]
    fn each_curve_is_a_scalar_at_its_step() {
        let folder = tempfile::tempdir().unwrap();
        let line =
            |step| StepLine { step, loss: 2.5, lr: 0.125, tokens_per_second: 64.0, ..StepLine::default() };
        let mut first = view(folder.path()).unwrap();
        first.earlier(&line(6));
        first.see(&RunEvent::Record(&line(7))).unwrap();
        let events = taken(folder.path());
        assert_eq!(events.iter().map(|event| event.step).collect::<Vec<_>>(), [6, 6, 7]);
        let starts = events.iter().map(|event| event.session_log.is_some());
        assert_eq!(starts.collect::<Vec<_>>(), [true, false, false]);
        fs::write(folder.path().join("events.out.tfevents.1"), "").unwrap();
        let mut second = view(folder.path()).unwrap();
        fs::remove_file(folder.path().join("events.out.tfevents.1")).unwrap();
        second.earlier(&line(6));
        second.see(&RunEvent::Record(&line(7))).unwrap();
        let events = taken(folder.path());
        assert_eq!((events.len(), events[0].session_log.as_ref().unwrap().status, events[0].step), (2, 1, 7));
        let values = events[1].summary.as_ref().unwrap().value.iter();
        let values: Vec<_> = values.map(|of| (&*of.tag, of.simple_value.unwrap())).collect();
        assert_eq!(values, [("step/loss", 2.5), ("step/lr", 0.125), ("step/tokens_per_second", 64.0)]);
    }
}
