//! Requests answered on one rank: as one batch, or one by one as batches of one.
use super::answers::{Answers, together};
use super::chooser::TokenChooser;
use super::generated::TokenTimes;
use super::prompts::Prompts;
use super::requests::RequestMode;
use super::slots::SlotRun;
use super::text::Text;
use crate::Model;
use comm::Axis;
use ops::{PassContext, Record, TokenShards};
use parallel::dtype::RunDevice;
use parallel::dump::{self, Recorded};
use parallel::measure::{self, RankMeasurements};
use parallel::{BuildContext, Result, Stages};
use std::ops::Range;
use std::time::Instant;
use tensor::{Device, Phase, TokenIds};

/// Result of a rank: the answers, without texts if another rank reports for its data rank; its measurements;
/// and its recorded activations, if any.
pub(super) type OfRank<D> = (Answers, RankMeasurements, Option<Recorded<<D as Device>::Elem>>);

/// Answers a request once, on one rank.
pub(super) fn once<D: RunDevice>(
    (model, chunk): (&Model, &mut Stages<D>),
    request: &Prompts,
    at: &BuildContext<D>,
    watch: &(dyn Fn(u32) + Sync),
) -> Result<OfRank<D>> {
    let mesh = at.mesh;
    let record = request.record.then(|| Record::new(mesh));
    let is_first = at.tokens.speaks() && mesh.group(Axis::Tp).rank() == 0;
    let speaks = is_first && mesh.group(Axis::Pp).rank() == 0;
    let weights = if request.record { dump::weights(chunk.params(), mesh)? } else { Vec::new() };
    let (mut answers, taken) = measure::work(at, Phase::Inference, || {
        let from = Instant::now();
        let watch = speaks.then_some(watch as &dyn Fn(u32));
        BatchRun { model, request, at, watch, record: record.clone(), from }.answers(chunk)
    })?;
    // without a batch, only the last stage has logits
    let reports = match request.requests {
        RequestMode::Async { .. } => is_first && mesh.group(Axis::Pp).rank() == chunk.last_stage(),
        RequestMode::Sync | RequestMode::Batch => speaks,
    };
    if !reports {
        (answers.texts, answers.times) = (Vec::new(), Vec::new());
    }
    let seen = |r: Record<_>| Recorded {
        activations: r.take(),
        gradients: Vec::new(),
        weights,
        log2: 0,
        after: None,
    };
    Ok((answers, taken, record.map(seen)))
}

/// A run of a request on one rank.
struct BatchRun<'a, D: RunDevice> {
    model: &'a Model,
    request: &'a Prompts,
    at: &'a BuildContext<'a, D>,
    watch: Option<&'a dyn Fn(u32)>,
    record: Option<Record<D>>,
    from: Instant,
}

impl<D: RunDevice> BatchRun<'_, D> {
    fn answers(&self, chunk: &mut Stages<D>) -> Result<Answers> {
        let Self { model, request, at, watch, from, .. } = self;
        let config = &model.config;
        let mine = at.tokens.sequences(request.prompts.len());
        if let RequestMode::Async { .. } = request.requests {
            let mut run = SlotRun::new(request, (&config.shape, &config.eos), at, (*watch, *from));
            chunk.in_turns(run.slots(), &mut run)?;
            return Ok(run.answers);
        }
        let mut answers = Answers::default();
        let mut chooser = TokenChooser::new(request, config.shape.vocabulary);
        for of in request.batches(mine, at.tokens.data_ranks(), together(&config.shape, at)) {
            self.batch(chunk, of, &mut chooser, &mut answers)?;
        }
        Ok(answers)
    }
    /// Continues these prompts together.
    fn batch(
        &self,
        chunk: &mut Stages<D>,
        of: Range<usize>,
        chooser: &mut TokenChooser<D::Elem>,
        answers: &mut Answers,
    ) -> Result<()> {
        let Self { model, request, at, .. } = self;
        let new = |prompt: &Vec<u32>| Text::new(prompt, request.max_new);
        let mut texts: Vec<_> = request.prompts[of.clone()].iter().map(new).collect();
        let mut times = vec![TokenTimes::default(); texts.len()];
        // empty for finished texts
        let mut fed: Vec<Vec<u32>> = texts.iter().map(|t| t.ids.clone()).collect();
        let mut lengths: Vec<_> = fed.iter().map(Vec::len).collect();
        let cx = PassContext::infer(&lengths).sharded(at.tokens).numbered_from(of.start);
        let mut cx = cx.recorded(self.record.clone()).with_cache(request.positions(&lengths));
        let together = together(&model.config.shape, at);
        for new in 0..request.max_new.max(1) {
            let _span =
                if new == 0 { at.mesh.span("prompt") } else { at.mesh.span(format_args!("token {new}")) };
            if new > 0 {
                cx.advance(&lengths);
            }
            let ids = TokenIds::new(at.device.place(), cx.own(&fed), model.config.shape.vocabulary)?;
            assert!(chooser.read(&chunk.logits(&cx, ids, false)?, new == 0), "the host has values");
            if new == 0 {
                answers.prefill = self.from.elapsed().as_secs_f64();
                for (row, text) in texts.iter_mut().enumerate() {
                    text.prompt_logits = chooser.row(row).to_vec();
                }
            }
            self.choose((of.start, new), chooser, (&mut texts, &mut times), &mut fed)?;
            lengths.clear();
            lengths.extend(fed.iter().map(Vec::len));
            let mut open = [lengths.iter().filter(|&&n| n > 0).count()];
            if together {
                at.mesh.group(TokenShards::SEQUENCES).all_reduce_values(&mut open, usize::max)?;
            }
            if open == [0] {
                break;
            }
        }
        answers.texts.append(&mut texts);
        answers.times.append(&mut times);
        Ok(())
    }
    /// Chooses new token number `new` of each open text, and feeds it.
    fn choose(
        &self,
        (first, new): (usize, usize),
        chooser: &mut TokenChooser<D::Elem>,
        (texts, times): (&mut [Text], &mut [TokenTimes]),
        fed: &mut [Vec<u32>],
    ) -> Result<()> {
        let Self { model, request, watch, from, .. } = self;
        let mut rows = 0..;
        for (i, (text, fed)) in texts.iter_mut().zip(fed).enumerate().filter(|(_, (_, fed))| !fed.is_empty())
        {
            let row = rows.next().expect("a row for every open sequence");
            fed.clear();
            if request.max_new == 0 {
                continue;
            }
            let chosen = chooser.choose(row, first + i, text.ids.len() - 1)?;
            text.ids.push(chosen.id);
            text.margins.push(chosen.margin);
            times[i].add(from.elapsed().as_secs_f64(), new == 0);
            fed.extend(Some(chosen.id).filter(|id| !model.config.eos.contains(id)));
            if let (0, Some(watch)) = (first + i, watch) {
                watch(chosen.id);
            }
        }
        Ok(())
    }
}
