//! Launches of the kernels of the list: one function named after each kernel, one file per family.
pub(crate) mod attention;
mod elementwise;
pub(crate) mod gemm;
mod loss;
mod norm;
mod optimizer;
pub(crate) mod rotary;
mod router;
pub(crate) mod row;

use crate::card::{Argument, ArgumentSpace, LaunchConfig, LaunchRules, NamedMemory, TensorMap, arguments_of};
use crate::device::Cuda;
use crate::gpu::{Gpu, well};
use kernels::Heads;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::Range;
use tensor::{Category, Device, Dropout, Index, Scalar, Tensor, View, ViewMut};

/// A matrix in the kernels' layout: `View<T>` of `number.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MatrixView {
    pub(crate) at: u64,
    pub(crate) row_stride: u64,
    pub(crate) col_stride: u64,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
}
// SAFETY: it is `repr(C)`, of scalars.
unsafe impl Argument for MatrixView {
    fn bytes(&self, _: &mut ArgumentSpace) -> (*mut c_void, usize) {
        ((&raw const *self).cast_mut().cast(), size_of::<Self>())
    }
    fn touched(&self) -> NamedMemory {
        NamedMemory::Bytes(self.range(4)) // at most
    }
}

/// A matrix whose elements have this number of bytes.
pub(crate) struct SizedMatrix(pub(crate) MatrixView, pub(crate) u64);
// SAFETY: as above.
unsafe impl Argument for SizedMatrix {
    fn bytes(&self, room: &mut ArgumentSpace) -> (*mut c_void, usize) {
        self.0.bytes(room)
    }
    fn touched(&self) -> NamedMemory {
        NamedMemory::Bytes(self.0.range(self.1))
    }
}

impl MatrixView {
    /// No matrix, for an optional one.
    pub(crate) const NONE: Self = Self { at: 0, row_stride: 0, col_stride: 0, rows: 0, cols: 0 };

    /// Returns the number of elements.
    pub(crate) fn len(&self) -> usize {
        self.rows as usize * self.cols as usize
    }
    /// Returns its memory, if its elements have this number of bytes.
    pub(crate) fn range(&self, bytes: u64) -> Range<u64> {
        let last = |n: u32, stride: u64| u64::from(n.saturating_sub(1)) * stride;
        let elements = last(self.rows, self.row_stride) + last(self.cols, self.col_stride) + 1;
        self.at..self.at + if self.at == 0 || self.len() == 0 { 0 } else { bytes * elements }
    }
}

macro_rules! window {
    ($of:ident) => {
        impl<D: Device<Place = Gpu>> From<&$of<'_, D>> for MatrixView {
            fn from(x: &$of<D>) -> Self {
                let small = |n: usize| u32::try_from(n).expect("less than 2^32 rows or columns");
                Self {
                    at: x.ptr().0,
                    row_stride: x.row_stride() as u64,
                    col_stride: x.col_stride() as u64,
                    rows: small(x.rows()),
                    cols: small(x.cols()),
                }
            }
        }
        // SAFETY: the window is written to the room.
        unsafe impl<D: Device<Place = Gpu>> Argument for $of<'_, D> {
            fn bytes(&self, room: &mut ArgumentSpace) -> (*mut c_void, usize) {
                held(MatrixView::from(self), room)
            }
            fn touched(&self) -> NamedMemory {
                SizedMatrix(self.into(), size_of::<D::Elem>() as u64).touched()
            }
        }
        // SAFETY: as above.
        unsafe impl<D: Device<Place = Gpu>> Argument for Option<$of<'_, D>> {
            fn bytes(&self, room: &mut ArgumentSpace) -> (*mut c_void, usize) {
                held(self.as_ref().map_or(MatrixView::NONE, MatrixView::from), room)
            }
            fn touched(&self) -> NamedMemory {
                self.as_ref().map_or(NamedMemory::Nothing, Argument::touched)
            }
        }
    };
}
window!(View);
window!(ViewMut);

/// Writes an argument to its room.
fn held<T: Copy>(argument: T, room: &mut ArgumentSpace) -> (*mut c_void, usize) {
    const {
        assert!(
            size_of::<T>() <= size_of::<ArgumentSpace>() && align_of::<T>() <= align_of::<ArgumentSpace>()
        );
    };
    let slot = (&raw mut *room).cast::<T>();
    // SAFETY: the room is large enough, and aligned.
    unsafe { slot.write(argument) };
    (slot.cast(), size_of::<T>())
}

/// A list of integers in the kernels' layout: `List` of `number.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Words {
    pub(crate) at: u64,
    pub(crate) len: u64,
}
// SAFETY: it is `repr(C)`, of scalars.
unsafe impl Argument for Words {
    fn bytes(&self, _: &mut ArgumentSpace) -> (*mut c_void, usize) {
        ((&raw const *self).cast_mut().cast(), size_of::<Self>())
    }
    fn touched(&self) -> NamedMemory {
        NamedMemory::Bytes(self.at..self.at + 4 * self.len)
    }
}
impl Words {
    /// No list, for an optional one.
    pub(crate) const NONE: Self = Self { at: 0, len: 0 };
}
impl From<&Index<Gpu>> for Words {
    fn from(index: &Index<Gpu>) -> Self {
        Self { at: index.ptr().0, len: index.len() as u64 }
    }
}

