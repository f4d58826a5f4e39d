//! A part of a model that a strategy may build: a layer of any type, behind one pointer.
//!
//! A model does not name the types of its layers, and all parts are built, called and profiled alike. The
//! layer stores what it keeps for backward, typed, in buffers that are reused; the model holds a ticket.
use crate::{InputHalf, Layer, Params};
use kernels::Kernels;
use ops::{PassContext, Result, RowWeight, Stream};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tensor::Direction;

/// A layer of any type from `X` to `Y`, with its own name for profiles, if it has one.
pub struct BoxedLayer<D: Kernels, X, Y> {
    name: Option<Arc<str>>,
    layer: Box<dyn Layer<D, In = X, Out = Y, Saved = Ticket, Pending = Ticket>>,
}

/// A block of a transformer, or any part from rows of the stream to the same number of rows.
pub type Block<D> = BoxedLayer<D, Stream<D>, Stream<D>>;

/// A claim to what a layer kept, which the layer stores; `None` if it kept nothing.
pub type Ticket = Option<Slot>;

/// Position of a value that a layer kept. Dropping the slot frees the value if it was not taken.
pub struct Slot {
    at: usize,
    slots: Rc<dyn Empties>,
}

trait Empties {
    fn empty(&self, at: usize);
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.empty(self.at);
    }
}

/// Storage for kept values; the place of a taken value is reused.
struct Slots<T>(RefCell<Vec<Option<T>>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(RefCell::default())
    }
}

impl<T> Empties for Slots<T> {
    fn empty(&self, at: usize) {
        let kept = self.0.borrow_mut()[at].take();
        drop(kept);
    }
}

impl<T: 'static> Slots<T> {
    fn keep(self: &Rc<Self>, kept: T) -> Slot {
        let mut slots = self.0.borrow_mut();
        let index = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        if index == slots.len() {
            slots.push(None);
        }
        slots[index] = Some(kept);
        Slot { at: index, slots: self.clone() }
    }
    fn take(&self, ticket: Ticket) -> T {
        let slot = ticket.expect("a layer kept nothing for backward");
        self.0.borrow_mut()[slot.at].take().expect("what a layer kept was already taken")
    }
}

/// A layer, and storage for what it keeps.
struct OwnLayer<L, S, P> {
    layer: L,
    saved: Rc<Slots<S>>,
    pending: Rc<Slots<P>>,
}

impl<D: Kernels, L: Layer<D> + 'static> Layer<D> for OwnLayer<L, L::Saved, L::Pending> {
    type In = L::In;
    type Out = L::Out;
    type Saved = Ticket;
    type Pending = Ticket;

    fn forward(&self, cx: &PassContext<D>, x: L::In) -> Result<(L::Out, Ticket)> {
        let (y, saved) = self.layer.forward(cx, x)?;
        Ok((y, cx.keeps().then(|| self.saved.keep(saved))))
    }
    fn backward_input(&mut self, cx: &PassContext<D>, saved: Ticket, dy: L::Out) -> InputHalf<D, Self> {
        let (dx, pending) = self.layer.backward_input(cx, self.saved.take(saved), dy)?;
        Ok((dx, Some(self.pending.keep(pending))))
    }
    fn backward_without_dx(&mut self, cx: &PassContext<D>, saved: Ticket, dy: L::Out) -> Result<Ticket> {
        Ok(Some(self.pending.keep(self.layer.backward_without_dx(cx, self.saved.take(saved), dy)?)))
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Ticket) -> Result<()> {
        self.layer.backward_weight(cx, self.pending.take(pending))
    }
    fn backward(&mut self, cx: &PassContext<D>, saved: Ticket, dy: L::Out) -> Result<L::In> {
        self.layer.backward(cx, self.saved.take(saved), dy)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.layer.params(into);
    }
    fn table(&mut self) -> Option<&mut Option<RowWeight<D>>> {
        self.layer.table()
    }
}

impl<D: Kernels, X: 'static, Y: 'static> BoxedLayer<D, X, Y> {
    /// Creates a part from this layer; a profile gets its name from the layer itself, or from the layer
    /// around it.
    pub fn new(layer: impl Layer<D, In = X, Out = Y> + 'static) -> Self {
        let layer = OwnLayer { layer, saved: Rc::default(), pending: Rc::default() };
        Self { name: None, layer: Box::new(layer) }
    }
    /// Returns the part with this name in a profile.
    pub(crate) fn named(self, name: &str) -> Self {
        Self { name: Some(name.into()), ..self }
    }
}

impl<D: Kernels, X: 'static, Y: 'static> Layer<D> for BoxedLayer<D, X, Y> {
    type In = X;
    type Out = Y;
    type Saved = Ticket;
    type Pending = Ticket;

    fn forward(&self, cx: &PassContext<D>, x: X) -> Result<(Y, Ticket)> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Forward));
        self.layer.forward(cx, x)
    }
    fn backward_input(&mut self, cx: &PassContext<D>, saved: Ticket, dy: Y) -> Result<(X, Ticket)> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Backward));
        self.layer.backward_input(cx, saved, dy)
    }
    fn backward_without_dx(&mut self, cx: &PassContext<D>, saved: Ticket, dy: Y) -> Result<Ticket> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Backward));
        self.layer.backward_without_dx(cx, saved, dy)
    }
    fn backward_weight(&mut self, cx: &PassContext<D>, pending: Ticket) -> Result<()> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Backward));
        self.layer.backward_weight(cx, pending)
    }
    fn backward(&mut self, cx: &PassContext<D>, saved: Ticket, dy: Y) -> Result<X> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Backward));
        self.layer.backward(cx, saved, dy)
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.layer.params(into);
    }
    fn table(&mut self) -> Option<&mut Option<RowWeight<D>>> {
        self.layer.table()
    }
}

#[cfg(test)]
mod tests;
