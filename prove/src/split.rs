//! How the model is split that a proof is about.
use layers::{About, Strategy};
use parallel::At;
use parallel::Layout;
use std::fmt;
use tensor::{Cpu, F61};

/// A layout, and strategies beside those that it names: of another crate, say, which no list here knows.
#[derive(Clone, Copy)]
pub struct Split<'a> {
    /// What splits the model by the list.
    pub layout: &'a Layout,
    /// What splits it besides.
    pub others: &'a [&'a dyn Strategy<Cpu<F61>>],
}

impl<'a> From<&'a Layout> for Split<'a> {
    fn from(layout: &'a Layout) -> Self {
        Self { layout, others: &[] }
    }
}

impl<'a> Split<'a> {
    /// The place of one of its layout's ranks, where the other strategies build, too.
    pub(crate) fn on<'b>(self, at: At<'b, Cpu<F61>>) -> At<'b, Cpu<F61>>
    where
        'a: 'b,
    {
        at.with(self.others.iter().copied())
    }
    /// What is said of its strategies.
    pub(super) fn strategies(self) -> Vec<&'static About> {
        let others = self.others.iter().map(|other| other.about());
        self.layout.strategies().into_iter().chain(others).collect()
    }
}

impl fmt::Display for Split<'_> {
    /// "tp=2", "tp=2 with my rows".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.layout)?;
        let names: Vec<_> = self.others.iter().map(|other| other.about().name).collect();
        if names.is_empty() { Ok(()) } else { write!(f, " with {}", names.join(" and ")) }
    }
}
