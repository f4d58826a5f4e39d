//! Comparisons: the same work under several layouts, with time, memory, traffic, and equality in three ways:
//! the field's verdict on this work under this layout, equal tokens, and the error against f64 as a multiple
//! of the unsplit run's own error (in f64, which has none: of one rounding).
pub mod epochs;
mod error;
mod held;
mod partitioning;
mod report;
mod row;
mod timed;
mod work;

pub use partitioning::Partitioning;
pub use row::{LayoutRow, Rate, Tie, Workload};
pub use work::{Comparison, Data, LR};

use crate::device::DeviceName;
use crate::event::Observer;
use crate::in_device;
use models::Model;
use models::generate::{Generated, Prompts, Text, all_logits};
use parallel::dtype::{DtypeName, RunDevice};
use parallel::{Batch, BuildContext, Layout, Network, Result, budget, measure, session};
use prove::cases::never_ran;
use prove::{OracleTraces, Subject, prove_in};
use tensor::{Bf16, Cpu, Key, Real, Scalar};
use timed::row;
use work::{batch, has_own_truth, request, subject, trainer};

impl Comparison<'_> {
    /// Runs the comparison in a dtype on a device, and tells its rows.
    ///
    /// # Errors
    /// Those of [`compare`], or of the observer.
    pub fn run(
        &self,
        (device, number): (DeviceName, DtypeName),
        observer: &Observer,
    ) -> Result<Vec<LayoutRow>> {
        self.check()?;
        let rows = in_device!((device, number), D => compare::<D>(self, observer))?;
        observer.records(&rows)?;
        report::tell(self, number, &rows, observer)?;
        Ok(rows)
    }
}

/// Runs the comparison; the observer is told of the current activity.
///
/// # Errors
/// If a layout does not fit the model or the work, memory is too small, or a rank fails.
pub fn compare<D: RunDevice>(work: &Comparison, observer: &Observer) -> Result<Vec<LayoutRow>> {
    let ways = work.all_ways();
    let layouts: Vec<_> = ways.iter().map(|way| way.layout).collect();
    for layout in &layouts {
        layout.fits(&work.model.design)?;
    }
    work.network.fits(&layouts)?;
    let text = if let Data::Text(model, corpus) = work.data { Some((model, corpus)) } else { None };
    let request = text.map(|(model, corpus)| request(work, model, corpus));
    let held = budget::all(ways.iter().map(|way| held::bytes::<D>(work, way, request.as_ref())))?;
    for (layout, bytes) in layouts.iter().zip(held) {
        let here = work.network.here(layout); // ranks, or processes, each with the unsplit work
        let (ranks, bytes) =
            if layout.ranks() > 1 { (layout.ranks(), bytes) } else { (here, bytes * here as u128) };
        budget::fits::<D::Place>(format_args!("comparing {layout}"), [here, ranks], bytes)?;
    }
    let (mut judged, mut rows) = (Vec::new(), Vec::new());
    if let (Some((model, _)), Some(request)) = (text, &request) {
        let generated = timed::generating::<D>((work, model), &ways, request, observer)?;
        judged = verdicts(work, &ways, texts(&generated[0].0), observer)?;
        rows = inference::<D>((work, model), &ways, request, &generated)?;
    } else {
        judged.extend(verdicts(work, &ways, Vec::new(), observer)?);
    }
    if work.learns {
        let ways: Vec<_> = ways.into_iter().filter(Partitioning::trains).collect();
        rows.extend(training::<D>(work, &ways, observer)?);
    }
    for (row, judged) in rows.iter_mut().zip(judged) {
        (row.equal, row.note, row.never_ran) = judged;
        row.other_number = if size_of::<D::Elem>() == 2 { f32::NAME } else { Bf16::NAME };
    }
    Ok(rows)
}

