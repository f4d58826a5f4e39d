//! Requests in slots that take turns: a request joins a slot when the request there has ended, and each slot
//! has a cache of its own, with room for the longest text of the data rank.
//!
//! Data ranks that work together run the same passes: a slot without a request runs empty ones until no data
//! rank has a request for it. The last stage finds that out with the token it chooses.
//!
//! On the meta device every text gets all new tokens, so the passes of all data ranks are known.
use super::answers::{Answers, together};
use super::chooser::TokenChooser;
use super::generated::TokenTimes;
use super::prompts::Prompts;
use super::text::Text;
use comm::Group;
use kernels::OrderedKernels;
use layers::{Input, Shape};
use ops::{PassContext, TokenShards};
use parallel::stages::turns::{SlotRequests, SlotToken};
use parallel::{BuildContext, Result};
use std::mem::take;
use std::ops::Range;
use std::time::Instant;
use tensor::{Real, Tensor, TokenIds};

/// A run of a request in slots, on one rank.
pub(super) struct SlotRun<'a, D: OrderedKernels> {
    request: &'a Prompts,
    device: D,
    vocabulary: usize,
    eos: &'a [u32],
    tokens: TokenShards,
    data: Option<Group<D::Place>>, // the data ranks, if they work together
    priced: bool,                  // on the meta device
    capacity: usize,               // positions of a cache
    mine: Range<usize>,
    joined: usize,  // requests that are in slots, or were
    claimed: usize, // requests that have a slot, counted when tokens are chosen
    slots: Vec<RequestSlot<D>>,
    chooser: TokenChooser<D::Elem>,
    watch: Option<&'a dyn Fn(u32)>,
    from: Instant,
    pub(super) answers: Answers,
}

/// A slot.
struct RequestSlot<D: OrderedKernels> {
    cx: PassContext<D>,
    fed: [Vec<u32>; 1],
    request: Option<usize>, // until it ends
    passes: usize,
    open: bool, // some data rank has a request for it
}

