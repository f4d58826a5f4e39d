//! What one rank does in a proof, on any device: it reads the texts as a generation would, then learns, and all that is
//! compared is shown as it comes about.
use crate::timeline::{self, Moment, Shown};
use crate::{Subject, Watch, trace};
use kernels::Kernels;
use layers::{Cx, Input, Record, TokenShards};
use parallel::{At, Result, Stages, Trainer, features};
use std::ops::Range;
use tensor::Ids;

/// Who is shown what is compared while a program runs, whole tensors in program order, and who is shown everything on this
/// rank, if somebody is: nothing of it stays with a rank.
pub(crate) type Look<'a, E> = (&'a mut dyn FnMut(String, Vec<E>), Option<&'a mut dyn FnMut(Moment<E>)>);

/// The program on one rank, on any device: which layers its strategies built.
pub(crate) fn program<D: Kernels<Wide = D>>(
    subject: &Subject,
    at: &At<D>,
    (results, mut everything): Look<D::Elem>,
    watch: &Watch,
) -> Result<Vec<(String, &'static str)>> {
    let (device, mesh) = (at.device, at.mesh);
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
    let logits = read(subject, trainer.model(), device, of_texts.clone())?;
    results("logits".into(), logits);
    if let Some(see) = &mut everything {
        let shown = Shown { prefix: "texts: ".into(), seen: taken(of_texts), report: None, calls: 0 };
        timeline::moments::<D>(shown, layers::Params::new(), mesh, see);
    }
    for (n, (batch, lr)) in subject.steps.iter().enumerate() {
        watch(&format!("step {n}"));
        let (of_step, calls) = (record(), mesh.calls_made());
        trainer.record(of_step.clone());
        let report = trainer.step(batch, *lr)?;
        if let Some(see) = &mut everything {
            let shown =
                Shown { prefix: format!("step {n}: "), seen: taken(of_step), report: Some(&report), calls };
            timeline::moments(shown, trainer.model().params(), mesh, see);
        }
        trace::seen(results, n, &report, trainer.model().params(), device, mesh)?;
    }
    Ok(at.built.take())
}

/// The logits after the prompt and after each further token of this data rank's texts, fed as a generation would be; or all
/// that comes of its sequences of features.
///
/// # Errors
/// If an id is none of the vocabulary, or ranks do not meet.
pub fn read<D: Kernels>(
    subject: &Subject,
    model: &mut Stages<D>,
    device: &D,
    record: Option<Record<D>>,
) -> Result<Vec<D::Elem>> {
    let (vocabulary, tokens) = (subject.model.outputs(), model.tokens());
    if let Some(width) = subject.model.features() {
        let all = subject.given();
        let mine = tokens.sequences(all.len());
        let first = all[..mine.start].iter().map(|s| s.documents.len()).sum();
        let lengths = all[mine.clone()].iter().flat_map(|s| &s.documents);
        let cx = Cx::infer(lengths).sharded(tokens).numbered_from(first).recorded(record);
        let x = Input::Rows(features(device, width, &all[mine], &tokens));
        return Ok(model.logits(&cx, x, true)?.read().unwrap_or_default());
    }
    let mine = tokens.sequences(subject.texts.len());
    let texts = &subject.texts[mine.clone()];
    let capacity = texts.iter().map(|(ids, _)| ids.len()).max().unwrap_or(0);
    let mut lengths: Vec<_> = texts.iter().map(|(_, prompt)| *prompt).collect();
    let cx = Cx::infer(&lengths).sharded(tokens).numbered_from(mine.start).recorded(record);
    let mut cx = cx.with_cache(capacity);
    let (mut done, mut rows) = (vec![0; texts.len()], vec![Vec::new(); texts.len()]);
    // As often as the text with most tokens asks for: experts' ranks meet, also for the sake of others.
    for _ in 0..subject.rows_read().into_iter().max().unwrap_or(0) {
        let fed =
            texts.iter().zip(&done).zip(&lengths).map(|(((ids, _), &from), n)| ids[from..from + n].to_vec());
        let ids = Ids::new(device.place(), cx.own(&fed.collect::<Vec<_>>()), vocabulary)?;
        let logits = model.logits(&cx, ids, false)?.read().unwrap_or_default();
        let fed = rows.iter_mut().zip(&lengths).filter(|(_, n)| **n > 0);
        fed.zip(logits.chunks(vocabulary)).for_each(|((rows, _), row)| rows.extend_from_slice(row));
        done.iter_mut().zip(&lengths).for_each(|(done, n)| *done += n);
        lengths = texts.iter().zip(&done).map(|((ids, _), &done)| usize::from(done < ids.len())).collect();
        cx.advance(&lengths);
    }
    Ok(rows.concat())
}

/// Which of all texts' logits a data rank reads.
pub(crate) fn logits_of(subject: &Subject, tokens: &TokenShards) -> Range<usize> {
    let rows = subject.rows_read();
    let mine = tokens.sequences(rows.len());
    let before = |n: usize| subject.model.outputs() * rows[..n].iter().sum::<usize>();
    before(mine.start)..before(mine.end)
}
