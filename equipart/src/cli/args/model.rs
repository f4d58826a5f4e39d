//! `--model`: a name out of a list, or a folder.
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::ffi::OsString;
use std::path::{PathBuf, is_separator};

/// A model by its name, or by the folder that it lies in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModelName {
    /// The default, which is part of the program.
    Embedded,
    /// Its sister with experts.
    Moe,
    /// A plain classifier of digits.
    Mlp,
    /// A model in files.
    Folder(PathBuf),
}

/// Every name. A folder that is called so is written with a `/` in front.
const NAMES: [(&str, ModelName); 3] =
    [("embedded", ModelName::Embedded), ("moe", ModelName::Moe), ("mlp", ModelName::Mlp)];

impl ModelName {
    /// Reads what stands behind `--model`.
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
            "there is no such folder, and no model has this name; the names are {first}, {second} and {third}, and a folder that is still to come is written ./{folder}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a name taken for a folder, a folder for a name, a mistyped name that is said to be no folder and no more.
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
        assert!(why.contains("no model has this name; the names are embedded, moe and mlp"), "{why}");
    }
}
