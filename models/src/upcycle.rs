//! Upcycling: makes a model with experts from one without. Each expert starts as the feed-forward, or as a
//! slice of it.
//!
//! ```text
//! expert e is slice s = e mod G of copy c = e div G   FFN_e(x) = G · h_s · W_down[s,:]   h = act(x · W_up)
//! gates of a token: p_c/G for each slice of a chosen copy, Σ_c p_c = 1   Σ_c Σ_s p_c/G · FFN_e(x) = FFN(x)
//! ```
//! The G experts of a copy share one column of the router, so their scores are equal, and the best k experts
//! are k/G whole copies. The model computes the same as the original, until training makes its experts
//! differ. Source: Komatsuzaki et al., "Sparse upcycling", arXiv:2212.05055; of slices, He et al., "Upcycling
//! large language models into mixture of experts" (virtual groups, scaled weights), arXiv:2410.07524.
use crate::convert::{Converted, written};
use crate::families::{ALL, one_of};
use crate::{Config, Model};
use layers::{Balance, Experts, Shape};
use ops::{Draw, ParamValues, RandomValues, ValueSource};
use parallel::{Entry, Orientation, Result, Stored, bail};
use std::path::Path;
use tensor::dtype::Dtype;

/// Weight of the load-balancing loss per choice of a token: `router_aux_loss_coef`. Because training
/// continues for a short time only, it is, with four choices, five times the weight of Fedus et al. ("Switch
/// transformers", §2.2, arXiv:2101.03961).
const BALANCE: f64 = 0.0125;
/// Distribution of a router's initial weights: as in `transformers`, with the `initializer_range` of our
/// config.json.
const ROUTER: Draw = Draw { mean: 0.0, std: 0.02 };

/// Experts to give to a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upcycling {
    /// Number of experts.
    pub experts: usize,
    /// Number of experts that each token is sent to.
    pub chosen: usize,
    /// Number of experts that a copy of the feed-forward is cut into.
    pub slices: usize,
}

impl Upcycling {
    /// Returns the configuration of the model with experts.
    ///
    /// # Errors
    /// If the slices do not divide the experts, the choices or the hidden features, or if no family
    /// with such experts computes everything else as this one does.
    pub fn config(&self, dense: &Config) -> Result<Config> {
        let Self { experts: count, chosen, slices } = *self;
        let hidden = dense.shape.hidden;
        if slices == 0 {
            bail!("--slices is 0; it must be 1 or more");
        }
        for (what, n) in [("--experts", count), ("--chosen", chosen), ("intermediate_size", hidden)] {
            if !n.is_multiple_of(slices) {
                bail!("{what} is {n}; it must be a multiple of the {slices} slices that a copy is cut into");
            }
        }
        let balance = Balance { microbatch: BALANCE * chosen as f64, ..Balance::default() };
        let experts = Experts { count, chosen, hidden: hidden / slices, balance, ..Experts::MIXTRAL };
        let from = dense.family.about().model_type;
        let Some(family) = dense.family.upcycled() else {
            let others = ALL.iter().filter(|family| family.upcycled().is_some());
            let others = one_of(others.map(|family| family.about().model_type.to_owned()));
            bail!("a model of model_type {from} cannot be given experts; it must be {others}");
        };
        let shape = Shape { experts: Some(experts), ..dense.shape };
        let config = Config { family, shape, ..dense.clone() };
        let read = Config::parse(&config.to_json(), "the model with experts")?;
        // In a family without dense blocks, one key sizes their feed-forward and the experts.
        let config = Config { shape: Shape { hidden: read.shape.hidden, ..shape }, ..config };
        if read != config {
            let to = family.about().model_type;
            bail!(
                "this {from} has biases or windows that {to}, its counterpart with experts, does not support"
            );
        }
        Ok(config)
    }
}

/// Writes the model with experts, as [`convert`](crate::convert::convert) writes a model.
///
/// # Errors
/// As [`Upcycling::config`] and [`convert`](crate::convert::convert).
pub fn upcycle(model: &Model, by: Upcycling, out: &Path, dtype: Option<Dtype>) -> Result<Converted> {
    let config = by.config(&model.config)?;
    let shape = model.config.shape;
    written(model, &config, (out, dtype), &|stored, writer, (_, to)| {
        let numbers = Upcycled { dense: stored, shape: &shape, by }.of(to)?;
        let shape =
            if let [rows, columns] = to.shape()[..] { [rows, columns] } else { [1, to.columns.len()] };
        let [row, column] = [to.rows.start, to.columns.start];
        Ok(writer.numbers(&to.name, shape, |[i, j], some| match to.orientation {
            Orientation::Transposed => {
                some.iter_mut().zip(j..).for_each(|(x, j)| *x = numbers.at([row + j, column + i]));
            }
            _ => numbers.set([row + i, column + j], some),
        })?)
    })
}

/// Source of the values of a model with experts.
struct Upcycled<'a> {
    dense: &'a Stored,
    shape: &'a Shape, // of the dense model
    by: Upcycling,
}

impl<'a> Upcycled<'a> {
    /// Returns the parameter of an entry, by row and column.
    fn of(&self, to: &Entry) -> Result<ParamValues<'a, f64>> {
        let Shape { width, hidden, .. } = *self.shape;
        let Upcycling { experts, slices, .. } = self.by;
        let f = hidden / slices;
        let dense = self.dense;
        let same = |name: &str, shape| dense.of(name, shape, ROUTER);
        if let Some(mlp) = to.param.strip_suffix(".router") {
            let drawn: ParamValues<'_, f64> =
                RandomValues { seed: 0 }.of(mlp, [width, experts / slices], ROUTER)?;
            return Ok(ParamValues::each(move |[row, e]| drawn.at([row, e / slices])));
        }
        if let Some(mlp) = to.param.strip_suffix(".experts.gate_up") {
            let up = same(&format!("{mlp}.gate_up"), [width, 2 * hidden])?;
            return Ok(ParamValues::each(move |[row, column]| {
                let slice = row / width % slices;
                up.at([row % width, column / f * hidden + slice * f + column % f])
            }));
        }
        if let Some(mlp) = to.param.strip_suffix(".experts.down") {
            let down = same(&format!("{mlp}.down"), [hidden, width])?;
            return Ok(ParamValues::each(move |[row, column]| {
                slices as f64 * down.at([(row / width % slices) * f + column, row % width])
            }));
        }
        let parts = dense.entries().iter().filter(|entry| entry.param == to.param);
        Ok(same(&to.param, [to.height, parts.map(|entry| entry.columns.end).max().unwrap_or(0)])?)
    }
}

#[cfg(test)]
mod tests;
