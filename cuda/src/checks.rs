//! Checks of every kernel: on the host twin by `cargo test`, on a card by `equipart gpu-check`.
//!
//! A check is written once, generic over a side: it makes inputs, runs kernels on them and names their
//! outputs. The host runs it in f64, then the card runs it, up to the first difference.
mod attention;
mod elementwise;
mod gemm;
mod loss;
mod norm;
mod optimizer;
mod own;
mod rotary;
mod router;
mod top_k;

use kernels::{Indexable, Indexed, Kernels, OrderedKernels, every_kernel};
use std::collections::VecDeque;
use tensor::{
    Bf16, Category, Cpu, Device, Index, Place, PlaceError, Real, Scalar, Tensor, View, ViewMut, mix,
};

type CheckOutcome = Result<(), String>;

/// A check of the kernels of a kind of card.
pub struct Check<P> {
    /// File of the check, and of its kernels.
    pub family: &'static str,
    /// Subject of the check.
    pub name: &'static str,
    /// Kernels that the check covers.
    pub kernels: &'static [&'static str],
    /// Runs the check; the error says where the card is wrong.
    pub run: fn(&P) -> CheckOutcome,
}

/// A kind of card that can be checked.
pub trait Checked: Place {
    /// Kernels of f32 on this kind of card.
    type Wide: OrderedKernels<Place = Self, Elem = f32, Wide = Self::Wide>;
    /// Kernels of bf16 on this kind of card.
    type Narrow: OrderedKernels<Place = Self, Elem = Bf16, Wide = Self::Wide>;
    /// Checks that only this kind of card has.
    const OWN: &'static [Check<Self>];
}

