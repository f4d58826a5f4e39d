//! The table of rotary embedding: (cos | sin) of every position, made once and shared by all blocks.
//!
//! Source: Su et al., "RoFormer", §3.2, arXiv:2104.09864; feature pairs are (i, i + d/2), as in Llama.
use kernels::Kernels;
use std::cell::RefCell;
use std::rc::Rc;
use tensor::{Category, Scalar, Tensor};

/// `[positions, d]`: cosines, then sines, of `position · base^(−2i/d)`. It grows as positions come.
pub struct Rotary<D: Kernels> {
    base: f64,
    dim: usize,
    table: Rc<RefCell<Option<Tensor<D>>>>,
}

impl<D: Kernels> Clone for Rotary<D> {
    /// The same table.
    fn clone(&self) -> Self {
        Self { table: self.table.clone(), ..*self }
    }
}

impl<D: Kernels> Rotary<D> {
    const FIRST: usize = 64;

    /// For heads of `dim` features.
    pub fn new(dim: usize, base: f64) -> Self {
        Self { base, dim, table: Rc::default() }
    }
    /// The table for at least so many positions.
    pub(crate) fn table(&self, device: &D, positions: usize) -> Tensor<D> {
        let mut held = self.table.borrow_mut();
        if held.as_ref().is_none_or(|t| t.rows() < positions) {
            *held = None; // the old one goes before the new one comes
            let (rows, half) = (positions.next_power_of_two().max(Self::FIRST), self.dim / 2);
            let element = |i: usize| {
                let (position, i) = (i / (2 * half), i % (2 * half));
                let (cos, sin) = D::Elem::rotary(position, i % half, self.dim, self.base);
                if i < half { cos } else { sin }
            };
            *held = Some(Tensor::from_fn(device, Category::Buffers, rows, 2 * half, element));
        }
        held.clone().expect("just made")
    }
}
