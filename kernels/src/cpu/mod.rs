//! The host as a device: one generic body of every kernel for every dtype; a dtype overrides only its product
//! and its tile sizes (`number.rs`).
mod activation;
mod adamw_8bit;
mod attention;
mod attention_backward;
mod attention_tile;
pub mod bf16;
mod elementwise;
mod f16;
mod factor;
mod few;
mod gated;
mod gemm;
#[cfg(target_arch = "x86_64")]
mod gemm_avx512;
mod gemm_field;
#[cfg(target_arch = "x86_64")]
mod gemv_avx512;
mod layer_norm;
mod loss;
pub mod machine;
mod matrices;
#[cfg(target_arch = "x86_64")]
mod micro_avx512;
mod norm;
mod number;
mod optimizer;
mod panels;
mod router;
mod scalar;
mod simd;
mod top_k;

pub use panels::Packed;
pub use scalar::CpuScalar;
pub use simd::widest;

use crate::{
    Activation, Attend, Gate, Heads, Kernels, LossTerms, MeanOver, OrderedKernels, Qkv, RouterBalance,
    RouterNoise, RouterTerms, RowShard, RunningSoftmax, Write, every_kernel,
};
use attention::TileRows;
use tensor::{
    Coded, Cpu, Device, Dropout, Dual, F61, Host, Index, KernelKind, Profile, Scalar, View, ViewMut,
    every_float,
};

/// Runs a kernel's body with the widest vectors, if loops over the dtype gain from vectors.
#[inline]
fn wide_for<S: CpuScalar>(body: impl FnOnce()) {
    if S::VECTORS { widest(body) } else { body() }
}

/// Runs a kernel's body with the widest vectors that the machine has; if a profile is being taken, records
/// the call under its name.
#[inline]
fn run<S: CpuScalar>(cpu: &Cpu<S>, called: (&'static str, KernelKind), body: impl FnOnce()) {
    let profile = cpu.profile();
    let from = profile.and_then(Profile::now);
    wide_for::<S>(body);
    if let (Some(profile), Some(from)) = (profile, from) {
        profile.kernel(called, from, cpu.meter().flops());
    }
}

/// Implements the kernels of a dtype.
macro_rules! compute {
    (
        [[$($generic:tt)*] $number:ty]
        $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*
    ) => {
        impl<$($generic)*> Kernels for Cpu<$number> {
            type Wide = Cpu<<$number as Scalar>::Wide>;
            type Packed = Packed<$number>;
            fn pack(&self, b: View<Self>) -> Packed<$number> {
                let mut packed = Packed::empty(self, [b.rows(), b.cols()]);
                run(self, ("pack", KernelKind::Product), #[inline(always)] || <$number>::pack(packed.memory(), b));
                packed
            }
            fn packed_len(k: usize, n: usize) -> usize {
                Packed::<$number>::len(k, n)
            }
            fn attention_scratch(heads: Heads, keys: usize) -> usize {
                attention_tile::scratch_len::<$number>(heads, keys)
            }
            $(fn $name(&self, $($arg: $of),*) {
                run(self, ($called, KernelKind::$kind), #[inline(always)] || $body);
            })*
        }
    };
}

/// Implements the kernels of dtypes with an order.
macro_rules! selects {
    ($($number:ty)*) => {$(
        impl OrderedKernels for Cpu<$number> {
            fn top_k(&self, values: ViewMut<Self>, columns: &mut Index<Host>, x: View<Self>) {
                let called = ("top k", KernelKind::EmbeddingAndLoss);
                run(self, called, #[inline(always)] || top_k::top_k(values, columns.words_mut(), x));
            }
        }
    )*};
}
// Kernels of floats and of the field are compiled here, once; those of dual numbers where they are used. Unit
// tests of this crate need none, and do not compile them again: kernels are tested from outside
// (`tests/all`).
macro_rules! floats {
    ($($variant:ident $number:ty, $about:literal;)*) => {
        $(every_kernel!(compute [] $number);)*
        selects!($($number)*);
    };
}
#[cfg(not(test))]
every_float!(floats);
#[cfg(not(test))]
every_kernel!(compute [] F61);
#[cfg(all(not(test), feature = "small-primes"))]
every_kernel!(compute [] tensor::Field<7>);
#[cfg(all(not(test), feature = "small-primes"))]
every_kernel!(compute [] tensor::Field<17>);
every_kernel!(compute [S: Coded] Dual<S>);
