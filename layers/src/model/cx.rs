//! What a call needs besides its input: everything a layer may ask about the tokens it works on. Four things: the
//! [pass](Pass) of a microbatch, its tokens, the past that attention also sees, and who observes.
mod again;
mod counts;
mod past;
pub mod shards;
mod tokens;

pub use counts::LayerCounts;
pub(crate) use past::Past;

use super::record::Recordable;
use crate::ops::Partial;
use crate::{Record, Result};
use kernels::{Indexed, Kernels, Segment, Span};
use std::borrow::Borrow;
use std::cell::{Cell, RefCell, RefMut};
use std::fmt;
use std::rc::Rc;
use tensor::{Dropout, Index, LayerSpan, Noise, Profile, Tensor};
use tokens::Tokens;

/// Which pass through the layers a call is part of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// Which microbatch of the step.
    pub microbatch: usize,
    /// Which slice of its sequences.
    pub slice: usize,
    /// Whether the model learns: dropout drops, and the loss has what training adds to it.
    pub learns: bool,
    /// Whether forward keeps what backward needs.
    pub keeps: bool,
    /// How many tokens the loss is a mean over.
    pub mean_over: usize,
    /// How many tokens the microbatch has on all ranks, and how many the step.
    pub tokens: [usize; 2],
    /// Dropout's seed.
    pub seed: u64,
    /// The step, which dropout is drawn for.
    pub step: usize,
}

/// The context of one microbatch: the same object for its forward and both halves of its backward. Rows are
/// tokens, one sequence after the other; sequences may differ in length.
pub struct Cx<D: Kernels> {
    pass: Pass,
    tokens: Tokens<D::Place>,
    past: Option<Rc<RefCell<Past<D>>>>,
    record: Option<Record<D>>,
    profiled: Option<D>,                      // whose profile has layers
    added: RefCell<Option<Partial<D::Wide>>>, // to the loss
    counts: RefCell<LayerCounts>,
    beside: RefCell<Option<Tensor<D::Wide>>>,
    drops: Cell<bool>,  // what forward would keep
    second: Cell<bool>, // whether layers go forward again, for their backward
}

impl<D: Kernels> Default for Cx<D> {
    /// Inference on no sequences.
    fn default() -> Self {
        let (pass, tokens) = (Pass::default(), Tokens::default());
        let (added, counts, beside) = (RefCell::new(None), RefCell::default(), RefCell::new(None));
        let (drops, second) = (Cell::new(false), Cell::new(false));
        Self { pass, tokens, past: None, record: None, profiled: None, added, counts, beside, drops, second }
    }
}

