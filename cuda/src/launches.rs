//! How each kernel of the list is launched: one function of its name, one file for each family of operations.
mod attention;
mod elementwise;
pub(crate) mod gemm;
mod loss;
mod norm;
mod optimizer;
mod router;

pub(crate) use attention::attention_scratch;

use crate::card::{Argument, Boxes, Room, Shape, arguments_of};
use crate::device::Cuda;
use crate::gpu::{Gpu, well};
use std::ffi::c_void;
use std::marker::PhantomData;
use tensor::{Category, Device, Dropout, Index, Scalar, Tensor, View, ViewMut};

/// A matrix as kernels see it: `View<T>` of `number.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Window {
    at: u64,
    row_stride: u64,
    col_stride: u64,
    rows: u32,
    cols: u32,
}
arguments_of!(Window);

impl Window {
    /// No matrix at all: where one is optional.
    pub(crate) const NONE: Self = Self { at: 0, row_stride: 0, col_stride: 0, rows: 0, cols: 0 };

    /// How many numbers.
    pub(crate) fn len(&self) -> usize {
        self.rows as usize * self.cols as usize
    }
}

macro_rules! window {
    ($of:ident) => {
        impl<D: Device<Place = Gpu>> From<&$of<'_, D>> for Window {
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
        // SAFETY: the window is put into the room.
        unsafe impl<D: Device<Place = Gpu>> Argument for $of<'_, D> {
            fn bytes(&self, room: &mut Room) -> (*mut c_void, usize) {
                held(Window::from(self), room)
            }
        }
        // SAFETY: as above.
        unsafe impl<D: Device<Place = Gpu>> Argument for Option<$of<'_, D>> {
            fn bytes(&self, room: &mut Room) -> (*mut c_void, usize) {
                held(self.as_ref().map_or(Window::NONE, Window::from), room)
            }
        }
    };
}
window!(View);
window!(ViewMut);

/// Puts an argument into the room that there is for it.
fn held<T: Copy>(argument: T, room: &mut Room) -> (*mut c_void, usize) {
    const { assert!(size_of::<T>() <= size_of::<Room>() && align_of::<T>() <= align_of::<Room>()) };
    let at = (&raw mut *room).cast::<T>();
    // SAFETY: there is as much room, and it is aligned.
    unsafe { at.write(argument) };
    (at.cast(), size_of::<T>())
}

/// A list of whole numbers as kernels see it: `List` of `number.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Words {
    at: u64,
    len: u64,
}
arguments_of!(Words);
impl Words {
    /// No list at all: where one is optional.
    pub(crate) const NONE: Self = Self { at: 0, len: 0 };
}
impl From<&Index<Gpu>> for Words {
    fn from(index: &Index<Gpu>) -> Self {
        Self { at: index.ptr().0, len: index.len() as u64 }
    }
}

// SAFETY: the list is put into the room.
unsafe impl Argument for Index<Gpu> {
    fn bytes(&self, room: &mut Room) -> (*mut c_void, usize) {
        held(Words::from(self), room)
    }
}

/// What dropout takes away, as kernels see it: `Dropout` of `dropout.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Dropped {
    salt: u64,
    least: u64,
    scale: f32,
    on: u32,
}
arguments_of!(Dropped);
impl From<Option<&Dropout>> for Dropped {
    fn from(dropout: Option<&Dropout>) -> Self {
        let [salt, least] = dropout.map_or([0; 2], Dropout::terms);
        Self { salt, least, scale: dropout.map_or(1.0, Dropout::scale), on: dropout.is_some().into() }
    }
}

/// Threads of a block that computes element by element, or row by row.
pub(crate) const THREADS: usize = 256;

/// A thread for each of `n` elements, or for every so many of them where they are more than a card takes at once.
pub(crate) fn each(gpu: &Gpu, n: usize) -> Shape {
    let most = gpu.card().about.processors * 16;
    Shape { blocks: [n.div_ceil(THREADS).min(most), 1, 1], threads: THREADS, shared: 0 }
}

/// A block for each row of a matrix, with a thread for every 8 columns of it where a block has so many.
pub(crate) fn across(of: impl Into<Window>) -> Shape {
    let of = of.into();
    let threads = (of.cols as usize).div_ceil(8).next_multiple_of(32).clamp(32, THREADS);
    Shape { blocks: [if of.cols == 0 { 0 } else { of.rows as usize }, 1, 1], threads, shared: 0 }
}

/// Wide numbers for what parts of a sum come to; contents unsaid.
pub(crate) fn scratch(gpu: &Gpu, rows: usize, cols: usize) -> Tensor<Cuda<f32>> {
    Tensor::empty(Cuda::on(gpu), Category::Buffers, rows, cols)
}

/// A matrix of bf16 as the card copies boxes of it: of its rows, or where its columns lie together, of these.
pub(crate) fn boxes(gpu: &Gpu, x: &Window) -> Boxes {
    let (size, stride) = ([u64::from(x.rows), u64::from(x.cols)], x.row_stride.max(x.col_stride));
    let size = if x.col_stride == 1 { size } else { [size[1], size[0]] };
    well(gpu.card().boxes(x.at, size, stride * 2))
}

/// What a kernel reads, and what it writes.
type In<'a, S> = View<'a, Cuda<S>>;
type Out<'a, S> = ViewMut<'a, Cuda<S>>;

/// The launches of a card's kernels of one number: each has the name of its kernel in the list.
pub(crate) struct Launches<'a, S>(&'a Gpu, PhantomData<S>);

impl<'a, S: Scalar<Wide = f32>> Launches<'a, S> {
    pub(crate) fn on(gpu: &'a Gpu) -> Self {
        Self(gpu, PhantomData)
    }
    /// Whether the card has this kernel of this number.
    fn has(&self, kernel: &'static str) -> bool {
        self.0.card().has((kernel, S::NAME))
    }
    /// Launches the kernel of this number: `add_f32`.
    fn launch(&self, kernel: &'static str, shape: Shape, arguments: &[&dyn Argument]) {
        self.0.launch((kernel, S::NAME), shape, arguments);
    }
}
