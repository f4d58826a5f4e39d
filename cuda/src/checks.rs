//! What is checked of every kernel: on the twin by `cargo test`, on a card by `equipart gpu-check`. A check computes the
//! same on the card and, in f64, on the host, and says where the two differ.
mod attention;
mod elementwise;
mod gemm;
mod loss;
mod norm;
mod optimizer;
mod router;
mod top_k;

use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Indexable, Indexed, Selects};
use tensor::{Bf16, Category, Cpu, Device, Host, Index, Real, Scalar, Tensor, View, ViewMut, mix};

/// A check: what it is of, and what does it. It returns where the card is wrong, if it is.
pub type Check = (&'static str, fn(&Gpu) -> Result<(), String>);

/// Every check, by family.
pub const ALL: &[&[Check]] = &[
    attention::ALL,
    elementwise::ALL,
    gemm::ALL,
    optimizer::ALL,
    top_k::ALL,
    router::ALL,
    norm::ALL,
    loss::ALL,
];

/// A number that cards compute with.
pub(crate) trait Number: Real + Scalar<Wide = f32> {
    /// The kernels of it.
    type On: Selects<Elem = Self, Place = Gpu, Wide = Cuda<f32>>;
    /// How far a rounded result may be from f64's, as a part of it or of 1.
    const TOLERANCE: f64;
}
impl Number for f32 {
    type On = Cuda<f32>;
    const TOLERANCE: f64 = 2e-6;
}
impl Number for Bf16 {
    type On = Cuda<Bf16>;
    const TOLERANCE: f64 = 1.0 / 256.0;
}

/// A matrix on the card, and the same values on the host.
pub(crate) struct Both<S: Number> {
    pub(crate) gpu: Tensor<S::On>,
    pub(crate) host: Tensor<Cpu<f64>>,
}

impl<S: Number> Both<S> {
    /// Element `i` is `f(i)`, rounded to the card's number.
    pub(crate) fn of(gpu: &Gpu, rows: usize, cols: usize, f: impl Fn(usize) -> f64) -> Self {
        let value = |i| S::from_f64(f(i));
        Self {
            gpu: Tensor::from_fn(S::On::on(gpu), Category::Buffers, rows, cols, value),
            host: Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, cols, |i| value(i).to_f64()),
        }
    }
    /// Normal draws; another seed, other numbers.
    pub(crate) fn draw(gpu: &Gpu, seed: u64, rows: usize, cols: usize) -> Self {
        Self::of(gpu, rows, cols, |i| f64::sample(mix(mix(seed) ^ i as u64), 1.0))
    }
    /// Small whole numbers, whose products and sums are exact.
    pub(crate) fn whole(gpu: &Gpu, seed: u64, rows: usize, cols: usize) -> Self {
        Self::of(gpu, rows, cols, |i| (mix(mix(seed) ^ i as u64) % 17) as f64 - 8.0)
    }
    /// All of it: the card's, the host's.
    pub(crate) fn view(&self) -> (View<'_, S::On>, View<'_, Cpu<f64>>) {
        (self.gpu.view(), self.host.view())
    }
    /// All of it, to write.
    pub(crate) fn view_mut(&mut self) -> (ViewMut<'_, S::On>, ViewMut<'_, Cpu<f64>>) {
        (self.gpu.view_mut(), self.host.view_mut())
    }
    /// Columns `at..at + cols`.
    pub(crate) fn cut(&self, at: usize, cols: usize) -> (View<'_, S::On>, View<'_, Cpu<f64>>) {
        (self.gpu.view().take_cols(at, cols), self.host.view().take_cols(at, cols))
    }
    /// Columns `at..at + cols`, to write.
    pub(crate) fn cut_mut(&mut self, at: usize, cols: usize) -> (ViewMut<'_, S::On>, ViewMut<'_, Cpu<f64>>) {
        (self.gpu.view_mut().take_cols(at, cols), self.host.view_mut().take_cols(at, cols))
    }
    /// That the card has what the host has, within `slack` tolerances of its number.
    ///
    /// # Errors
    /// The first element that it has not.
    pub(crate) fn close(&self, what: &str, slack: f64) -> Result<(), String> {
        let (seen, wanted) = (read(&self.gpu), read(&self.host));
        for (i, (seen, wanted)) in seen.iter().zip(wanted).enumerate() {
            let wanted = if slack == 0.0 { S::from_f64(wanted).to_f64() } else { wanted };
            let (seen, bound) = (seen.to_f64(), slack * S::TOLERANCE * wanted.abs().max(1.0));
            let other = seen.is_nan() != wanted.is_nan() || seen.is_infinite() != wanted.is_infinite();
            if (seen - wanted).abs() > bound || other {
                let (row, col) = (i / self.gpu.cols(), i % self.gpu.cols());
                return Err(format!(
                    "{what} in {}: row {row}, column {col} is {seen}, wanted {wanted}",
                    S::NAME
                ));
            }
        }
        Ok(())
    }
    /// That the card has the host's numbers, rounded, bit for bit.
    ///
    /// # Errors
    /// The first element that it has not.
    pub(crate) fn equal(&self, what: &str) -> Result<(), String> {
        self.close(what, 0.0)
    }
}

pub(crate) fn read<D: Device>(x: &Tensor<D>) -> Vec<D::Elem> {
    x.read().expect("it has values")
}

/// A list as kernels read it: on the card, on the host.
pub(crate) fn index<T: Indexable>(gpu: &Gpu, list: &[T]) -> (Index<Gpu>, Index<Host>) {
    let list = Indexed::from(list.to_vec());
    (list.on(gpu).clone(), Indexed::from(list.list().to_vec()).on(&Host::default()).clone())
}

/// Runs a kernel on the card and on the host. Its arguments are pairs: the card's, the host's.
macro_rules! on_both {
    ($gpu:ident: $number:ident, $kernel:ident($($argument:ident),*)) => {
        <$number::On as tensor::Device>::on($gpu).$kernel($($argument.0),*);
        <tensor::Cpu<f64> as Default>::default().$kernel($($argument.1),*);
    };
}
pub(crate) use on_both;

/// Runs a check of both numbers.
macro_rules! both {
    ($check:ident) => {
        |gpu| $check::<f32>(gpu).and_then(|()| $check::<tensor::Bf16>(gpu))
    };
}
pub(crate) use both;

#[cfg(test)]
mod tests;
