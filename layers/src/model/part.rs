//! A layer of a model: the usual one, or what a strategy builds in its place.
//!
//! The usual layers stay what they are, types that the compiler sees through. Only a strategy's own are behind a
//! pointer: a model need not name every layer that anyone may ever write. What such a layer keeps stays with it, typed, in
//! room that is used again; the model holds a ticket. Either way a profile gets the layer's name here.
use crate::attention::core::AttentionCore;
use crate::model::end::{self, AnyEnd};
use crate::model::strategy::{self, Strategy};
use crate::ops::{Stream, join};
use crate::{
    Attention, Back, Builder, ColumnLinear, Cx, Embedding, Error, Head, Layer, Mlp, Norm, Param, Result,
    RowLinear, attention, mlp, norm,
};
use kernels::Kernels;
use std::cell::RefCell;
use std::rc::Rc;
use tensor::Direction;

/// A strategy's own layer, which takes and gives what `L` does.
pub struct Other<D: Kernels, L: Layer<D>>(Box<Behind<D, L>>);

impl<D: Kernels, L: Layer<D>> Other<D, L> {
    /// This layer in the place of an `L`.
    pub fn new(layer: impl Layer<D, In = L::In, Out = L::Out> + 'static) -> Self {
        Self(Box::new(Own::new(layer)))
    }
}

/// What a layer of any type gives for what it kept, which stays with it; none if it kept nothing.
pub type Ticket = Option<Slot>;

/// Where something lies that a layer kept. What nobody took is gone when this is dropped.
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

/// A layer of any type from rows of the stream to as many, such as a block.
pub type AnyLayer<D> = Box<dyn Layer<D, In = Stream<D>, Out = Stream<D>, Saved = Ticket, Pending = Ticket>>;

/// This layer, whatever its type.
pub fn any<D: Kernels>(layer: impl Layer<D, In = Stream<D>, Out = Stream<D>> + 'static) -> AnyLayer<D> {
    Box::new(Own::new(layer))
}

/// A layer of any type that takes and gives what `L` does, with tickets for what is kept.
type Behind<D, L> =
    dyn Layer<D, In = <L as Layer<D>>::In, Out = <L as Layer<D>>::Out, Saved = Ticket, Pending = Ticket>;

/// A layer and what it keeps.
pub(crate) struct Own<L, S, P> {
    pub(crate) layer: L,
    pub(crate) saved: Rc<Slots<S>>,
    pub(crate) pending: Rc<Slots<P>>,
}

impl<L, S, P> Own<L, S, P> {
    pub(crate) fn new(layer: L) -> Self {
        Self { layer, saved: Rc::default(), pending: Rc::default() }
    }
}

/// Room for what is kept; what was taken leaves its place to the next.
pub(crate) struct Slots<T>(RefCell<Vec<Option<T>>>);

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
    pub(crate) fn keep(self: &Rc<Self>, kept: T) -> Slot {
        let mut all = self.0.borrow_mut();
        let at = all.iter().position(Option::is_none).unwrap_or(all.len());
        if at == all.len() {
            all.push(None);
        }
        all[at] = Some(kept);
        Slot { at, slots: self.clone() }
    }
    pub(crate) fn take(&self, ticket: Ticket) -> T {
        let slot = ticket.expect("a layer kept what backward needs");
        self.0.borrow_mut()[slot.at].take().expect("a layer is given back what it kept, once")
    }
}

impl<D: Kernels, L: Layer<D> + 'static> Layer<D> for Own<L, L::Saved, L::Pending> {
    type In = L::In;
    type Out = L::Out;
    type Saved = Ticket;
    type Pending = Ticket;

    fn forward(&self, cx: &Cx<D>, x: L::In) -> Result<(L::Out, Ticket)> {
        let (y, saved) = self.layer.forward(cx, x)?;
        Ok((y, cx.keeps().then(|| self.saved.keep(saved))))
    }
    fn backward_input(&mut self, cx: &Cx<D>, saved: Ticket, dy: L::Out) -> Back<D, Self> {
        let (dx, pending) = self.layer.backward_input(cx, self.saved.take(saved), dy)?;
        Ok((dx, Some(self.pending.keep(pending))))
    }
    fn backward_first(&mut self, cx: &Cx<D>, saved: Ticket, dy: L::Out) -> Result<Ticket> {
        let pending = self.layer.backward_first(cx, self.saved.take(saved), dy)?;
        Ok(Some(self.pending.keep(pending)))
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
    Other(Ticket),
}

