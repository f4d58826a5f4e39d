//! Optimizers that need whole matrices of blocks, of which ranks keep parts: a rule computes a direction of
//! each element, changes every whole matrix of directions, and updates values by what comes out.
//!
//! How ranks get whole matrices is not the rule's: see `duplicated.rs` and `owner.rs`.
use crate::optimizer::rule::{Direction, MatrixRule};
use crate::optimizer::{duplicated, owner};
use crate::param::placement::matrices::ParamMatrix;
use crate::{Param, Result, Wide};
use comm::Mesh;
use kernels::Kernels;
use shape::{Constant, Range};
use tensor::{Scalar, Tensor};

/// Ways in which ranks get whole matrices; each is one file.
const EXCHANGES: &[&str] = &["owner", "duplicated"];

/// The constant of a rule by which ranks get whole matrices.
pub(super) const EXCHANGE: Constant = Constant {
    key: "matrices",
    usual: &[0.0],
    range: Range::OneOf(EXCHANGES),
    help: "How ranks get whole matrices; owner: each is computed on a rank of its own; duplicated: every rank \
           gathers and computes all",
};

/// Changes the directions of parameters, matrix by matrix.
///
/// # Errors
/// If ranks do not meet.
pub(super) fn change<D: Kernels>(
    rule: &dyn MatrixRule<D>,
    directions: &mut [Direction<D>],
    mesh: &Mesh<D::Place>,
) -> Result<()> {
    let change = |param: &Param<D>, matrix: &ParamMatrix, whole: &mut Tensor<D::Wide>| {
        rule.change(param.device().wide(), whole.view_mut(), matrix);
        let Some(sent) = &param.placement().sent else { return };
        for (row, columns) in sent.unreached(whole.cols()) {
            let zeros = whole.view_mut().take_rows(row, 1).take_cols(columns.start, columns.len());
            param.device().wide().fill(zeros, Wide::<D>::ZERO);
        }
    };
    match EXCHANGES[rule.exchange()] {
        "owner" => owner::change(directions, mesh, &change),
        _ => directions.iter_mut().try_for_each(|direction| duplicated::change(direction, mesh, &change)),
    }
}
