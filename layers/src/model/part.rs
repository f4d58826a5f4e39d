//! A layer of a model: the usual one, or what a strategy builds in its place.
//!
//! The usual layers stay what they are, types that the compiler sees through. Only a strategy's own are behind a
//! pointer: a model need not name every layer that anyone may ever write. What such a layer keeps stays with it, typed, in
//! room that is used again; the model holds a ticket. Either way a profile is told here whose time it is.
use crate::model::strategy::{self, Strategy};
use crate::ops::{Stream, join};
use crate::{Builder, ColumnLinear, Cx, Error, Layer, Mlp, Norm, Param, Result, RowLinear, norm};
use kernels::Kernels;
use std::cell::RefCell;
use tensor::Pass;

/// A strategy's own layer, which takes and gives what `L` does.
pub struct Other<D: Kernels, L: Layer<D>>(Box<dyn Behind<D, L::In, L::Out>>);

impl<D: Kernels, L: Layer<D>> Other<D, L> {
    /// This layer in the place of an `L`.
    pub fn new(layer: impl Layer<D, In = L::In, Out = L::Out> + 'static) -> Self {
        Self(Box::new(Own { layer, saved: Slots::new(), pending: Slots::new() }))
    }
}

/// Where something lies that a layer kept; nowhere if it kept nothing.
type Ticket = Option<usize>;

/// What layers of any type can do alike: [`Layer`], with tickets for what is kept.
trait Behind<D: Kernels, In, Out> {
    fn forward(&self, cx: &Cx<D>, x: In) -> Result<(Out, Ticket)>;
    fn backward_input(&mut self, cx: &Cx<D>, saved: Ticket, dy: Out) -> Result<(In, Ticket)>;
    fn backward_weight(&mut self, cx: &Cx<D>, pending: Ticket) -> Result<()>;
    fn backward(&mut self, cx: &Cx<D>, saved: Ticket, dy: Out) -> Result<In>;
    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>);
}

/// A layer and what it keeps.
struct Own<L, S, P> {
    layer: L,
    saved: Slots<S>,
    pending: Slots<P>,
}

/// Room for what is kept; what was taken leaves its place to the next.
struct Slots<T>(RefCell<Vec<Option<T>>>);

impl<T> Slots<T> {
    fn new() -> Self {
        Self(RefCell::default())
    }
    fn keep(&self, kept: T) -> Ticket {
        let mut all = self.0.borrow_mut();
        let at = all.iter().position(Option::is_none).unwrap_or(all.len());
        if at == all.len() {
            all.push(None);
        }
        all[at] = Some(kept);
        Some(at)
    }
    fn take(&self, ticket: Ticket) -> T {
        let at = ticket.expect("a layer kept what backward needs");
        self.0.borrow_mut()[at].take().expect("a layer is given back what it kept, once")
    }
}

impl<D: Kernels, L: Layer<D>> Behind<D, L::In, L::Out> for Own<L, L::Saved, L::Pending> {
    fn forward(&self, cx: &Cx<D>, x: L::In) -> Result<(L::Out, Ticket)> {
        let (y, saved) = self.layer.forward(cx, x)?;
        Ok((y, if cx.keeps() { self.saved.keep(saved) } else { None }))
    }
    fn backward_input(&mut self, cx: &Cx<D>, saved: Ticket, dy: L::Out) -> Result<(L::In, Ticket)> {
        let (dx, pending) = self.layer.backward_input(cx, self.saved.take(saved), dy)?;
        Ok((dx, self.pending.keep(pending)))
    }
    fn backward_weight(&mut self, cx: &Cx<D>, pending: Ticket) -> Result<()> {
        self.layer.backward_weight(cx, self.pending.take(pending))
    }
    fn backward(&mut self, cx: &Cx<D>, saved: Ticket, dy: L::Out) -> Result<L::In> {
        self.layer.backward(cx, self.saved.take(saved), dy)
    }
    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        self.layer.params(into);
    }
}

/// The usual layer `L`, or another in its place, with its name for profiles, if it has one of its own.
pub struct Part<D: Kernels, L: Layer<D>> {
    name: Option<String>,
    layer: Which<D, L>,
}

enum Which<D: Kernels, L: Layer<D>> {
    Usual(L),
    Other(Other<D, L>), // a strategy's own
}

/// What one or the other keeps.
pub enum Held<T> {
    /// Of `L`.
    Usual(T),
    /// Of a strategy's own, which has it.
    Other(Option<usize>),
}

/// What part `L` of a model keeps for backward.
pub type Of<D, L> = Held<<L as Layer<D>>::Saved>;
/// What it keeps for the weight half.
pub type Pending<D, L> = Held<<L as Layer<D>>::Pending>;

const MIXED: &str = "what a layer kept goes back to that layer";

impl<D: Kernels, L: Layer<D>> Layer<D> for Part<D, L> {
    type In = L::In;
    type Out = L::Out;
    type Saved = Held<L::Saved>;
    type Pending = Held<L::Pending>;

