//! Constants of the optimizer, as far as they are given.
use super::settings::{differs_from, refuse};
use layers::{Constant, OptimizerInfo, OptimizerKind, Range};
use ops::OPTIMIZERS;
use parallel::{Error, Result};

/// Constants of the optimizer that are given, by key.
#[derive(Clone, Debug, Default)]
pub struct GivenConstants(pub Vec<(&'static str, Vec<f64>)>);

/// Returns the constants of this key, each with its optimizer.
pub fn of_key(key: &str) -> impl Iterator<Item = (&'static OptimizerInfo, &'static Constant)> {
    let all = OPTIMIZERS.iter().flat_map(|info| info.constants.iter().map(move |constant| (*info, constant)));
    all.filter(move |(_, constant)| constant.key == key)
}

/// Returns values as an optimizer has them: rates as factors of the largest learning rate.
fn stored(constant: &Constant, values: &[f64], lr: f64) -> Vec<f64> {
    values.iter().map(|x| if constant.range == Range::Rate { x / lr } else { *x }).collect()
}

impl GivenConstants {
    /// Returns the optimizer with the constants that are given, in a run whose largest learning rate is `lr`.
    ///
    /// # Errors
    /// If a given constant is another optimizer's, or out of range.
    pub fn of(&self, kind: OptimizerKind, lr: f64) -> Result<OptimizerKind> {
        for (key, _) in self.0.iter().filter(|(key, _)| kind.get(key).is_none()) {
            let names: Vec<_> = of_key(key).map(|(info, _)| info.name).collect();
            let names = names.join(", ");
            let names =
                names.rsplit_once(", ").map_or(names.clone(), |(all, last)| format!("{all} or {last}"));
            refuse(&[(key, true)], &format!("--optimizer {names}; {}", kind.name()))?;
        }
        let set = |kind: OptimizerKind, (key, values): &(&str, Vec<f64>)| {
            let Some((_, constant)) = of_key(key).next() else { return Ok(kind) };
            constant.check(values)?;
            if constant.range == Range::Rate && lr == 0.0 {
                return Err(format!(
                    "--{key} is {}, but --lr is 0, of which it would be a multiple",
                    values[0]
                ));
            }
            kind.set(key, &stored(constant, values, lr))
        };
        self.0.iter().try_fold(kind, set).map_err(Error::new)
    }
    /// Returns one sentence on the first given constant that differs from that of a run that has begun.
    pub fn differ(&self, begun: OptimizerKind, lr: f64) -> Option<String> {
        self.0.iter().find_map(|(key, values)| {
            let (_, constant) = of_key(key).next()?;
            let begun = begun.get(key).filter(|begun| *begun != stored(constant, values, lr))?;
            let scale = if constant.range == Range::Rate { lr } else { 1.0 };
            let begun: Vec<_> = begun.iter().map(|x| x * scale).collect();
            Some(differs_from(constant.key, &constant.text(values), &constant.text(&begun)))
        })
    }
}
