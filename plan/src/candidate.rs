//! Candidates of a search: a division of the ranks over the axes, with one variant of each kind of choice.
use crate::hold::StateBytes;
use crate::space::{ORDER, STATE, WORK, variants};
use layers::Design;
use parallel::Layout;
use std::cmp::Ordering;

/// A layout of the space with its bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Candidate {
    pub(crate) bound: f64,
    pub(crate) division: u32,
    pub(crate) work: u16,
    pub(crate) state: u16,
    pub(crate) order: u16,
    pub(crate) power: u8, // of two: the sequences of a data rank in a microbatch
    pub(crate) level: u8, // of its bound
}

impl Eq for Candidate {}
impl Ord for Candidate {
    /// The lowest bound is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> Ordering {
        let rest = |c: &Self| (c.division, c.work, c.state, c.order, c.power, c.level);
        other.bound.total_cmp(&self.bound).then_with(|| rest(other).cmp(&rest(self)))
    }
}
impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Numbers of ranks along the axes, with the variants of each kind of choice.
pub(crate) struct Division {
    pub(crate) work: Vec<Layout>,
    pub(crate) state: Vec<Layout>,
    pub(crate) order: Vec<Layout>,
    pub(crate) bytes: Vec<StateBytes>, // by state
    pub(crate) alike: Vec<Layout>,     // by state: one with which blocks do the same
}

impl Division {
    /// Returns the variants that fit the model. With `needed`, also entries that only save memory.
    pub(crate) fn new(layout: Layout, design: &Design, needed: bool) -> Self {
        let of = |choices| variants(layout, choices, design, needed);
        let [work, state, order] = [WORK, STATE, ORDER].map(of);
        Self { work, state, order, bytes: Vec::new(), alike: Vec::new() }
    }
    /// Sets the bytes and times of each state.
    pub(crate) fn set_bytes(&mut self, of: impl Fn(&Layout) -> StateBytes) {
        let bytes: Vec<_> = self.state.iter().map(of).collect();
        let same = |of: &StateBytes| bytes.iter().position(|other| other.passes_as(of));
        let alike = |of| self.state[same(of).expect("itself at the latest")];
        self.alike = bytes.iter().map(alike).collect();
        self.bytes = bytes;
    }
    /// Returns a candidate's layout, if its choices go together.
    pub(crate) fn layout(&self, of: &Candidate) -> Option<Layout> {
        self.layout_with(of, &self.state[of.state as usize])
    }
    /// Returns a candidate's layout with another state.
    pub(crate) fn layout_with(&self, of: &Candidate, state: &Layout) -> Option<Layout> {
        let [work, order] =
            [(&self.work, of.work), (&self.order, of.order)].map(|(all, at)| all[at as usize]);
        let words = state.named().into_iter().chain(order.named());
        words.into_iter().try_fold(work, |layout, word| layout.with(&word).ok())
    }
}
