//! `--routing FILE`: tokens per expert of each layer, as `eval --json` prints them for a text:
//! `{"experts": {"blocks.0.mlp": [30, 0, 14, 20]}}`. Each microbatch is dispatched in these proportions.
use layers::{Experts, Shape};
use ops::LayerCounts;
use parallel::{Error, Result, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use tensor::{files, quoted::sentence};

/// Required part of the file; all other output of `eval` is ignored.
#[derive(Deserialize)]
struct EvalFile {
    experts: LayerCounts,
}

/// Reads a routing for a model of this shape.
///
/// # Errors
/// If the file is not a routing, has other layers or another number of experts, or gives an expert more
/// copies than there are tokens.
pub fn read(path: &Path, shape: &Shape) -> Result<LayerCounts> {
    let layer = |block| Some((format!("blocks.{block}.mlp"), shape.block(block).experts?));
    let layers: BTreeMap<String, Experts> = (0..shape.blocks).filter_map(layer).collect();
    match layers.values().next() {
        None => bail!("--routing needs a model with experts, and this model has none; leave it out"),
        Some(experts) if experts.by_experts => {
            bail!("--routing needs tokens that choose experts, but here experts choose tokens; leave it out")
        }
        Some(_) => {}
    }
    let name = path.display();
    let EvalFile { experts: routing } = serde_json::from_slice(&files::read(path)?).map_err(|why| {
        let why = sentence(&why.to_string());
        Error::new(format!("{name} is not a JSON object whose \"experts\" are counts by layer: {why}"))
    })?;
    if let Some((other, _)) = routing.iter().find(|(layer, _)| !layers.contains_key(*layer)) {
        let names: Vec<_> = layers.keys().map(String::as_str).collect();
        bail!("{name} has counts of {other}, but the layers of experts are {}", names.join(", "));
    }
    for (layer, Experts { count, chosen, .. }) in layers {
        let counts = routing.of(&layer).unwrap_or_default();
        if counts.len() != count {
            bail!("{name} has {} counts of {layer}; it must have {count}, one for each expert", counts.len());
        }
        let all: u128 = counts.iter().map(|&n| n as u128).sum();
        let most = all / chosen as u128;
        if let Some((expert, n)) = counts.iter().enumerate().find(|(_, n)| all == 0 || **n as u128 > most) {
            bail!(
                "{name} gives expert {expert} of {layer} {n} of {all} copies; the most is {most}, and the total must be \
                 above 0, because each token has {chosen} copies, for different experts"
            );
        }
    }
    Ok(routing)
}