impl<D: Kernels> Cx<D> {
    /// Training on sequences of these lengths; the loss is a mean over `mean_over` tokens (all of the step's,
    /// whichever microbatch and rank they are in), so each microbatch gives its part of it.
    pub fn train(
        microbatch: usize,
        lengths: impl IntoIterator<Item = impl Borrow<usize>>,
        mean_over: usize,
    ) -> Self {
        let pass = Pass { microbatch, learns: true, keeps: true, mean_over, ..Pass::default() };
        Self::default().then(pass, lengths)
    }
    /// Inference on sequences of these lengths: nothing is kept for a backward.
    pub fn infer(lengths: impl IntoIterator<Item = impl Borrow<usize>>) -> Self {
        Self::default().then(Pass::default(), lengths)
    }
    /// Another pass, on sequences of these lengths, in the memory of a context that is done with.
    #[must_use]
    pub fn then(mut self, pass: Pass, lengths: impl IntoIterator<Item = impl Borrow<usize>>) -> Self {
        self.tokens.begin(lengths.into_iter().map(|len| *len.borrow()));
        Self { pass, past: None, record: None, ..self }
    }
    /// The same tokens, whose first sequence is this one of the step's: whichever rank and microbatch it is in, dropout and
    /// records know it by its number. A packed sequence counts as many as it has documents.
    #[must_use]
    pub fn numbered_from(mut self, first: usize) -> Self {
        self.tokens.number_from(first);
        self
    }
    /// The same pass on these parts of sequences, one after the other.
    #[must_use]
    pub fn dealt(mut self, parts: impl IntoIterator<Item = Segment>) -> Self {
        self.tokens.deal(parts.into_iter());
        self
    }
    /// The same pass, with dropout drawn for this step.
    #[must_use]
    pub fn dropping(mut self, seed: u64, step: usize) -> Self {
        (self.pass.seed, self.pass.step) = (seed, step);
        self
    }
    /// The same tokens, where each sequence has a memory of so many tokens to look at, one after the other.
    ///
    /// # Panics
    /// If there is not one for each sequence, or one has no token.
    #[must_use]
    pub fn with_memory(mut self, lengths: &[usize]) -> Self {
        self.tokens.remember(lengths);
        self
    }
    /// The same call, leaving in `record` what its layers take and give.
    #[must_use]
    pub fn recorded(mut self, record: Option<Record<D>>) -> Self {
        self.record = record;
        self
    }
    /// The same call, telling this rank's device, if it takes a profile, which layer is gone through.
    #[must_use]
    pub fn profiled(mut self, device: &D) -> Self {
        self.profiled = Some(device.clone());
        self
    }
    /// Attention also sees the tokens of earlier calls, up to `capacity` of each sequence.
    ///
    /// # Panics
    /// With [`Uncountable`](tensor::count::Uncountable), if 64 bits do not count all these tokens.
    #[must_use]
    pub fn with_cache(mut self, capacity: usize) -> Self {
        self.past = Some(Rc::new(RefCell::new(Past::new(self.tokens.parts.len(), capacity))));
        self.tokens.place(Some(capacity));
        self
    }
    /// Attention also sees the tokens of the slices before this one: `other` is the context of one of them.
    ///
    /// # Panics
    /// If `other` has no cache, or this one is of other sequences.
    #[must_use]
    pub fn after(mut self, other: &Self) -> Self {
        let past = other.past.clone().expect("a cache that slices share");
        assert_eq!(self.tokens.parts.len(), other.tokens.parts.len(), "slices of the same sequences");
        self.tokens.place(Some(RefCell::borrow(&past).capacity));
        self.past = Some(past);
        self
    }
    /// Goes on to the next tokens of the same sequences (0 of one that is finished).
    ///
    /// # Panics
    /// If there are other sequences than before, or more tokens than the cache has room for.
    pub fn advance(&mut self, lengths: &[usize]) {
        self.tokens.advance(lengths, self.past.as_ref().map(|past| RefCell::borrow(past).capacity));
    }
    /// Which pass this is.
    pub fn pass(&self) -> Pass {
        self.pass
    }
    /// Whether forward keeps what backward needs.
    pub fn keeps(&self) -> bool {
        self.pass.keeps && !self.drops.get()
    }
    /// This rank's tokens, sequence by sequence: their rows and their positions.
    pub fn tokens(&self) -> &[Segment] {
        self.tokens.queries.list()
    }
    /// How many rows an activation has.
    pub fn rows(&self) -> usize {
        self.tokens().last().map_or(0, |t| t.row + t.len)
    }
    /// One more than the largest position of any token.
    pub fn positions(&self) -> usize {
        self.tokens().iter().map(|t| t.position + t.len).max().unwrap_or(0)
    }
    /// One more than the largest position that any token has or may come to have: what grows with positions is made for
    /// so many at once.
    pub(crate) fn reach(&self) -> usize {
        self.past.as_ref().map_or(self.positions(), |past| RefCell::borrow(past).capacity)
    }
    /// The tokens, where kernels read them.
    pub fn tokens_on(&self, place: &D::Place) -> &Index<D::Place> {
        self.tokens.queries.on(place)
    }
    /// Which queries see which keys.
    pub(crate) fn spans(&self) -> &Indexed<Span, D::Place> {
        &self.tokens.spans
    }
    pub(crate) fn past(&self) -> Option<RefMut<'_, Past<D>>> {
        self.past.as_ref().map(|past| past.borrow_mut())
    }
    /// Each sequence's tokens, and its memory's.
    pub(crate) fn memory(&self) -> &Indexed<Span, D::Place> {
        &self.tokens.memory
    }
    /// Dropout at one place of the model; none where nothing is dropped.
    pub(crate) fn dropout(&self, rate: f64, site: &str) -> Option<Dropout> {
        let Pass { learns, seed, step, .. } = self.pass;
        (learns && rate > 0.0).then(|| Dropout::new(rate, seed, step, site))
    }
    /// Noise of this deviation at one place of the model; none outside of learning.
    pub fn noise(&self, std: f64, site: &str) -> Option<Noise> {
        let Pass { learns, seed, step, .. } = self.pass;
        (learns && std != 0.0).then(|| Noise::new(std, seed, step, site))
    }
    /// A layer begins, and ends when this is dropped: for a profile, which counts what lies within, and for a panic,
    /// which is reported with its name. Parts of a model call this themselves; a layer that is no part calls it in each of its
    /// passes.
    pub fn layer<'a>(&'a self, name: &'a str, pass: tensor::Direction) -> InLayer<'a> {
        let pass = if self.second.get() { tensor::Direction::Backward } else { pass };
        let profile = self.profiled.as_ref().and_then(D::profile);
        let span = profile.and_then(|profile: &Profile| profile.layer(name, pass));
        InLayer { _named: comm::Within(Through { name, pass }), _span: span }
    }
    /// Whether what layers take and give is recorded.
    pub(crate) fn recording(&self) -> bool {
        self.record.is_some() && !self.second.get()
    }
    /// Leaves this rank's part of an activation in the record, if there is one.
    ///
    /// # Errors
    /// If it is not known where the part lies.
    pub fn saw(&self, name: &str, end: &str, x: &impl Recordable<D>) -> Result<()> {
        self.seen(x, false, || format!("{name}.{end}"))
    }
    /// Leaves this rank's part of an activation's gradient in the record, if there is one.
    ///
    /// # Errors
    /// If it is not known where the part lies.
    pub fn saw_gradient(&self, name: &str, end: &str, dx: &impl Recordable<D>) -> Result<()> {
        self.seen(dx, true, || format!("gradient of {name}.{end}"))
    }
    fn seen(&self, x: &impl Recordable<D>, is_gradient: bool, name: impl FnOnce() -> String) -> Result<()> {
        if let Some(record) = self.record.as_ref().filter(|_| self.recording()) {
            record.add(name(), self.tokens(), x.seen(&record.mesh, is_gradient)?);
        }
        Ok(())
    }
    /// Adds to this microbatch's part of the mean loss, which is taken up where it has gone through this part of the model.
    pub fn add_loss(&self, part: Partial<D::Wide>) {
        let sum = self.added.take();
        self.added.replace(Some(if let Some(sum) = sum { sum + &part } else { part }));
    }
    /// What was added to the loss since this was called last.
    pub fn take_loss(&self) -> Option<Partial<D::Wide>> {
        self.added.take()
    }
    /// Adds to what a layer has counted among this rank's tokens, such as how many chose each expert.
    pub fn count(&self, layer: &str, counts: &[usize]) {
        self.counts.borrow_mut().add(layer, counts);
    }
    /// What was counted since this was called last.
    pub fn take_counts(&self) -> LayerCounts {
        self.counts.take()
    }
    /// The row `[1,N]` that goes [beside the stream](crate::Hooks::row), if there is one: what blocks have added so far in a forward,
    /// what came back from the model's end in a backward.
    pub fn beside(&self) -> RefMut<'_, Option<Tensor<D::Wide>>> {
        self.beside.borrow_mut()
    }
    /// Keeps something for backward, if there will be one.
    pub fn keep<T>(&self, x: T) -> Kept<T> {
        Kept(self.keeps().then_some(x))
    }
}