/// Makes the table of checks. Each kernel of the list stands in one row: a kernel without a row, or in two,
/// does not compile.
macro_rules! table {
    ($($family:ident { $($name:literal $check:ident [$($kernel:ident)*])* })*) => {
        #[allow(non_upper_case_globals)]
        mod checked {
            $($($(pub(super) const $kernel: () = ();)*)*)*
        }
        /// Every check, by family.
        pub fn all<P: Checked>() -> impl Iterator<Item = &'static Check<P>> {
            const { &[$($(Check {
                family: stringify!($family),
                name: $name,
                kernels: &[$(stringify!($kernel)),*],
                run: |place| {
                    compare::<P::Wide>(place, F32, $family::$check, $family::$check)?;
                    compare::<P::Narrow>(place, BF16, $family::$check, $family::$check)
                },
            }),*),*] }.iter().chain(P::OWN)
        }
    };
}
macro_rules! each_is_checked {
    ([] $($(#[$doc:meta])* $name:ident($($arg:ident: $of:ty),*) = $called:literal, $kind:ident => $body:expr;)*) => {
        $(const _: () = checked::$name;)*
    };
}
every_kernel!(each_is_checked);
const _: () = checked::top_k; // not in the list

table! {
    attention {
        "attention of texts" texts
            [attention attention_block attention_finish attention_delta attention_sinks
             attention_backward attention_block_backward]
        "attention of dimensions" dimensions []
        "attention of new tokens after cached ones" cached []
        "attention of single rows" single []
        "attention by windows" windows []
        "attention with values of another size" values []
        "attention with a cap" caps []
        "cross-attention to a memory" memory []
        "attention by parts" parts []
        "attention without visible keys" nothing []
        "merged attention" merged [attention_merge]
    }
    elementwise {
        "sums and copies" sums [add add_row stab scale_rows copy narrow fill]
        "transposes" transposes []
        "sums of rows" sums_of_rows [add_rows]
        "activations" activations [activate activate_backward]
        "functions of a gate" gates [gated gated_backward]
        "factors and caps" factors [stretch cap]
        "dropout" dropout [dropout]
        "empty matrices" nothing []
    }
    rotary {
        "rotations" rotations [rotate]
        "rows put to a cache" cached [put_rows]
    }
    gemm {
        "products" products [gemm gemm_wide gemm_packed]
    }
    optimizer {
        "norms of gradients" norms [add_norm2]
        "sums over many blocks have the same bits every time" many_blocks []
        "the clipping factor" clips [clip_factor]
        "sgd" steps_of_sgd [sgd]
        "AdamW" steps_of_adamw [adamw]
        "8-bit AdamW" steps_of_adamw_8bit [adamw_8bit]
        "Lion" steps_of_lion [lion]
        "momentum" momenta [momentum scale]
    }
    top_k {
        "the first values of a row in order of choice" first_of_rows [top_k]
    }
    router {
        "choice of experts" choices [choose]
        "equal scores and NaN" ties []
        "gates" gates [gates]
        "a router's loss" losses [router_loss]
        "a router's gradient" gradients [router_backward]
    }
    norm {
        "rms norm" rms [rms_norm]
        "rms norm backward" rms_backward [rms_norm_backward]
        "parts of normed rows" parts [norm_part]
        "roots of mean squares" roots [inverse_rms]
        "layer norm" layer [layer_norm]
        "layer norm backward" layer_backward [layer_norm_backward]
    }
    loss {
        "embedding" embed [embed]
        "embedding backward" embed_backward [embed_backward]
        "sums of logits" sums [row_stab row_sums]
        "cross-entropy" cross_entropy [cross_entropy]
        "cross-entropy backward" cross_entropy_backward [cross_entropy_backward]
        "mean square" mean_square [mean_square]
    }
}

/// A dtype that cards compute with.
#[derive(Clone, Copy)]
pub(crate) struct CardDtype {
    name: &'static str,
    rounded: fn(f64) -> f64,
    /// Largest error of a rounded result against f64, relative to the result or to 1, whichever is larger.
    pub(crate) tolerance: f64,
    narrow: bool,
}
pub(crate) const F32: CardDtype =
    CardDtype { name: "f32", rounded: |x| f64::from(x as f32), tolerance: 2e-6, narrow: false };
const BF16: CardDtype =
    CardDtype { name: "bf16", rounded: |x| Bf16::from_f64(x).to_f64(), tolerance: 1.0 / 256.0, narrow: true };
const WORDS: CardDtype = CardDtype { name: "integers", rounded: |x| x, tolerance: 0.0, narrow: false };

/// Kernels that a side computes with.
pub(crate) trait SideKernels: OrderedKernels<Elem: Real, Wide: Kernels<Elem: Real>> {}
impl<D: OrderedKernels<Elem: Real, Wide: Kernels<Elem: Real>>> SideKernels for D {}

/// A side of a check: the card, or the host.
pub(crate) struct Side<D: SideKernels> {
    pub(crate) on: D,
    /// The card's dtype, on both sides.
    pub(crate) number: CardDtype,
    pub(crate) host: bool,
    /// Current case of the check, for messages.
    pub(crate) case: String,
    /// Outputs of the host, in the order in which the card asks for them.
    given: VecDeque<Vec<f64>>,
}

/// Body of a check, run on a side.
type Body<D> = fn(&mut Side<D>);

/// Runs a check on the host, then on the card.
///
/// # Errors
/// The first place where the card is wrong.
pub(crate) fn compare<D: SideKernels>(
    place: &D::Place,
    number: CardDtype,
    of: Body<D>,
    host: Body<Cpu<f64>>,
) -> CheckOutcome {
    let given = VecDeque::new();
    let mut by_host = Side { on: Cpu::default(), number, host: true, case: String::new(), given };
    host(&mut by_host);
    let Side { case, given, .. } = by_host;
    let mut card = Side { on: D::on(place).clone(), number, host: false, case, given };
    PlaceError::caught(|| of(&mut card)).map_err(|PlaceError(why)| why)
}

impl<D: SideKernels> Side<D> {
    /// Makes a window, given its rows, its columns, the columns of the whole matrix, and its first column
    /// there. Element `i` of the whole matrix is `f(i)`, rounded to the card's dtype.
    pub(crate) fn of(&self, shape: [usize; 4], f: impl Fn(usize) -> f64) -> SideMatrix<D> {
        SideMatrix::new(self.on.place(), self.number, shape, f)
    }
    /// Makes the same window in the wide dtype, f32.
    pub(crate) fn wide(&self, shape: [usize; 4], f: impl Fn(usize) -> f64) -> SideMatrix<D::Wide> {
        SideMatrix::new(self.on.place(), F32, shape, f)
    }
    /// Makes a list of integers.
    pub(crate) fn words(&self, list: &[u32]) -> Index<D::Place> {
        Index::new(self.on.place(), list.len(), list.iter().copied())
    }
    /// Makes a list in the kernels' layout.
    pub(crate) fn index<T: Indexable>(&self, list: &[T]) -> Index<D::Place> {
        Indexed::from(list.to_vec()).on(self.on.place()).clone()
    }
    /// Allocates a list of `len` integers that a kernel writes.
    pub(crate) fn room(&self, len: usize) -> Index<D::Place> {
        Index::empty(self.on.place(), len)
    }
    /// Returns the host's values, on both sides.
    pub(crate) fn of_host(&mut self, values: Vec<f64>) -> Vec<f64> {
        if self.host {
            self.given.push_back(values.clone());
            return values;
        }
        self.given.pop_front().expect("both sides ask for the same outputs")
    }
    /// Checks that the card has the host's values, within `slack` tolerances of its dtype. A slack of 0 wants
    /// the host's values, rounded.
    pub(crate) fn close(&mut self, what: &str, of: &impl ComparedOutput, slack: f64) {
        let wanted = self.of_host(of.output().2);
        self.beside(what, of, &wanted, slack);
    }
    /// Checks that the card has these values, within `slack` tolerances.
    pub(crate) fn beside(&self, what: &str, of: &impl ComparedOutput, wanted: &[f64], slack: f64) {
        let (number, cols, seen) = of.output();
        if self.host {
            return;
        }
        #[cfg(test)]
        tests::record(seen.iter().map(|x| x.to_bits()));
        if seen.len() != wanted.len() {
            self.wrong(format!("{what}: {} values, wanted {}", seen.len(), wanted.len()));
        }
        for (i, (&seen, &wanted)) in seen.iter().zip(wanted).enumerate() {
            let wanted = if slack == 0.0 { (number.rounded)(wanted) } else { wanted };
            let other = seen.is_nan() != wanted.is_nan() || seen.is_infinite() != wanted.is_infinite();
            if (seen - wanted).abs() > slack * number.tolerance * wanted.abs().max(1.0) || other {
                let place = format!("row {}, column {}", i / cols, i % cols);
                self.wrong(format!("{what} in {}: {place} is {seen}, wanted {wanted}", number.name));
            }
        }
    }
    /// Checks that the card has the host's values bit for bit: a NaN equals itself, −0 is not 0.
    pub(crate) fn bits(&mut self, what: &str, values: &[f64]) {
        let halves = values.iter().flat_map(|x| [x.to_bits() >> 32, x.to_bits() & 0xffff_ffff]);
        self.close(what, &halves.map(|half| half as f64).collect::<Vec<_>>(), 0.0);
    }
    /// Checks that the root mean square of all errors is below half a tolerance. For sums of hundreds of
    /// rounded weights: a few of them are off by more than the others.
    pub(crate) fn near(&mut self, what: &str, of: &impl ComparedOutput) {
        let (number, _, seen) = of.output();
        let wanted = self.of_host(seen.clone());
        let off = |(seen, wanted): (&f64, &f64)| ((seen - wanted) / wanted.abs().max(1.0)).powi(2);
        let off = seen.iter().zip(&wanted).filter(|(_, wanted)| wanted.is_finite()).map(off).sum::<f64>();
        let off = (off / seen.len() as f64).sqrt() / number.tolerance;
        if off >= 0.5 || off.is_nan() {
            self.wrong(format!(
                "{what} in {}: root mean square error of {off} tolerances, wanted below 0.5",
                number.name
            ));
        }
    }
    /// Ends the check with an error.
    pub(crate) fn wrong(&self, why: String) {
        let case = if self.case.is_empty() { String::new() } else { format!("; {}", self.case) };
        PlaceError(why + &case).unwind()
    }
}

/// A window into a matrix of a side.
pub(crate) struct SideMatrix<D: Device> {
    tensor: Tensor<D>,
    number: CardDtype,
    window: [usize; 4],
}

impl<D: Device<Elem: Real>> SideMatrix<D> {
    fn new(place: &D::Place, number: CardDtype, shape: [usize; 4], f: impl Fn(usize) -> f64) -> Self {
        let [rows, cols, whole, at] = shape;
        let value = |i| D::Elem::from_f64((number.rounded)(f(i)));
        let tensor = Tensor::from_fn(D::on(place), Category::Buffers, rows, whole, value);
        Self { tensor, number, window: [0, at, rows, cols] }
    }
    /// Returns the window.
    pub(crate) fn of(&self) -> View<'_, D> {
        self.part(self.window)
    }
    /// Returns the window, to write.
    pub(crate) fn to(&mut self) -> ViewMut<'_, D> {
        self.part_mut(self.window)
    }
    /// Returns a part of the whole matrix: first row, first column, rows, columns.
    pub(crate) fn part(&self, [row, col, rows, cols]: [usize; 4]) -> View<'_, D> {
        self.tensor.view().take_rows(row, rows).take_cols(col, cols)
    }
    /// Returns the same part, to write.
    pub(crate) fn part_mut(&mut self, [row, col, rows, cols]: [usize; 4]) -> ViewMut<'_, D> {
        self.tensor.view_mut().take_rows(row, rows).take_cols(col, cols)
    }
    /// Reads all values, also those around the window.
    pub(crate) fn read(&self) -> Vec<f64> {
        self.tensor.read().expect("the tensor has values").into_iter().map(Real::to_f64).collect()
    }
}

