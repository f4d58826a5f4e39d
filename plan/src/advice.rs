//! The usual decision trees for a layout, worked through with the figures of this job on this machine.
//!
//! ```text
//! fits one device        if not at first: one sequence at a time, recomputation; then DP or ZeRO
//! does not fit           PP, ZeRO or TP: alike over fast links, PP first over slow ones
//! a layer does not fit   TP, or ZeRO with offload and tiles
//! many nodes             fast links: ZeRO, or PP + TP + DP; slow links: PP + TP + DP with ZeRO-1
//! stages                 no ZeRO-2 or 3; 4 K microbatches or more for K stages
//! ```
//! Every figure is priced by the program of a few pure layouts; a tree's advice is no result of the search.
//!
//! Source: Hugging Face, "Parallelism methods" and "Efficient training on multiple GPUs" (the trees); Huang
//! et al., "GPipe", arXiv:1811.06965, section 2.3 (4 K); `DeepSpeed`, "Pipeline parallelism" (ZeRO-1).
use crate::clock::time;
use crate::machine::Machine;
use crate::search::LayoutSearch;
use crate::space::{microbatches, powers};
use crate::step::{KnownPrices, StepTime, TrainingJob};
use crate::weighed::Weighed;
use comm::Axis;
use kernels::{Kernels, MetaOf};
use layers::{Design, Shape, counted};
use ops::TokenShards;
use parallel::{Batch, BuildContext, Error, Layout, Result, Trainer, session};
use serde::Serialize;
use std::sync::Arc;
use tensor::readable;

/// Step of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DecisionStep {
    /// The question that it decides.
    pub question: &'static str,
    /// The answer, with its figures.
    pub answer: String,
}

/// Share by which predicted times may err: times that are closer are called alike. Calculon's largest error
/// on published steps is 9 % (Isaev et al., SC'23).
const ERROR: f64 = 0.1;
/// Numbers of microbatches that are priced of a layout.
const TRIED: usize = 4;
/// The most sequences of a microbatch that a single device is asked to hold.
const SEQUENCES: usize = 8;
/// Microbatches for each stage from which on a pipeline's bubble is small.
const FOR_EACH_STAGE: usize = 4;

/// Works through the decision trees. `best` is the best layout of the search.
///
/// # Errors
/// If the unsplit model cannot be priced.
pub fn steps<D: Kernels>(search: &LayoutSearch, best: &Weighed) -> Result<Vec<DecisionStep>> {
    let mut trees = DecisionTrees { search, best, steps: Vec::new() };
    let state = trees.state::<D>(search.job.design.parts(1))?;
    let fits = trees.one_device::<D>(state)?;
    if search.ranks > 1 && fits {
        trees.replicated::<D>();
    } else if search.ranks > 1 {
        trees.split::<D>();
        trees.largest_layer::<D>(state)?;
    }
    let staged = if search.ranks > trees.node() { trees.many_nodes::<D>(state) } else { None };
    trees.staged::<D>(staged)?;
    trees.says(
        "What is left out?",
        "Loading of data, compilers of graphs and TPUs are outside: they change the speed of a device, which \
         the machine's file states, and not which layout is best."
            .into(),
    );
    Ok(trees.steps)
}

struct DecisionTrees<'a> {
    search: &'a LayoutSearch<'a>,
    best: &'a Weighed,
    steps: Vec<DecisionStep>,
}

