//! Sizes of a model that ranks divide, and the numbers of ranks that fit them.

/// A size of a model that ranks divide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DividedSize {
    /// Its noun: "KV heads".
    pub what: &'static str,
    /// The size.
    pub size: usize,
    /// Number of ranks that divide it.
    pub over: usize,
    /// How it may be divided.
    pub by: DivisionRule,
}

/// The ways in which ranks may divide a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DivisionRule {
    /// Each rank gets the same number.
    Equally,
    /// Each rank gets the same number, or several ranks hold copies of the same one.
    OrCopies,
    /// Each rank gets at least one.
    AtLeastOne,
}

impl DividedSize {
    /// Returns whether this number of ranks fits.
    pub fn fits(&self) -> bool {
        self.by.fits(self.size, self.over)
    }
}

impl DivisionRule {
    /// Returns whether `over` ranks can divide a size in this way.
    pub fn fits(self, size: usize, over: usize) -> bool {
        match self {
            DivisionRule::Equally => size.is_multiple_of(over),
            DivisionRule::OrCopies => size.is_multiple_of(over) || over.is_multiple_of(size),
            DivisionRule::AtLeastOne => over <= size,
        }
    }
    /// Returns whether `over` ranks can divide the query heads, and divide or replicate the KV heads.
    pub fn heads(queries: usize, keys: usize, over: usize) -> bool {
        DivisionRule::Equally.fits(queries, over) && DivisionRule::OrCopies.fits(keys, over)
    }
}
