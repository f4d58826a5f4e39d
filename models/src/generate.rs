//! `generate`: continues prompts token by token, with a cache of keys and values. Every tensor rank has all
//! logits of the next token and chooses by the same draw. Data ranks have different prompts, or none.
//!
//! The host reads only the logits that a choice needs: 2 of a row for the largest, k + 1 for a draw from k.
use crate::Model;
use crate::sampling::{self, Logits, SampledToken, Sampling};
use comm::Axis;
use kernels::{Kernels, Meta, OrderedKernels};
use layers::{AtRest, Design, PassContext, Record, Shape, TokenShards, ops};
use parallel::dtype::RunDevice;
use parallel::dump::{self, Recorded};
use parallel::measure::{self, PeakBytes, RankMeasurements};
use parallel::{Batch, BuildContext, Layout, Network, Result, Stages, bail, budget, price, session};
use serde::Serialize;
use std::time::Instant;
use tensor::{Device, Phase, Real, Scalar, Tensor, TokenIds};

/// Request: prompts to continue, and how.
#[derive(Clone, Debug)]
pub struct Prompts {
    /// Token ids of each prompt.
    pub prompts: Vec<Vec<u32>>,
    /// Number of tokens to add to each.
    pub max_new: usize,
    /// Method of choosing the next token.
    pub sampling: Sampling,
    /// True if inputs and outputs of layers, and the weights, are recorded for a dump.
    pub record: bool,
}

/// One continued prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Text {
    /// Prompt and new ids.
    pub ids: Vec<u32>,
    /// For each new id, the largest change of the logits that chooses no other id ([`SampledToken::margin`]).
    pub margins: Vec<f64>,
    /// The logits after the prompt.
    pub prompt_logits: Vec<f32>,
}

/// All continued prompts, with measurements.
#[derive(Clone, Debug)]
pub struct Generated<E: Scalar> {
    /// Texts, in the order of the prompts.
    pub texts: Vec<Text>,
    /// Measurements of each rank.
    pub taken: Vec<RankMeasurements>,
    /// Seconds of that time until every rank had read its prompts.
    pub prefill_seconds: f64,
    /// Activations of each data rank's layers, if recorded.
    pub seen: Vec<Recorded<E>>,
}

/// Output for scripts: one JSON object per text.
#[derive(Serialize)]
pub struct Line<'a> {
    ids: &'a [u32],
    prompt_logits: &'a [f32],
    seconds: f64,
    tokens_per_second: f64,
    peak_bytes: PeakBytes,
}

impl<E: Scalar> Generated<E> {
    /// Returns the number of new tokens of all texts.
    pub fn new_tokens(&self) -> usize {
        self.texts.iter().map(|t| t.margins.len()).sum()
    }
    /// Returns the number of new tokens per second.
    pub fn tokens_per_second(&self) -> f64 {
        self.new_tokens() as f64 / measure::seconds(&self.taken)
    }
    /// Returns the output for scripts.
    pub fn lines(&self) -> impl Iterator<Item = Line<'_>> {
        self.texts.iter().map(|text| Line {
            ids: &text.ids,
            prompt_logits: &text.prompt_logits,
            seconds: measure::seconds(&self.taken),
            tokens_per_second: self.tokens_per_second(),
            peak_bytes: PeakBytes::of(&self.taken),
        })
    }
}

