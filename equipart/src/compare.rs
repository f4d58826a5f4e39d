//! `compare`: the same work under several layouts, with time, memory, traffic, and equality three ways: the field's
//! verdict for that layout, equal tokens, and the f32 error against f64 as a multiple of the unsplit run's own.
use crate::generate::{self, Request, Text, all_logits};
use crate::measure::{self, PeakBytes, Taken};
use crate::prove::{Subject, Truths, prove};
use crate::sampling::Sampling;
use crate::text::Corpus;
use crate::train::sequences;
use crate::{Layout, Model, Result};
use comm::World;
use kernels::CpuScalar;
use layers::Kind;
use parallel::{Batch, Trainer};
use serde::Serialize;
use tensor::{Cpu, Key, Phase, Real};

/// The sizes of the work.
const PROMPTS: usize = 4;
const PROMPT: usize = 16;
const NEW: usize = 32;
const SEQUENCES: usize = 4;
const SEQ: usize = 64;
const STEPS: usize = 4;
const OPTIMIZER: (Kind, Option<f64>) = (Kind::Sgd, Some(1.0));
const LR: f64 = 0.1;
/// Beyond so many parameters the field gets one short sequence instead of the whole batch.
const LARGE: usize = 20_000_000;

/// Which work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Workload {
    /// Continuing prompts.
    Inference,
    /// Training steps.
    Training,
}

/// The first token of a text that differs between two layouts, though the choice was as good as a tie.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tie {
    /// Which text.
    pub sequence: usize,
    /// Which of its tokens.
    pub token: usize,
    /// How much a logit difference had to change for another choice.
    pub margin: f64,
    /// How much rounding may have changed it.
    pub bound: f64,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which work.
    pub workload: Workload,
    /// A readable label.
    pub name: String,
    /// The layout.
    pub layout: String,
    /// Of the work: all new tokens, or one step.
    pub seconds: f64,
    /// New tokens, or tokens learnt, a second.
    pub tokens_per_second: f64,
    /// Of each rank; in training the step takes inference's place.
    pub peak_bytes: PeakBytes,
    /// Bytes on the wire of all ranks, a generated token or a step.
    pub traffic_bytes: usize,
    /// The field's verdict.
    pub equal: bool,
    /// What the field was given, if not the whole batch.
    pub note: Option<String>,
    /// Whether the texts are those of the unsplit run; null in training.
    pub tokens_equal: Option<bool>,
    /// If not: where they part, where that is a tie.
    pub tie: Option<Tie>,
    /// The largest f32 error against f64 (of logits, or of new weights) ÷ the unsplit run's own.
    pub error_ratio: f64,
}

/// What is compared.
pub struct Work<'a> {
    /// The model.
    pub model: &'a Model,
    /// Where prompts and sequences are taken from.
    pub corpus: &'a Corpus,
    /// The layouts besides the unsplit one, which always comes first.
    pub layouts: Vec<Layout>,
}

/// Does all the work; `watch` is told what is being done.
///
/// # Errors
/// If a layout does not fit the model or the work, or a rank fails.
pub fn compare(work: &Work, watch: &dyn Fn(&str)) -> Result<Vec<Row>> {
    let mut layouts = vec![Layout::default()];
    layouts.extend(work.layouts.iter().filter(|l| **l != Layout::default()));
    for layout in &layouts {
        layout.fits(&work.model.config.shape)?;
    }
    let mut rows = Vec::new();
    let verdicts = verdicts(work, &layouts, watch)?;
    inference(work, &layouts, &verdicts, &mut rows, watch)?;
    training(work, &layouts, &verdicts, &mut rows, watch)?;
    Ok(rows)
}

/// The batch of the training work.
fn batch(work: &Work) -> Result<Batch> {
    let seq = SEQ.min(work.model.config.positions);
    Ok(Batch::new(sequences(work.corpus.batch(0, 0, SEQUENCES, seq)), 2)?)
}

/// The field's word on each layout: logits and a training step of this model's shape, on the work's own batch.
fn verdicts(work: &Work, layouts: &[Layout], watch: &dyn Fn(&str)) -> Result<Vec<(bool, Option<String>)>> {
    let shape = work.model.config.shape;
    let large = shape.parameters() > LARGE;
    let key = Key(tensor::mix(std::process::id() as u64 ^ 0x636f_6d70));
    let truths = Truths::default();
    let mut verdicts = Vec::new();
    for layout in layouts {
        watch(&format!("proving {layout}"));
        let (subject, note) = if large {
            let n = layout.size(comm::Axis::Dp);
            let pairs = work.corpus.batch(0, 0, n, 16.min(work.model.config.positions));
            let steps = vec![(Batch::new(sequences(pairs), 1)?, LR)];
            let what = format!("the field was given {n} sequence(s) of 16 tokens");
            (Subject { shape, steps, optimizer: OPTIMIZER }, Some(what))
        } else {
            (Subject { shape, steps: vec![(batch(work)?, LR)], optimizer: OPTIMIZER }, None)
        };
        let fresh = Truths::default();
        let verdict = prove(&subject, layout, &[key, key.next()], if large { &fresh } else { &truths })?;
        verdicts.push((verdict.equal, note));
    }
    Ok(verdicts)
}

fn label(layout: &Layout) -> String {
    match layout.ranks() {
        1 => "unsplit, 1 rank".into(),
        n => format!("{layout}, {n} ranks"),
    }
}

