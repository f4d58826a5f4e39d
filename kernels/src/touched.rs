//! Bytes of memory that a kernel's arguments refer to. A matrix that is written counts once, or twice where
//! the kernel also reads it.
use crate::{Attend, Qkv, RouterBalance, RouterNoise, RunningSoftmax};
use tensor::{Device, Index, Place, Strided, Tensor, View, ViewMut};

/// Kernels that read what they write.
const UPDATES: [&str; 18] = [
    "add",
    "stab",
    "add row",
    "add rows",
    "dropout",
    "rotate",
    "scale rows",
    "attention merge",
    "attention sinks",
    "embed backward",
    "loss backward",
    "mean square",
    "norm2",
    "sgd",
    "adamw",
    "adamw 8-bit",
    "lion",
    "momentum",
];

/// Memory behind arguments.
#[derive(Clone, Copy, Default)]
pub(crate) struct Touch {
    /// Bytes read, but those of keys and values.
    read: usize,
    /// Bytes written.
    written: usize,
    /// Bytes of keys and values, and of an element of them.
    keys: [usize; 2],
    /// Query heads of a KV head, and features of a head.
    heads: [usize; 2],
}

impl Touch {
    /// Features of a head, in attention; 0 elsewhere.
    pub(crate) fn features(&self) -> usize {
        self.heads[1]
    }
}

/// Bytes that a kernel with these operations moves, given those of its arguments. A lookup moves the rows
/// that it takes from a table or puts there, not the whole table; attention, no more keys and values than its
/// queries see.
pub(crate) fn moved(name: &str, of: Touch, flops: u64) -> usize {
    let written = of.written;
    // a product of a query and a key, and one of a weight and a value: 2 operations a feature
    let [all, element] = of.keys;
    let seen = flops as usize / (2 * of.heads[0].max(1)) * element;
    let read = of.read + all.min(seen);
    let looks_up = name.starts_with("embed") || ["rotate", "put rows"].contains(&name);
    let rows = if looks_up { read.min(written) } else { usize::MAX };
    read.min(rows) + written.min(rows) * (1 + usize::from(UPDATES.contains(&name)))
}

/// Memory behind an argument.
pub(crate) trait Touched {
    /// Memory behind the argument.
    fn touched(&self) -> Touch;
}

/// Adds up the bytes of several arguments.
pub(crate) fn sum<const N: usize>(all: [Touch; N]) -> Touch {
    let both = |a: [usize; 2], b: [usize; 2]| [a[0] + b[0], a[1] + b[1]];
    all.into_iter().fold(Touch::default(), |a, b| Touch {
        read: a.read + b.read,
        written: a.written + b.written,
        keys: both(a.keys, b.keys),
        heads: both(a.heads, b.heads),
    })
}

fn read(bytes: usize) -> Touch {
    Touch { read: bytes, ..Touch::default() }
}

fn written(bytes: usize) -> Touch {
    Touch { written: bytes, ..Touch::default() }
}

fn bytes<D: Device, B>(view: &Strided<D, B>) -> usize {
    view.rows() * view.cols() * size_of::<D::Elem>()
}

/// An argument of a kernel.
pub(crate) struct KernelArgument<'a, T>(pub(crate) &'a T);

impl<T: Touched> KernelArgument<'_, T> {
    /// The same numbers.
    pub(crate) fn touched(&self) -> Touch {
        self.0.touched()
    }
}

/// Any other argument: a number, a size, a setting. The method above comes first where it applies.
pub(crate) trait TouchesNothing {
    /// Nothing.
    fn touched(&self) -> Touch {
        Touch::default()
    }
}
impl<T> TouchesNothing for KernelArgument<'_, T> {}

impl<D: Device> Touched for View<'_, D> {
    fn touched(&self) -> Touch {
        read(bytes(self))
    }
}
impl<D: Device> Touched for ViewMut<'_, D> {
    fn touched(&self) -> Touch {
        written(bytes(self))
    }
}
impl<D: Device> Touched for &Tensor<D> {
    fn touched(&self) -> Touch {
        read(self.len() * size_of::<D::Elem>())
    }
}
impl<P: Place> Touched for &Index<P> {
    fn touched(&self) -> Touch {
        read(self.len() * size_of::<u32>())
    }
}
impl<P: Place> Touched for &mut Index<P> {
    fn touched(&self) -> Touch {
        written(self.len() * size_of::<u32>())
    }
}
impl<T: Touched> Touched for Option<T> {
    fn touched(&self) -> Touch {
        self.as_ref().map_or(Touch::default(), T::touched)
    }
}
impl<T: Touched, const N: usize> Touched for [T; N] {
    fn touched(&self) -> Touch {
        sum(self.each_ref().map(T::touched))
    }
}
impl<A: Touched, B: Touched> Touched for (A, B) {
    fn touched(&self) -> Touch {
        sum([self.0.touched(), self.1.touched()])
    }
}
impl Touched for &Attend {
    fn touched(&self) -> Touch {
        Touch { heads: [self.heads.fan(), self.heads.dim], ..Touch::default() }
    }
}
impl<D: Device> Touched for Qkv<'_, D> {
    fn touched(&self) -> Touch {
        Touch { keys: [bytes(&self.k) + bytes(&self.v), size_of::<D::Elem>()], ..self.q.touched() }
    }
}
impl<D: Device> Touched for RunningSoftmax<'_, D> {
    fn touched(&self) -> Touch {
        sum([self.out.touched(), self.max.touched(), self.sum.touched()])
    }
}
impl<D: Device> Touched for (View<'_, D>, View<'_, D>, View<'_, D>) {
    fn touched(&self) -> Touch {
        [self.0, self.1, self.2].touched()
    }
}
impl<D: Device> Touched for RouterBalance<'_, D> {
    fn touched(&self) -> Touch {
        sum([self.weights.touched(), self.tokens.touched()])
    }
}
impl<P: Place> Touched for RouterNoise<'_, P> {
    fn touched(&self) -> Touch {
        self.tokens.touched()
    }
}