impl<'a, D: OrderedKernels<Elem: Real>> SlotRun<'a, D> {
    pub(super) fn new(
        request: &'a Prompts,
        (shape, eos): (&Shape, &'a [u32]),
        at: &BuildContext<D>,
        (watch, from): (Option<&'a dyn Fn(u32)>, Instant),
    ) -> Self {
        let tokens = at.tokens;
        let mine = tokens.sequences(request.prompts.len());
        let slots = request.requests.slots(chunks(at), request.most_requests(tokens.data_ranks()));
        let prompts = &request.prompts[mine.clone()];
        let lengths: Vec<_> = prompts.iter().map(Vec::len).collect();
        let empty = || PassContext::infer([0; 0]).sharded(tokens).with_cache(0);
        let slot = || RequestSlot { cx: empty(), fed: [Vec::new()], request: None, passes: 0, open: true };
        let texts = prompts.iter().map(|prompt| Text::new(prompt, request.max_new)).collect();
        let data = at.mesh.group(TokenShards::SEQUENCES);
        Self {
            request,
            device: at.device.clone(),
            vocabulary: shape.vocabulary,
            eos,
            tokens,
            data: together(shape, at).then(|| data.clone()),
            priced: false,
            capacity: request.positions(&lengths),
            joined: mine.start,
            claimed: mine.start + slots.min(mine.len()),
            slots: (0..slots).map(|_| slot()).collect(),
            chooser: TokenChooser::new(request, shape.vocabulary),
            watch,
            from,
            answers: Answers { times: vec![TokenTimes::default(); mine.len()], texts, prefill: 0.0 },
            mine,
        }
    }
    /// The same run on the meta device, with caches of this number of positions.
    pub(super) fn priced(self, capacity: usize) -> Self {
        Self { priced: true, capacity, ..self }
    }
    /// Number of slots.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
    /// The text of a request.
    fn text(&mut self, request: usize) -> &mut Text {
        &mut self.answers.texts[request - self.mine.start]
    }
    /// True if a request ends with its next token.
    fn ends(&mut self, request: usize, id: Option<u32>) -> bool {
        let new = self.text(request).ids.len() + 1 - self.request.prompts[request].len();
        new >= self.request.max_new || id.is_some_and(|id| self.eos.contains(&id))
    }
    /// Request of a data rank in this pass of a slot, and the number of its pass, if every text gets all new
    /// tokens; it may be behind the rank's last request.
    fn planned(&self, slot: usize, pass: usize) -> (usize, usize) {
        let each = self.request.max_new.max(1);
        (slot + pass / each * self.slots.len(), pass % each)
    }
    /// The number of tokens of each data rank in this pass of a slot, if every text gets all new tokens.
    fn planned_lengths(&self, slot: usize, pass: usize) -> Vec<Option<usize>> {
        let (nth, pass) = self.planned(slot, pass);
        let prompts = &self.request.prompts;
        let of_rank = |rank| {
            let prompt = prompts[self.tokens.of_data_rank(rank).sequences(prompts.len())].get(nth)?;
            Some(if pass == 0 { prompt.len() } else { 1 })
        };
        (0..self.tokens.data_ranks()).map(of_rank).collect()
    }
}

impl<D: OrderedKernels<Elem: Real>> SlotRequests<D> for SlotRun<'_, D> {
    fn begin(&mut self, slot: usize) -> Result<bool> {
        let RequestSlot { cx, fed, request, passes, open } = &mut self.slots[slot];
        if request.is_some() {
            cx.advance(&[1]);
        } else if self.joined < self.mine.end {
            let prompt = &self.request.prompts[self.joined];
            let fresh = PassContext::infer([prompt.len()]).sharded(self.tokens).numbered_from(self.joined);
            *cx = fresh.with_cache(self.capacity);
            fed[0].clone_from(prompt);
            *request = Some(self.joined);
            self.joined += 1;
        } else if self.data.is_some() && *open {
            fed[0].clear();
            cx.advance(&[0][..cx.parts().len()]);
        } else {
            return Ok(false);
        }
        *passes += 1;
        if self.data.is_some() && self.priced {
            let lengths = self.planned_lengths(slot, self.slots[slot].passes - 1);
            let cx = &mut self.slots[slot].cx;
            *cx = take(cx).among(lengths);
        }
        Ok(true)
    }
    fn cx(&self, slot: usize) -> &PassContext<D> {
        &self.slots[slot].cx
    }
    fn input(&mut self, slot: usize) -> Result<Input<D>> {
        let RequestSlot { cx, fed, .. } = &self.slots[slot];
        Ok(TokenIds::new(self.device.place(), cx.own(&fed[..cx.parts().len()]), self.vocabulary)?.into())
    }
    fn choose(&mut self, slot: usize, logits: Tensor<D>) -> Result<Option<SlotToken>> {
        let request = self.slots[slot].request;
        let position = request.map(|request| self.text(request).ids.len() - 1);
        let is_prompt = request.zip(position).is_some_and(|(i, at)| at + 1 == self.request.prompts[i].len());
        if !self.chooser.read(&logits, is_prompt) {
            return Ok(None);
        }
        let (mut id, mut open) = (0, false);
        if let Some((request, position)) = request.zip(position) {
            let now = self.from.elapsed().as_secs_f64();
            if is_prompt {
                self.answers.prefill = now;
                self.text(request).prompt_logits = self.chooser.row(0).to_vec();
            }
            if self.request.max_new > 0 {
                let chosen = self.chooser.choose(0, request, position)?;
                id = chosen.id;
                self.text(request).margins.push(chosen.margin);
                self.answers.times[request - self.mine.start].add(now, is_prompt);
            }
            let ends = self.ends(request, Some(id));
            open = !ends || self.claimed < self.mine.end;
            self.claimed += usize::from(ends);
        }
        if let Some(data) = &self.data {
            let mut flags = [usize::from(open)];
            data.all_reduce_values(&mut flags, usize::max)?;
            open = flags == [1];
        }
        Ok(Some(SlotToken { id, open }))
    }
    fn chosen(&mut self, slot: usize, token: Option<SlotToken>) {
        let next = self.slots[slot].passes;
        self.slots[slot].open = token
            .map_or_else(|| self.planned_lengths(slot, next).iter().any(Option::is_some), |token| token.open);
        let Some(request) = self.slots[slot].request else { return };
        let (ends, id) = (self.ends(request, token.map(|token| token.id)), token.map_or(0, |token| token.id));
        if self.request.max_new > 0 {
            self.text(request).ids.push(id);
        }
        let of = &mut self.slots[slot];
        of.request = of.request.filter(|_| !ends);
        of.fed[0].clear();
        of.fed[0].push(id);
        if let (0, Some(watch)) = (request, self.watch) {
            watch(id);
        }
    }
}

/// Number of chunks of the pipeline.
fn chunks<D: OrderedKernels>(at: &BuildContext<D>) -> usize {
    at.pipeline.plan(at.mesh.group(comm::Axis::Pp).size(), 1).all_chunks()
}
