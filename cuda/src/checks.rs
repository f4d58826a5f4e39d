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

/// A matrix of both sides: the card's, the host's.
pub(crate) type Read<'a, S> = (View<'a, <S as Number>::On>, View<'a, Cpu<f64>>);
/// A matrix of both sides to write: the card's, the host's.
pub(crate) type Written<'a, S> = (ViewMut<'a, <S as Number>::On>, ViewMut<'a, Cpu<f64>>);

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
    pub(crate) fn view(&self) -> Read<'_, S> {
        (self.gpu.view(), self.host.view())
    }
    /// All of it, to write.
    pub(crate) fn view_mut(&mut self) -> Written<'_, S> {
        (self.gpu.view_mut(), self.host.view_mut())
    }
    /// Columns `at..at + cols`.
    pub(crate) fn cut(&self, at: usize, cols: usize) -> Read<'_, S> {
        (self.gpu.view().take_cols(at, cols), self.host.view().take_cols(at, cols))
    }
    /// Columns `at..at + cols`, to write.
    pub(crate) fn cut_mut(&mut self, at: usize, cols: usize) -> Written<'_, S> {
        (self.gpu.view_mut().take_cols(at, cols), self.host.view_mut().take_cols(at, cols))
    }
    /// From this row and this column on, so many rows and columns.
    pub(crate) fn part(&self, [row, col, rows, cols]: [usize; 4]) -> Read<'_, S> {
        let (gpu, host) = self.cut(col, cols);
        (gpu.take_rows(row, rows), host.take_rows(row, rows))
    }
    /// From this row and this column on, so many rows and columns, to write.
    pub(crate) fn part_mut(&mut self, [row, col, rows, cols]: [usize; 4]) -> Written<'_, S> {
        let (gpu, host) = self.cut_mut(col, cols);
        (gpu.take_rows(row, rows), host.take_rows(row, rows))
    }
    /// That the card has what the host has, within `slack` tolerances of its number.
    ///
    /// # Errors
    /// The first element that it has not.
    pub(crate) fn close(&self, what: &str, slack: f64) -> Result<(), String> {
        let (seen, wanted) = (read(&self.gpu), read(&self.host));
        #[cfg(test)]
        tests::saw(seen.iter().map(|x| x.to_f64().to_bits()));
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

/// Whole numbers on the card and on the host.
pub(crate) fn words(gpu: &Gpu, list: &[u32]) -> (Index<Gpu>, Index<Host>) {
    let words = || list.iter().copied();
    (Index::new(gpu, list.len(), words()), Index::new(&Host::default(), list.len(), words()))
}

/// Room for so many whole numbers that a kernel writes.
pub(crate) fn room(gpu: &Gpu, len: usize) -> (Index<Gpu>, Index<Host>) {
    (Index::empty(gpu, len), Index::empty(&Host::default(), len))
}

/// That the card has the host's whole numbers.
///
/// # Errors
/// Both sides'.
pub(crate) fn same_list(what: &str, (seen, wanted): &(Index<Gpu>, Index<Host>)) -> Result<(), String> {
    let [mut list, mut of_host] = [const { Vec::new() }; 2];
    let there = seen.read_into(&mut list) && wanted.read_into(&mut of_host);
    if there && list == of_host { Ok(()) } else { Err(format!("{what}: {list:?}, wanted {of_host:?}")) }
}

pub(crate) fn read<D: Device>(x: &Tensor<D>) -> Vec<D::Elem> {
    x.read().expect("it has values")
}

/// A list as kernels read it: on the card, on the host.
pub(crate) fn index<T: Indexable>(gpu: &Gpu, list: &[T]) -> (Index<Gpu>, Index<Host>) {
    let list = Indexed::from(list.to_vec());
    (list.on(gpu).clone(), Indexed::from(list.list().to_vec()).on(&Host::default()).clone())
}

/// The same for the card and for the host.
pub(crate) fn same<T: Copy>(x: T) -> (T, T) {
    (x, x)
}

/// References to both of a pair.
pub(crate) fn refs<A, B>((a, b): &(A, B)) -> (&A, &B) {
    (a, b)
}

/// References to both of a pair, to write.
pub(crate) fn refs_mut<A, B>((a, b): &mut (A, B)) -> (&mut A, &mut B) {
    (a, b)
}

/// A pair, or none on both sides.
pub(crate) fn only<A, B>(given: bool, (a, b): (A, B)) -> (Option<A>, Option<B>) {
    (given.then_some(a), given.then_some(b))
}

/// Runs a kernel on the card and on the host. Its arguments are pairs: the card's, the host's.
macro_rules! on_both {
    ($gpu:ident: $number:ident, $kernel:ident($($argument:expr),* $(,)?)) => {
        on_both!(@ $gpu $number $kernel [] $($argument,)*)
    };
    (@ $gpu:ident $number:ident $kernel:ident [$($pair:ident)*]) => {
        <<$number as $crate::checks::Number>::On as tensor::Device>::on($gpu).$kernel($($pair.0),*);
        <tensor::Cpu<f64> as Default>::default().$kernel($($pair.1),*);
    };
    (@ $gpu:ident $number:ident $kernel:ident [$($pair:ident)*] $first:expr, $($rest:expr,)*) => {
        let pair = $first;
        on_both!(@ $gpu $number $kernel [$($pair)* pair] $($rest,)*);
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
