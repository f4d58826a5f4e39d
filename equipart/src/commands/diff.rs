//! `diff`: compares two runs' tensors, and both with the truth.
use crate::cli::run::Run;
use crate::views::Views;
use crate::views::view::RECORDS;
use clap::Args;
use parallel::Result;
use run::diff::diff;
use std::path::PathBuf;

/// Help text below the flags.
pub(crate) const CODES: &str = "\
Each of A, B and C is a folder that --dump wrote, a model's folder, or one safetensors file. Tensors are matched by name
(and by file, where there are several). C is the same run in f64: train with the same flags and --dtype f64 --dump C.

With --truth a tensor is equal, within rounding, or a bug; without it, the sizes of the differences are
printed, and no verdict. Exit code: 0 if all is equal or within rounding; 1 if there is a bug or, without --truth, a
difference, or if tensors are missing or have two shapes; 2 for bad input.

--json: an object for every tensor (kind \"tensor\"), for every one that could not be compared (\"unmatched\"), and
a last one (\"summary\"). null in place of a number: infinite, because only one of the two values is finite.";

/// Find whether two runs' tensors differ by rounding or by a bug, and where the first bug is
#[derive(Args, Debug)]
#[command(after_help = CODES)]
pub(crate) struct DiffArgs {
    /// One run: a folder that --dump wrote, a model's folder, or a safetensors file
    #[arg(value_name = "A")]
    a: PathBuf,
    /// Another run
    #[arg(value_name = "B")]
    b: PathBuf,
    /// The same run in f64, the truth that judges both [default: no verdict]
    #[arg(long, value_name = "C")]
    truth: Option<PathBuf>,
    /// List every tensor
    #[arg(long)]
    all: bool,
}

impl Run for DiffArgs {
    const HAS: Option<u8> = Some(RECORDS);

    fn run(self, views: &Views) -> Result<bool> {
        diff(&self.a, &self.b, self.truth.as_deref())?.tell(self.all, views)
    }
}