/// A layer that is gone through until this is dropped.
#[must_use = "a layer ends when this is dropped"]
pub struct InLayer<'a> {
    _named: comm::Within<Through<'a>>,
    _span: Option<LayerSpan<'a>>,
}

/// In words: "forward through blocks.0.norm1".
struct Through<'a> {
    name: &'a str,
    pass: tensor::Direction,
}

impl fmt::Display for Through<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} through {}", self.pass.name(), self.name)
    }
}

/// What forward leaves for backward; nothing in a pass that keeps nothing.
#[derive(Clone)]
pub struct Kept<T>(Option<T>);

impl<T> Kept<T> {
    /// What was kept.
    ///
    /// # Panics
    /// If forward ran in a pass that keeps nothing.
    pub fn open(self) -> T {
        self.0.expect("forward kept nothing")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Cpu;

    /// Kills: positions that restart, rows that overlap, a cache whose sequences share rows.
    #[test]
    fn sequences_go_on_where_they_were() {
        let mut cx = Cx::<Cpu<f32>>::infer([3, 1]).numbered_from(7).with_cache(5);
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
        let mut other = Cx::<Cpu<f32>>::infer([3, 1]).with_memory(&[4, 2]).with_cache(5).numbered_from(7);
        other.advance(&[0, 2]);
        let key = Segment { row: 4, len: 2, position: 0, sequence: 8 };
        let fresh = Cx::<Cpu<f32>>::infer([3, 1]).with_memory(&[4, 2]).numbered_from(7);
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
    #[should_panic(expected = "a memory for each sequence")]
    fn another_number_of_memories_panics() {
        let _ = Cx::<Cpu<f32>>::infer([3, 1]).with_memory(&[4]);
    }

    #[test]
    #[should_panic(expected = "a memory without tokens")]
    fn a_memory_without_tokens_panics() {
        let _ = Cx::<Cpu<f32>>::infer([3, 1]).with_memory(&[4, 0]);
    }

    #[test]
    #[should_panic(expected = "the same sequences go on")]
    fn another_number_of_sequences_panics() {
        Cx::<Cpu<f32>>::infer([3, 1]).advance(&[1]);
    }

    #[test]
    #[should_panic(expected = "6 tokens in a cache of 5")]
    fn more_tokens_than_a_cache_has_room_for_panic() {
        Cx::<Cpu<f32>>::infer([3, 1]).with_cache(5).advance(&[3, 0]);
    }

    #[test]
    #[should_panic(expected = "kept nothing")]
    fn inference_keeps_nothing() {
        Cx::<Cpu<f32>>::infer([1]).keep(1).open();
    }
}
