//! Program of one rank in a proof, on any device: reads the texts, then trains, and reports each tensor as it
//! is computed.
//!
//! The program reads as in generation: texts are dealt over data ranks, prompts are fed whole and the rest
//! token by token, with a cache of keys and values, and logits are those of the last token fed. Pipelines
//! read them once more, in slots that take turns. The program trains on ragged microbatches with a clipped
//! norm. Compared are the logits; then for each step the loss, the norm², every gradient and every new
//! weight, assembled from all ranks, on every rank.
//!
//! After a step a fresh random value is added to every weight, so that degrees, and with them the bound, do
//! not compound.
use crate::timeline::{self, StepRecords, TimelineEntry};
use crate::{ProofProgress, Subject, trace, turns};
use comm::Axis;
use kernels::Kernels;
use layers::Input;
use ops::{PassContext, Record, TokenShards};
use parallel::{BuildContext, Result, Stages, Trainer, features};
use std::ops::Range;
use tensor::TokenIds;

/// Callbacks of a running program: the first receives the compared tensors, whole and in program order; the
/// second, if any, receives everything on this rank. The rank keeps nothing of it.
pub(crate) type Observers<'a, E> =
    (&'a mut dyn FnMut(String, Vec<E>), Option<&'a mut dyn FnMut(TimelineEntry<E>)>);

/// Runs the program on one rank, on any device. Returns the layers that were built, with their strategies.
pub(crate) fn program<D: Kernels<Wide = D>>(
    subject: &Subject,
    at: &BuildContext<D>,
    (results, mut everything): Observers<D::Elem>,
    watch: &ProofProgress,
) -> Result<Vec<(String, &'static str)>> {
    let mesh = at.mesh;
    let mut trainer = Trainer::new(at, &subject.model, subject.optimizer)?;
    let looks = everything.is_some();
    let record = || looks.then(|| Record::new(mesh));
    let taken = |record: Option<Record<D>>| record.map(|record| record.take()).unwrap_or_default();
    let watch = |what: &str| {
        if mesh.rank() == 0 {
            watch(what);
        }
    };
    let of_texts = record();
    watch("the texts");
    results("logits".into(), read(subject, at, trainer.model(), of_texts.clone())?);
    if let Some(see) = &mut everything {
        let displayed =
            StepRecords { prefix: "texts: ".into(), seen: taken(of_texts), report: None, calls: 0 };
        timeline::moments::<D>(displayed, layers::Params::new(), mesh, see);
    }
    for (n, (batch, lr)) in subject.steps.iter().enumerate() {
        watch(&format!("step {n}"));
        let of_step = record();
        let calls = mesh.calls_made();
        trainer.record(of_step.clone());
        let report = trainer.step(batch, *lr)?;
        if let Some(see) = &mut everything {
            let displayed = StepRecords {
                prefix: format!("step {n}: "),
                seen: taken(of_step),
                report: Some(&report),
                calls,
            };
            timeline::moments(displayed, trainer.model().params(), mesh, see);
        }
        trace::seen(results, n, &report, trainer.model().params(), at.device, mesh)?;
    }
    Ok(at.built.take())
}

/// Returns the logits after the prompt and after each further token of this data rank's texts, fed as in
/// generation: as one batch, and in a pipeline once more in slots that take turns. If the two differ, returns
/// both. For a model of features, returns all outputs for this data rank's sequences.
///
/// # Errors
/// If an id is not in the vocabulary, or ranks do not meet.
pub fn read<D: Kernels>(
    subject: &Subject,
    at: &BuildContext<D>,
    model: &mut Stages<D>,
    record: Option<Record<D>>,
) -> Result<Vec<D::Elem>> {
    let mut logits = read_batch(subject, at.device, model, record)?;
    if at.mesh.group(Axis::Pp).size() > 1 && !subject.texts.is_empty() {
        let again = turns::read(subject, at, model)?;
        let is_last = at.mesh.group(Axis::Pp).rank() == model.last_stage();
        if again != if is_last { &logits[..] } else { &[] } {
            logits.extend(again);
        }
    }
    Ok(logits)
}

fn read_batch<D: Kernels>(
    subject: &Subject,
    device: &D,
    model: &mut Stages<D>,
    record: Option<Record<D>>,
) -> Result<Vec<D::Elem>> {
    let vocabulary = subject.model.outputs();
    let tokens = model.tokens();
    if let Some(width) = subject.model.features() {
        let given = subject.given();
        let mine = tokens.sequences(given.len());
        let first = given[..mine.start].iter().map(|s| s.documents.len()).sum();
        let lengths = given[mine.clone()].iter().flat_map(|s| &s.documents);
        let cx = PassContext::infer(lengths).sharded(tokens).numbered_from(first).recorded(record);
        let x = Input::Rows(features(device, width, &given[mine], &tokens));
        return Ok(model.logits(&cx, x, true)?.read().unwrap_or_default());
    }
    let mine = tokens.sequences(subject.texts.len());
    let texts = &subject.texts[mine.clone()];
    let mut lengths: Vec<_> = texts.iter().map(|(_, prompt)| *prompt).collect();
    let cx = PassContext::infer(&lengths).sharded(tokens).numbered_from(mine.start).recorded(record);
    let mut cx = cx.with_cache(texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0));
    let (mut done, mut rows) = (vec![0; texts.len()], vec![Vec::new(); texts.len()]);
    // As many rounds as the text with the most tokens needs: ranks that share experts meet in every round,
    // also for the tokens of others.
    for _ in 0..subject.rows_read().into_iter().max().unwrap_or(0) {
        let fed =
            texts.iter().zip(&done).zip(&lengths).map(|(((ids, _), &from), n)| ids[from..from + n].to_vec());
        let ids = TokenIds::new(device.place(), cx.own(&fed.collect::<Vec<_>>()), vocabulary)?;
        let logits = model.logits(&cx, ids, false)?.read().unwrap_or_default();
        let fed = rows.iter_mut().zip(&lengths).filter(|(_, n)| **n > 0);
        fed.zip(logits.chunks(vocabulary)).for_each(|((rows, _), row)| rows.extend_from_slice(row));
        done.iter_mut().zip(&lengths).for_each(|(done, n)| *done += n);
        lengths = texts.iter().zip(&done).map(|((ids, _), &done)| usize::from(done < ids.len())).collect();
        cx.advance(&lengths);
    }
    Ok(rows.concat())
}

/// Returns the range of all texts' logits that a data rank reads.
pub(crate) fn logits_of(subject: &Subject, tokens: &TokenShards) -> Range<usize> {
    let rows = subject.rows_read();
    let mine = tokens.sequences(rows.len());
    let before = |n: usize| subject.model.outputs() * rows[..n].iter().sum::<usize>();
    before(mine.start)..before(mine.end)
}
