//! Bytes of memory that a kernel's arguments refer to. A matrix that is written counts once, or twice where
//! the kernel also reads it.
use crate::{Attend, Qkv, RouterBalance, RouterNoise, RunningSoftmax};
use tensor::{Device, Index, Place, Strided, Tensor, View, ViewMut};

/// Kernels that read what they write.
const UPDATES: [&str; 14] = [
    "add",
    "stab",
    "add row",
    "add rows",
    "dropout",
    "rotate",
    "scale rows",
    "attention merge",
    "embed backward",
    "loss backward",
    "mean square",
    "norm2",
    "sgd",
    "adamw",
];

/// Bytes that a kernel moves, given those of its arguments. A lookup moves the rows that it takes from a
/// table, not the whole table.
pub(crate) fn moved(name: &str, [read, written, _]: [usize; 3]) -> usize {
    let again = usize::from(UPDATES.contains(&name));
    let rows = if name.starts_with("embed") { read.min(written) } else { usize::MAX };
    read.min(rows) + written.min(rows) * (1 + again)
}

/// Memory behind an argument.
pub(crate) trait Touched {
    /// Bytes of the argument's elements, read and written, and features of a head.
    fn touched(&self) -> [usize; 3];
}

/// Adds up the bytes of several arguments.
pub(crate) fn sum<const N: usize>(all: [[usize; 3]; N]) -> [usize; 3] {
    all.iter().fold([0; 3], |[read, written, features], [r, w, f]| [read + r, written + w, features + f])
}

fn bytes<D: Device, B>(view: &Strided<D, B>) -> usize {
    view.rows() * view.cols() * size_of::<D::Elem>()
}

/// An argument of a kernel.
pub(crate) struct KernelArgument<'a, T>(pub(crate) &'a T);

impl<T: Touched> KernelArgument<'_, T> {
    /// The same numbers.
    pub(crate) fn touched(&self) -> [usize; 3] {
        self.0.touched()
    }
}

/// Any other argument: a number, a size, a setting. The method above comes first where it applies.
pub(crate) trait TouchesNothing {
    /// Nothing.
    fn touched(&self) -> [usize; 3] {
        [0; 3]
    }
}
impl<T> TouchesNothing for KernelArgument<'_, T> {}

impl<D: Device> Touched for View<'_, D> {
    fn touched(&self) -> [usize; 3] {
        [bytes(self), 0, 0]
    }
}
impl<D: Device> Touched for ViewMut<'_, D> {
    fn touched(&self) -> [usize; 3] {
        [0, bytes(self), 0]
    }
}
impl<D: Device> Touched for &Tensor<D> {
    fn touched(&self) -> [usize; 3] {
        [self.len() * size_of::<D::Elem>(), 0, 0]
    }
}
impl<P: Place> Touched for &Index<P> {
    fn touched(&self) -> [usize; 3] {
        [self.len() * size_of::<u32>(), 0, 0]
    }
}
impl<P: Place> Touched for &mut Index<P> {
    fn touched(&self) -> [usize; 3] {
        [0, self.len() * size_of::<u32>(), 0]
    }
}
impl<T: Touched> Touched for Option<T> {
    fn touched(&self) -> [usize; 3] {
        self.as_ref().map_or([0; 3], T::touched)
    }
}
impl<T: Touched, const N: usize> Touched for [T; N] {
    fn touched(&self) -> [usize; 3] {
        sum(self.each_ref().map(T::touched))
    }
}
impl<A: Touched, B: Touched> Touched for (A, B) {
    fn touched(&self) -> [usize; 3] {
        sum([self.0.touched(), self.1.touched()])
    }
}
impl Touched for &Attend {
    fn touched(&self) -> [usize; 3] {
        [0, 0, self.heads.dim]
    }
}
impl<D: Device> Touched for Qkv<'_, D> {
    fn touched(&self) -> [usize; 3] {
        [self.q, self.k, self.v].touched()
    }
}
impl<D: Device> Touched for RunningSoftmax<'_, D> {
    fn touched(&self) -> [usize; 3] {
        sum([self.out.touched(), self.max.touched(), self.sum.touched()])
    }
}
impl<D: Device> Touched for (View<'_, D>, View<'_, D>, View<'_, D>) {
    fn touched(&self) -> [usize; 3] {
        [self.0, self.1, self.2].touched()
    }
}
impl<D: Device> Touched for RouterBalance<'_, D> {
    fn touched(&self) -> [usize; 3] {
        sum([self.weights.touched(), self.tokens.touched()])
    }
}
impl<P: Place> Touched for RouterNoise<'_, P> {
    fn touched(&self) -> [usize; 3] {
        self.tokens.touched()
    }
}
