//! Table of the rotary embedding: (cos | sin) of every position, computed once and shared by all blocks with
//! the same angles.
//!
//! Source: Su et al., "RoFormer", §3.2, arXiv:2104.09864; feature pairs are (i, i + d/2), as in Llama.
use kernels::Kernels;
use std::cell::RefCell;
use std::rc::Rc;
use tensor::{Category, Device, Rope, Scalar, Tensor};

/// `[positions, d]`: cosines, then sines, of `position · frequency`. The table grows when a later position is
/// needed.
pub struct Rotary<D: Kernels> {
    rope: Rope,
    dim: usize,
    table: Rc<RefCell<Option<Tensor<D::Wide>>>>,
}

impl<D: Kernels> Clone for Rotary<D> {
    /// Returns a handle of the same table.
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), ..*self }
    }
}

impl<D: Kernels> Rotary<D> {
    const FIRST: usize = 64;

    /// Creates an empty table for heads of `dim` features.
    pub fn new(dim: usize, rope: impl Into<Rope>) -> Self {
        Self { rope: rope.into(), dim, table: Rc::default() }
    }
    /// Returns the table of these angles, which blocks share: one of `tables`, or a new one that is added to
    /// them.
    pub fn among(tables: &mut Vec<Self>, dim: usize, rope: Rope) -> Self {
        let known = tables.iter().position(|table| (table.dim, table.rope) == (dim, rope));
        let at = known.unwrap_or_else(|| {
            tables.push(Self::new(dim, rope));
            tables.len() - 1
        });
        tables[at].clone()
    }
    /// Returns the table of at least `positions` positions.
    pub(crate) fn table(&self, device: &D, positions: usize) -> Tensor<D::Wide> {
        let mut held = self.table.borrow_mut();
        if held.as_ref().is_none_or(|t| t.rows() < positions) {
            *held = None; // frees the old table before the new one is made
            let rows = positions.next_power_of_two().max(Self::FIRST);
            let half = self.dim / 2;
            let element = |i: usize| {
                let (position, i) = (i / (2 * half), i % (2 * half));
                let (cos, sin) = <D::Wide as Device>::Elem::rotary(position, i % half, self.dim, &self.rope);
                if i < half { cos } else { sin }
            };
            *held = Some(Tensor::from_fn(device.wide(), Category::Buffers, rows, 2 * half, element));
        }
        held.clone().expect("just made")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::Cpu;

    /// Kills: a table of other angles that a block gets, a second table of the same ones.
    #[test]
    fn blocks_share_the_tables_of_the_same_angles() {
        let mut tables: Vec<Rotary<Cpu<f64>>> = Vec::new();
        let mut among = |dim, base: f64| Rotary::among(&mut tables, dim, base.into());
        let some = [among(6, 100.0), among(6, 50.0), among(4, 100.0), among(6, 100.0)];
        assert_eq!(tables.len(), 3);
        let device = Cpu::default();
        let first = some.each_ref().map(|rotary| rotary.table(&device, 2).read().unwrap()[7]);
        assert!(Rc::ptr_eq(&some[0].table, &some[3].table) && first[0] != first[1]);
    }

    /// Kills: a table that does not grow, positions that mean something else after it grew, an old one that
    /// stays.
    #[test]
    fn the_table_grows_and_keeps_its_positions() {
        let (device, rotary) = (Cpu::<f64>::default(), Rotary::new(6, 100.0));
        let small = rotary.table(&device, 10).read().unwrap();
        assert_eq!(small.len(), 64 * 6);
        let large = rotary.clone().table(&device, 65);
        assert_eq!((large.shape(), device.meter().now(Category::Buffers)), ([128, 6], 128 * 6 * 8));
        assert_eq!(large.read().unwrap()[..small.len()], small);
        let (cos, sin) = f64::rotary(100, 2, 6, &100.0.into());
        assert_eq!((large.view().at(100, 2), large.view().at(100, 3 + 2)), (cos, sin));
        assert_eq!(rotary.table(&device, 3).rows(), 128, "shared, and never smaller again");
    }
}