/// What part `L` of a model keeps for backward.
pub type Of<D, L> = Held<<L as Layer<D>>::Saved>;
/// What it keeps for the weight half.
pub type Pending<D, L> = Held<<L as Layer<D>>::Pending>;

impl<D: Kernels, L: Layer<D>> Part<D, L> {
    /// What a strategy built, or else the usual layer.
    fn new(name: &str, own: Option<(Other<D, L>, &str)>, usual: impl FnOnce() -> Result<L>) -> Result<Self> {
        let layer = own.map_or_else(|| usual().map(Which::Usual), |(own, _)| Ok(Which::Other(own)))?;
        Ok(Self { name: Some(name.to_string()), layer })
    }
    /// The usual layer, if it is there.
    pub(crate) fn usual(&self) -> Option<&L> {
        if let Which::Usual(layer) = &self.layer { Some(layer) } else { None }
    }
    /// The usual layer, to change, if it is there.
    pub(crate) fn usual_mut(&mut self) -> Option<&mut L> {
        if let Which::Usual(layer) = &mut self.layer { Some(layer) } else { None }
    }
    /// A step backward of the one layer or the other, with what that one kept.
    fn back<K, T>(
        &mut self,
        cx: &Cx<D>,
        (kept, dy): (Held<K>, L::Out),
        usual: impl FnOnce(&mut L, K, L::Out) -> Result<T>,
        other: impl FnOnce(&mut Behind<D, L>, Ticket, L::Out) -> Result<T>,
    ) -> Result<T> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Backward));
        match (&mut self.layer, kept) {
            (Which::Usual(layer), Held::Usual(kept)) => usual(layer, kept, dy),
            (Which::Other(layer), Held::Other(kept)) => other(&mut *layer.0, kept, dy),
            _ => panic!("{MIXED}"),
        }
    }
}

const MIXED: &str = "what a layer kept goes back to that layer";

impl<D: Kernels, L: Layer<D>> Layer<D> for Part<D, L> {
    type In = L::In;
    type Out = L::Out;
    type Saved = Held<L::Saved>;
    type Pending = Held<L::Pending>;

