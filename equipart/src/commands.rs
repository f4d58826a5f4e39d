//! The commands, one file each: flags, and the work. `--help` lists the commands, each with the first line of
//! its flags' doc.
use crate::cli::echo::{self, arguments, tell};
use crate::cli::run::{Run, Shown};
use crate::cli::{files, processes};
use crate::terminal::out;
use crate::views::Views;
use clap::{CommandFactory, Parser, Subcommand};
use comm::Processes;
use compare::CompareArgs;
use parallel::{Result, bail};
use std::process::{ExitCode, exit};
use tensor::count::Overflow;
use tensor::quoted::escaped;

/// Help text below the list of commands: hidden commands that few readers need.
const MORE: &str = "`equipart completions SHELL` prints completions for bash, zsh, fish and others; `equipart man` the manual.";

/// Transformers split over devices: run on floats, proven in a finite field, priced by their shapes.
#[derive(Parser, Debug)]
#[command(name = "equipart", version, after_help = MORE)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// One JSON object a line on standard output, for scripts
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Runs the command of the process' arguments. Exit code 1: a comparison found a difference; 2: an error,
/// such as bad input.
pub fn main() -> ExitCode {
    tensor::files::ignore_file_size_signal();
    tensor::files::mapped::end_if_cut();
    tensor::limits::end_by(|why| {
        out::failure(&format!("error: {why}"));
        exit(2)
    });
    let Arguments { command, json } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(why) if why.use_stderr() => {
            let seen: Vec<_> = arguments().iter().map(|argument| escaped(argument)).collect();
            let program = ["equipart".to_string()].into_iter();
            // quotes no control characters
            let why = Arguments::try_parse_from(program.chain(seen.clone())).err().unwrap_or(why);
            let why = echo::displayed(&refusal(&why), &seen);
            let first = why.lines().next().unwrap_or_default().trim_start_matches("error: ");
            processes::tell_once(first, || out::failure(why.trim_end()));
            Processes::finalize();
            return ExitCode::from(2);
        }
        Err(asked) => asked.exit(),
    };
    let compare = || CompareArgs { seconds: compare::SECONDS, ..CompareArgs::default() };
    let command = command.unwrap_or_else(|| Command::Compare(Shown::bare(compare())));
    let apart = files::apart(&Arguments::command().get_matches());
    let run = || apart.and_then(|()| command.run(json));
    let outcome = Overflow::caught(run).unwrap_or_else(|why| Err(why.into()));
    let code = match outcome.and_then(|right| out::finish().map(|()| right)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            processes::tell_once(&error.why, || tell(&error));
            ExitCode::from(2)
        }
    };
    Processes::finalize();
    code
}

/// Words about numbers that are not ours, and words that say which value is wanted.
const NUMBERS: [(&str, &str); 4] = [
    ("invalid digit found in string", "it must be a whole number, 0 or more"),
    ("cannot parse integer from empty string", "it must be a whole number, 0 or more"),
    ("number too large to fit in target type", "it must be at most 18446744073709551615"),
    ("invalid float literal", "it must be a number"),
];

/// Returns the words of a refusal of the command line.
fn refusal(why: &clap::Error) -> String {
    NUMBERS.iter().fold(why.render().to_string(), |words, (theirs, ours)| words.replace(theirs, ours))
}

/// Checks that a command with these arguments can run with one process a rank. Prints its help, if they ask
/// for it.
fn can_be_launched(arguments: &[String]) -> Result<()> {
    match Arguments::try_parse_from(std::iter::once("equipart").chain(arguments.iter().map(String::as_str))) {
        Err(why) if why.use_stderr() => {
            bail!("{}", refusal(&why).trim_start_matches("error: ").lines().next().unwrap_or_default());
        }
        Err(asked) => asked.exit(),
        Ok(Arguments { command, .. }) if !command.as_ref().is_some_and(Command::is_by_processes) => {
            let command = arguments.iter().find(|word| !word.starts_with('-')).map_or("this", String::as_str);
            bail!("{command} runs all its ranks itself; start it without launch")
        }
        Ok(_) => Ok(()),
    }
}

// `completions` and `man` print the arguments of all commands.
impl Run for completions::CompletionsArgs {
    const HAS: Option<u8> = None;

    fn run(self, _: &Views) -> Result<bool> {
        self.print(Arguments::command());
        Ok(true)
    }
}

impl Run for man::ManArgs {
    const HAS: Option<u8> = None;

    fn run(self, _: &Views) -> Result<bool> {
        self.print(Arguments::command())
    }
}

/// Declares the modules and the list of commands.
macro_rules! commands {
    ($($file:ident::$Args:ident as $Command:ident),* $(,)?) => {
        $(pub mod $file;)*

        /// A command and its flags.
        #[derive(Subcommand, Debug)]
        #[allow(clippy::large_enum_variant)] // there is one
        pub(crate) enum Command {
            $($Command(Shown<$file::$Args>)),*
        }

        impl Command {
            /// Returns true if each rank may be a process of its own.
            pub(crate) fn is_by_processes(&self) -> bool {
                match self {
                    $(Self::$Command(_) => <$file::$Args as Run>::BY_PROCESSES),*
                }
            }
            /// Runs the command, after a check that it may run with one process a rank, if a launcher started
            /// several.
            pub(crate) fn run(self, json: bool) -> Result<bool> {
                let all = [$((stringify!($file), <$file::$Args as Run>::BY_PROCESSES)),*];
                let by_processes: Vec<_> = all.into_iter().filter_map(|(name, is)| is.then_some(name)).collect();
                processes::begin(self.is_by_processes(), &by_processes)?;
                if let Self::Launch(Shown { flags, .. }) = &self {
                    can_be_launched(&flags.command)?;
                }
                match self {
                    $(Self::$Command(shown) => shown.run(json)),*
                }
            }
        }
    };
}

commands! {
    compare::CompareArgs as Compare,
    train::TrainArgs as Train,
    generate::GenerateArgs as Generate,
    prove::ProveArgs as Prove,
    price::PriceArgs as Price,
    plan::PlanArgs as Plan,
    shard::ShardArgs as Shard,
    share::ShareArgs as Share,
    sparse::SparseArgs as Sparse,
    machine::MachineArgs as Machine,
    eval::EvalArgs as Eval,
    launch::LaunchArgs as Launch,
    convert::ConvertArgs as Convert,
    diff::DiffArgs as Diff,
    collectives::CollectivesArgs as Collectives,
    schedule::ScheduleArgs as Schedule,
    context::ContextArgs as Context,
    draw::DrawArgs as Draw,
    plot::PlotArgs as Plot,
    devices::DevicesArgs as Devices,
    gpu_check::GpuCheckArgs as GpuCheck,
    strategies::StrategiesArgs as Strategies,
    bench::BenchArgs as Bench,
    completions::CompletionsArgs as Completions,
    man::ManArgs as Man,
}
