//! Other programs' figures: a file of lines such as
//!
//! ```text
//! {"peer": "PyTorch, one thread", "name": "forward_ms_tp1", "value": 372.5}
//! ```
//!
//! A name is a figure's; a value is in its unit, which a line may state, too. The best of several lines for
//! one figure counts.
use super::figures::{FIGURES, FigureEntry, names};
use parallel::{Error, Result};
use serde::Deserialize;
use std::path::Path;
use tensor::quoted::{of_line, quoted};

/// Figures of other programs.
#[derive(Clone, Debug, Default)]
pub struct Peers(Vec<Peer>);

/// Another program's figure: a line of the file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Peer {
    /// Name of the program.
    pub peer: String,
    /// Name of the figure.
    pub name: String,
    /// Value, in the figure's unit.
    pub value: f64,
    unit: Option<String>,
}

impl Peers {
    /// Reads a file; empty lines are skipped.
    ///
    /// # Errors
    /// If the file cannot be read or a line is invalid: the line's number, the fault, and the expected form.
    pub fn read(path: &Path) -> Result<Self> {
        Self::parse(&tensor::files::read(path)?, &path.display().to_string())
    }
    pub(super) fn parse(bytes: &[u8], origin: &str) -> Result<Self> {
        let mut peers = Vec::new();
        for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            if !line.trim_ascii().is_empty() {
                let line = figure(line);
                peers.push(line.map_err(|why| Error::new(format!("{origin}, line {}: {why}", at + 1)))?);
            }
        }
        Ok(Self(peers))
    }
    /// Returns the best known figure of other programs.
    pub(super) fn best(&self, entry: &FigureEntry) -> Option<&Peer> {
        let of_it = self.0.iter().filter(|peer| peer.name == entry.name);
        of_it.reduce(|best, peer| if entry.unit.of(best.value, peer.value) > 1.0 { peer } else { best })
    }
}

fn figure(line: &[u8]) -> std::result::Result<Peer, String> {
    let wanted = r#"wanted {"peer": "…", "name": "…", "value": 1.5}"#;
    let peer: Peer = serde_json::from_slice(line).map_err(|why| format!("{}; {wanted}", of_line(&why)))?;
    let Peer { name, value, unit, .. } = &peer;
    let Some(entry) = FIGURES.iter().find(|entry| entry.name == name) else {
        return Err(format!("no figure is called {}; the figures are {}", quoted(name), names()));
    };
    if let Some(unit) = unit.as_ref().filter(|unit| *unit != entry.unit.name()) {
        return Err(format!("the unit of {name} is {}; it must be {:?}", quoted(unit), entry.unit.name()));
    }
    if !(value.is_finite() && *value > 0.0) {
        return Err(format!("the value of {name} is {value}; it must be above 0"));
    }
    Ok(peer)
}
