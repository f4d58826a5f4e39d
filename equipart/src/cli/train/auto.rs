//! Values of flags that may be `auto`.
use parallel::{Error, Layout, Result};
use std::fmt;
use std::str::FromStr;

/// A number, or auto: the number that memory decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Amount {
    /// The number that memory decides.
    Auto,
    /// A number.
    Number(usize),
}

impl Amount {
    /// Returns the number, if it is one.
    pub(crate) fn number(self) -> Option<usize> {
        if let Self::Number(n) = self { Some(n) } else { None }
    }
}

impl FromStr for Amount {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        text.parse()
            .map(Self::Number)
            .map_err(|_| format!("{text:?} is not a number of 1 or more; write one, or auto"))
    }
}

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
