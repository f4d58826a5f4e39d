//! What ranks share of a model, and how many ranks can.

/// What ranks share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// What: "KV heads".
    pub what: &'static str,
    /// How many there are.
    pub size: usize,
    /// How many ranks share them.
    pub over: usize,
    /// How they may be shared.
    pub by: Sharing,
}

/// How ranks may share things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Each rank has as many.
    Equally,
    /// Each rank has as many, or several ranks have the same one.
    OrCopies,
    /// Each rank has at least one.
    AtLeastOne,
}

impl Shared {
    /// Whether these ranks can share it.
    pub fn fits(&self) -> bool {
        self.by.fits(self.size, self.over)
    }
}

impl Sharing {
    /// Whether so many ranks can share so many things.
    pub fn fits(self, size: usize, over: usize) -> bool {
        match self {
            Sharing::Equally => size.is_multiple_of(over),
            Sharing::OrCopies => size.is_multiple_of(over) || over.is_multiple_of(size),
            Sharing::AtLeastOne => over <= size,
        }
    }
    /// Whether so many ranks can share so many query heads, and KV heads or hold copies of them.
    pub fn heads(queries: usize, keys: usize, over: usize) -> bool {
        Sharing::Equally.fits(queries, over) && Sharing::OrCopies.fits(keys, over)
    }
}
