//! Flags.
mod network;
mod ranked;
mod ranks;

pub(crate) use network::{NetworkArgs, link, patience};
pub(crate) use ranked::RankedArgs;
pub(crate) use ranks::{
    OffloadArgs, RanksArgs, TableArgs, microbatches, note, note_inference, offloads_on, size, table,
};

use clap::Args;
use clap::builder::{OsStringValueParser, PossibleValue, PossibleValuesParser, TypedValueParser};
use layers::OptimizerKind;
use ops::OPTIMIZERS;
use parallel::dtype::DtypeName;
use run::device::DeviceName;
use std::ffi::OsString;
use std::path::{PathBuf, is_separator};

/// Parser of dtype names.
pub(crate) fn dtype() -> impl TypedValueParser<Value = DtypeName> {
    named(DtypeName::ALL.iter().map(|&(number, about)| (number.name(), about, number)))
}

/// Parser of optimizers' names; constants have their usual values.
pub(crate) fn optimizer() -> impl TypedValueParser<Value = OptimizerKind> {
    named(OPTIMIZERS.iter().map(|info| (info.name, info.about, OptimizerKind::usual(info))))
}

/// Parser of devices' names.
pub(crate) fn device() -> impl TypedValueParser<Value = DeviceName> {
    named(DeviceName::ALL)
}

/// The help of `--device`.
pub(crate) const DEVICE: &str = "Device of the run: cpu, or cuda: one GPU a rank if there are enough and NCCL is found, \
    else the first for all ranks";

/// Flags of dtype and device.
#[derive(Args, Debug, Default)]
pub(crate) struct DtypeArgs {
    /// Dtype of the run: f32, bf16 or f16 with sums in f32, or f64
    #[arg(long = "dtype", alias = "number", default_value_t, value_name = "DTYPE", value_parser = dtype())]
    pub(crate) name: DtypeName,
    #[arg(long, default_value_t, value_name = "DEVICE", value_parser = device(), help = DEVICE)]
    pub(crate) device: DeviceName,
}

/// Parser of the names of a list; each name has its help text.
pub(crate) fn named<T: Copy + Send + Sync + 'static>(
    all: impl IntoIterator<Item = (&'static str, &'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let choices: Vec<_> = all.into_iter().collect();
    let names: Vec<_> = choices.iter().map(|(name, about, _)| PossibleValue::new(name).help(about)).collect();
    let value = move |given: String| choices.iter().find(|(name, ..)| given == *name).copied();
    PossibleValuesParser::new(names).map(move |name| value(name).expect("a name of the list").2)
}

/// A model, given by its name or its folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelName {
    /// The default model, embedded in the program.
    Embedded,
    /// The embedded model with experts.
    Moe,
    /// A plain classifier of digits.
    Mlp,
    /// A model in files.
    Folder(PathBuf),
}

/// All names. A folder with one of these names is written with `./` in front.
const NAMES: [(&str, ModelName); 3] =
    [("embedded", ModelName::Embedded), ("moe", ModelName::Moe), ("mlp", ModelName::Mlp)];

impl ModelName {
    /// Returns the name as it is given.
    pub(crate) fn given(&self) -> OsString {
        if let Self::Folder(folder) = self {
            return folder.into();
        }
        NAMES.iter().find(|(_, model)| model == self).expect("all others have names").0.into()
    }
    /// Parser of the value of `--model`.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        OsStringValueParser::new().try_map(Self::read)
    }
    fn read(given: OsString) -> Result<Self, String> {
        if let Some((_, model)) = NAMES.into_iter().find(|(name, _)| given == *name) {
            return Ok(model);
        }
        let folder = PathBuf::from(given);
        if folder.to_string_lossy().contains(is_separator) || folder.exists() {
            return Ok(Self::Folder(folder));
        }
        let ([first, second, third], folder) = (NAMES.map(|(name, _)| name), folder.display());
        Err(format!(
            "no folder and no model has this name; the models are {first}, {second} and {third}; write a folder that \
             does not exist yet as ./{folder}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a name read as a folder, a folder read as a name, a mistyped name refused without the list of
    /// names.
    #[test]
    fn names_are_those_of_the_list_and_all_else_is_a_folder() {
        let read = |text: &str| ModelName::read(text.into());
        let folder = |path: &str| Ok(ModelName::Folder(path.into()));
        assert_eq!((read("embedded"), read("mlp")), (Ok(ModelName::Embedded), Ok(ModelName::Mlp)));
        assert_eq!((read("moe"), read("./moe")), (Ok(ModelName::Moe), folder("./moe")));
        assert_eq!(
            (read("./mlp"), read("no/where"), read("src")),
            (folder("./mlp"), folder("no/where"), folder("src"))
        );
        let why = read("mpl").unwrap_err();
        assert!(
            why.contains("no folder and no model has this name; the models are embedded, moe and mlp"),
            "{why}"
        );
    }
}
