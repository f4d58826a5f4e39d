//! The context of a call: all that a layer needs besides its input. Four things: the [pass](Pass) of a
//! microbatch, its tokens, the cache of earlier tokens, and the observers (record, profile).
mod again;
pub mod counts;
pub mod hops;
mod parts;
mod past;
pub mod shards;
mod tokens;
mod travel;

pub use counts::LayerCounts;
pub(crate) use past::Past;

use super::record::Recordable;
use crate::{Partial, Record, Result};
use kernels::{Indexed, Kernels, MeanOver, Segment, Span};
use std::any::Any;
use std::borrow::Borrow;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;
use tensor::{Dropout, Index, LayerSpan, Noise, Profile, Tensor};
use tokens::Tokens;

/// The pass through the layers that a call belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Number of the microbatch in the step.
    pub microbatch: usize,
    /// Number of the slice of its sequences.
    pub slice: usize,
    /// True in training: dropout is active, and the loss includes its training terms.
    pub learns: bool,
    /// True if forward keeps what backward needs.
    pub keeps: bool,
    /// Targets that the loss is averaged over, and its scale.
    pub mean_over: MeanOver,
    /// Number of tokens on all ranks: of the microbatch, and of the step.
    pub tokens: [usize; 2],
    /// Seed of dropout.
    pub seed: u64,
    /// Training step, an input of dropout's hash.
    pub step: usize,
}

/// Context of one microbatch: the same object for its forward and both halves of its backward. Rows are
/// tokens, one sequence after the other; sequences may differ in length.
pub struct PassContext<D: Kernels> {
    pass: Pass,
    tokens: Tokens<D::Place>,
    past: Option<Rc<RefCell<Past<D>>>>,
    record: Option<Record<D>>,
    profiled: Option<D>,                      // device of the profile that gets the layers
    added: RefCell<Option<Partial<D::Wide>>>, // terms of the loss from layers
    counts: RefCell<LayerCounts>,
    beside: RefCell<Option<Tensor<D::Wide>>>,
    drops: Cell<bool>,  // forward keeps nothing now, to be recomputed
    second: Cell<bool>, // layers run forward again, for their backward
    choices: RefCell<Vec<(Arc<str>, Box<dyn Any>)>>, // for the second forward
}

impl<D: Kernels> Default for PassContext<D> {
    /// Inference on no sequences.
    fn default() -> Self {
        let (pass, tokens) = (Pass::default(), Tokens::default());
        let (added, counts, beside) = (RefCell::new(None), RefCell::default(), RefCell::new(None));
        let (drops, second, choices) = (Cell::new(false), Cell::new(false), RefCell::default());
        let (past, record, profiled) = (None, None, None);
        Self { pass, tokens, past, record, profiled, added, counts, beside, drops, second, choices }
    }
}

