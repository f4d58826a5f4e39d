//! Flags.
mod model;
mod network;
mod ranks;

pub(crate) use model::ModelName;
pub(crate) use network::NetworkArgs;
pub(crate) use network::patience;
pub(crate) use ranks::{RanksArgs, TableArgs, microbatches, note, note_inference, table};

use crate::device::DeviceName;
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use parallel::number::NumberName;

/// Tokens of a sequence where nothing else is said.
pub(crate) const SEQ: usize = 256;

/// Reads the name of a number.
pub(crate) fn number() -> impl TypedValueParser<Value = NumberName> {
    named(NumberName::ALL.map(|(number, about)| (number.name(), about, number)))
}

/// The help of `--device`.
pub(crate) const DEVICE: &str = "Where the run computes: cpu, or cuda: a GPU for each rank where there are as many and NCCL is found, \
    else the first for all";

/// Reads the name of a device.
pub(crate) fn device() -> impl TypedValueParser<Value = DeviceName> {
    named(DeviceName::ALL)
}

/// The flags of numbers, and of what computes with them.
#[derive(Args, Debug, Default)]
pub(crate) struct NumberArgs {
    /// The numbers of the run: f32, bf16 with sums in f32, or f64
    #[arg(long = "number", default_value_t, value_name = "NUMBER", value_parser = number())]
    pub(crate) name: NumberName,
    #[arg(long, default_value_t, value_name = "DEVICE", value_parser = device(), help = DEVICE)]
    pub(crate) device: DeviceName,
}

/// Reads a name of a list, of which each says what it means.
pub(crate) fn named<T: Copy + Send + Sync + 'static, const N: usize>(
    all: [(&'static str, &'static str, T); N],
) -> impl TypedValueParser<Value = T> {
    let names = all.map(|(name, about, _)| PossibleValue::new(name).help(about));
    let value = move |given: String| all.into_iter().find(|(name, ..)| given == *name);
    PossibleValuesParser::new(names).map(move |name| value(name).expect("a name of the list").2)
}
