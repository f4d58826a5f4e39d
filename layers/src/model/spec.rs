//! How parts of a model are built: what is asked for, by a description, and who builds it, a strategy or else nobody in
//! particular.
use crate::model::part::Part;
use crate::{Builder, Error, Result, Strategy};
use kernels::Kernels;

/// The description of a part of a model: its sizes and names, what it takes and gives.
pub trait Spec<D: Kernels> {
    /// The input of the part.
    type In: 'static;
    /// The output of the part.
    type Out: 'static;
    /// True if a profile shows it under its own name; if not, the layer around it is shown.
    const PROFILED: bool;

    /// Its name.
    fn name(&self) -> &str;
    /// The part as this strategy builds it, if it does.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn own(
        &self,
        at: &Builder<D>,
        strategy: &dyn Strategy<D>,
    ) -> Result<Option<Part<D, Self::In, Self::Out>>>;
    /// The usual layer, where no strategy builds another.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn usual(&self, at: &Builder<D>) -> Result<Part<D, Self::In, Self::Out>>;
}

impl<D: Kernels> Builder<'_, D> {
    /// A part of the model, as the layout's strategies have it.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn build<S: Spec<D>>(&self, spec: &S) -> Result<Part<D, S::In, S::Out>> {
        let (name, mut own) = (spec.name(), None);
        for strategy in &self.strategies {
            let Some(part) = spec.own(self, *strategy)? else { continue };
            let by = strategy.about().name;
            if let Some((_, first)) = own {
                let why = format!("{first} and {by} both build {name}; a layout can have one of them");
                return Err(Error::Strategies(why));
            }
            own = Some((part, by));
        }
        let part = match own {
            None => spec.usual(self)?,
            Some((part, by)) => {
                self.built.borrow_mut().push((name.to_string(), by));
                part
            }
        };
        Ok(if S::PROFILED { part.named(name) } else { part })
    }
}
