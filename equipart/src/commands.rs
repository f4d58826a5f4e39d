//! The commands, one file each: its flags, and what it does with them. `--help` lists them, each with the first line above its flags.
pub(crate) mod profile;

use clap::Subcommand;
use parallel::Result;

/// Flags of a command, with the work that they ask for.
pub(crate) trait Run {
    /// True if its ranks may be processes, one each.
    const BY_PROCESSES: bool = false;

    /// Does it, showing lines of JSON or what people read. False where it compared something, and found a difference.
    ///
    /// # Errors
    /// One sentence on what is wrong.
    fn run(self, json: bool) -> Result<bool>;
}

/// Declares the files, and the list of commands.
macro_rules! commands {
    ($($file:ident::$Args:ident as $Command:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// A command and its flags.
        #[derive(Subcommand, Debug)]
        #[allow(clippy::large_enum_variant)] // there is one
        pub(crate) enum Command {
            $($Command($file::$Args)),*
        }

        impl Command {
            /// Does what it is asked.
            pub(crate) fn run(self, json: bool) -> Result<bool> {
                match self {
                    $(Self::$Command(flags) => flags.run(json)),*
                }
            }
            /// True if its ranks may be processes.
            pub(crate) fn is_by_processes(&self) -> bool {
                match self {
                    $(Self::$Command(_) => <$file::$Args as Run>::BY_PROCESSES),*
                }
            }
        }

        /// The names of commands whose ranks may be processes.
        pub(crate) fn by_processes() -> Vec<&'static str> {
            let all = [$((stringify!($file), <$file::$Args as Run>::BY_PROCESSES)),*];
            all.into_iter().filter_map(|(name, is)| is.then_some(name)).collect()
        }
    };
}

commands! {
    compare::CompareArgs as Compare,
    train::TrainArgs as Train,
    generate::GenerateArgs as Generate,
    prove::ProveArgs as Prove,
    price::PriceArgs as Price,
    eval::EvalArgs as Eval,
    convert::ConvertArgs as Convert,
    diff::DiffArgs as Diff,
    collectives::CollectivesArgs as Collectives,
    schedule::ScheduleArgs as Schedule,
    devices::DevicesArgs as Devices,
    gpu_check::GpuCheckArgs as GpuCheck,
    strategies::StrategiesArgs as Strategies,
    bench::BenchArgs as Bench,
    completions::CompletionsArgs as Completions,
    man::ManArgs as Man,
}