impl DecisionTrees<'_> {
    fn says(&mut self, question: &'static str, answer: String) {
        self.steps.push(DecisionStep { question, answer });
    }
    /// Ranks of a node, no more than there are.
    fn node(&self) -> usize {
        self.search.machine.levels[0].ranks.unwrap_or(usize::MAX).min(self.search.ranks)
    }
    fn fits(&self, step: &StepTime) -> bool {
        step.peak <= self.search.memory
    }
    /// Bytes of the unsplit model with this number of blocks in a step of one token: its state, and hardly
    /// anything else.
    fn state<D: Kernels>(&self, blocks: usize) -> Result<usize> {
        let design = match &self.search.job.design {
            Design::Transformer(shape) => Design::Transformer(Shape { blocks, ..*shape }),
            other => other.clone(),
        };
        let job = TrainingJob { design, seq: 1, batch_size: 1, ..self.search.job.clone() };
        let known = &mut KnownPrices::default();
        Ok(known.step::<D>(&Layout::UNSPLIT, &job, (1, usize::MAX), self.search.machine)?.peak)
    }
    /// Returns the fastest number of microbatches that fits, or the one that holds the least; none if the
    /// layout fits neither the model nor the batch.
    fn weighed<D: Kernels>(&self, words: &str, machine: &Arc<Machine>) -> Option<Weighed> {
        let LayoutSearch { job, .. } = self.search;
        let (layout, known): (Layout, _) = (words.parse().ok()?, &mut KnownPrices::default());
        let sizes = [job.batch_size, layout.size(TokenShards::SEQUENCES)];
        let step = |power| {
            let microbatches = microbatches(sizes, power);
            let step = known.step::<D>(&layout, job, (microbatches, usize::MAX), machine).ok()?;
            Some(Weighed { layout, microbatches, step })
        };
        let tried: Vec<_> = powers(sizes[0], sizes[1]).take(TRIED).filter_map(step).collect();
        let fitting = tried.iter().filter(|of| self.fits(&of.step));
        let found = fitting.min_by(|a, b| a.step.seconds.total_cmp(&b.step.seconds));
        found.or_else(|| tried.iter().min_by_key(|of| of.step.peak)).cloned()
    }
    /// Weighs all of these that fit the model and the batch.
    fn all<D: Kernels>(&self, words: &[String], machine: &Arc<Machine>) -> Vec<Weighed> {
        words.iter().filter_map(|words| self.weighed::<D>(words, machine)).collect()
    }
    fn described(&self, all: &[Weighed]) -> String {
        let words = |of: &Weighed| {
            let (holds, step) = (readable(of.step.peak as u128), &of.step);
            if self.fits(step) {
                format!("{} takes {} and holds {holds}", of.layout, time(step.seconds))
            } else {
                format!("{} holds {holds}, too much", of.layout)
            }
        };
        if all.is_empty() {
            return "no layout of these divides the model and the batch".into();
        }
        all.iter().map(words).collect::<Vec<_>>().join("; ")
    }
    /// Says whether one device is enough, and what makes it so. Returns true if it is.
    fn one_device<D: Kernels>(&mut self, state: usize) -> Result<bool> {
        let question = "Does a step fit one device?";
        let LayoutSearch { job, machine, memory, .. } = self.search;
        let [wants, has] = [state, *memory].map(|bytes| readable(bytes as u128));
        let known = &mut KnownPrices::default();
        let mut step = |words: &str, microbatches| {
            known.step::<D>(&words.parse()?, job, (microbatches, usize::MAX), machine)
        };
        let few = job.batch_size.div_ceil(SEQUENCES);
        let (many, one) = (step("none", few)?, step("none", job.batch_size)?);
        let begin = format!("Weights, gradients and optimizer state want {wants} of the {has} there.");
        if state > *memory {
            let one = readable(one.peak.saturating_sub(state) as u128);
            let answer = "no: smaller microbatches and recomputation save only activations";
            self.says(question, format!("{begin} So {answer}, {one} of a sequence."));
            return Ok(false);
        }
        let held = readable(many.peak as u128);
        let at_once = counted(job.batch_size.div_ceil(few), "sequence");
        if self.fits(&many) {
            self.says(question, format!("{begin} With {at_once} in a microbatch it holds {held}, so yes."));
            return Ok(true);
        }
        let mut answer = vec![format!("{begin} With {at_once} in a microbatch it holds {held}, too much.")];
        let accumulated = format!("One sequence in each of {} microbatches", job.batch_size);
        let (mut before, mut fits) = (many, false);
        for (what, words) in [
            (accumulated.as_str(), "none"),
            ("Selective recomputation", "recompute:selective"),
            ("Full recomputation", "recompute"),
        ] {
            let now = step(words, job.batch_size)?;
            let saves = readable(before.peak.saturating_sub(now.peak) as u128);
            let paid = 100.0 * (now.seconds / before.seconds - 1.0);
            fits |= self.fits(&now);
            let enough = if fits { "and it fits" } else { "which is not enough" };
            answer.push(format!("{what} saves {saves} for {paid:+.0} % of time, {enough}."));
            if fits {
                break;
            }
            before = now;
        }
        self.says(question, answer.join(" "));
        Ok(fits)
    }
    /// Weighs the ways to replicate a model that fits one device.
    fn replicated<D: Kernels>(&mut self) {
        let ranks = self.search.ranks;
        let words = ["", ":zero1", ":zero2", ":zero3"].map(|word| format!("dp={ranks}{word}"));
        let found = self.all::<D>(&words, self.search.machine);
        let answer = if found.is_empty() {
            format!(
                "The batch has fewer sequences than the {ranks} devices, so data ranks alone cannot share it."
            )
        } else {
            format!("It fits, so data ranks are enough: {}.", self.described(&found))
        };
        self.says("DP or ZeRO?", answer);
    }
    /// Weighs the three ways to split what does not fit, on a node, over its links and over those beyond.
    fn split<D: Kernels>(&mut self) {
        let (node, machine) = (self.node(), self.search.machine);
        let words = [format!("pp={node}"), format!("dp={node}:zero3"), format!("tp={node},sp")];
        let all = self.all::<D>(&words, machine);
        let mut answer = vec![format!("On {} of a node, {}.", counted(node, "device"), self.described(&all))];
        let fitting: Vec<_> = all.into_iter().filter(|of| self.fits(&of.step)).collect();
        answer.push(if fitting.is_empty() {
            "None fits alone.".into()
        } else {
            closest(&fitting, &machine.levels[0].name)
        });
        if let [_, levels @ ..] = &machine.levels[..]
            && !levels.is_empty()
            && !fitting.is_empty()
        {
            let slow = Arc::new(Machine { levels: levels.to_vec(), ..(**machine).clone() });
            let words = fitting.iter().map(|of| of.layout.to_string());
            let found = self.all::<D>(&words.collect::<Vec<_>>(), &slow);
            let seconds = found.iter().map(|of| format!("{} {}", of.layout, time(of.step.seconds)));
            let seconds = seconds.collect::<Vec<_>>().join(", ");
            let level = &levels[0].name;
            answer.push(format!("Over links of a {level} it would be {seconds}: {}", closest(&found, level)));
        }
        self.says("PP, ZeRO or TP?", answer.join(" "));
    }
    /// Says whether the largest layer fits one device.
    fn largest_layer<D: Kernels>(&mut self, state: usize) -> Result<()> {
        let (node, blocks, ends) = (self.node(), self.search.job.design.parts(1), self.state::<D>(1)?);
        let block = state.saturating_sub(ends) / (blocks - 1).max(1);
        let ends = ends.saturating_sub(block);
        let [wants, others] = [block, ends].map(|bytes| readable(bytes as u128));
        let answer = if block.max(ends) <= self.search.memory {
            "each fits a device, so no layer has to be split.".into()
        } else {
            let words = [format!("tp={node},sp"), format!("dp={node}:zero3:tile/16:offload-host")];
            let found = self.all::<D>(&words, self.search.machine);
            format!("too much, so TP, or ZeRO with offload and tiles: {}.", self.described(&found))
        };
        let wanted = format!("With its state a block wants {wants}, embedding and head {others}");
        self.says("Does the largest layer fit?", format!("{wanted}: {answer}"));
        Ok(())
    }
    /// Weighs layouts over many nodes. Returns the one of stages, tensor and data ranks.
    fn many_nodes<D: Kernels>(&mut self, state: usize) -> Option<Weighed> {
        let LayoutSearch { job, machine, memory, ranks, .. } = self.search;
        let design = &job.design;
        let of = |tp: usize| Layout::new(&[(Axis::Tp, tp)]).is_ok_and(|layout| layout.fits(design).is_ok());
        let tp = (2..=self.node()).rev().find(|tp| ranks.is_multiple_of(*tp) && of(*tp));
        let staged = tp.and_then(|tp| {
            let divides = |pp: &usize| (ranks / tp).is_multiple_of(*pp) && ranks / tp / pp <= job.batch_size;
            let mut sizes = (2..=design.parts(1).min(ranks / tp)).filter(divides);
            let pp = sizes.find(|pp| state / tp / pp <= memory / 2)?; // the other half for activations
            Some(format!("pp={pp},dp={},tp={tp},sp", ranks / tp / pp))
        });
        let zero = self.weighed::<D>(&format!("dp={ranks}:zero3"), machine);
        let words = staged.iter().flat_map(|words| {
            [words.clone(), words.replacen(",tp", ":zero1,tp", 1)] // after dp
        });
        let words: Vec<_> = words.filter(|words| words.parse::<Layout>().is_ok()).collect();
        let three = self.all::<D>(&words, machine);
        let tried: Vec<_> = zero.iter().chain(&three).cloned().collect();
        let fastest = |all: &[Weighed]| {
            all.iter().filter(|of| self.fits(&of.step)).map(|of| of.step.seconds).reduce(f64::min)
        };
        let verdict = match (fastest(zero.as_slice()), fastest(&three)) {
            (Some(zero), Some(three)) if zero <= three * (1.0 + ERROR) => {
                "The links are fast enough for ZeRO, which changes the model least."
            }
            (_, Some(_)) => {
                "The links are too slow for ZeRO alone: PP + TP + DP, with ZeRO-1 where memory is short."
            }
            (Some(_), None) => "ZeRO alone fits.",
            (None, None) => "Neither fits as it is; the search combines more.",
        };
        let few = if zero.is_none() { "The batch has too few sequences for ZeRO alone. " } else { "" };
        let nodes = counted(ranks.div_ceil(self.node()), "node");
        let answer = format!("{few}Over {nodes}, {}. {verdict}", self.described(&tried));
        self.says("ZeRO, or PP + TP + DP, over nodes?", answer);
        three.into_iter().next()
    }
    /// Says what ZeRO-2 and 3 would send if the best layout has stages, or else `staged`; and whether the
    /// best one has enough microbatches.
    fn staged<D: Kernels>(&mut self, staged: Option<Weighed>) -> Result<()> {
        let best = self.best;
        let has = |of: &Weighed, axis| of.layout.size(axis) > 1;
        let both =
            |of: &&Weighed| has(of, Axis::Pp) && has(of, TokenShards::SEQUENCES) && of.microbatches > 1;
        if let Some(of) = Some(best).filter(both).or(staged.as_ref()).filter(both) {
            let (bare, microbatches) = (Layout::new(&of.layout.axes())?, of.microbatches);
            let sent = |word: &str| {
                Ok::<_, Error>(readable(self.sent::<D>(&bare.with(word)?, microbatches)? as u128))
            };
            let [one, two, three] = [sent("zero1")?, sent("zero2")?, sent("zero3")?];
            self.says(
                "ZeRO-2 or 3 with stages?",
                format!(
                    "No: in {microbatches} microbatches under {bare}, a rank sends its data ranks {one} with ZeRO-1; \
                     {two} with ZeRO-2, which sums gradients after each microbatch; {three} with ZeRO-3, which \
                     gathers weights for each."
                ),
            );
        }
        let (stages, microbatches) = (best.layout.size(Axis::Pp), best.microbatches);
        if stages > 1 && microbatches < FOR_EACH_STAGE * stages {
            let (share, enough) = (100.0 * best.step.bubble / best.step.seconds, FOR_EACH_STAGE * stages);
            self.says(
                "Enough microbatches?",
                format!(
                    "The best layout has {microbatches} for {stages} stages, fewer than {enough}, four for each: its bubble \
                     is {} of a step, {share:.1} %.",
                    time(best.step.bubble)
                ),
            );
        }
        Ok(())
    }
    /// Bytes that the first rank sends to its data ranks in a step: those of one microbatch, and of each
    /// further one what the second adds.
    fn sent<D: Kernels>(&self, layout: &Layout, microbatches: usize) -> Result<usize> {
        let job = TrainingJob { seq: 2 * layout.size(TokenShards::CONTEXT), ..self.search.job.clone() };
        let step = |microbatches: usize| {
            let sequences = microbatches * layout.size(TokenShards::SEQUENCES);
            let batch = Batch::new(vec![job.sequence(); sequences], microbatches)?;
            session::ghost::<D, _>(layout, (0, None), |at: BuildContext<MetaOf<D>>| {
                Trainer::new(&at, &job.design, job.optimizer)?.step(&batch, 0.0)?;
                let ledger = at.mesh.ledger();
                let of_data = ledger.iter().filter(|(axes, ..)| axes.contains(TokenShards::SEQUENCES));
                Ok(of_data.map(|(_, _, traffic)| traffic.bytes).sum::<usize>())
            })
        };
        let one = step(1)?;
        Ok(one + step(2)?.saturating_sub(one) * (microbatches - 1))
    }
}

/// Says which of these is first, if one is by more than the predictions' error.
fn closest(all: &[Weighed], links: &str) -> String {
    let seconds = |of: &Weighed| of.step.seconds;
    let mut sorted: Vec<_> = all.iter().collect();
    sorted.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
    let [first, last] = [0, sorted.len() - 1].map(|place| sorted[place]);
    let (layout, apart) = (first.layout, 100.0 * (seconds(last) / seconds(first) - 1.0));
    match sorted.len() {
        1 => format!("only {layout} is left."),
        _ if apart <= 100.0 * ERROR => format!(
            "the links of a {links} make them alike: they are {apart:.0} % apart, within the error of a prediction."
        ),
        _ => format!("{layout} is first; {} takes {apart:.0} % more.", last.layout),
    }
}
