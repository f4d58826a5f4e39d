//! What layers took and gave, token by token: for looking at a split run from outside. Ranks put their shares together
//! as they go, so a record is the same on every tensor rank, and those of data ranks and microbatches are joined by
//! the numbers of their sequences.
use comm::Mesh;
use kernels::{Causal, Kernels};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use tensor::Device;

/// An activation: its rows by (sequence, position).
pub type Rows<E> = BTreeMap<(usize, usize), Vec<E>>;

/// A record that is being made. Clones add to the same.
pub struct Record<D: Kernels> {
    mesh: Mesh<D>,
    seen: Rc<RefCell<Activations<<D as Device>::Elem>>>,
}

/// Activations by name, in the order in which they were first seen.
#[derive(Clone, Debug)]
pub struct Activations<E>(Vec<(String, Rows<E>)>);

impl<E> Default for Activations<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: Kernels> Clone for Record<D> {
    fn clone(&self) -> Self {
        Self { mesh: self.mesh.clone(), seen: self.seen.clone() }
    }
}

impl<D: Kernels> Record<D> {
    /// An empty record of this rank's runs.
    pub fn new(mesh: &Mesh<D>) -> Self {
        Self { mesh: mesh.clone(), seen: Rc::default() }
    }
    /// What was seen so far; the record begins anew.
    #[must_use]
    pub fn take(&self) -> Activations<D::Elem> {
        self.seen.take()
    }
    pub(crate) fn mesh(&self) -> &Mesh<D> {
        &self.mesh
    }
    /// Adds a matrix with a row for every token; nothing on a device without values.
    pub(crate) fn add(&self, name: String, tokens: &[Causal], whole: Option<Vec<D::Elem>>) {
        let Some(whole) = whole else { return };
        let rows = tokens.iter().flat_map(|t| (0..t.len).map(|i| (t.sequence, t.position + i)));
        let count: usize = tokens.iter().map(|t| t.len).sum();
        let rows = rows.zip(whole.chunks((whole.len() / count.max(1)).max(1)).map(<[_]>::to_vec));
        self.seen.borrow_mut().at(name).extend(rows);
    }
}

impl<E> Activations<E> {
    fn at(&mut self, name: String) -> &mut Rows<E> {
        let at = self.0.iter().position(|(n, _)| *n == name).unwrap_or_else(|| {
            self.0.push((name, Rows::new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }
    /// Those of another data rank, too.
    pub fn join(&mut self, other: Self) {
        for (name, rows) in other.0 {
            self.at(name).extend(rows);
        }
    }
    /// By name, in program order.
    pub fn named(self) -> impl Iterator<Item = (String, Rows<E>)> {
        self.0.into_iter()
    }
}
