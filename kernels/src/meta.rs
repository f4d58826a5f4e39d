//! The device without numbers: the same program, run for its shapes, gives its price.
use crate::kernels::{Kernels, Selects};
use crate::list::every_kernel;
use crate::terms::{Activation, AdamW, Attend, Heads, LossTerms, Qkv, Slice, Softmax, Write};
use bytemuck::TransparentWrapper;
use std::marker::PhantomData;
use tensor::{Category, Device, Dropout, Index, Nowhere, Tensor, View, ViewMut};

/// Prices a program that would run on `D`: its bytes and scratch sizes, without its values.
#[repr(transparent)]
pub struct Meta<D>(Nowhere, PhantomData<D>);

// SAFETY: transparent over its only field that has a size.
unsafe impl<D> TransparentWrapper<Nowhere> for Meta<D> {}

impl<D> Clone for Meta<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone(), PhantomData)
    }
}
impl<D> Default for Meta<D> {
    fn default() -> Self {
        Self(Nowhere::default(), PhantomData)
    }
}

impl<D: Kernels> Device for Meta<D> {
    type Place = Nowhere;
    type Elem = D::Elem;
    fn on(place: &Nowhere) -> &Self {
        Self::wrap_ref(place)
    }
    fn place(&self) -> &Nowhere {
        &self.0
    }
    fn poison((): &mut (), _: usize) {}
    fn write(&self, (): &mut (), _: usize, _: &mut dyn FnMut(usize) -> D::Elem) {}
    fn read(&self, (): &(), _: usize, _: &mut Vec<D::Elem>) -> bool {
        false
    }
}

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
