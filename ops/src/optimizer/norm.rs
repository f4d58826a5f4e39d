//! The global norm of gradients: sums of squares, each over the ranks that have different elements.
use crate::{Param, Result, filled, plus};
use comm::{Axes, Axis, Mesh, Reduce};
use kernels::Kernels;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

/// Σ of squares of gradients on this rank, by the axes along which ranks have different elements; `None`
/// between steps.
pub(super) struct SquareSums<D: Kernels>(Vec<(Axes, Option<Tensor<D>>)>);

impl<D: Kernels> SquareSums<D> {
    pub(super) const NONE: Self = Self(Vec::new());

    pub(super) fn zero(device: &D) -> Tensor<D> {
        filled(device, Category::Buffers, [1, 1], D::Elem::ZERO)
    }
    /// Returns the sum that a parameter's squares are added to.
    pub(super) fn of<N: Kernels<Wide = D>>(&mut self, param: &Param<N>) -> &mut Tensor<D> {
        let axes = param.different();
        let at = self.0.iter().position(|(of, _)| *of == axes).unwrap_or_else(|| {
            self.0.push((axes, None));
            self.0.len() - 1
        });
        self.0[at].1.get_or_insert_with(|| Self::zero(param.device().wide()))
    }
    /// Returns the total, the same on every rank: sums each entry over its axes, and the total over the
    /// stages.
    pub(super) fn over(&mut self, device: &D, mesh: &Mesh<D::Place>, label: &Arc<str>) -> Result<Tensor<D>> {
        let mut total: Option<Tensor<D>> = None;
        self.0.sort_unstable_by_key(|(axes, _)| *axes); // first the sums that all ranks have alike
        for (axes, sum) in &mut self.0 {
            let Some(mut sum) = sum.take() else { continue };
            mesh.over(*axes)?.named(label.clone()).all_reduce(&mut sum, Reduce::Sum)?;
            total = Some(match total.take() {
                Some(total) => plus(total, &sum),
                None => sum,
            });
        }
        let mut total = total.unwrap_or_else(|| Self::zero(device));
        mesh.group(Axis::Pp).named(label.clone()).all_reduce(&mut total, Reduce::Sum)?;
        Ok(total)
    }
}