/// An output that both sides have and compare.
pub(crate) trait ComparedOutput {
    /// Returns the dtype, the number of columns, and the values.
    fn output(&self) -> (CardDtype, usize, Vec<f64>);
}
impl<D: Device<Elem: Real>> ComparedOutput for SideMatrix<D> {
    fn output(&self) -> (CardDtype, usize, Vec<f64>) {
        (self.number, self.tensor.cols(), self.read())
    }
}
impl<P: Place> ComparedOutput for Index<P> {
    fn output(&self) -> (CardDtype, usize, Vec<f64>) {
        let mut words = Vec::new();
        assert!(self.read_into(&mut words), "the tensor has values");
        (WORDS, self.len(), words.into_iter().map(f64::from).collect())
    }
}
impl ComparedOutput for Vec<f64> {
    fn output(&self) -> (CardDtype, usize, Vec<f64>) {
        (WORDS, self.len(), self.clone())
    }
}

/// Draws normal values; each seed gives others.
pub(crate) fn draw(seed: u64) -> impl Fn(usize) -> f64 + Copy {
    move |i| f64::sample(mix(mix(seed) ^ i as u64), 1.0)
}

/// Draws small integers, whose products and sums are exact.
pub(crate) fn whole(seed: u64) -> impl Fn(usize) -> f64 + Copy {
    move |i| (mix(mix(seed) ^ i as u64) % 17) as f64 - 8.0
}

/// Runs a kernel and compares its outputs: `check!(c.add(y.to(), a.of()) => y 0.5)`. The number is the slack
/// of [`Side::close`].
macro_rules! check {
    ($side:ident.$kernel:ident($($argument:expr),*) $(=> $($output:ident $slack:expr),*)?) => {
        $side.on.$kernel($($argument),*);
        $($($side.close(concat!(stringify!($output), " of ", stringify!($kernel)), &$output, $slack);)*)?
    };
}
pub(crate) use check;

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::called;
