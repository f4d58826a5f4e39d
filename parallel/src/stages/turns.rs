//! Several requests in the stages at once: each has a slot, and slots take turns at passes.
//!
//! ```text
//! tick       0    1    2    3    4    5     slots a, b, c; two stages, so two ticks a pass
//! stage 0    a1   b1   c1   a2   b2   c2    a2 begins with the token that a1 chose,
//! stage 1         a1   b1   c1   a2   b2    sent by the last stage at the end of its cell
//! ```
//!
//! A pass begins a tick after the pass before it, but not before its slot's last pass has left all chunks.
//! Every rank derives the same ticks, and works in the order of (tick, later chunk first): receive, compute,
//! wait for the chunk's last send, start to send. It receives a slot's token before it begins the next pass.
//!
//! No deadlock: a rank waits only for a start that is earlier in this order. A receive at tick t needs a send
//! of t−1, which is waited for at t or later, behind the next chunk's receive at t. A token's send is waited
//! for at the end of its slot's next pass, which each receiver begins after it has received the token.
use super::Stages;
use super::logits::Once;
use super::passed::Sent;
use crate::step::{Cell, PassKind, Payload, Plan, Task};
use crate::{Error, Result};
use comm::{Axis, Request, Tag};
use kernels::Kernels;
use layers::Input;
use ops::PassContext;
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use tensor::{Category, Scalar, Tensor};

/// A token that the last stage chose for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotToken {
    /// Id of the token.
    pub id: u32,
    /// True if the slot has another pass, on some data rank.
    pub open: bool,
}

/// The requests in slots, as the executor asks for their passes.
pub trait SlotRequests<D: Kernels> {
    /// Prepares the next pass of a slot, with a context and a cache of its own; returns false if there is
    /// none. Decides the same on every rank of the stages, from the tokens received so far.
    ///
    /// # Errors
    /// If a rank fails.
    fn begin(&mut self, slot: usize) -> Result<bool>;
    /// Returns the context of the slot's pass.
    fn cx(&self, slot: usize) -> &PassContext<D>;
    /// Returns the input of the model for the slot's pass.
    ///
    /// # Errors
    /// If an id is not in the vocabulary.
    fn input(&mut self, slot: usize) -> Result<Input<D>>;
    /// Chooses a token from the logits of the slot's pass, on the rank with the end of the model; `None` on a
    /// device without values.
    ///
    /// # Errors
    /// If no token can be chosen, or a collective of data ranks fails.
    fn choose(&mut self, slot: usize, logits: Tensor<D>) -> Result<Option<SlotToken>>;
    /// Receives the token of the slot's pass, on every rank, in the order of the passes.
    fn chosen(&mut self, slot: usize, token: Option<SlotToken>);
}

/// Digits of an id in a message: 256 values are exact in every dtype.
const DIGITS: usize = size_of::<u32>();
const BASE: u32 = 1 << u8::BITS;

impl<D: Kernels> Stages<D> {
    /// Stage with the end of the model.
    pub fn last_stage(&self) -> usize {
        let plan = self.pipeline.plan(self.logits.size(), 1);
        self.pipeline.schedule.rank_of(plan.all_chunks() - 1, &plan)
    }
    /// Runs the passes of all slots, which take turns, until no slot has another.
    ///
    /// # Errors
    /// Those of `requests`, or if a message or a collective fails.
    pub fn in_turns(&mut self, slots: usize, requests: &mut dyn SlotRequests<D>) -> Result<()> {
        let plan = Plan { slices: 1, ..self.pipeline.plan(self.logits.size(), slots) };
        let sent = (0..plan.all_chunks()).map(|_| None).collect();
        let tokens = (0..slots).map(|_| SlotMessages { own: None, sent: Vec::new() }).collect();
        SlotTurns { stages: self, plan, cells: BTreeSet::new(), sent, tokens, requests }.run()
    }
}

/// A run of all slots on one rank.
struct SlotTurns<'a, D: Kernels> {
    stages: &'a mut Stages<D>,
    plan: Plan,                                      // a microbatch for each slot
    cells: BTreeSet<(usize, Reverse<usize>, usize)>, // to run: tick, chunk, slot
    sent: Vec<Option<Sent<D>>>,                      // the last message of each chunk
    tokens: Vec<SlotMessages<D>>,                    // of each slot
    requests: &'a mut dyn SlotRequests<D>,
}

/// The last token of a slot, on the rank that chose it, and its messages to the other stages.
struct SlotMessages<D: Kernels> {
    own: Option<SlotToken>,
    sent: Vec<Request<D>>,
}

