//! The trait that is made of the list: every operation of layers, each beside its backward.
use crate::every_kernel;
use crate::{
    Activation, AdamW, Attend, Heads, LossTerms, Qkv, RouterBalance, RouterNoise, RouterTerms, Slice,
    Softmax, Write,
};
use tensor::{Device, Dropout, Index, Scalar, Scratch, View, ViewMut};

macro_rules! declare {
    ([] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        /// What a device computes. Shapes are the caller's duty (`layers::ops` checks them).
        pub trait Kernels: Device {
            /// The same place with wide numbers ([`Scalar::Wide`]): gradients, moments, sums and statistics are kept in
            /// them. For every number but narrow floats it is this device.
            type Wide: Kernels<Place = Self::Place, Elem = <Self::Elem as Scalar>::Wide, Wide = Self::Wide>;
            /// A right factor that is laid out once for many products.
            type Packed: Send + Sync;
            /// Numbers of a gradient that an optimizer takes together, in whole rows: a cache of each core holds them,
            /// with the values and two moments.
            const TOGETHER: usize = 1 << 16;

            /// Wide numbers on the same place.
            #[inline(always)]
            fn wide(&self) -> &Self::Wide {
                Self::Wide::on(self.place())
            }
            /// Lays out B\[K,N\], any strides, in memory of [`Kernels::packed_len`] numbers of its own.
            fn pack(&self, b: View<Self>) -> Self::Packed;
            /// Numbers that B\[k,n\] takes when it is laid out.
            fn packed_len(k: usize, n: usize) -> usize;
            /// Wide numbers of scratch that attention and its backward want, if no span has more keys than `keys`.
            fn attention_scratch(heads: Heads, keys: usize) -> usize;
            /// Both, of the device itself or of that in whose place it is.
            fn scratch(&self) -> Scratch {
                crate::meta::scratch_of::<Self>()
            }
            $($(#[$doc])* #[allow(clippy::too_many_arguments)] fn $name(&self, $($arg: $of),*);)*
        }
    };
}
every_kernel!(declare);

/// What a device of numbers with an order computes beside [`Kernels`]. A field has no order, so it has none of this.
pub trait Selects: Kernels {
    /// Of every row of `x[B, N]` the k numbers that come first, in their order: to `values[B, k]` the numbers, to
    /// `columns[B·k]` where in the row they stand. First come those that are not finite, by column, so that none is
    /// passed over; then the others, the largest first, equal ones by column. k is at most N.
    fn top_k(&self, values: ViewMut<Self>, columns: &mut Index<Self::Place>, x: View<Self>);
}