impl Prompts {
    /// Checks that the request fits the model and the layout, and that the machine has enough memory.
    ///
    /// # Errors
    /// Names the first misfit, in one sentence.
    pub fn check<D: RunDevice>(&self, model: &Model, (layout, network): (&Layout, &Network)) -> Result<()> {
        layout.fits(Design::from(model.config.shape).inferring())?;
        model.config.generates()?;
        self.sampling.validate()?;
        let (data, positions) = (layout.tokens().data_ranks(), model.config.positions);
        let least = if layout.shares_experts() { 1 } else { data };
        if self.prompts.len() < least {
            let n = self.prompts.len();
            bail!("{n} prompts cannot be dealt over dp={data}: each rank needs at least one");
        }
        for prompt in &self.prompts {
            if prompt.is_empty() {
                bail!("the prompt is empty; it must have at least one token");
            }
            let tokens = prompt.len().saturating_add(self.max_new);
            Batch::reach(tokens, &layout.tokens())?;
            if tokens > positions {
                bail!(
                    "a prompt of {} tokens and {} new ones make {tokens}; the model has {positions} positions",
                    prompt.len(),
                    self.max_new
                );
            }
            TokenIds::new(&tensor::Host::default(), prompt, model.config.shape.vocabulary)?;
        }
        budget::fits::<D::Place>(
            format_args!("generating under {layout}"),
            [network.here(layout), layout.ranks()],
            self.peak::<D>(model, layout)?.all,
        )
    }
    /// Number of a row's first logits that are read for a new token. `None`: all of them, or no new token is
    /// wanted.
    fn first(&self, vocabulary: usize) -> Option<usize> {
        (self.max_new > 0).then(|| self.sampling.needs(vocabulary)).flatten()
    }
    /// Number of positions of the longest text of a rank with prompts of these lengths; 0 for a rank without
    /// prompts.
    fn positions(&self, lengths: &[usize]) -> usize {
        lengths.iter().max().map_or(0, |longest| longest + self.max_new)
    }
    /// Returns the peak memory of the ranks: while they read the prompts, with a cache for all new tokens.
    ///
    /// # Errors
    /// If the layout does not fit the model, or 64 bits do not count the bytes of a rank.
    pub fn peak<D: RunDevice>(&self, model: &Model, layout: &Layout) -> Result<price::Peak> {
        let shape = &model.config.shape;
        let dealt = |tokens: &TokenShards| -> Vec<usize> {
            self.prompts[tokens.sequences(self.prompts.len())].iter().map(Vec::len).collect()
        };
        let program = |at: BuildContext<Meta<D::Elem>>| {
            let (mut chunk, lengths, tokens) = (Stages::new(&at, shape)?, dealt(&at.tokens), at.tokens);
            let all = (0..tokens.data_ranks()).map(|rank| dealt(&tokens.of_data_rank(rank)));
            let cx = PassContext::infer(&lengths).sharded(tokens).among(all);
            // the cache is held while the first logits are computed
            let cx = cx.with_cache(self.positions(&lengths));
            let ids = TokenIds::new(at.device.place(), &vec![0; cx.rows()], shape.vocabulary)?;
            let logits = chunk.logits(&cx, ids, false)?;
            drop(self.first(shape.vocabulary).map(|n| ops::top_k(&logits, n)));
            Ok(())
        };
        price::peak_of_all::<D, _>(layout, |tokens| Ok(dealt(&tokens)), program)
    }
}

/// Continues the prompts under a layout, over a network. Calls `watch` with every new token of the first
/// prompt.
///
/// # Errors
/// If the request, the layout and the model do not fit, the machine has too little memory, or a rank fails.
pub fn generate<D: RunDevice>(
    model: &Model,
    (layout, network): (&Layout, &Network),
    request: &Prompts,
    watch: &(dyn Fn(u32) + Sync),
) -> Result<Generated<D::Elem>> {
    Ok(repeated::<D>(model, (layout, network), (request, 1), watch)?.swap_remove(0))
}

/// Runs [`generate`] this number of times, on ranks that build the model once.
///
/// # Errors
/// As [`generate`].
pub fn repeated<D: RunDevice>(
    model: &Model,
    (layout, network): (&Layout, &Network),
    (request, times): (&Prompts, usize),
    watch: &(dyn Fn(u32) + Sync),
) -> Result<Vec<Generated<D::Elem>>> {
    request.check::<D>(model, (layout, network))?;
    let world = network.world(layout, "inference")?;
    let ranks = session::run((layout, &world), model.values(), |at: BuildContext<D>| {
        let mut chunk = Stages::new(&at, model.config.shape)?;
        network.agrees(at.mesh)?;
        let once = |_| once((model, &mut chunk), request, &at, watch);
        let all = (0..times).map(once).collect::<Result<Vec<_>>>()?;
        let reported = |(texts, took, seen): OfRank<D>| -> Result<_> {
            let texts = texts.iter().map(Text::to_bits).collect::<Vec<_>>();
            Ok((network.of_all(at.mesh, (texts, took))?, seen))
        };
        all.into_iter().map(reported).collect::<Result<Vec<_>>>()
    })?;
    let new = || Generated { texts: Vec::new(), taken: Vec::new(), prefill_seconds: 0.0, seen: Vec::new() };
    let mut all: Vec<Generated<D::Elem>> = (0..times).map(|_| new()).collect();
    for rank in ranks {
        for (all, (of_ranks, seen)) in all.iter_mut().zip(rank) {
            for (texts, (taken, prefill)) in of_ranks {
                all.texts.extend(texts.into_iter().map(Text::from_bits));
                all.taken.push(taken);
                all.prefill_seconds = all.prefill_seconds.max(prefill);
            }
            all.seen.extend(seen);
        }
    }
    Ok(all)
}

