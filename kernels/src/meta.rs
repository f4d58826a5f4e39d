//! The meta device: the same program, run for its shapes only, gives its price.
use crate::kernels::scratch_of;
use crate::touched::{KernelArgument, Touch, TouchesNothing as _, moved, sum};
use crate::{
    Activation, Attend, Gate, Heads, Kernels, LossTerms, MeanOver, OrderedKernels, Qkv, RouterBalance,
    RouterNoise, RouterTerms, RowShard, RunningSoftmax, Write, every_kernel,
};
use std::sync::Arc;
use tensor::{
    Category, Clock, Device, Dropout, Index, KernelKind, KernelWork, MetaPlace, On, Place, Scalar, Scratch,
    Tensor, View, ViewMut,
};

/// Prices a program that would run on dtype `S`: its bytes, without its values.
pub type Meta<S> = On<MetaPlace, S>;

/// Meta device that stands for a device `D`: of a dtype with elements of the same size, so that prices of
/// 16-bit floats are compiled once.
pub type MetaOf<D> = Meta<<<D as Device>::Elem as Scalar>::Priced>;

/// Returns a meta device that stands for a device `D`: elements of the same size, and kernels with the same
/// scratch. It has one type for all devices of a dtype, so that priced code is compiled once for them.
pub fn meta_of<D: Kernels>() -> MetaOf<D> {
    timed_meta_of::<D>(None)
}

/// Returns the meta device that stands for a device `D`, with a clock that counts its kernels.
pub fn timed_meta_of<D: Kernels>(clock: Option<Arc<dyn Clock>>) -> MetaOf<D> {
    Meta::on(&MetaPlace::with(scratch_of::<D>(), clock)).clone()
}

macro_rules! compute_nothing {
    ([] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        impl<S: Scalar> Kernels for Meta<S> {
            type Wide = Meta<S::Wide>;
            type Packed = Tensor<Self>;
            const TOGETHER: usize = usize::MAX; // without values parts gain nothing, and there may be 2^46
            fn pack(&self, b: View<Self>) -> Tensor<Self> {
                Tensor::empty(self, Category::Buffers, 1, (self.scratch().packed)(b.rows(), b.cols()))
            }
            fn packed_len(_: usize, _: usize) -> usize {
                unreachable!("the meta device takes its sizes from the device that it stands for")
            }
            fn attention_scratch(_: Heads, _: usize) -> usize {
                unreachable!("the meta device takes its sizes from the device that it stands for")
            }
            fn scratch(&self) -> Scratch {
                self.place().scratch()
            }
            $(
                fn $name(&self, $($arg: $of),*) {
                    if let Some(clock) = self.place().clock() {
                        let is_scratch = |name| name == "scratch"; // stays in caches
                        let touched = sum([$(if is_scratch(stringify!($arg)) { Touch::default() } else { KernelArgument(&$arg).touched() }),*]);
                        let (dtype, flops, kind) = (S::NAME, self.place().own_flops(), KernelKind::$kind);
                        let (bytes, features) = (moved($called, touched, flops), touched.features());
                        clock.kernel(&KernelWork { name: $called, kind, dtype, flops, bytes, features });
                    }
                }
            )*
        }
    };
}
every_kernel!(compute_nothing);

impl<S: Scalar> OrderedKernels for Meta<S> {
    fn top_k(&self, _: ViewMut<Self>, _: &mut Index<MetaPlace>, _: View<Self>) {}
}
