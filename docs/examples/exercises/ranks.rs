//! The ranks of an exercise: what a rank may ask of the others, on plain slices of field elements.
use comm::{CommError, Group, Op, Reduce, Tag};
use std::collections::BTreeMap;
use std::fmt;
use tensor::{Category, Cpu, F61, Host, Tensor};

/// One rank's end of the line to all ranks. Every rank must make the same calls in the same order.
pub struct Ranks {
    group: Group<Host>,
    device: Cpu<F61>,
}

/// The reason why an attempt ends without a result.
#[derive(Debug)]
pub enum Stop {
    /// The hole is still empty.
    Unsolved,
    /// A call to other ranks failed.
    Comm(CommError),
}

/// Result of a hole.
pub type Result<T> = std::result::Result<T, Stop>;

impl From<CommError> for Stop {
    fn from(error: CommError) -> Self {
        Stop::Comm(error)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Unsolved => f.write_str(crate::check::UNSOLVED),
            Stop::Comm(error) => error.fmt(f),
        }
    }
}

/// Fills a hole until you do: takes what the hole is given, and fails.
///
/// # Errors
/// Always.
pub fn unsolved<G, T>(_given: G) -> Result<T> {
    Err(Stop::Unsolved)
}

impl Ranks {
    pub(crate) fn new(device: Cpu<F61>, group: Group<Host>) -> Self {
        Self { group, device }
    }
    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }
    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.group.size()
    }
    /// Replaces each element by its sum over all ranks.
    ///
    /// # Errors
    /// If another rank makes another call, or passes another number of elements.
    #[track_caller]
    pub fn all_reduce(&self, values: &mut [F61]) -> Result<()> {
        let mut sum = self.tensor(values, 1);
        self.group.all_reduce(&mut sum, Reduce::Sum)?;
        values.copy_from_slice(&read(&sum));
        Ok(())
    }
    /// Replaces each element by those of all ranks, joined one by one in rank order.
    ///
    /// # Errors
    /// See [`Ranks::all_reduce`].
    #[track_caller]
    pub fn all_reduce_by(&self, values: &mut [F61], join: impl Fn(F61, F61) -> F61) -> Result<()> {
        let mut words: Vec<u64> = values.iter().map(|value| value.canonical()).collect();
        let joined = |a, b| join(F61::from_canonical(a), F61::from_canonical(b)).canonical();
        self.group.all_reduce_values(&mut words, joined)?;
        values.iter_mut().zip(words).for_each(|(value, word)| *value = F61::from_canonical(word));
        Ok(())
    }
    /// Sums over all ranks and returns this rank's part of the sum: `counts[r]` elements are rank `r`'s.
    ///
    /// # Errors
    /// See [`Ranks::all_reduce`]; also if the counts do not add up to the number of elements.
    #[track_caller]
    pub fn reduce_scatter(&self, values: &[F61], counts: &[usize]) -> Result<Vec<F61>> {
        Ok(read(&self.group.reduce_scatter_v(&self.tensor(values, 1), counts)?))
    }
    /// Returns the elements of all ranks in rank order: `counts[r]` of rank `r`.
    ///
    /// # Errors
    /// See [`Ranks::all_reduce`]; also if this rank's count is not the number of its elements.
    #[track_caller]
    pub fn all_gather(&self, mine: &[F61], counts: &[usize]) -> Result<Vec<F61>> {
        Ok(read(&self.group.all_gather_v(&self.tensor(mine, 1), counts)?))
    }
    /// Sends the elements to the next rank, and returns those that the rank before sent: as many. The last
    /// rank's next is rank 0.
    ///
    /// # Errors
    /// If the rank before makes another call, or sends another number of elements.
    #[track_caller]
    pub fn pass(&self, values: &[F61]) -> Result<Vec<F61>> {
        let (rank, size, tag) = (self.rank(), self.size(), Tag::new("block", 0));
        if size == 1 {
            return Ok(values.to_vec());
        }
        let sent = self.group.start_send((rank + 1) % size, self.tensor(values, 1), tag)?;
        let before = (rank + size - 1) % size;
        let coming = self.group.start_receive(&self.device, before, values.len(), 1, tag)?;
        sent.wait()?;
        Ok(read(&coming.wait()?))
    }
    /// Sends `give[r]` rows of `width` elements to rank `r`, in order, and returns the `take[r]` rows that
    /// rank `r` sent, those of rank 0 first.
    pub(crate) fn all_to_all(&self, rows: &[F61], width: usize, counts: [&[usize]; 2]) -> Result<Vec<F61>> {
        let [give, take] = counts;
        Ok(read(&self.group.all_to_all_v(&self.tensor(rows, width), give, take)?))
    }
    /// Elements that this rank has given to calls so far, by operation.
    pub(crate) fn traffic(&self) -> BTreeMap<Op, usize> {
        let ledger = self.group.ledger();
        ledger.iter().filter(|(_, op, _)| *op != Op::Receive).map(|(_, op, of)| (op, of.elements)).collect()
    }
    fn tensor(&self, values: &[F61], width: usize) -> Tensor<Cpu<F61>> {
        Tensor::from_fn(&self.device, Category::Activations, values.len() / width, width, |i| values[i])
    }
}

fn read(tensor: &Tensor<Cpu<F61>>) -> Vec<F61> {
    tensor.read().expect("values are on the host")
}