fn inference(
    work: &Work,
    layouts: &[Layout],
    verdicts: &[(bool, Option<String>)],
    rows: &mut Vec<Row>,
    watch: &dyn Fn(&str),
) -> Result<()> {
    let data = layouts.iter().map(|l| l.size(comm::Axis::Dp)).max().unwrap_or(1);
    let room = work.model.config.positions;
    let prompt = PROMPT.min(room / 2).max(1);
    let prompts: Vec<_> =
        work.corpus.batch(1, 0, PROMPTS.max(data), prompt).into_iter().map(|(ids, _)| ids).collect();
    let request = Request { prompts, max_new: NEW.min(room - prompt), sampling: Sampling::default() };
    let (mut alone, mut truth, mut own) = (Vec::new(), Vec::new(), 0.0);
    for (layout, (equal, note)) in layouts.iter().zip(verdicts) {
        watch(&format!("generating under {layout}"));
        let generated = generate::generate(work.model, layout, &request, &|_| ())?;
        if alone.is_empty() {
            alone.clone_from(&generated.texts);
            truth = all_logits::<f64>(work.model, layout, &ids(&alone))?;
        }
        let logits = all_logits::<f32>(work.model, layout, &ids(&alone))?;
        let error = largest_error(&logits, &truth);
        if own == 0.0 {
            own = error;
        }
        let tie = parts(&generated.texts, &alone, 2.0 * (own + error));
        let tokens = generated.new_tokens();
        rows.push(Row {
            workload: Workload::Inference,
            name: label(layout),
            layout: layout.to_string(),
            seconds: measure::seconds(&generated.taken),
            tokens_per_second: generated.tokens_per_second(),
            peak_bytes: PeakBytes::of(&generated.taken),
            traffic_bytes: measure::wire(&generated.taken) / tokens.max(1),
            equal: *equal,
            note: note.clone(),
            tokens_equal: Some(tie.is_none()),
            tie: tie.filter(|t| t.margin <= t.bound),
            error_ratio: ratio(error, own),
        });
    }
    Ok(())
}

fn ids(texts: &[Text]) -> Vec<Vec<u32>> {
    texts.iter().map(|t| t.ids.clone()).collect()
}

/// Where texts first part, with the margin of that choice and the bound on what rounding does to it.
fn parts(texts: &[Text], alone: &[Text], bound: f64) -> Option<Tie> {
    texts.iter().zip(alone).enumerate().find_map(|(sequence, (a, b))| {
        let token = a.ids.iter().zip(&b.ids).position(|(a, b)| a != b)?;
        let prompt = b.ids.len() - b.margins.len();
        Some(Tie { sequence, token, margin: b.margins[token - prompt], bound })
    })
}

fn largest_error(x: &[f64], truth: &[f64]) -> f64 {
    x.iter().zip(truth).fold(0.0, |e, (a, b)| e.max((a - b).abs()))
}

/// An unsplit run without any error leaves nothing to compare with.
fn ratio(error: f64, own: f64) -> f64 {
    if own > 0.0 { error / own } else { 1.0 }
}

fn training(
    work: &Work,
    layouts: &[Layout],
    verdicts: &[(bool, Option<String>)],
    rows: &mut Vec<Row>,
    watch: &dyn Fn(&str),
) -> Result<()> {
    let batch = batch(work)?;
    let truth = steps::<f64>(work, &Layout::default(), &batch, 1)?.0;
    let mut own = 0.0;
    for (layout, (equal, note)) in layouts.iter().zip(verdicts) {
        watch(&format!("training under {layout}"));
        let (weights, taken) = steps::<f32>(work, layout, &batch, STEPS)?;
        let error = largest_error(&weights, &truth);
        if own == 0.0 {
            own = error;
        }
        let seconds = measure::seconds(&taken);
        rows.push(Row {
            workload: Workload::Training,
            name: label(layout),
            layout: layout.to_string(),
            seconds,
            tokens_per_second: batch.tokens() as f64 / seconds,
            peak_bytes: PeakBytes::of(&taken),
            traffic_bytes: measure::wire(&taken),
            equal: *equal,
            note: note.clone(),
            tokens_equal: None,
            tie: None,
            error_ratio: ratio(error, own),
        });
    }
    Ok(())
}

/// All weights after the first step, and the fastest step of each rank.
fn steps<S: CpuScalar + Real>(
    work: &Work,
    layout: &Layout,
    batch: &Batch,
    steps: usize,
) -> Result<(Vec<f64>, Vec<Taken>)> {
    let ranks = World::threads(&layout.axes())?.run(|device: Cpu<S>, mesh| {
        let (shape, values) = (&work.model.config.shape, work.model.values());
        let mut trainer = Trainer::new(&device, &mesh, shape, values, OPTIMIZER)?;
        let mut weights = Vec::new();
        let mut fastest: Option<Taken> = None;
        for step in 0..steps {
            let (_, taken) = measure::work(&device, &mesh, Phase::Step, || trainer.step(batch, LR))?;
            let faster = fastest.is_none_or(|f| taken.seconds < f.seconds);
            fastest = if faster { Some(taken) } else { fastest };
            if step == 0 {
                for param in trainer.model().params() {
                    let whole = param.gather(&mesh)?.expect("the host has values");
                    weights.extend(whole.into_iter().map(Real::to_f64));
                }
            }
        }
        Ok::<_, parallel::Error>((weights, fastest.expect("a step")))
    })?;
    let (mut weights, taken): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
    Ok((weights.swap_remove(0), taken))
}
