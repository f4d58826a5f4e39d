//! Whole matrices on every rank: each gathers all parts, and computes all matrices.
//!
//! ```text
//! a parameter of n elements on r ranks, n/r on each    all-gather, (r − 1)/r·n
//! ```
//! Ranks that keep all elements send nothing, and do the same work. The neighbour to compare with:
//! `owner.rs`.
use crate::Result;
use crate::optimizer::rule::{Change, Direction};
use crate::param::matrices::group_of;
use comm::Mesh;
use kernels::Kernels;
use tensor::{Category, Tensor};

/// Changes the direction of a parameter.
///
/// # Errors
/// If ranks do not meet.
pub(super) fn change<D: Kernels>(
    (param, direction): &mut Direction<D>,
    mesh: &Mesh<D::Place>,
    change: &Change<D>,
) -> Result<()> {
    let group = group_of(param, mesh)?;
    let here = group.rank();
    let shares = param.shares(mesh, &group);
    if direction.is_empty() {
        return Ok(()); // another rank is the root, and keeps all
    }
    let set = group.split(|rank| shares.all[rank].set)?;
    let list = direction.clone().reshaped(1, direction.len());
    let gathered = if set.size() > 1 { Some(set.all_gather(&list)?) } else { None };
    drop(list);
    let members: Vec<_> =
        (0..group.size()).filter(|&rank| shares.all[rank].set == shares.all[here].set).collect();
    let device = param.device().wide();
    for matrix in param.matrices() {
        let mut whole = Tensor::empty(device, Category::Buffers, matrix.shape[0], matrix.shape[1]);
        for (row, &rank) in members.iter().enumerate() {
            for (part, place) in shares.sent(rank, here, &matrix) {
                let arrived =
                    gathered.as_ref().map_or_else(|| direction.view(), |all| all.view().take_rows(row, 1));
                device.copy(part.at(place, whole.view_mut()), part.of(arrived));
            }
        }
        change(param, &matrix, &mut whole);
        for (part, place) in shares.parts(here, &matrix) {
            device.copy(part.of(direction.view_mut()), part.at(place, whole.view()));
        }
    }
    Ok(())
}