    fn forward(&self, cx: &Cx<D>, x: L::In) -> Result<(L::Out, Self::Saved)> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Forward));
        match &self.layer {
            Which::Usual(layer) => layer.forward(cx, x).map(|(y, saved)| (y, Held::Usual(saved))),
            Which::Other(layer) => layer.0.forward(cx, x).map(|(y, saved)| (y, Held::Other(saved))),
        }
    }

    fn backward_input(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: L::Out) -> Back<D, Self> {
        self.back(
            cx,
            (saved, dy),
            |layer, saved, dy| layer.backward_input(cx, saved, dy).map(|(dx, kept)| (dx, Held::Usual(kept))),
            |layer, saved, dy| layer.backward_input(cx, saved, dy).map(|(dx, kept)| (dx, Held::Other(kept))),
        )
    }

    fn backward_first(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: L::Out) -> Result<Self::Pending> {
        self.back(
            cx,
            (saved, dy),
            |layer, saved, dy| layer.backward_first(cx, saved, dy).map(Held::Usual),
            |layer, saved, dy| layer.backward_input(cx, saved, dy).map(|(_, kept)| Held::Other(kept)),
        )
    }

    fn backward_weight(&mut self, cx: &Cx<D>, pending: Self::Pending) -> Result<()> {
        let _layer = self.name.as_deref().map(|name| cx.layer(name, Direction::Backward));
        match (&mut self.layer, pending) {
            (Which::Usual(layer), Held::Usual(pending)) => layer.backward_weight(cx, pending),
            (Which::Other(layer), Held::Other(pending)) => layer.0.backward_weight(cx, pending),
            _ => panic!("{MIXED}"),
        }
    }

    fn backward(&mut self, cx: &Cx<D>, saved: Self::Saved, dy: L::Out) -> Result<L::In> {
        let other = |layer: &mut Behind<D, L>, saved, dy| layer.backward(cx, saved, dy);
        self.back(cx, (saved, dy), |layer, saved, dy| layer.backward(cx, saved, dy), other)
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
    /// If ranks do not meet.
    pub fn backward_onto(
        &mut self,
        cx: &Cx<D>,
        saved: Held<norm::Saved<D>>,
        dy: &Stream<D>,
        skip: Option<&Stream<D>>,
    ) -> Result<Stream<D>> {
        let usual = |norm: &mut Norm<D>, saved, dy: Stream<D>| norm.backward_onto(saved, &dy, skip);
        let dx = self.back(cx, (saved, dy.clone()), usual, |norm, saved, dy| {
            let dx = norm.backward(cx, saved, dy)?;
            Ok(if let Some(skip) = skip { join(dx, skip) } else { dx })
        })?;
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
        let own = self.own(column.name, |s| s.column(self, column))?;
        Part::new(column.name, own, || ColumnLinear::shard(self, column))
    }
    /// A row layer.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn row(&self, row: &strategy::Row) -> Result<Part<D, RowLinear<D>>> {
        Part::new(row.name, self.own(row.name, |s| s.row(self, row))?, || RowLinear::shard(self, row))
    }
    /// A norm.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn norm(&self, norm: &strategy::Norm) -> Result<Part<D, Norm<D>>> {
        Part::new(norm.name, self.own(norm.name, |s| s.norm(self, norm))?, || Norm::new(self, norm))
    }
    /// A block's attention, of which a profile hears from the block.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn attention(&self, of: &strategy::Attention<D>) -> Result<Part<D, Attention<D>>> {
        let own = self.own(of.name, |s| s.attention(self, of))?;
        Ok(Part { name: None, ..Part::new(of.name, own, || attention::shard(self, of))? })
    }
    /// The core of an attention, of which a profile hears from the block.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn core(&self, core: &strategy::Core) -> Result<Part<D, AttentionCore<D>>> {
        let own = self.own(core.name, |s| s.core(self, core))?;
        Ok(Part { name: None, ..Part::new(core.name, own, || Ok(AttentionCore::new(core)))? })
    }
    /// A block's feed-forward, of which a profile hears from the block.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn feed_forward(&self, mlp: &strategy::Mlp) -> Result<Part<D, Mlp<D>>> {
        let own = self.own(mlp.name, |s| s.feed_forward(self, mlp))?;
        if let (Some(experts), None) = (mlp.experts, &own) {
            let why = format!("nothing here builds the {} experts of {}", experts.count, mlp.name);
            return Err(Error::Strategies(why));
        }
        Ok(Part { name: None, ..Part::new(mlp.name, own, || mlp::shard(self, mlp))? })
    }
    /// An embedding, of which a profile hears from the model.
    ///
    /// # Errors
    /// If the ranks do not fit, two strategies would build it, or one would and a head is tied to the usual one's table.
    pub fn embedding(&self, ids: &strategy::Embedding) -> Result<Part<D, Embedding<D>>> {
        let own = self.own(ids.name, |s| s.embedding(self, ids))?;
        if let Some((_, by)) = own.as_ref().filter(|_| ids.tied) {
            let tied = "the head is tied to the table of the usual one; it must be a model that is not tied";
            return Err(Error::Strategies(format!("{by} builds {}, and {tied}", ids.name)));
        }
        Ok(Part { name: None, ..Part::new(ids.name, own, || Embedding::shard(self, ids))? })
    }
    /// A head, of which a profile hears from the model.
    ///
    /// # Errors
    /// If the ranks do not fit, or two strategies would build it.
    pub fn head(&self, head: &strategy::Head) -> Result<AnyEnd<D>> {
        let own = self.own(head.name, |s| s.head(self, head))?;
        own.map_or_else(|| Ok(end::any(Head::shard(self, head)?)), |(own, _)| Ok(own))
    }
    /// What one of the strategies builds under this name, with its own.
    fn own<T>(
        &self,
        name: &str,
        build: impl Fn(&dyn Strategy<D>) -> Result<Option<T>>,
    ) -> Result<Option<(T, &'static str)>> {
        let mut own: Option<(T, &'static str)> = None;
        for strategy in &self.strategies {
            let Some(layer) = build(*strategy)? else { continue };
            let by = strategy.about().name;
            if let Some((_, first)) = own {
                let why = format!("{first} and {by} both build {name}; a layout can have one of them");
                return Err(Error::Strategies(why));
            }
            own = Some((layer, by));
        }
        self.built.borrow_mut().extend(own.as_ref().map(|(_, by)| (name.to_string(), *by)));
        Ok(own)
    }
}

#[cfg(test)]
mod tests;
