//! Expected results of each command under a layout, compared with the unsplit run.
use super::Table;
use super::case::Case;
use super::kind::{Kind, files, words};
use crate::child::{Watched, binary, output};
use crate::processes;
use ops::ADAMW;
use parallel::Layout;
use parallel::dtype::DtypeName;
use run::diff::{FLOOR, TIMES, TensorDiff, diff};
use run::roundoff::unit;
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, OnceLock};

/// Unit roundoff.
fn roundoff(number: DtypeName) -> f64 {
    unit(number.stored())
}

/// Steps of a run; with classifiers two an epoch.
const STEPS: usize = 6;

/// Flags of a checkpoint after every step.
const EVERY_STEP: &str = "--checkpoint-every 1";

/// Results of the unsplit run in one dtype.
pub(crate) struct Unsplit {
    dump: PathBuf,
    /// The folder that it saved, if it can save.
    saved: PathBuf,
    /// The loss of the model of [`Models::model`](super::kind::Models::model), and how it continues prompts.
    loss: f64,
    ids: Vec<Value>,
}

fn flag(name: &str, path: &Path) -> [String; 2] {
    [name.to_owned(), path.display().to_string()]
}

fn lines(said: &str) -> Vec<Value> {
    said.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|why| panic!("{line}: {why}")))
        .collect()
}

/// Output of generate without its time.
fn ids(said: &str) -> Vec<Value> {
    lines(said).iter().map(|line| line["ids"].clone()).filter(|ids| !ids.is_null()).collect()
}

