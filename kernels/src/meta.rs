//! The device without numbers: the same program, run for its shapes, gives its price.
use crate::every_kernel;
use crate::{
    Activation, AdamW, Attend, Heads, Kernels, LossTerms, Qkv, RouterBalance, RouterNoise, RouterTerms,
    Selects, Slice, Softmax, Write,
};
use tensor::{Category, Dropout, Index, Nowhere, On, Tensor, View, ViewMut};

/// Prices a program that would run on `D`: its bytes and scratch sizes, without its values.
pub type Meta<D> = On<Nowhere, D>;

macro_rules! compute_nothing {
    ([] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        impl<D: Kernels> Kernels for Meta<D> {
            type Wide = Meta<D::Wide>;
            type Packed = Tensor<Self>;
            const TOGETHER: usize = usize::MAX; // without numbers nothing is gained by parts, of which there may be 2^46
            fn pack(&self, b: View<Self>) -> Tensor<Self> {
                Tensor::empty(self, Category::Buffers, 1, Self::packed_len(b.rows(), b.cols()))
            }
            fn packed_len(k: usize, n: usize) -> usize {
                D::packed_len(k, n)
            }
            fn attention_scratch(heads: Heads, keys: usize) -> usize {
                D::attention_scratch(heads, keys)
            }
            $(#[allow(unused_variables)] fn $name(&self, $($arg: $of),*) {})*
        }
    };
}
every_kernel!(compute_nothing);

impl<D: Selects> Selects for Meta<D> {
    fn top_k(&self, _: ViewMut<Self>, _: &mut Index<Nowhere>, _: View<Self>) {}
}