/// Result of a rank: the texts, if it reports for its data rank; its measurements and the seconds of the
/// prompts; and its recorded activations, if any.
type OfRank<D> = (Vec<Text>, (RankMeasurements, f64), Option<Recorded<<D as Device>::Elem>>);

fn once<D: RunDevice>(
    (model, chunk): (&Model, &mut Stages<D>),
    request: &Prompts,
    at: &BuildContext<D>,
    watch: &(dyn Fn(u32) + Sync),
) -> Result<OfRank<D>> {
    let (device, mesh) = (at.device, at.mesh);
    let record = request.record.then(|| Record::new(mesh));
    let data = mesh.group(TokenShards::SEQUENCES);
    // reports for its data rank
    let speaks = at.tokens.speaks() && mesh.over([Axis::Tp, Axis::Pp])?.rank() == 0;
    let mine = at.tokens.sequences(request.prompts.len());
    // Ranks that hold experts, or values, for each other continue until all have finished.
    let together = model.config.shape.experts.is_some() || at.rests.value != AtRest::Whole;
    let weights = if request.record { dump::weights(chunk.params(), mesh)? } else { Vec::new() };
    let ((texts, prefill), taken) = measure::work(at, Phase::Inference, || {
        let (from, mut prefill) = (Instant::now(), 0.0);
        let new = |prompt: &Vec<u32>| Text::new(prompt, request.max_new);
        let mut texts: Vec<_> = request.prompts[mine.clone()].iter().map(new).collect();
        // empty for finished texts
        let mut fed: Vec<Vec<u32>> = texts.iter().map(|t| t.ids.clone()).collect();
        let mut lengths: Vec<_> = fed.iter().map(Vec::len).collect();
        let capacity = request.positions(&lengths);
        let cx = PassContext::infer(&lengths).sharded(at.tokens).numbered_from(mine.start);
        let cx = cx.recorded(record.clone());
        let first = request.first(model.config.shape.vocabulary);
        let (mut cx, mut room) = (cx.with_cache(capacity), LogitsBuffer::default());
        let (mut numbers, mut memory) = (Vec::new(), sampling::SamplingRoom::default());
        for new in 0..request.max_new.max(1) {
            let _span = if new == 0 { mesh.span("prompt") } else { mesh.span(format_args!("token {new}")) };
            if new > 0 {
                cx.advance(&lengths);
            }
            let ids = TokenIds::new(device.place(), cx.own(&fed), model.config.shape.vocabulary)?;
            room.read(&chunk.logits(&cx, ids, false)?, &mut numbers, first, new == 0);
            if new == 0 {
                prefill = from.elapsed().as_secs_f64();
                for (row, text) in texts.iter_mut().enumerate() {
                    text.prompt_logits = room.row(row).to_vec();
                }
            }
            let mut rows = 0..;
            for (i, text) in texts.iter_mut().enumerate().filter(|(i, _)| lengths[*i] > 0) {
                let row = rows.next().expect("a row for every open sequence");
                fed[i].clear();
                if request.max_new == 0 {
                    continue;
                }
                let (sequence, position) = (mine.start + i, text.ids.len() - 1);
                let SampledToken { id, margin } =
                    request.sampling.choose_in(&mut memory, room.choices(row), sequence, position)?;
                text.ids.push(id);
                text.margins.push(margin);
                fed[i].extend(Some(id).filter(|id| !model.config.eos.contains(id)));
                if sequence == 0 && speaks {
                    watch(id);
                }
            }
            lengths.clear();
            lengths.extend(fed.iter().map(Vec::len));
            let mut open = [lengths.iter().filter(|&&n| n > 0).count()];
            if together {
                data.all_reduce_values(&mut open, usize::max)?;
            }
            if open == [0] {
                break;
            }
        }
        Ok((texts, prefill))
    })?;
    let seen = |r: Record<_>| Recorded { activations: r.take(), gradients: Vec::new(), weights, after: None };
    Ok((if speaks { texts } else { Vec::new() }, (taken, prefill), record.map(seen)))
}

/// A text with its floats as bits.
type Bits = (Vec<u32>, Vec<u64>, Vec<u32>);