impl<D: Kernels> SlotTurns<'_, D> {
    fn run(mut self) -> Result<()> {
        let depth = self.plan.all_chunks();
        let mut queue: VecDeque<_> = (0..self.tokens.len()).map(|slot| (slot, None)).collect();
        let mut next = 0; // tick of the next pass
        while let Some((slot, began)) = queue.pop_front() {
            if let Some(began) = began {
                next = next.max(began + depth);
                self.run_cells(next)?;
                let token = self.token(slot)?;
                self.requests.chosen(slot, token);
            }
            if self.requests.begin(slot)? {
                let cells = self.stages.chunks.iter().map(|&chunk| (next + chunk, Reverse(chunk), slot));
                self.cells.extend(cells);
                queue.push_back((slot, Some(next)));
                next += 1;
            }
        }
        self.sent.into_iter().flatten().try_for_each(Sent::wait)?;
        self.tokens.into_iter().flat_map(|of| of.sent).try_for_each(|sent| sent.wait().map(drop))?;
        Ok(())
    }
    /// Runs the cells of the ticks before `end`.
    fn run_cells(&mut self, end: usize) -> Result<()> {
        while self.cells.first().is_some_and(|(tick, ..)| *tick < end) {
            let (_, Reverse(chunk), slot) = self.cells.pop_first().expect("seen above");
            self.run_cell(chunk, slot)?;
        }
        Ok(())
    }
    fn run_cell(&mut self, chunk: usize, slot: usize) -> Result<()> {
        let of = Task::new(chunk, slot as u32);
        let last = self.stages.last_stage();
        let _span = self.stages.mesh.span(format_args!("slot {slot}"));
        let input = if chunk == 0 { Some(self.requests.input(slot)?) } else { None };
        let cx = self.requests.cx(slot);
        self.stages.take_activation(of, cx, &self.plan)?;
        let mut once = Once { cx, input, all: false };
        let output = self.stages.cell(Cell { act: PassKind::F, of }, false, &self.plan, &mut once)?;
        let Some(logits) = output.logits else {
            return self.stages.pass_activation(of, &self.plan, &mut self.sent[chunk]);
        };
        let token = self.requests.choose(slot, logits)?;
        let SlotMessages { own, sent } = &mut self.tokens[slot];
        *own = token;
        sent.drain(..).try_for_each(|sent| sent.wait().map(drop))?;
        let message = message(&self.stages.device, token);
        for to in (0..self.plan.ranks).filter(|to| *to != last) {
            sent.push(self.stages.logits.start_send(to, message.clone(), tag(slot))?);
        }
        Ok(())
    }
    /// Returns the token of the slot's last pass: this rank's own choice, or a message.
    fn token(&mut self, slot: usize) -> Result<Option<SlotToken>> {
        let stages = &*self.stages;
        let last = self.stages.last_stage();
        if stages.logits.rank() == last {
            return Ok(self.tokens[slot].own.take());
        }
        let message = stages.logits.receive(&stages.device, last, 1, DIGITS + 1, tag(slot))?;
        message.read().map(|elements| read(&elements)).transpose()
    }
}

impl<D: Kernels> Stages<D> {
    /// Receives the activation that a task needs, if another rank computes it.
    fn take_activation(&mut self, of: Task, cx: &PassContext<D>, plan: &Plan) -> Result<()> {
        let stages = self.mesh.group(Axis::Pp);
        let payload = Payload::Activation;
        let before =
            (of.chunk as usize).checked_sub(1).map(|chunk| self.pipeline.schedule.rank_of(chunk, plan));
        let Some(from) = before.filter(|rank| *rank != stages.rank()) else { return Ok(()) };
        let received = self.start_receive((payload, of), from, (cx.rows(), false), plan)?;
        self.end_receive((payload, of), received)
    }
    /// Starts to send the activation of a task to the rank of the next chunk, if it is another one, behind
    /// the chunk's last send.
    fn pass_activation(&mut self, of: Task, plan: &Plan, sent: &mut Option<Sent<D>>) -> Result<()> {
        let stages = self.mesh.group(Axis::Pp);
        let payload = Payload::Activation;
        let next = Task { chunk: of.chunk + 1, ..of };
        let receiver = self.pipeline.schedule.rank_of(next.chunk as usize, plan);
        if receiver != stages.rank() {
            sent.take().map_or(Ok(()), Sent::wait)?;
            *sent = Some(self.start_send((payload, next), receiver, plan)?);
        }
        Ok(())
    }
}

fn tag(slot: usize) -> Tag {
    Tag::new("token", slot)
}

/// Message of a token: the digits of its id, the lowest first, and whether its slot is open.
fn message<D: Kernels>(device: &D, token: Option<SlotToken>) -> Tensor<D> {
    let SlotToken { id, open } = token.unwrap_or(SlotToken { id: 0, open: false });
    let number = |i: usize| id.to_le_bytes().get(i).map_or(usize::from(open), |digit| usize::from(*digit));
    Tensor::from_fn(device, Category::Buffers, 1, DIGITS + 1, |i| D::Elem::from_usize(number(i)))
}

/// Reads a token from the elements of its message.
fn read<S: Scalar>(elements: &[S]) -> Result<SlotToken> {
    let number = |x: &S, below: u32| {
        let found = (0..below).find(|n| *x == S::from_usize(*n as usize));
        found.ok_or_else(|| Error::new(format!("a token's message has {x:?}; it must be 0 to {}", below - 1)))
    };
    let mut id = 0;
    let (digits, open) = elements.split_at(DIGITS);
    for digit in digits.iter().rev() {
        id = id * BASE + number(digit, BASE)?;
    }
    Ok(SlotToken { id, open: number(&open[0], 2)? == 1 })
}

#[cfg(test)]
mod tests;
