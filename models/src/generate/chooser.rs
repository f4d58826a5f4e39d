//! The choice of a text's next token from logits that are read to the host.
//!
//! The host reads only the logits that a choice needs: 2 of a row for the largest, k + 1 for a draw from k.
use super::prompts::Prompts;
use crate::sampling::{Logits, SampledToken, Sampling, SamplingRoom};
use kernels::{Kernels, OrderedKernels};

use parallel::Result;
use tensor::{Real, Tensor};

/// Chooses tokens as a request asks, in memory that is reused for the next token.
pub(super) struct TokenChooser<E> {
    sampling: Sampling,
    needs: Option<usize>, // elements of a row that are read; all if `None`
    buffer: LogitsBuffer,
    numbers: Vec<E>, // of the device
    room: SamplingRoom,
}

impl<E: Real> TokenChooser<E> {
    pub(super) fn new(request: &Prompts, vocabulary: usize) -> Self {
        let (buffer, numbers, room) = (LogitsBuffer::default(), Vec::new(), SamplingRoom::default());
        Self { sampling: request.sampling, needs: request.first(vocabulary), buffer, numbers, room }
    }
    /// Reads what choices need of logits `[sequences, V]`, or `all` of them; returns false on the meta
    /// device.
    pub(super) fn read<D: OrderedKernels<Elem = E>>(&mut self, logits: &Tensor<D>, all: bool) -> bool {
        self.buffer.read(logits, &mut self.numbers, self.needs, all)
    }
    /// Returns a row that was read whole.
    pub(super) fn row(&self, row: usize) -> &[f32] {
        self.buffer.row(row)
    }
    /// Chooses the token behind `position` of a sequence from a row.
    ///
    /// # Errors
    /// If a logit is not finite.
    pub(super) fn choose(&mut self, row: usize, sequence: usize, position: usize) -> Result<SampledToken> {
        self.sampling.choose_in(&mut self.room, self.buffer.choices(row), sequence, position)
    }
}

/// Logits of a token that were read to the host, in memory that is reused for the next token.
#[derive(Default)]
struct LogitsBuffer {
    first: usize, // elements of a row in `values` and `ids`; 0: choices use `logits`
    values: Vec<f32>,
    ids: Vec<u32>,
    vocabulary: usize, // elements of a row in `logits`
    logits: Vec<f32>,
}

impl LogitsBuffer {
    /// Reads the first `first` logits of each row of `[sequences, V]`. Reads all logits if `first` is `None`
    /// or `all` is true. `numbers` is memory for the device's elements. Returns false on the meta device.
    fn read<D: OrderedKernels<Elem: Real>>(
        &mut self,
        logits: &Tensor<D>,
        numbers: &mut Vec<D::Elem>,
        first: Option<usize>,
        all: bool,
    ) -> bool {
        (self.first, self.vocabulary) = (first.unwrap_or(0), logits.cols());
        if let Some(n) = first {
            let (values, ids) = ops::top_k(logits, n);
            if !ids.read_into(&mut self.ids) {
                return false;
            }
            in_f32(&values, numbers, &mut self.values);
        }
        if all || first.is_none() { in_f32(logits, numbers, &mut self.logits) } else { true }
    }
    fn row(&self, row: usize) -> &[f32] {
        &self.logits[row * self.vocabulary..][..self.vocabulary]
    }
    /// Returns the logits from which the next token of a row is chosen.
    fn choices(&self, row: usize) -> Logits<'_> {
        if self.first == 0 {
            return Logits::All(self.row(row));
        }
        let of_row = row * self.first..(row + 1) * self.first;
        Logits::First(&self.values[of_row.clone()], &self.ids[of_row])
    }
}

/// Reads a device's elements as f32, the dtype of choices; returns false on the meta device.
fn in_f32<D: Kernels<Elem: Real>>(x: &Tensor<D>, read: &mut Vec<D::Elem>, into: &mut Vec<f32>) -> bool {
    let has_values = x.read_into(read);
    into.clear();
    into.extend(read.iter().map(|x| x.to_f64() as f32));
    has_values
}
