//! One case: a layout, a kind of model, a dtype and an optimizer; its commands, and which of them refuse it.
use super::Table;
use super::kind::{Kind, Models};
use crate::child::{binary, output};
use layers::OptimizerKind;
use parallel::Layout;
use parallel::dtype::DtypeName;
use std::fmt;
use std::path::PathBuf;
use std::process::Output;

/// One entry of every list.
#[derive(Clone, Copy)]
pub(crate) struct Case<'a> {
    pub(crate) models: &'a Models,
    pub(crate) layout: Layout,
    pub(crate) kind: Kind,
    pub(crate) number: DtypeName,
    pub(crate) optimizer: OptimizerKind,
}

impl fmt::Display for Case<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layout, kind, number, optimizer, .. } = self;
        write!(to, "{kind:?} under {layout} in {} by {}", number.name(), optimizer.name())
    }
}

impl Case<'_> {
    /// This case under another layout and in another dtype.
    pub(crate) fn unsplit(&self, number: DtypeName) -> Self {
        Self { layout: Layout::UNSPLIT, number, ..*self }
    }
    /// A path of its own.
    pub(crate) fn path(&self, what: &str) -> PathBuf {
        self.models.path(&format!("{self} {what}").replace([' ', ',', '/'], "_"))
    }
    /// Why its layout cannot split its model, as it trains or only goes forward.
    pub(crate) fn misfit(&self, command: &str) -> Option<String> {
        let (design, infers) = (self.kind.design(), ["eval", "generate"].contains(&command));
        let design = if infers { design.inferring() } else { design };
        let alone = !infers && command != "prove" && self.layout.pipeline().schedule.updates_each();
        let scaled = alone && self.number.loss_scaling().is_some();
        let why = self.layout.fits(design).err().map(|error| error.why);
        why.or(scaled.then(|| "updates".into())) // each stage by itself, or after each microbatch
    }
    /// The entries that it is made of.
    fn entries(&self) -> Vec<String> {
        let own = [format!("{:?}", self.kind), self.number.name().into(), self.optimizer.name().into()];
        let strategies = self.layout.strategies().into_iter().map(|about| about.written(2));
        strategies.chain(own).collect()
    }
    /// Output of a command that runs; `None` if it refuses, with this sentence, or because its layout does
    /// not fit.
    pub(crate) fn ran(
        &self,
        reported: (&Table, &'static str),
        args: &[String],
        refused: Option<&str>,
    ) -> Option<String> {
        let ended = output(binary().args(args));
        match refused.or(self.misfit(reported.1).as_deref()) {
            None => Some(self.succeeded(reported, (args, &ended))),
            Some(why) => {
                self.refused(reported, (args, &ended), why);
                None
            }
        }
    }
    /// Output of a process that ended with success.
    pub(crate) fn succeeded(
        &self,
        (table, command): (&Table, &'static str),
        (args, Output { status, stdout, stderr }): (&[String], &Output),
    ) -> String {
        table.count(command, &self.entries(), true);
        let [said, error] = [stdout, stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        assert!(status.success(), "equipart {}: {status}: {error}{said}", args.join(" "));
        said
    }
    /// Sees that a process ended with exit code 2 and one sentence, with these words, and printed nothing
    /// else.
    pub(crate) fn refused(
        &self,
        (table, command): (&Table, &'static str),
        (args, Output { status, stdout, stderr }): (&[String], &Output),
        why: &str,
    ) {
        table.count(command, &self.entries(), false);
        let error = String::from_utf8_lossy(stderr);
        let sentences: Vec<_> = error.lines().filter(|line| line.starts_with("error: ")).collect();
        let is_one = sentences.len() == 1 && sentences[0].contains(why) && !error.contains("panicked");
        assert!(
            status.code() == Some(2) && is_one && stdout.is_empty(),
            "equipart {}: {status}, wanted to be refused with {why:?}: {error}",
            args.join(" ")
        );
    }
    /// Arguments of a command under this layout and in this dtype.
    pub(crate) fn args(&self, command: &str, flags: &[String]) -> Vec<String> {
        let own = [command, "--json", "--layout", &self.layout.to_string(), "--dtype", self.number.name()];
        own.into_iter().map(str::to_owned).chain(flags.iter().cloned()).collect()
    }
    /// Arguments of training.
    pub(crate) fn train(&self, flags: &[String]) -> Vec<String> {
        // Where a gradient is next to nothing, its rounding decides a step of AdamW, which must be small
        // beside the weights.
        let lr = if self.optimizer.name().starts_with("adamw") { "0.001" } else { "0.01" };
        let own = ["--microbatches", "4", "--lr", lr].map(str::to_owned);
        [self.args("train", flags), self.optimizer_args(), own.to_vec()].concat()
    }
    /// Flags of the optimizer, whose blocks of state are so small that ranks cut no row of models inside
    /// one.
    pub(crate) fn optimizer_args(&self) -> Vec<String> {
        let small = self.optimizer.get("block-size").map_or(&[][..], |_| &["--block-size", "4"]);
        [&["--optimizer", self.optimizer.name()], small].concat().into_iter().map(str::to_owned).collect()
    }
}
