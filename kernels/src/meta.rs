//! The device without numbers: the same program, run for its shapes, gives its price.
use crate::kernels::{
    Activation, AdamW, Attend, Causal, Heads, Kernels, LossTerms, Qkv, Selects, Slice, Softmax, Span, Write,
};
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

type V<'a, D> = View<'a, Meta<D>>;
type M<'a, D> = ViewMut<'a, Meta<D>>;

impl<D: Kernels> Kernels for Meta<D> {
    type Packed = Tensor<Self>;
    const TOGETHER: usize = usize::MAX; // without numbers nothing is gained by parts, of which there may be 2^46
    fn pack(&self, b: V<D>) -> Tensor<Self> {
        Tensor::empty(self, Category::Buffers, 1, Self::packed_len(b.rows(), b.cols()))
    }
    fn gemm_packed(&self, _: M<D>, _: V<D>, _: &Tensor<Self>, _: Write) {}
    fn packed_len(k: usize, n: usize) -> usize {
        D::packed_len(k, n)
    }
    fn gemm(&self, _: M<D>, _: V<D>, _: V<D>, _: Write) {}
    fn fill(&self, _: M<D>, _: D::Elem) {}
    fn copy(&self, _: M<D>, _: V<D>) {}
    fn add(&self, _: M<D>, _: V<D>) {}
    fn stab(&self, _: M<D>, _: V<D>) {}
    fn add_row(&self, _: M<D>, _: V<D>) {}
    fn add_rows(&self, _: M<D>, _: V<D>) {}
    fn dropout(&self, _: M<D>, _: &[Causal], _: usize, _: &Dropout) {}
    fn rotate(&self, _: M<D>, _: V<D>, _: &[Causal], _: usize, _: bool) {}
    fn rms_norm(&self, _: M<D>, _: M<D>, _: V<D>, _: V<D>, _: f64) {}
    fn rms_norm_backward(&self, _: M<D>, _: M<D>, _: V<D>, _: V<D>, _: V<D>, _: V<D>, _: Option<V<D>>) {}
    fn layer_norm(&self, _: M<D>, _: M<D>, _: V<D>, _: V<D>, _: V<D>, _: f64) {}
    fn layer_norm_backward(
        &self,
        _: M<D>,
        _: [M<D>; 2],
        _: V<D>,
        _: V<D>,
        _: V<D>,
        _: V<D>,
        _: Option<V<D>>,
    ) {
    }
    fn activate(&self, _: M<D>, _: V<D>, _: Activation) {}
    fn activate_backward(&self, _: M<D>, _: V<D>, _: V<D>, _: Activation) {}
    fn swiglu(&self, _: M<D>, _: V<D>, _: V<D>) {}
    fn swiglu_backward(&self, _: M<D>, _: M<D>, _: V<D>, _: V<D>, _: V<D>) {}
    fn attention_block(&self, _: &Attend, _: &[Span], _: Qkv<Self>, _: Softmax<Self>, _: M<D>) {}
    fn attention_finish(&self, _: Heads, _: Softmax<Self>) {}
    fn attention_delta(&self, _: Heads, _: M<D>, _: V<D>, _: V<D>) {}
    fn attention_block_backward(
        &self,
        _: &Attend,
        _: &[Span],
        _: Qkv<Self>,
        _: (V<D>, V<D>),
        _: V<D>,
        _: [M<D>; 3],
        _: M<D>,
    ) {
    }
    fn attention_scratch(heads: Heads, keys: usize) -> usize {
        D::attention_scratch(heads, keys)
    }
    fn embed(&self, _: M<D>, _: V<D>, _: &Index<Nowhere>, _: Slice) {}
    fn embed_backward(&self, _: M<D>, _: V<D>, _: &Index<Nowhere>, _: Slice) {}
    fn row_stab(&self, _: M<D>, _: V<D>) {}
    fn row_sums(&self, _: M<D>, _: V<D>, _: V<D>, _: &Index<Nowhere>, _: Slice) {}
    fn cross_entropy(&self, _: M<D>, _: M<D>, _: V<D>, _: &Index<Nowhere>, _: &LossTerms) {}
    fn cross_entropy_backward(&self, _: M<D>, _: V<D>, _: &Index<Nowhere>, _: Slice, _: &LossTerms) {}
    fn add_norm2(&self, _: M<D>, _: V<D>) {}
    fn clip_factor(&self, _: M<D>, _: V<D>, _: f64) {}
    fn sgd(&self, _: M<D>, _: V<D>, _: V<D>, _: f64) {}
    fn adamw(&self, _: M<D>, _: (M<D>, M<D>), _: V<D>, _: V<D>, _: AdamW) {}
}

impl<D: Selects> Selects for Meta<D> {
    fn top_k(&self, _: M<D>, _: &mut Index<Nowhere>, _: V<D>) {}
}
