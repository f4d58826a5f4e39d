//! Builds a part of a model from its description: by a strategy, or the default layer if no strategy builds
//! it.
use crate::build::part::BoxedLayer;
use crate::{Builder, Strategy};
use kernels::Kernels;
use ops::{Error, Result};

/// Description of a part of a model: its sizes and names, its input and output.
pub trait Spec<D: Kernels> {
    /// The input of the part.
    type In: 'static;
    /// The output of the part.
    type Out: 'static;
    /// True if a profile shows it under its own name; if false, the layer around it is shown.
    const PROFILED: bool;

    /// Its name.
    fn name(&self) -> &str;
    /// Returns the part that this strategy builds, if it builds one.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn own(
        &self,
        at: &Builder<D>,
        strategy: &dyn Strategy<D>,
    ) -> Result<Option<BoxedLayer<D, Self::In, Self::Out>>>;
    /// Returns the default layer, for when no strategy builds another.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn default_layer(&self, at: &Builder<D>) -> Result<BoxedLayer<D, Self::In, Self::Out>>;
}

impl<D: Kernels> Builder<'_, D> {
    /// Builds a part of the model with the layout's strategies.
    ///
    /// # Errors
    /// If the number of ranks does not fit, or two strategies would build it.
    pub fn build<S: Spec<D>>(&self, spec: &S) -> Result<BoxedLayer<D, S::In, S::Out>> {
        let name = spec.name();
        let mut chosen = None;
        for strategy in &self.strategies {
            let Some(part) = spec.own(self, *strategy)? else { continue };
            let by = strategy.about().name;
            if let Some((_, first)) = chosen {
                let why = format!("{first} and {by} both build {name}; a layout can have one of them");
                return Err(Error::Strategies(why));
            }
            chosen = Some((part, by));
        }
        let part = match chosen {
            None => spec.default_layer(self)?,
            Some((part, by)) => {
                self.built.borrow_mut().push((name.to_string(), by));
                part
            }
        };
        Ok(if S::PROFILED { part.named(name) } else { part })
    }
}