    fn forward(&self, cx: &Cx<D>, x: L::In) -> Result<(L::Out, Self::Saved)> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Pass::Forward));
        Ok(match &self.layer {
            Which::Usual(layer) => {
                let (y, saved) = layer.forward(cx, x)?;
                (y, Held::Usual(saved))
            }
            Which::Other(layer) => {
                let (y, saved) = layer.0.forward(cx, x)?;
                (y, Held::Other(saved))
            }
        })
    }

    fn backward_input(
        &mut self,
        cx: &Cx<D>,
        saved: Self::Saved,
        dy: L::Out,
    ) -> Result<(L::In, Self::Pending)> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Pass::Backward));
        Ok(match (&mut self.layer, saved) {
            (Which::Usual(layer), Held::Usual(saved)) => {
                let (dx, pending) = layer.backward_input(cx, saved, dy)?;
                (dx, Held::Usual(pending))
            }
            (Which::Other(layer), Held::Other(saved)) => {
                let (dx, pending) = layer.0.backward_input(cx, saved, dy)?;
                (dx, Held::Other(pending))
            }
            _ => panic!("{MIXED}"),
        })
    }

    fn backward_first(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: L::Out) -> Result<Self::Pending> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Pass::Backward));
        Ok(match (&mut self.layer, saved) {
            (Which::Usual(layer), Held::Usual(saved)) => Held::Usual(layer.backward_first(cx, saved, dy)?),
            (Which::Other(layer), Held::Other(saved)) => {
                Held::Other(layer.0.backward_input(cx, saved, dy)?.1)
            }
            _ => panic!("{MIXED}"),
        })
    }

    fn backward_weight(&mut self, cx: &Cx<D>, pending: Self::Pending) -> Result<()> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Pass::Backward));
        match (&mut self.layer, pending) {
            (Which::Usual(layer), Held::Usual(pending)) => layer.backward_weight(cx, pending),
            (Which::Other(layer), Held::Other(pending)) => layer.0.backward_weight(cx, pending),
            _ => panic!("{MIXED}"),
        }
    }

    fn backward(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: L::Out) -> Result<L::In> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Pass::Backward));
        match (&mut self.layer, saved) {
            (Which::Usual(layer), Held::Usual(saved)) => layer.backward(cx, saved, dy),
            (Which::Other(layer), Held::Other(saved)) => layer.0.backward(cx, saved, dy),
            _ => panic!("{MIXED}"),
        }
    }

    fn params<'a>(&'a mut self, into: &mut Vec<&'a mut Param<D>>) {
        match &mut self.layer {
            Which::Usual(layer) => layer.params(into),
            Which::Other(layer) => layer.0.params(into),
        }
    }
}

impl<D: Kernels> Part<D, Norm<D>> {
    /// As [`Norm::backward_onto`], shown in a record with what went around.
    ///
    /// # Errors
    /// As there.
    pub fn backward_onto(
        &mut self,
        cx: &Cx<D>,
        saved: Held<norm::Saved<D>>,
        dy: &Stream<D>,
        skip: Option<&Stream<D>>,
    ) -> Result<Stream<D>> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Pass::Backward));
        let dx = match (&mut self.layer, saved) {
            (Which::Usual(norm), Held::Usual(saved)) => norm.backward_onto(saved, dy, skip)?,
            (Which::Other(norm), Held::Other(saved)) => {
                let dx = norm.0.backward(cx, saved, dy.clone())?;
                if let Some(skip) = skip { join(dx, skip) } else { dx }
            }
            _ => panic!("{MIXED}"),
        };
        cx.saw_gradient(self.name.as_deref().unwrap_or_default(), "in", |_| Ok(dx.seen()))?;
        Ok(dx)
    }
}

impl<D: Kernels> Builder<'_, D> {
    /// A column layer, as the layout's strategies have it.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn column(&self, column: &strategy::Column) -> Result<Part<D, ColumnLinear<D>>> {
        let strategy::Column { axis, name, inputs, sections, bias } = *column;
        let usual = || ColumnLinear::shard(self, axis, name, inputs, sections, bias);
        self.built(name, |s| s.column(self, column), usual)
    }
    /// A row layer.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn row(&self, row: &strategy::Row) -> Result<Part<D, RowLinear<D>>> {
        let strategy::Row { axis, name, sizes, bias } = *row;
        self.built(name, |s| s.row(self, row), || RowLinear::shard(self, axis, name, sizes, bias))
    }
    /// A norm.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn norm(&self, norm: &strategy::Norm) -> Result<Part<D, Norm<D>>> {
        let strategy::Norm { kind, name, width, eps } = *norm;
        self.built(name, |s| s.norm(self, norm), || Norm::new(self, kind, name, width, eps))
    }
    /// A block's feed-forward, of which a profile hears from the block.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn feed_forward(&self, mlp: &strategy::Mlp) -> Result<Part<D, Mlp<D>>> {
        let strategy::Mlp { axis, name, kind, sizes, bias } = *mlp;
        let usual = || Mlp::shard(self, axis, name, kind, sizes, bias);
        Ok(Part { name: None, ..self.built(name, |s| s.feed_forward(self, mlp), usual)? })
    }
    fn built<L: Layer<D>>(
        &self,
        name: &str,
        build: impl Fn(&dyn Strategy<D>) -> Result<Option<Other<D, L>>>,
        usual: impl FnOnce() -> Result<L>,
    ) -> Result<Part<D, L>> {
        let mut built: Option<(Other<D, L>, &'static str)> = None;
        for strategy in &self.strategies {
            let Some(layer) = build(*strategy)? else { continue };
            let by = strategy.about().name;
            if let Some((_, first)) = built {
                return Err(Error::Twice { name: name.into(), one: first.into(), other: by.into() });
            }
            built = Some((layer, by));
        }
        let layer = match built {
            Some((layer, by)) => {
                self.built.borrow_mut().push((name.to_string(), by));
                Which::Other(layer)
            }
            None => Which::Usual(usual()?),
        };
        Ok(Part { name: Some(name.to_string()), layer })
    }
}

#[cfg(test)]
mod tests;