impl<D: Kernels> PassContext<D> {
    /// Training on sequences of these lengths. The loss is a mean over `mean_over` tokens (all tokens of the
    /// step, on all ranks and in all microbatches), so each microbatch returns its part of the mean.
    pub fn train(
        microbatch: usize,
        lengths: impl IntoIterator<Item = impl Borrow<usize>>,
        mean_over: usize,
    ) -> Self {
        let mean_over = MeanOver::of(mean_over);
        let pass = Pass { microbatch, learns: true, keeps: true, mean_over, ..Pass::default() };
        Self::default().then(pass, lengths)
    }
    /// Inference on sequences of these lengths: nothing is kept for a backward.
    pub fn infer(lengths: impl IntoIterator<Item = impl Borrow<usize>>) -> Self {
        Self::default().then(Pass::default(), lengths)
    }
    /// Starts another pass on sequences of these lengths, reusing a finished context's buffers.
    #[must_use]
    pub fn then(mut self, pass: Pass, lengths: impl IntoIterator<Item = impl Borrow<usize>>) -> Self {
        self.tokens.begin(lengths.into_iter().map(|len| *len.borrow()));
        Self { pass, past: None, record: None, ..self }
    }
    /// Numbers the sequences within the step, the first one from `first`: dropout and records identify a
    /// sequence by its number, whichever rank and microbatch it is in. Each document of a packed sequence has
    /// its own number.
    #[must_use]
    pub fn numbered_from(mut self, first: usize) -> Self {
        self.tokens.number_from(first);
        self
    }
    /// Replaces the tokens by these parts of sequences, one after the other.
    #[must_use]
    pub fn dealt(mut self, parts: impl IntoIterator<Item = Segment>) -> Self {
        self.tokens.deal(parts.into_iter());
        self
    }
    /// Sets the seed and the step of dropout.
    #[must_use]
    pub fn dropping(mut self, seed: u64, step: usize) -> Self {
        (self.pass.seed, self.pass.step) = (seed, step);
        self
    }
    /// Gives each sequence a memory of this number of tokens to attend to, one after the other.
    ///
    /// # Panics
    /// If the number of lengths is not the number of sequences, or a length is 0.
    #[must_use]
    pub fn with_memory(mut self, lengths: &[usize]) -> Self {
        self.tokens.remember(lengths);
        self
    }
    /// Records the inputs and outputs of the layers in `record`.
    #[must_use]
    pub fn recorded(mut self, record: Option<Record<D>>) -> Self {
        self.record = record;
        self
    }
    /// Reports the running layer to this rank's device, if the device takes a profile.
    #[must_use]
    pub fn profiled(mut self, device: &D) -> Self {
        self.profiled = Some(device.clone());
        self
    }
    /// Lets attention see the tokens of earlier calls too, up to `capacity` of each sequence.
    ///
    /// # Panics
    /// With [`Overflow`](tensor::count::Overflow), if the number of these tokens overflows 64 bits.
    #[must_use]
    pub fn with_cache(self, capacity: usize) -> Self {
        let rooms = self.tokens.rooms(capacity);
        self.cached(capacity, rooms)
    }
    fn cached(mut self, capacity: usize, rooms: Vec<usize>) -> Self {
        self.past = Some(Rc::new(RefCell::new(Past::new(self.tokens.parts.len(), capacity, rooms))));
        self.tokens.place(Some(capacity));
        self
    }
    /// Lets attention see the tokens of the slices before this one too: `other` is the context of the last of
    /// them.
    ///
    /// # Panics
    /// If `other` has no cache, or another number of sequences.
    #[must_use]
    pub fn after(mut self, other: &Self) -> Self {
        let past = other.past.clone().expect("the earlier slice has no cache");
        assert_eq!(
            self.tokens.parts.len(),
            other.tokens.parts.len(),
            "slices differ in their number of sequences"
        );
        self.tokens.hold(Some(&other.tokens));
        self.tokens.place(Some(RefCell::borrow(&past).capacity));
        self.past = Some(past);
        self
    }
    /// Moves on to the next tokens of the same sequences (0 for a finished one).
    ///
    /// # Panics
    /// If the number of sequences changes, or the cache has no room for the tokens.
    pub fn advance(&mut self, lengths: &[usize]) {
        self.tokens.advance(lengths, self.past.as_ref().map(|past| RefCell::borrow(past).capacity));
    }
    /// Returns the pass.
    pub fn pass(&self) -> Pass {
        self.pass
    }
    /// Returns whether forward keeps what backward needs.
    pub fn keeps(&self) -> bool {
        self.pass.keeps && !self.drops.get()
    }
    /// Returns this rank's tokens, sequence by sequence: their rows and positions.
    pub fn tokens(&self) -> &[Segment] {
        self.tokens.queries.list()
    }
    /// Returns the number of rows of an activation.
    pub fn rows(&self) -> usize {
        self.tokens().last().map_or(0, |t| t.row + t.len)
    }
    /// One more than the largest position of any token.
    pub fn positions(&self) -> usize {
        self.tokens().iter().map(|t| t.position + t.len).max().unwrap_or(0)
    }
    /// One more than the largest position that any token has or can reach: the size of tables that are made
    /// once.
    pub(crate) fn reach(&self) -> usize {
        self.past.as_ref().map_or(self.positions(), |past| RefCell::borrow(past).capacity)
    }
    /// Returns this rank's tokens as a device index, for kernels.
    pub fn tokens_on(&self, place: &D::Place) -> &Index<D::Place> {
        self.tokens.queries.on(place)
    }
    /// Returns the spans of attention: the keys that each query sees.
    pub fn spans(&self) -> &Indexed<Span, D::Place> {
        &self.tokens.spans
    }
    pub(crate) fn past(&self) -> Option<RefMut<'_, Past<D>>> {
        self.past.as_ref().map(|past| past.borrow_mut())
    }
    /// Returns the spans of each sequence's tokens and its memory's.
    pub(crate) fn memory(&self) -> &Indexed<Span, D::Place> {
        &self.tokens.memory
    }
    /// Returns the dropout at one site of the model; `None` where nothing is dropped.
    pub fn dropout(&self, rate: f64, site: &str) -> Option<Dropout> {
        let Pass { learns, seed, step, .. } = self.pass;
        (learns && rate > 0.0).then(|| Dropout::new(rate, seed, step, site))
    }
    /// Returns noise of this deviation at one site of the model; `None` outside training.
    pub fn noise(&self, std: f64, site: &str) -> Option<Noise> {
        let Pass { learns, seed, step, .. } = self.pass;
        (learns && std != 0.0).then(|| Noise::new(std, seed, step, site))
    }
    /// Starts a layer, which ends when the result is dropped. A profile counts what runs within, and a panic
    /// is reported with the layer's name. Parts of a model (`layers::BoxedLayer`) call this themselves; other
    /// layers call it in each of their passes.
    pub fn layer<'a>(&'a self, name: &'a str, pass: tensor::Direction) -> InLayer<'a> {
        let pass = if self.second.get() { tensor::Direction::Backward } else { pass };
        let profile = self.profiled.as_ref().and_then(D::profile);
        let span = profile.and_then(|profile: &Profile| profile.layer(name, pass));
        InLayer { _named: comm::PanicContext(Through { name, pass }), _span: span }
    }
    /// Returns whether the inputs and outputs of layers are recorded.
    pub fn recording(&self) -> bool {
        self.record.is_some() && !self.second.get()
    }
    /// Adds this rank's part of an activation to the record, if there is one.
    ///
    /// # Errors
    /// If the part's position in the whole is not known.
    pub fn record(&self, name: &str, end: &str, x: &impl Recordable<D>) -> Result<()> {
        self.local_part(x, false, || format!("{name}.{end}"))
    }
    /// Adds this rank's part of an activation's gradient to the record, if there is one.
    ///
    /// # Errors
    /// If the part's position in the whole is not known.
    pub fn record_gradient(&self, name: &str, end: &str, dx: &impl Recordable<D>) -> Result<()> {
        self.local_part(dx, true, || format!("gradient of {name}.{end}"))
    }
    fn local_part(
        &self,
        x: &impl Recordable<D>,
        is_gradient: bool,
        name: impl FnOnce() -> String,
    ) -> Result<()> {
        if let Some(record) = self.record.as_ref().filter(|_| self.recording()) {
            record.add(name(), self.tokens(), x.local_part(&record.mesh, is_gradient)?);
        }
        Ok(())
    }
    /// Adds a term to this microbatch's part of the mean loss; collected when the microbatch has passed this
    /// part of the model.
    pub fn add_loss(&self, part: Partial<D::Wide>) {
        let sum = self.added.take();
        self.added.replace(Some(if let Some(sum) = sum { sum + &part } else { part }));
    }
    /// Takes the terms that were added to the loss since the last call.
    pub fn take_loss(&self) -> Option<Partial<D::Wide>> {
        self.added.take()
    }
    /// Adds to a layer's counts over this rank's tokens, such as the tokens per expert.
    pub fn count(&self, layer: &str, counts: &[usize]) {
        self.counts.borrow_mut().add(layer, counts);
    }
    /// Takes the counts since the last call.
    pub fn take_counts(&self) -> LayerCounts {
        self.counts.take()
    }
    /// Returns the row `[1,N]` beside the stream (`layers::Hooks::row`), if there is one: in a forward the
    /// sum that blocks have added so far, in a backward the row that came back from the model's end.
    pub fn beside(&self) -> RefMut<'_, Option<Tensor<D::Wide>>> {
        self.beside.borrow_mut()
    }
    /// Keeps a value for backward, if there will be one.
    pub fn keep<T>(&self, x: T) -> KeptValue<T> {
        KeptValue(self.keeps().then_some(x))
    }
}