// SAFETY: the list is written to the room.
unsafe impl Argument for Index<Gpu> {
    fn bytes(&self, room: &mut ArgumentSpace) -> (*mut c_void, usize) {
        held(Words::from(self), room)
    }
    fn touched(&self) -> NamedMemory {
        Words::from(self).touched()
    }
}

/// Dropout in the kernels' layout: `Dropout` of `dropout.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct DropoutArgs {
    salt: u64,
    least: u64,
    scale: f32,
    on: u32,
}
arguments_of!(DropoutArgs);
impl From<Option<&Dropout>> for DropoutArgs {
    fn from(dropout: Option<&Dropout>) -> Self {
        let [salt, least] = dropout.map_or([0; 2], Dropout::terms);
        Self { salt, least, scale: dropout.map_or(1.0, Dropout::scale), on: dropout.is_some().into() }
    }
}

/// Heads in the kernels' layout: `Heads` of `heads.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct HeadsArgs {
    queries: u32,
    keys: u32,
    dim: u32,
    value: u32,
    plain: u32,
    rotated: u32,
    neighbours: u32,
}
arguments_of!(HeadsArgs);
impl From<Heads> for HeadsArgs {
    fn from(heads: Heads) -> Self {
        let Heads { queries, keys, dim, value, plain, rotated, neighbours, .. } = heads;
        let [queries, keys, dim, value, plain, rotated, neighbours] =
            [queries, keys, dim, value, plain, rotated, neighbours.into()].map(|n| n as u32);
        Self { queries, keys, dim, value, plain, rotated, neighbours }
    }
}

/// Threads per block of kernels that compute element by element or row by row.
pub(crate) const THREADS: usize = 256;

/// One thread for each of `n` elements; each takes several if there are more than a card runs at once.
pub(crate) fn each(gpu: &Gpu, n: usize) -> LaunchConfig {
    let most = gpu.card().about.processors * 16;
    LaunchConfig { blocks: [n.div_ceil(THREADS).min(most), 1, 1], threads: THREADS, shared: 0 }
}

/// One block per row of a matrix, with a thread for every 8 of its columns, up to the limit of a block.
pub(crate) fn across(of: impl Into<MatrixView>) -> LaunchConfig {
    let of = of.into();
    let threads = (of.cols as usize).div_ceil(8).next_multiple_of(32).clamp(32, THREADS);
    LaunchConfig { blocks: [if of.cols == 0 { 0 } else { of.rows as usize }, 1, 1], threads, shared: 0 }
}

/// Allocates f32 partial sums, not initialized.
pub(crate) fn scratch(gpu: &Gpu, rows: usize, cols: usize) -> Tensor<Cuda<f32>> {
    Tensor::empty(Cuda::on(gpu), Category::Buffers, rows, cols)
}

/// Describes a bf16 matrix for the card's own copies of boxes: by its rows, or by its columns if their
/// elements are adjacent.
pub(crate) fn boxes(gpu: &Gpu, x: &MatrixView) -> TensorMap {
    let size = [u64::from(x.rows), u64::from(x.cols)];
    let size = if x.col_stride == 1 { size } else { [size[1], size[0]] };
    well(gpu.card().boxes(x.at, size, x.row_stride.max(x.col_stride) * 2))
}

/// A matrix that a kernel reads, and one that it writes.
type MatrixIn<'a, S> = View<'a, Cuda<S>>;
type MatrixOut<'a, S> = ViewMut<'a, Cuda<S>>;

/// Launches of a card's kernels of one dtype: each function has the name of its kernel in the list.
pub(crate) struct Launches<'a, S>(&'a Gpu, PhantomData<S>);

impl<'a, S: Scalar<Wide = f32>> Launches<'a, S> {
    pub(crate) fn on(gpu: &'a Gpu) -> Self {
        Self(gpu, PhantomData)
    }
    /// Returns true if the card has this kernel of this dtype.
    fn has(&self, kernel: &'static str) -> bool {
        self.0.card().kernels.has((kernel, S::NAME))
    }
    /// Launches the kernel of this dtype: `add_f32`.
    fn launch(&self, kernel: &'static str, shape: LaunchConfig, arguments: &[&dyn Argument]) {
        self.0.launch((kernel, S::NAME), shape, arguments);
    }
    /// Launches a kernel of this dtype under rules.
    fn launch_under(
        &self,
        rules: &'static dyn LaunchRules,
        kernel: &'static str,
        shape: LaunchConfig,
        arguments: &[&dyn Argument],
    ) {
        let card = self.0.card();
        well(card.launch(card.kernels.prepare((kernel, S::NAME), shape, arguments).under(rules)));
    }
}