/// Verdict of the field on a row: whether all is equal, a note on the subject, and the parts that never ran.
type FieldVerdict = (bool, Option<String>, Vec<&'static str>);

/// The generated texts, each with the length of its prompt.
fn texts<E: Scalar>(generated: &Generated<E>) -> Vec<(Vec<u32>, usize)> {
    generated.texts.iter().map(|t| (t.ids.clone(), t.ids.len() - t.margins.len())).collect()
}

/// Verdicts of the field on each row, in this model's shape: first the logits of the texts, read as they were
/// generated, under each layout; then a training step under each.
fn verdicts(
    work: &Comparison,
    ways: &[Partitioning],
    texts: Vec<(Vec<u32>, usize)>,
    observer: &Observer,
) -> Result<Vec<FieldVerdict>> {
    let number = work.network.processes.as_ref().map_or(std::process::id().into(), |all| all.number());
    let key = Key(tensor::mix(number ^ 0x636f_6d70));
    let keys = [key, key.next()];
    let mut judged = [Vec::new(), Vec::new()];
    let truths = OracleTraces::default();
    for (n, way) in ways.iter().enumerate() {
        let layout = &way.layout;
        if let Some(known) =
            ways[..n].iter().position(|before| (before.layout, before.is_found) == (*layout, way.is_found))
        {
            for all in judged.iter_mut().filter(|all: &&mut Vec<FieldVerdict>| !all.is_empty()) {
                all.push(all[known].clone());
            }
            continue;
        }
        observer.doing(&format!("proving {layout}"))?;
        let (subject, note) = subject(work, layout, texts.clone())?;
        let never = never_ran(&subject, layout);
        let Subject { texts, steps, .. } = subject.clone();
        let halves = [
            Subject { texts, steps: Vec::new(), ..subject.clone() },
            Subject { steps, texts: Vec::new(), ..subject },
        ];
        let halves =
            &halves[usize::from(matches!(work.data, Data::Digits(_)))..if work.learns { 2 } else { 1 }];
        let world = &prove::world(layout, &way.checks(&work.network))?;
        for (half, judged) in halves.iter().zip(&mut judged) {
            let equal = prove_in(world, half, way.scheme(), &keys, &truths, &|_| ())?.equal;
            judged.push((equal, note.clone(), never.clone()));
        }
    }
    let [mut first, second] = judged;
    first.extend(second.into_iter().zip(ways).filter(|(_, way)| way.trains()).map(|(judged, _)| judged));
    Ok(first)
}

/// One row for each layout.
fn inference<D: RunDevice>(
    (work, model): (&Comparison, &Model),
    ways: &[Partitioning],
    request: &Prompts,
    generated: &[(Generated<D::Elem>, timed::RowTimes)],
) -> Result<Vec<LayoutRow>> {
    let alone = &generated[0].0.texts;
    let texts: Vec<_> = alone.iter().map(|text| text.ids.clone()).collect();
    let truth = all_logits::<Cpu<f64>>(model, (&Layout::default(), &Network::default()), &texts)?;
    let (mut rows, mut unsplit) = (Vec::new(), 0.0);
    for (n, (way, (generated, timed))) in ways.iter().zip(generated).enumerate() {
        let layout = &way.layout;
        let over = (layout, &way.checks(&work.network));
        let logits = all_logits::<D>(model, over, &texts)?;
        let error = if layout.is_sparse() {
            error::largest(&logits, &all_logits::<Cpu<f64>>(model, over, &texts)?)
        } else {
            error::largest(&logits, &truth)
        };
        unsplit = if n == 0 { error::own::<D::Elem>(error, &truth) } else { unsplit };
        // Decoding and a whole forward round differently: allow as much slack again.
        let tied = || parts(&generated.texts, alone, 4.0 * (unsplit + error));
        let tie = (!layout.is_sparse()).then(tied).flatten(); // a sparse model has its own tokens
        let taken = &generated.taken;
        let tokens = generated.new_tokens();
        let rate = Rate::TokensPerSecond(tokens as f64 / timed.median);
        let request = way.request(request);
        let numbers = [
            request.peak::<Cpu<f32>>(model, &layout.limited(None))?.largest.total,
            request.peak::<Cpu<Bf16>>(model, &layout.limited(None))?.largest.total,
        ];
        rows.push(LayoutRow {
            prefill_seconds: Some(generated.prefill_seconds),
            tokens_equal: (!layout.is_sparse()).then_some(tie.is_none()),
            tie: tie.filter(|t| t.margin <= t.bound),
            traffic_bytes: measure::wire(taken) / tokens.max(1),
            ..row(Workload::Inference, way, taken, *timed, rate, numbers, error::ratio(error, unsplit))
        });
    }
    Ok(rows)
}

/// Finds the first token that differs, with the margin of its choice and the bound on the rounding error.
fn parts(texts: &[Text], alone: &[Text], bound: f64) -> Option<Tie> {
    texts.iter().zip(alone).enumerate().find_map(|(sequence, (a, b))| {
        let token = a.ids.iter().zip(&b.ids).position(|(a, b)| a != b)?;
        let prompt = b.ids.len() - b.margins.len();
        Some(Tie { sequence, token, margin: b.margins[token - prompt], bound })
    })
}

/// One row for each way.
fn training<D: RunDevice>(
    work: &Comparison,
    ways: &[Partitioning],
    observer: &Observer,
) -> Result<Vec<LayoutRow>> {
    let batch = batch(work)?;
    let truth = new_weights::<Cpu<f64>>(work, &Layout::default().into(), &batch)?;
    let (mut rows, mut unsplit) = (Vec::new(), 0.0);
    let steps = timed::steps::<D>(work, ways, &batch, observer)?;
    for (n, (way, (taken, timed))) in ways.iter().zip(steps).enumerate() {
        let weights = new_weights::<D>(work, way, &batch)?;
        let error = if has_own_truth(&way.layout) {
            error::largest(&weights, &new_weights::<Cpu<f64>>(work, way, &batch)?)
        } else {
            error::largest(&weights, &truth)
        };
        unsplit = if n == 0 { error::own::<D::Elem>(error, &truth) } else { unsplit };
        let numbers = [
            held::step_peak::<Cpu<f32>>(work, way, &batch)?,
            held::step_peak::<Cpu<Bf16>>(work, way, &batch)?,
        ];
        let rate = batch.tokens() as f64 / timed.median;
        let of_pictures = matches!(work.data, Data::Digits(_));
        let rate = if of_pictures { Rate::PicturesPerSecond(rate) } else { Rate::TokensPerSecond(rate) };
        let ratio = error::ratio(error, unsplit);
        let row = row(Workload::Training, way, &taken, timed, rate, numbers, ratio);
        rows.push(LayoutRow { microbatches: Some(work.microbatches), ..row });
    }
    Ok(rows)
}

/// All weights after one step. Gathering needs memory of its own, so this is a separate run.
fn new_weights<D: RunDevice>(work: &Comparison, way: &Partitioning, batch: &Batch) -> Result<Vec<f64>> {
    let world = way.checks(&work.network).world(&way.layout, "a step")?;
    let mut ranks = session::run((way.scheme::<D>(), &world), work.model.values(), |at: BuildContext<D>| {
        let mut trainer = trainer(work, &at)?;
        let mut weights = Vec::new();
        trainer.step(batch, LR)?;
        let params = trainer.model().params();
        for of in parallel::named(&work.model.design, &params, at.mesh)? {
            let whole = parallel::whole(at.device, &of, at.mesh, |i| params[i].gather(at.mesh))?;
            weights.extend(whole.expect("the host has values").into_iter().map(Real::to_f64));
        }
        Ok(weights)
    })?;
    Ok(ranks.swap_remove(0))
}
