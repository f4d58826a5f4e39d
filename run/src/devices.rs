//! The devices of this machine, and why others are missing.
use crate::event::Observer;
use crate::records;
use cuda::{Card, CardProperties, Nccl};
use parallel::Result;
use serde::Serialize;
use std::env::{var, var_os};
use std::thread::available_parallelism;

/// Tells the devices.
///
/// # Errors
/// If the observer fails.
pub fn tell(observer: &Observer) -> Result<()> {
    let cores = available_parallelism().map_or(1, usize::from);
    let set = |name: &&str| Some(format!("{name}={:?}", var_os(name)?.to_string_lossy()));
    let set: Vec<_> = VARIABLES.iter().filter_map(set).collect();
    let set = (!set.is_empty()).then(|| Found::Set(set.join(", ")));
    let count = Card::count();
    let cards = match &count {
        Ok(count) => (0..*count).map(card).chain(cut(*count)).collect(),
        Err(why) => vec![Found::Missing(why.to_string())],
    };
    let nccl = match Nccl::get() {
        Ok(Nccl { version, library, .. }) => Found::Here(format!("NCCL {version} ({library})")),
        Err(why) => Found::Missing(why),
    };
    let entry = |device| move |found| DeviceEntry { device, found };
    let cpu = entry("cpu")(Found::Here(format!("{cores} cores")));
    let cards = set.into_iter().chain(cards).map(entry("cuda"));
    let entries: Vec<_> = [cpu].into_iter().chain(cards).chain([entry("nccl")(nccl)]).collect();
    observer.records(&entries)?;
    for DeviceEntry { device, found } in &entries {
        match found {
            Found::Here(what) | Found::Set(what) => observer.say(&format!("{device:5} {what}"))?,
            Found::Missing(why) => observer.say(&format!("{device:5} none: {why}"))?,
        }
    }
    count.map_or(Ok(()), |count| {
        observer.say(&format!(
            "Ranks that are processes take these GPUs in turn, local rank {count} GPU 0 again. With more ranks \
             than GPUs, data goes by\nhost and TCP, and EQUIPART_ENGINE=nccl is refused. Ranks that are threads \
             then share GPU 0."
        ))
    })
}

/// A device, or why there is none of its kind.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Found {
    /// Description of the device.
    Here(String),
    /// Why there is none.
    Missing(String),
    /// Variables that choose and order the devices.
    Set(String),
}

/// One line of the list.
#[derive(Serialize)]
struct DeviceEntry {
    /// Name of the device for `--device`; `nccl` is the library that connects GPUs.
    device: &'static str,
    /// The device, or why it is missing.
    #[serde(flatten)]
    found: Found,
}

/// Variables by which the CUDA driver chooses and orders its GPUs.
const VARIABLES: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"];

/// Reports GPUs that are listed as visible, and of which the driver takes only the first `count`.
fn cut(count: usize) -> Option<Found> {
    let list = var(VARIABLES[0]).ok()?;
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

records!(DeviceEntry: "device");
