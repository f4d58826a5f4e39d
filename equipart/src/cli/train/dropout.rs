//! `--dropout`: a rate, or the rates of the configuration.
use std::fmt;
use std::str::FromStr;

/// A dropout rate; `None`: the configuration's rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DropoutRate(pub(crate) Option<f64>);

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