impl Case<'_> {
    fn of_unsplit(&self, number: DtypeName) -> Arc<OnceLock<Unsplit>> {
        let case = self.unsplit(number);
        self.models.unsplit(&case.to_string(), || {
            let table = &Table::default();
            let (dump, saved) = case.trained(table).unwrap();
            let loss = case.evaluated(table).unwrap();
            Unsplit { dump, saved, loss, ids: case.generated(table).unwrap_or_default() }
        })
    }
    /// Returns true if a run in this dtype keeps checkpoints.
    fn saves(&self) -> bool {
        self.number != DtypeName::F64
    }
    /// Returns true if a run differs from the unsplit one by rounding only: rounding changes no choice of
    /// experts, and no weights are left out.
    fn is_smooth(&self) -> bool {
        let is_narrow = matches!(self.number, DtypeName::Bf16 | DtypeName::F16);
        !(self.kind == Kind::Experts && is_narrow || self.layout.is_sparse())
    }
    fn refused_to_save(&self) -> Option<&'static str> {
        (!self.saves()).then_some("keeps no checkpoints")
    }
    /// Every command under this case.
    pub(crate) fn run(&self, table: &Table, is_full: bool) {
        self.trains(table);
        self.resumes(table, is_full);
        self.runs_in_processes(table);
        self.evaluates(table);
        self.generates(table);
        self.is_priced(table);
        let is_first = self.number == DtypeName::F32 && self.optimizer == ADAMW;
        if !is_full || is_first {
            self.is_proven(table); // in the field, with both optimizers
        }
        if is_full && self.optimizer == ADAMW {
            self.is_compared(table); // which has an optimizer of its own
        }
    }
    /// Two steps saved, if they can be, and the third dumped.
    fn trained(&self, table: &Table) -> Option<(PathBuf, PathBuf)> {
        let [dump, saved, trace] = ["dump", "saved", "trace.json"].map(|what| self.path(what));
        let run = |stop: &str, flags: &[[String; 2]]| {
            self.train(&[self.models.training(self.kind, STEPS), words(stop), flags.concat()].concat())
        };
        let save = run("--stop-after 2 --checkpoint-every 1", &[flag("--out", &saved)]);
        self.ran((table, "train --out"), &save, self.refused_to_save());
        let flags = [flag("--dump", &dump), flag("--trace", &trace)];
        let stale = self.layout.pipeline().schedule.updates_each() && self.misfit("train").is_none();
        let why = stale.then_some("--dump is for a step with one update");
        let dumped = self.ran((table, "train --dump --trace"), &run("--stop-after 3", &flags), why);
        if stale {
            assert!(!dump.exists() && !trace.exists(), "{self} refused and left files");
        } else if dumped.is_none() {
            assert!(!dump.exists() && !saved.exists() && !trace.exists(), "{self} refused and left files");
        } else {
            serde_json::from_slice::<Value>(&std::fs::read(&trace).unwrap()).unwrap();
        }
        dumped.map(|_| (dump, saved))
    }
    /// Saves the weights that a third step begins with, and dumps what the unsplit run does within rounding.
    fn trains(&self, table: &Table) {
        if self.layout == Layout::UNSPLIT {
            return; // the others are compared with it
        }
        let Some((dump, saved)) = self.trained(table) else { return };
        let unsplit = self.of_unsplit(self.number);
        let unsplit = unsplit.get().unwrap();
        if self.is_smooth() {
            self.is_rounding(&dump, unsplit);
        }
        if self.saves() {
            let names = |dir: &Path| files(dir).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
            assert_eq!(names(&saved), names(&unsplit.saved), "{self}");
            let [config, wanted] =
                [&saved, &unsplit.saved].map(|dir| std::fs::read(dir.join("config.json")).unwrap());
            assert!(config == wanted, "{self} saves another config.json");
            let [saved, dumped] = [saved.join("model.safetensors"), dump.join("weights.safetensors")];
            let report = diff(&saved, &dumped, None).unwrap();
            // A checkpoint of bf16 has the masters.
            let most = if self.number == DtypeName::F32 { 0.0 } else { roundoff(self.number) };
            let off = report.tensors.iter().find(|t| t.apart.relative.is_none_or(|apart| apart > most));
            assert!(off.is_none() && report.unmatched.is_empty(), "{self} saved another {off:?}");
        }
    }
    /// Sees that a dump differs from the unsplit run's by rounding: as `diff` judges, or in f64, of which
    /// there is no better truth, in the second half of the digits.
    fn is_rounding(&self, dump: &Path, unsplit: &Unsplit) {
        let truth = self.saves().then(|| self.of_unsplit(DtypeName::F64));
        let truth = truth.as_ref().map(|truth| truth.get().unwrap().dump.as_path());
        let report = diff(dump, &unsplit.dump, truth).unwrap();
        let half = roundoff(self.number).sqrt();
        let differs = |t: &&TensorDiff| match t.verdict {
            Some(finding) => !finding.is_fine(),
            None => t.apart.differ > 0 && t.apart.relative.is_none_or(|apart| apart > half),
        };
        let bug = report.tensors.iter().find(differs);
        assert!(bug.is_none() && report.unmatched.is_empty(), "{self}: {bug:?}, {:?}", report.unmatched);
    }
    /// A run that was stopped or killed goes on as if nothing had happened, and one that is over goes
    /// further.
    fn resumes(&self, table: &Table, is_killed: bool) {
        let [once, killed, longer] = ["once", "killed", "longer"].map(|what| self.path(what));
        let to = |dir: &Path, steps| self.saving(steps, dir, self.drains());
        let said = self.ran((table, "train --out"), &to(&once, STEPS), self.refused_to_save());
        if said.is_none() {
            return;
        }
        let again = |dir: &Path, more: Vec<String>| {
            let layout = ["train".into(), "--layout".into(), self.layout.to_string()].to_vec();
            let flags = [self.models.learnt(self.kind), words(self.drains()), more].concat();
            [layout, flag("--resume", dir).to_vec(), flags].concat()
        };
        let stopped = if is_killed || self.layout == Layout::UNSPLIT {
            self.killed(&self.saving(STEPS, &killed, EVERY_STEP));
            killed
        } else {
            self.path("saved")
        };
        self.ran((table, "train --resume"), &again(&stopped, words("--profile")), None);
        assert!(files(&once) == files(&stopped), "{self}: resumed, it saved something else");
        self.ran((table, "train --out"), &to(&longer, 2), None);
        self.ran((table, "train --resume, longer"), &again(&longer, self.kind.lasting(STEPS)), None);
        let same = match self.kind {
            // The rate of its steps falls to 0 at the end that was known.
            Kind::Classifier => {
                files(&once).iter().map(|(name, _)| name).eq(files(&longer).iter().map(|(name, _)| name))
            }
            _ => files(&once) == files(&longer),
        };
        assert!(same, "{self}: trained longer, it saved something else");
    }
    /// Training of some steps, saved in a folder.
    fn saving(&self, steps: usize, dir: &Path, more: &str) -> Vec<String> {
        self.train(
            &[self.models.training(self.kind, steps), flag("--out", dir).to_vec(), words(more)].concat(),
        )
    }
    /// Flags that empty the pipeline as often as a run that is stopped after any step: microbatches that
    /// overlap a step read other versions of the weights.
    fn drains(&self) -> &'static str {
        if self.layout.pipeline().schedule.updates_each() { EVERY_STEP } else { "" }
    }
    /// Kills a run once it has told of some steps.
    fn killed(&self, args: &[String]) {
        let mut run = Watched::start(
            binary().args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()),
        );
        let reported = BufReader::new(run.process.stdout.take().unwrap());
        let wanted = if self.kind.reads_text() { 3 } else { 1 };
        assert_eq!(reported.lines().map_while(Result::ok).take(wanted).count(), wanted, "{self} ended early");
        let _ = run.process.kill(); // it may have ended
        run.output();
    }
    /// Ranks that are processes save what threads save.
    fn runs_in_processes(&self, table: &Table) {
        let ranks = self.layout.ranks();
        if ranks == 1 || self.misfit("train").is_some() {
            return;
        }
        let saved = self.path("of processes");
        let args = if self.saves() {
            self.saving(STEPS, &saved, self.drains())
        } else {
            self.train(&self.models.training(self.kind, STEPS))
        };
        let outputs = processes::all(ranks, &args.iter().map(String::as_str).collect::<Vec<_>>(), &|_| ());
        for output in outputs {
            self.succeeded((table, "train by processes"), (&args, &output));
        }
        if self.saves() {
            assert!(
                files(&saved) == files(&self.path("once")),
                "{self}: processes save something else than threads"
            );
        }
    }
    fn evaluated(&self, table: &Table) -> Option<f64> {
        let flags =
            [flag("--model", &self.models.model(self.kind)).to_vec(), self.models.learnt(self.kind)].concat();
        let said = self.ran((table, "eval"), &self.args("eval", &flags), None)?;
        lines(&said)[0]["loss"].as_f64()
    }
    /// Its error is no more than what the unsplit run's predicts, as `diff` judges.
    fn evaluates(&self, table: &Table) {
        let Some(loss) = self.evaluated(table) else { return };
        let [unsplit, truth] = [self.number, DtypeName::F64].map(|number| self.of_unsplit(number));
        let [unsplit, truth] = [&unsplit, &truth].map(|of| of.get().unwrap().loss);
        let most = TIMES * (unsplit - truth).abs().max(FLOOR * roundoff(self.number) * truth.abs());
        assert!(
            !self.is_smooth() || (loss - truth).abs() <= most,
            "{self}: a loss of {loss}, unsplit {unsplit}, in f64 {truth}"
        );
    }
    fn generated(&self, table: &Table) -> Option<Vec<Value>> {
        let prompts =
            "--prompt-ids 1,2,3 --prompt-ids 9,8 --prompt-ids 20,3,20,3,1 --prompt-ids 60 --max-new 5";
        let flags = [flag("--model", &self.models.model(self.kind)).to_vec(), words(prompts)].concat();
        let args = self.args("generate", &flags);
        if !self.kind.reads_text() {
            self.refused(
                (table, "generate"),
                (&args, &output(binary().args(&args))),
                "model_type is \"mlp\"",
            );
            return None;
        }
        self.ran((table, "generate"), &args, None).map(|said| ids(&said))
    }
    fn generates(&self, table: &Table) {
        let Some(ids) = self.generated(table) else { return };
        let unsplit = self.of_unsplit(self.number);
        assert!(
            ids.len() == 4 && (!self.is_smooth() || ids == unsplit.get().unwrap().ids),
            "{self}: {ids:?}, unsplit {:?}",
            unsplit.get().unwrap().ids
        );
    }
    /// The price is what the meter reads, on every rank.
    fn is_priced(&self, table: &Table) {
        if !self.kind.reads_text() {
            let flags = [self.models.proven(self.kind), words("--batch-size 8 --microbatches 4")].concat();
            self.ran((table, "price"), &self.args("price", &flags), None);
            return; // epochs tell no peaks
        }
        let [train, price] = self.models.priced(self.kind);
        let clips = if self.layout.pipeline().schedule.updates_each() { "" } else { "--clip 1" };
        let own = [self.optimizer_args(), words("--microbatches 4"), words(clips)].concat();
        let price = self.ran((table, "price"), &self.args("price", &[price, own].concat()), None);
        let Some(price) = price else { return };
        let trained = [train, words(clips)].concat();
        let trained = self.ran((table, "train"), &self.train(&trained), None).unwrap();
        let of_kind = |kind: &Value| {
            let [bytes, ranks] = [&kind["peak_bytes"]["total"], &kind["ranks"]].map(|n| n.as_u64().unwrap());
            std::iter::repeat_n(bytes, ranks as usize)
        };
        let mut price: Vec<u64> = lines(&price).iter().flat_map(of_kind).collect();
        if self.kind == Kind::Experts {
            return; // a price has every expert chosen as often
        }
        let peaks: Vec<_> =
            lines(&trained).iter().filter_map(|line| line.get("peak_bytes").cloned()).collect();
        let peaks = peaks.last().unwrap().as_array().unwrap();
        let mut peaks: Vec<_> = peaks.iter().map(|bytes| bytes.as_u64().unwrap()).collect();
        peaks.sort_unstable();
        price.sort_unstable();
        assert_eq!(peaks, price, "{self}: price on the right");
    }
    fn is_proven(&self, table: &Table) {
        let own = ["prove", "--json", "--key", "7", "--layout", &self.layout.to_string()].map(str::to_owned);
        let args = [own.to_vec(), self.models.proven(self.kind)].concat();
        if let Some(said) = self.ran((table, "prove"), &args, None) {
            assert_eq!(lines(&said)[0]["equal"], true, "{self}: {said}");
        }
    }
    /// Every row is equal in the field.
    fn is_compared(&self, table: &Table) {
        let flags = match self.kind {
            Kind::Classifier => self.models.proven(self.kind),
            _ => flag("--model", &self.models.model(self.kind)).to_vec(),
        };
        let once = [flags, words("--seconds 0")].concat();
        let said = self.ran((table, "compare"), &self.args("compare", &once), None);
        let equal = |row: &Value| row["field"].as_str().map(str::to_owned);
        for row in said.iter().flat_map(|said| lines(said)) {
            assert_ne!(equal(&row).as_deref(), Some("differs"), "{self}: {row}");
        }
    }
}
