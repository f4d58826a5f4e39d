//! Trait generated from the list: every operation of layers, each beside its backward.
use crate::{
    Activation, Attend, Gate, Heads, LossTerms, MeanOver, Qkv, RouterBalance, RouterNoise, RouterTerms,
    RowShard, RunningSoftmax, Write, every_kernel,
};
use tensor::{Device, Dropout, Index, Scalar, Scratch, View, ViewMut};

/// Scratch sizes that the kernels of a device need.
pub(crate) fn scratch_of<D: Kernels>() -> Scratch {
    let attention = |[queries, keys, dim, value]: [usize; 4], longest| {
        D::attention_scratch(Heads { value, ..Heads::new(queries, keys, dim) }, longest)
    };
    Scratch { packed: D::packed_len, attention, most_features: D::MOST_FEATURES }
}

macro_rules! declare {
    ([] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        /// Operations of a device. Callers are responsible for shapes (`ops` checks them).
        pub trait Kernels: Device {
            /// Device of the wide dtype ([`Scalar::Wide`]) on the same place, for gradients, moments, sums
            /// and statistics. For every dtype except narrow floats it is this device.
            type Wide: Kernels<Place = Self::Place, Elem = <Self::Elem as Scalar>::Wide, Wide = Self::Wide>;
            /// Right factor that is packed once for many products.
            type Packed: Send + Sync;
            /// Elements of a gradient that an optimizer processes together, in whole rows: each core's cache
            /// holds them, with the values and two moments.
            const TOGETHER: usize = 1 << 16;
            /// Most features of a head that attention takes.
            const MOST_FEATURES: usize = usize::MAX;

            /// Returns the device of the wide dtype.
            #[inline(always)]
            fn wide(&self) -> &Self::Wide {
                Self::Wide::on(self.place())
            }
            /// Packs B\[K,N\], any strides, in memory of [`Kernels::packed_len`] elements of its own.
            fn pack(&self, b: View<Self>) -> Self::Packed;
            /// Elements of the packed B\[k,n\].
            fn packed_len(k: usize, n: usize) -> usize;
            /// Wide elements of scratch for attention and its backward, if no span has more than `keys` keys.
            fn attention_scratch(heads: Heads, keys: usize) -> usize;
            /// Both sizes, for the device itself or for the device that it stands for.
            fn scratch(&self) -> Scratch {
                scratch_of::<Self>()
            }
            $($(#[$doc])* #[allow(clippy::too_many_arguments)] fn $name(&self, $($arg: $of),*);)*
        }
    };
}
every_kernel!(declare);

/// Operations, beside [`Kernels`], of a device whose dtype has an order. A field has no order, so it has none
/// of these.
pub trait OrderedKernels: Kernels {
    /// Selects the first k elements of every row of `x[B, N]`, in order: the elements go to `values[B, k]`,
    /// their columns to `columns[B·k]`. Elements that are not finite come first, by column, so that none is
    /// missed; then the others, the largest first, ties by column. k is at most N.
    fn top_k(&self, values: ViewMut<Self>, columns: &mut Index<Self::Place>, x: View<Self>);
}