impl Text {
    fn to_bits(&self) -> Bits {
        let margins = self.margins.iter().map(|x| x.to_bits());
        (self.ids.clone(), margins.collect(), self.prompt_logits.iter().map(|x| x.to_bits()).collect())
    }
    fn from_bits((ids, margins, logits): Bits) -> Self {
        let margins = margins.into_iter().map(f64::from_bits).collect();
        Self { ids, margins, prompt_logits: logits.into_iter().map(f32::from_bits).collect() }
    }
    /// Creates a text without new tokens, with room for `most`.
    fn new(prompt: &[u32], most: usize) -> Self {
        let mut ids = Vec::with_capacity(prompt.len() + most);
        ids.extend_from_slice(prompt);
        Self { ids, margins: Vec::with_capacity(most), prompt_logits: Vec::new() }
    }
}

/// Logits of a token that were read to the host, in memory that is reused for the next token.
#[derive(Default)]
struct LogitsBuffer {
    first: usize, // elements of a row in `values` and `ids`; 0: choices use `logits`
    values: Vec<f32>,
    ids: Vec<u32>,
    vocabulary: usize, // elements of a row in `logits`
    logits: Vec<f32>,
}

impl LogitsBuffer {
    /// Reads the first `first` logits of each row of `[sequences, V]`. Reads all logits if `first` is `None`
    /// or `all` is true. `numbers` is memory for the device's elements.
    fn read<D: OrderedKernels<Elem: Real>>(
        &mut self,
        logits: &Tensor<D>,
        numbers: &mut Vec<D::Elem>,
        first: Option<usize>,
        all: bool,
    ) {
        (self.first, self.vocabulary) = (first.unwrap_or(0), logits.cols());
        if let Some(n) = first {
            let (values, ids) = ops::top_k(logits, n);
            assert!(ids.read_into(&mut self.ids), "the host has values");
            in_f32(&values, numbers, &mut self.values);
        }
        if all || first.is_none() {
            in_f32(logits, numbers, &mut self.logits);
        }
    }
    fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocabulary..][..self.vocabulary]
    }
    /// Returns the logits from which the next token of a row is chosen.
    fn choices(&self, row: usize) -> Logits<'_> {
        if self.first == 0 {
            return Logits::All(self.row(row));
        }
        let of_row = row * self.first..(row + 1) * self.first;
        Logits::First(&self.values[of_row.clone()], &self.ids[of_row])
    }
}

/// Reads a device's elements as f32, the dtype of choices.
fn in_f32<D: Kernels<Elem: Real>>(x: &Tensor<D>, read: &mut Vec<D::Elem>, into: &mut Vec<f32>) {
    assert!(x.read_into(read), "the host has values");
    into.clear();
    into.extend(read.iter().map(|x| x.to_f64() as f32));
}

/// Returns the logits of every token of whole sequences, as one row-major matrix in f64: for comparing
/// layouts and dtypes.
///
/// # Errors
/// If the layout does not fit the model, or a rank fails.
pub fn all_logits<D: RunDevice>(model: &Model, layout: &Layout, sequences: &[Vec<u32>]) -> Result<Vec<f64>> {
    layout.fits(Design::from(model.config.shape).inferring())?;
    let ranks = session::run((layout, &layout.world()?), model.values(), |at: BuildContext<D>| {
        let logits = whole_logits(&at, &model.config.shape, sequences)?;
        let logits = logits.read().expect("the host has values");
        Ok(logits.into_iter().map(Real::to_f64).collect())
    })?;
    Ok(ranks.into_iter().next().expect("a rank"))
}

/// Returns the peak memory of the ranks while [`all_logits`] reads sequences of these lengths.
///
/// # Errors
/// As [`peak_of_all`](price::peak_of_all).
pub fn all_logits_peak<D: Kernels>(shape: &Shape, layout: &Layout, lengths: &[usize]) -> Result<price::Peak> {
    let sequences: Vec<_> = lengths.iter().map(|n| vec![0; *n]).collect();
    let program = |at: BuildContext<Meta<D::Elem>>| whole_logits(&at, shape, &sequences).map(drop);
    price::peak_of_all::<D, _>(layout, |_| Ok(()), program)
}

fn whole_logits<D: Kernels>(at: &BuildContext<D>, shape: &Shape, texts: &[Vec<u32>]) -> Result<Tensor<D>> {
    let (mut chunk, lengths) = (Stages::new(at, shape)?, texts.iter().map(Vec::len));
    let cx = PassContext::infer(lengths).sharded(at.tokens);
    let ids = TokenIds::new(at.device.place(), cx.own(texts), shape.vocabulary)?;
    chunk.logits(&cx, ids, true)
}

#[cfg(test)]
mod tests;
