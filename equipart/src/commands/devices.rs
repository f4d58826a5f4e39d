//! `devices`: lists the devices of this machine, and why others are missing.
use super::Run;
use crate::cli::{out, show};
use clap::Args;
use cuda::{Card, CardProperties, Nccl};
use serde::Serialize;
use std::thread::available_parallelism;

/// A device, or why there is none of its kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Found {
    /// Description of the device.
    Here(String),
    /// Why there is none.
    Missing(String),
}

/// One line of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceEntry {
    /// Name of the device for `--device`; `nccl` is the library that connects GPUs.
    pub device: &'static str,
    /// The device, or why it is missing.
    #[serde(flatten)]
    pub found: Found,
}

/// Lists all devices.
pub fn all() -> Vec<DeviceEntry> {
    let cores = available_parallelism().map_or(1, usize::from);
    let mut entries = vec![DeviceEntry { device: "cpu", found: Found::Here(format!("{cores} cores")) }];
    let count = Card::count().map_err(|error| error.to_string());
    let cards = match count {
        Ok(count) => (0..count).map(card).collect(),
        Err(why) => vec![Found::Missing(why)],
    };
    entries.extend(cards.into_iter().map(|found| DeviceEntry { device: "cuda", found }));
    let nccl = match Nccl::get() {
        Ok(Nccl { version, library, .. }) => Found::Here(format!("NCCL {version} ({library})")),
        Err(why) => Found::Missing(why),
    };
    entries.push(DeviceEntry { device: "nccl", found: nccl });
    entries
}

fn card(ordinal: usize) -> Found {
    match Card::open(ordinal) {
        Err(error) => Found::Missing(error.to_string()),
        Ok(card) => {
            let CardProperties { name, capability: (major, minor), processors, cuda, library, memory } =
                &card.about;
            let [free, total] = memory.map(|bytes| comm::readable(bytes as u128));
            let (version, point) = cuda;
            Found::Here(format!(
                "GPU {ordinal}: {name}, compute capability {major}.{minor}, {processors} multiprocessors, {free} of {total} free, \
                 CUDA {version}.{point} ({library})"
            ))
        }
    }
}

/// List the devices of this machine, and why others are missing
#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {}

impl Run for DevicesArgs {
    /// Nothing is compared, so nothing differs.
    fn run(self, json: bool) -> parallel::Result<bool> {
        let entries = all();
        show::all(json, &entries, || {
            for DeviceEntry { device, found } in &entries {
                match found {
                    Found::Here(what) => out::line(&format!("{device:5} {what}")),
                    Found::Missing(why) => out::line(&format!("{device:5} none: {why}")),
                }
            }
        });
        Ok(true)
    }
}
