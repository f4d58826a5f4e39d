//! Devices: the host or a GPU. The one place where a device is chosen.
use comm::Processes;
use cuda::{Card, CardEngine};
use parallel::{Error, Result};
use serde::Serialize;
use std::sync::Arc;

/// The device a program computes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceName {
    /// The host.
    #[default]
    Cpu,
    /// GPUs: one a rank, or the first for all.
    Cuda,
}

impl DeviceName {
    /// Every device, by name and with a description.
    pub const ALL: [(&'static str, &'static str, Self); 2] = [
        ("cpu", "the cores of this machine", Self::Cpu),
        ("cuda", "its GPUs: one a rank, with NCCL, or the first for all ranks", Self::Cuda),
    ];
    /// Checks that the device exists and can run `ranks` ranks; `note` receives how several ranks use it.
    /// Returns the engine that joins the ranks, if they are on GPUs.
    ///
    /// # Errors
    /// If something is missing.
    pub fn open(self, ranks: usize, note: &dyn Fn(&str)) -> Result<Option<CardEngine>> {
        if self == Self::Cpu {
            return Ok(None);
        }
        first_card()?;
        let (engine, why) = CardEngine::of(ranks).map_err(refused)?;
        why.inspect(|why| note(&format!("note: {why}")));
        Ok(Some(engine))
    }
}

/// Returns the first card, or the card of this process if it is one rank; each card is opened once.
///
/// # Errors
/// If there is none.
pub fn first_card() -> Result<Arc<Card>> {
    let launch = Processes::launch().map_err(Error::new)?;
    launch.map_or(Ok(0), |launch| cuda::take(launch.local, launch.here)).and_then(Card::open).map_err(refused)
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(Self::ALL[*self as usize].0)
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::new(format!("--device cuda: {why}"))
}

/// `in_device!((device, number), D => work)`: evaluates `work`, a result, with `D` as the device type of this
/// name and dtype.
#[macro_export]
macro_rules! in_device {
    (($device:expr, $number:expr), $d:ident => $work:expr) => {
        match ($device, $number) {
            ($crate::device::DeviceName::Cpu, number) => parallel::with_dtype!(number, $d => $work),
            ($crate::device::DeviceName::Cuda, parallel::dtype::DtypeName::F32) => {
                type $d = cuda::Cuda<f32>;
                $work
            }
            ($crate::device::DeviceName::Cuda, parallel::dtype::DtypeName::Bf16) => {
                type $d = cuda::Cuda<tensor::Bf16>;
                $work
            }
            ($crate::device::DeviceName::Cuda, other) => {
                let why = format!("--device cuda does not support {other}; it supports f32 and bf16");
                Err(parallel::Error::new(why))
            }
        }
    };
}