/// A running layer; it ends when this is dropped.
#[must_use = "a layer ends when this is dropped"]
pub struct InLayer<'a> {
    _named: comm::PanicContext<Through<'a>>,
    _span: Option<LayerSpan<'a>>,
}

/// Displays as "forward through blocks.0.norm1".
struct Through<'a> {
    name: &'a str,
    pass: tensor::Direction,
}

impl fmt::Display for Through<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} through {}", self.pass.name(), self.name)
    }
}

/// A value that forward keeps for backward; empty in a pass that keeps nothing.
#[derive(Clone)]
pub struct KeptValue<T>(Option<T>);

impl<T> Default for KeptValue<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T> KeptValue<T> {
    /// Returns the kept value.
    ///
    /// # Panics
    /// If forward ran in a pass that keeps nothing.
    pub fn open(self) -> T {
        self.0.expect("forward kept nothing for backward")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Cpu;

    /// Kills: positions that restart, rows that overlap, a cache whose sequences share rows.
    #[test]
    fn sequences_go_on_where_they_were() {
        let mut cx = PassContext::<Cpu<f32>>::infer([3, 1]).numbered_from(7).with_cache(5);
        cx.advance(&[0, 2]);
        assert_eq!(
            cx.tokens(),
            [
                Segment { row: 0, len: 0, position: 3, sequence: 7 },
                Segment { row: 0, len: 2, position: 1, sequence: 8 }
            ]
        );
        let key = Segment { row: 5, len: 3, position: 0, sequence: 8 };
        assert_eq!(cx.spans().list(), [Span { query: cx.tokens()[1], key }]);
        assert_eq!((cx.rows(), cx.positions()), (2, 3));
        let mut other =
            PassContext::<Cpu<f32>>::infer([3, 1]).with_memory(&[4, 2]).with_cache(5).numbered_from(7);
        other.advance(&[0, 2]);
        let key = Segment { row: 4, len: 2, position: 0, sequence: 8 };
        let fresh = PassContext::<Cpu<f32>>::infer([3, 1]).with_memory(&[4, 2]).numbered_from(7);
        let numbers = |span: &Span| (span.query.sequence, span.key.sequence);
        assert_eq!(fresh.memory().list().iter().map(numbers).collect::<Vec<_>>(), [(7, 7), (8, 8)]);
        assert_eq!(
            other.memory().list(),
            [Span { query: cx.tokens()[1], key }],
            "a memory stays where it is"
        );
        cx.advance(&[1, 1]);
        assert_eq!((cx.tokens()[0].position, cx.tokens()[1].position, cx.rows()), (3, 3, 2));
    }

    #[test]
    #[should_panic(expected = "a memory needs one length per sequence")]
    fn another_number_of_memories_panics() {
        let _ = PassContext::<Cpu<f32>>::infer([3, 1]).with_memory(&[4]);
    }

    #[test]
    #[should_panic(expected = "a memory has no tokens")]
    fn a_memory_without_tokens_panics() {
        let _ = PassContext::<Cpu<f32>>::infer([3, 1]).with_memory(&[4, 0]);
    }

    #[test]
    #[should_panic(expected = "a call needs one length per sequence")]
    fn another_number_of_sequences_panics() {
        PassContext::<Cpu<f32>>::infer([3, 1]).advance(&[1]);
    }

    #[test]
    #[should_panic(expected = "6 tokens do not fit a cache of 5")]
    fn more_tokens_than_a_cache_has_room_for_panic() {
        PassContext::<Cpu<f32>>::infer([3, 1]).with_cache(5).advance(&[3, 0]);
    }

    #[test]
    #[should_panic(expected = "kept nothing")]
    fn inference_keeps_nothing() {
        PassContext::<Cpu<f32>>::infer([1]).keep(1).open();
    }
}
