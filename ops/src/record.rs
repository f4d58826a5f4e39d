//! Records the inputs and outputs of layers token by token, to look at a split run from outside. Each rank
//! records its own part and its position in the whole, without communication: a run does the same with and
//! without a record.
use crate::Result;
use comm::Mesh;
use kernels::{Kernels, Segment};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use tensor::{Device, Scalar, Tensor};

/// Rows of a matrix by token: (sequence, position).
pub type TokenRows<E> = BTreeMap<(usize, usize), Vec<E>>;

/// This rank's part of a matrix that has a row for every token of a call, for a record. A
/// [`Stream`](crate::Stream) or a [`Split`](crate::Split) returns it.
pub struct RecordedPart<E> {
    /// Row-major; `None` on the meta device.
    pub(crate) values: Option<Vec<E>>,
    /// The call's tokens that it has.
    pub(crate) rows: Range<usize>,
    /// Index in the whole of each of its columns; `None` for padding.
    pub(crate) columns: Vec<Option<usize>>,
    /// Number of columns of the whole.
    pub(crate) width: usize,
    /// True if ranks that have the same column each have a partial sum of it.
    pub(crate) is_partial: bool,
}

/// One rank's record of an activation, or of its gradient.
#[derive(Clone, Debug)]
pub struct RecordedActivation<E> {
    /// Name: `blocks.0.norm1.in`, or `gradient of` one.
    pub name: String,
    /// Number of columns of the whole.
    pub width: usize,
    /// Indices of the columns that this rank has.
    pub columns: Vec<usize>,
    /// True if this rank's columns are partial sums, to be summed over the ranks that have the same column.
    pub is_partial: bool,
    /// This rank's columns of its tokens.
    pub rows: TokenRows<E>,
    /// For each call in which it was recorded, the communication that may have produced it.
    pub touched: Vec<RecordedCall>,
}

/// One call of layers in which an activation was recorded.
#[derive(Clone, Debug)]
pub struct RecordedCall {
    /// Its tokens: for each sequence, a range of positions.
    pub tokens: Vec<(usize, Range<usize>)>,
    /// The rank's collective calls between the previous recorded activation and this one ([`Mesh::calls`]).
    pub calls: Range<usize>,
}

/// A record in progress. Clones add to the same record.
pub struct Record<D: Kernels> {
    pub(crate) mesh: Mesh<D::Place>,
    log: Rc<RefCell<RecordLog<<D as Device>::Elem>>>,
}

struct RecordLog<E> {
    local_part: Activations<E>,
    calls: usize, // made when the last activation was recorded
}

/// One rank's activations, in the order in which they were first recorded.
#[derive(Clone, Debug)]
pub struct Activations<E>(pub Vec<RecordedActivation<E>>);

impl<E> Default for Activations<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<D: Kernels> Clone for Record<D> {
    fn clone(&self) -> Self {
        Self { mesh: self.mesh.clone(), log: self.log.clone() }
    }
}

impl<D: Kernels> Record<D> {
    /// Creates an empty record of this rank's runs.
    pub fn new(mesh: &Mesh<D::Place>) -> Self {
        let log = RecordLog { local_part: Activations::default(), calls: mesh.calls_made() };
        Self { mesh: mesh.clone(), log: Rc::new(RefCell::new(log)) }
    }
    /// Takes everything recorded so far; the record is empty afterwards.
    #[must_use]
    pub fn take(&self) -> Activations<D::Elem> {
        std::mem::take(&mut self.log.borrow_mut().local_part)
    }
    /// Adds this rank's part of a matrix; does nothing on the meta device.
    pub(crate) fn add(&self, name: String, tokens: &[Segment], share: RecordedPart<D::Elem>) {
        let Some(values) = &share.values else { return };
        let mut log = self.log.borrow_mut();
        let calls = self.mesh.calls_made();
        // Partial sums are never compared alone: the calls before them are recorded with the next activation.
        let before = if share.is_partial { calls } else { std::mem::replace(&mut log.calls, calls) };
        let parts = tokens.iter().map(|t| (t.sequence, t.position..t.position + t.len)).collect();
        let local_part = log.local_part.at(name, &share);
        local_part.touched.push(RecordedCall { tokens: parts, calls: before..calls });
        let rows = tokens.iter().flat_map(|t| (0..t.len).map(|i| (t.sequence, t.position + i)));
        let mine = rows.skip(share.rows.start).take(share.rows.len());
        let real = |row: &[D::Elem]| {
            row.iter().zip(&share.columns).filter(|(_, column)| column.is_some()).map(|(x, _)| *x).collect()
        };
        local_part.rows.extend(mine.zip(values.chunks(share.columns.len().max(1)).map(real)));
    }
}

/// A value that a record can store.
pub trait Recordable<D: Kernels> {
    /// Returns this rank's part of an activation, or of an activation's gradient, and its position in the
    /// whole.
    ///
    /// # Errors
    /// If the position is not known.
    fn local_part(&self, mesh: &Mesh<D::Place>, is_gradient: bool) -> Result<RecordedPart<D::Elem>>;
}

/// A tensor that is whole on every rank.
impl<D: Kernels> Recordable<D> for Tensor<D> {
    fn local_part(&self, _: &Mesh<D::Place>, _: bool) -> Result<RecordedPart<D::Elem>> {
        let [rows, width] = self.shape();
        let columns = (0..width).map(Some).collect();
        Ok(RecordedPart { values: self.read(), rows: 0..rows, columns, width, is_partial: false })
    }
}

impl<E: Scalar> Activations<E> {
    fn at(&mut self, name: String, share: &RecordedPart<E>) -> &mut RecordedActivation<E> {
        let index = self.0.iter().position(|local_part| local_part.name == name).unwrap_or_else(|| {
            let &RecordedPart { width, is_partial, .. } = share;
            let columns = share.columns.iter().flatten().copied().collect();
            let rows = TokenRows::new();
            self.0.push(RecordedActivation { name, width, columns, is_partial, rows, touched: Vec::new() });
            self.0.len() - 1
        });
        &mut self.0[index]
    }
    /// Assembles whole rows by name from the records of all ranks, in the first rank's order.
    #[must_use]
    pub fn whole(ranks: Vec<Self>) -> Vec<(String, TokenRows<E>)> {
        let mut found: Vec<(String, TokenRows<E>)> = Vec::new();
        for local_part in ranks.into_iter().flat_map(|rank| rank.0) {
            let index = found.iter().position(|(name, _)| *name == local_part.name).unwrap_or_else(|| {
                found.push((local_part.name, TokenRows::new()));
                found.len() - 1
            });
            for (token, values) in local_part.rows {
                let row = found[index].1.entry(token).or_insert_with(|| vec![E::ZERO; local_part.width]);
                for (&column, x) in local_part.columns.iter().zip(values) {
                    row[column] = if local_part.is_partial { row[column] + x } else { x };
                }
            }
        }
        found
    }
}
