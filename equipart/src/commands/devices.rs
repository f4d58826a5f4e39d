//! `devices`: lists the devices of this machine, and why others are missing.
use crate::cli::run::Run;
use crate::views::Views;
use clap::Args;
use cuda::{Card, CardProperties, Nccl};
use run::records;
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
    /// Variables that choose and order the devices.
    Set(String),
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

/// Variables by which the CUDA driver chooses and orders its GPUs.
const VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

/// Lists all devices.
pub fn all() -> Vec<DeviceEntry> {
    let cores = available_parallelism().map_or(1, usize::from);
    let mut entries = vec![DeviceEntry { device: "cpu", found: Found::Here(format!("{cores} cores")) }];
    let count = Card::count().map_err(|error| error.to_string());
    let set = VARIABLES.map(|name| std::env::var_os(name).map(|value| (name, value)));
    let set = set.iter().flatten().map(|(name, value)| format!("{name}={:?}", value.to_string_lossy()));
    let set = Some(set.collect::<Vec<_>>().join(", ")).filter(|set| !set.is_empty());
    let cards = set.map(Found::Set).into_iter().chain(match count {
        Ok(count) => (0..count).map(card).chain(cut(count)).collect(),
        Err(why) => vec![Found::Missing(why)],
    });
    entries.extend(cards.map(|found| DeviceEntry { device: "cuda", found }));
    let nccl = match Nccl::get() {
        Ok(Nccl { version, library, .. }) => Found::Here(format!("NCCL {version} ({library})")),
        Err(why) => Found::Missing(why),
    };
    entries.push(DeviceEntry { device: "nccl", found: nccl });
    entries
}

/// Reports GPUs that are listed as visible, and of which the driver takes only the first `count`.
fn cut(count: usize) -> Option<Found> {
    let list = std::env::var(VARIABLES[0]).ok()?;
    let listed = list.split(',').count();
    (listed > count).then(|| {
        Found::Missing(format!(
            "of the {listed} GPUs in CUDA_VISIBLE_DEVICES={list:?}, the driver takes those before the first that it \
             does not find: {count}"
        ))
    })
}

/// Describes a GPU; ranks that are processes take it by [`cuda::take`].
fn card(ordinal: usize) -> Found {
    match Card::open(ordinal) {
        Err(error) => Found::Missing(error.to_string()),
        Ok(card) => {
            let CardProperties { name, bus, capability: (major, minor), processors, cuda, library, memory } =
                &card.about;
            let [free, total] = memory.map(|bytes| tensor::readable(bytes as u128));
            let (version, point) = cuda;
            Found::Here(format!(
                "GPU {ordinal}: {name}, compute capability {major}.{minor}, {processors} multiprocessors, {free} of {total} free, \
                 CUDA {version}.{point} ({library}), PCI {bus}, for local rank {ordinal}"
            ))
        }
    }
}

/// List the devices of this machine, and why others are missing
#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {}

records!(DeviceEntry: "device");

impl Run for DevicesArgs {
    /// Nothing is compared, so nothing differs.
    fn run(self, views: &Views) -> parallel::Result<bool> {
        let entries = all();
        views.records(&entries)?;
        for DeviceEntry { device, found } in &entries {
            match found {
                Found::Here(what) | Found::Set(what) => views.say(&format!("{device:5} {what}"))?,
                Found::Missing(why) => views.say(&format!("{device:5} none: {why}"))?,
            }
        }
        if let Ok(count) = Card::count() {
            views.say(&format!(
                "Ranks that are processes take these GPUs in turn, local rank {count} GPU 0 again. With more ranks \
                 than GPUs, data goes by\nhost and TCP, and EQUIPART_ENGINE=nccl is refused. Ranks that are threads \
                 then share GPU 0."
            ))?;
        }
        Ok(true)
    }
}
