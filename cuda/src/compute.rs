//! Kernels of one dtype on a GPU: each kernel of the list is launched by a function of its name.
use crate::device::Cuda;
use crate::gpu::Gpu;
use crate::launches::Launches;
use crate::launches::attention::attention_scratch;
use kernels::{
    Activation, Attend, Gate, Heads, Kernels, LossTerms, MeanOver, OrderedKernels, Qkv, RouterBalance,
    RouterNoise, RouterTerms, RowShard, RunningSoftmax, Write, every_kernel,
};
use tensor::{
    Bf16, Category, Device, Dropout, Index, KernelKind, Place, Profile, Scalar, Tensor, View, ViewMut,
};

/// Launches a kernel. While a profile is recorded, waits for the card and records the kernel under its name.
fn run<S: Scalar<Wide = f32>>(
    device: &Cuda<S>,
    called: (&'static str, KernelKind),
    launch: impl FnOnce(Launches<S>),
) {
    let profile = device.profile();
    let from = profile.and_then(Profile::now);
    launch(Launches::on(&device.0));
    if let (Some(profile), Some(from)) = (profile, from) {
        device.0.settle();
        profile.kernel(called, from, device.meter().flops());
    }
}

macro_rules! compute {
    ([$number:ty] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        impl Kernels for Cuda<$number> {
            type Wide = Cuda<<$number as Scalar>::Wide>;
            type Packed = Tensor<Self>;
            const TOGETHER: usize = usize::MAX; // all at once: a card has no cache per core
            const MOST_FEATURES: usize = crate::launches::attention::MOST_FEATURES;
            fn pack(&self, b: View<Self>) -> Tensor<Self> {
                let mut packed = Tensor::empty(self, Category::Buffers, b.rows(), b.cols());
                run(self, ("pack", KernelKind::Product), |launches| launches.gather(packed.view_mut(), b));
                packed
            }
            fn packed_len(k: usize, n: usize) -> usize {
                k * n
            }
            fn attention_scratch(heads: Heads, keys: usize) -> usize {
                attention_scratch(heads, keys)
            }
            $(fn $name(&self, $($arg: $of),*) {
                #[cfg(test)]
                crate::checks::called(stringify!($name));
                run(self, ($called, KernelKind::$kind), |launches| launches.$name($($arg),*));
            })*
        }
        impl OrderedKernels for Cuda<$number> {
            fn top_k(&self, values: ViewMut<Self>, columns: &mut Index<Gpu>, x: View<Self>) {
                #[cfg(test)]
                crate::checks::called("top_k");
                run(self, ("top k", KernelKind::EmbeddingAndLoss), |launches| launches.top_k(values, columns, x));
            }
        }
    };
}
every_kernel!(compute f32);
every_kernel!(compute Bf16);
