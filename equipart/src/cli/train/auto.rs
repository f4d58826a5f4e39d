//! A layout that may be `auto`.
use parallel::{Error, Layout, Result};
use std::fmt;
use std::str::FromStr;

/// A layout, or auto: the planner's, for as many ranks as there are processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayoutFlag {
    /// The planner's layout.
    Auto,
    /// A layout.
    Layout(Layout),
}

impl Default for LayoutFlag {
    fn default() -> Self {
        Self::Layout(Layout::UNSPLIT)
    }
}

impl fmt::Display for LayoutFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Layout(layout) = self { layout.fmt(f) } else { f.pad("auto") }
    }
}

impl FromStr for LayoutFlag {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Layout) }
    }
}
