//! Biases of experts: a row for each, added to the expert's consecutive rows.
//!
//! ```text
//! columns  Y[n] += b[e(n)]                each rank has the columns of its part of Y
//! rows     Y_t[n] += g[n]·b_t[e(n)]       Y = Σ_t Y_t: each rank adds its own columns, so all are added once
//! ```
use crate::handles::split::same;
use crate::handles::weight::ExpertWeight;
use crate::operators::experts::{Matrices, dots, stretches};
use crate::tensors::plus;
use crate::{Partial, Result, Split};
use comm::Axis;
use kernels::{Kernels, Write};
use std::ops::Range;
use tensor::{Device, Scalar, Tensor, ViewMut};

fn add<D: Kernels>(device: &D, mut y: ViewMut<'_, D>, counts: &[usize], b: &Matrices<D>) {
    for (expert, rows) in stretches(counts).filter(|(_, rows)| !rows.is_empty()) {
        let columns = 0..y.cols();
        let part = y.again().take_rows(rows.start, rows.len());
        device.add_row(part, b.of(expert).take_cols(columns.start, columns.len()));
    }
}

/// Adds to expert e's `counts[e]` rows of `Y[N,F_t]` its bias.
///
/// # Errors
/// If the two are split along different axes.
pub fn expert_biased<D: Kernels>(mut y: Split<D>, counts: &[usize], b: &Matrices<D>) -> Result<Split<D>> {
    same(y.axis(), b.axis)?;
    let device = y.device().clone();
    add(&device, y.share_mut().view_mut(), counts, b);
    Ok(y)
}

/// `db[e] += Σ dY[n]` over the expert's rows; columns beyond those of `dY` get 0.
pub fn expert_bias_gradient<D: Kernels>(b: &mut ExpertWeight<D>, counts: &[usize], dy: &Split<D>) {
    let dy = dy.share().view();
    b.param().accumulate(|device, mut db, write| {
        if write == Write::Set {
            device.wide().fill(db.again(), <D::Wide as Device>::Elem::ZERO);
        }
        for (expert, rows) in stretches(counts).filter(|(_, rows)| !rows.is_empty()) {
            let row = db.again().take_rows(expert, 1).take_cols(0, dy.cols());
            device.add_rows(row, dy.take_rows(rows.start, rows.len()));
        }
    });
}

/// A rank's columns of the biases of experts' outputs, one row for each row of its experts.
pub struct OutputBiases<D: Kernels> {
    rows: Tensor<D>,
    columns: Range<usize>, // of the outputs
    axis: Axis,
}

impl<D: Kernels> OutputBiases<D> {
    /// Returns this rank's columns for rows like these, of `width` outputs. `rank` is the rank's number.
    #[must_use]
    pub fn new(like: &Tensor<D>, counts: &[usize], b: &Matrices<D>, (rank, width): (usize, usize)) -> Self {
        let each = b.of(0).cols();
        let columns = (rank * each).min(width)..((rank + 1) * each).min(width);
        let mut rows = like.along(columns.len());
        like.device().fill(rows.view_mut(), D::Elem::ZERO);
        add(like.device(), rows.view_mut(), counts, b);
        Self { rows, columns, axis: b.axis }
    }
    /// Adds them to this rank's addend of the outputs, each row times its factor `by[N,1]`.
    ///
    /// # Errors
    /// None.
    pub fn add_to(mut self, y: Partial<D>, by: &Tensor<D::Wide>) -> Result<Partial<D>> {
        y.through(|mut y| {
            if !self.columns.is_empty() {
                let device = y.device().clone();
                device.scale_rows(self.rows.view_mut(), by.view());
                let part = y.view_mut().take_cols(self.columns.start, self.columns.len());
                device.add(part, self.rows.view());
            }
            Ok(y)
        })
    }
    /// Returns the gradient of factors with that of these columns added, and this rank's columns of
    /// `dY[N,D]`, each row times its factor.
    ///
    /// # Errors
    /// None.
    pub fn backward(
        &self,
        dby: Partial<D::Wide>,
        dy: &Tensor<D>,
        by: &Tensor<D::Wide>,
    ) -> Result<(Partial<D::Wide>, Split<D>)> {
        let mut part = dy.along(self.columns.len());
        if self.columns.is_empty() {
            return Ok((dby, Split::new(part, self.axis)));
        }
        let device = dy.device();
        device.copy(part.view_mut(), dy.view().take_cols(self.columns.start, self.columns.len()));
        let dby = dby.through(|sum| Ok(plus(sum, &dots(&part, &self.rows))))?;
        device.scale_rows(part.view_mut(), by.view());
        Ok((dby, Split::new(part, self.axis)))
    }
}
