//! Values that may be words: a number or auto, a dropout rate or the configuration's.
use std::fmt;
use std::str::FromStr;

/// A number, or auto: the number that memory decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// The number that memory decides.
    Auto,
    /// A number.
    Number(usize),
}

impl Amount {
    /// Returns the number, if it is one.
    pub fn number(self) -> Option<usize> {
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

/// A dropout rate; `None`: the configuration's rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DropoutRate(pub Option<f64>);

impl FromStr for DropoutRate {
    type Err = String;
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        if text == "config" {
            return Ok(Self(None));
        }
        let rate = text
            .parse()
            .map_err(|_| format!("{text:?} is not a rate; write a number such as 0.1, or config"))?;
        Ok(Self(Some(rate)))
    }
}

impl fmt::Display for DropoutRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rate) = self.0 { rate.fmt(f) } else { f.write_str("config") }
    }
}
