//! Everything that the ranks of a group can do together, for tests that try all of it.
use crate::tag::TAG;
use crate::{Axis, Group, Mesh, Reduce, Result};
use tensor::{Category, Cpu, F61, Place, Scalar, Tensor};

pub(crate) type Field = Cpu<F61>;

/// One rank's input to an act.
pub(super) struct Bring<'a> {
    pub(super) device: &'a Field,
    pub(super) group: &'a Group<tensor::Host>,
    /// Rows of a block; the same on all ranks.
    pub(super) rows: usize,
    /// The rank that is first: a root, the first to send.
    pub(super) root: usize,
    /// In every element; 1 unless something is to fail.
    pub(super) value: F61,
}
pub(super) type Act = fn(&Bring) -> Result<()>;

/// Columns of all tensors.
const COLS: usize = 3;

impl Bring<'_> {
    pub(super) fn tensor(&self, rows: usize) -> Tensor<Field> {
        Tensor::from_fn(self.device, Category::Buffers, rows, COLS, |_| self.value)
    }
    /// One block.
    fn block(&self) -> Tensor<Field> {
        self.tensor(self.rows)
    }
    /// A block for every rank.
    fn blocks(&self) -> Tensor<Field> {
        self.tensor(self.group.size() * self.rows)
    }
    /// Rows for each rank: one more for every second.
    fn counts(&self) -> Vec<usize> {
        (0..self.group.size()).map(|rank| self.rows + rank % 2).collect()
    }
}

/// Checks that all elements are this number.
fn holds(x: &Tensor<Field>, number: usize) {
    assert!(x.read().unwrap().into_iter().all(|element| element == F61::from_usize(number)));
}

/// All of them, each with a name that is part of its calls' words.
pub(super) const ACTS: [(&str, Act); 16] = [
    ("all_reduce(sum)", |b| {
        let mut x = b.block();
        b.group.all_reduce(&mut x, Reduce::Sum)?;
        holds(&x, b.group.size());
        Ok(())
    }),
    ("all_reduce(stab)", |b| b.group.all_reduce(&mut b.block(), Reduce::Stab)),
    ("all_gather", |b| {
        holds(&b.group.all_gather(&b.block())?, 1);
        Ok(())
    }),
    ("all_gather", |b| {
        let counts = b.counts();
        holds(&b.group.all_gather_v(&b.tensor(counts[b.group.rank()]), &counts)?, 1);
        Ok(())
    }),
    ("all_gather", |b| {
        holds(&b.group.all_gather_columns(&b.block(), COLS * b.group.size())?, 1);
        Ok(())
    }),
    ("reduce_scatter", |b| {
        holds(&b.group.reduce_scatter(&b.blocks())?, b.group.size());
        Ok(())
    }),
    ("reduce_scatter", |b| {
        let counts = b.counts();
        holds(&b.group.reduce_scatter_v(&b.tensor(counts.iter().sum()), &counts)?, b.group.size());
        Ok(())
    }),
    ("broadcast", |b| {
        let mut x = b.block();
        b.group.broadcast(&mut x, b.root)?;
        holds(&x, 1);
        Ok(())
    }),
    ("gather", |b| {
        b.group.gather(&b.block(), b.root)?.iter().for_each(|all| holds(all, 1));
        Ok(())
    }),
    ("scatter", |b| {
        let data = (b.group.rank() == b.root).then(|| b.blocks());
        holds(&b.group.scatter(b.device, data.as_ref(), b.root, b.rows, COLS)?, 1);
        Ok(())
    }),
    ("all_to_all", |b| {
        holds(&b.group.all_to_all(&b.blocks())?, 1);
        Ok(())
    }),
    ("all_to_all", |b| {
        let (me, n) = (b.group.rank(), b.group.size());
        let give: Vec<_> = (0..n).map(|to| b.rows + (me + to) % 3).collect();
        holds(&b.group.all_to_all_v(&b.tensor(give.iter().sum()), &give, &give)?, 1);
        Ok(())
    }),
    ("barrier", |b| b.group.barrier()),
    ("u32", |b| {
        let all = b.group.all_gather_values(&vec![7u32; b.group.rank()])?;
        assert!(all.iter().enumerate().all(|(rank, of)| *of == vec![7; rank]));
        Ok(())
    }),
    ("send", |b| {
        // Round a ring; one rank sends first, so that there is a beginning.
        let (n, me) = (b.group.size(), b.group.rank());
        if n == 1 {
            return Ok(());
        }
        if me == b.root {
            b.group.send((me + 1) % n, &b.block(), TAG)?;
        }
        holds(&b.group.receive(b.device, (me + n - 1) % n, b.rows, COLS, TAG)?, 1);
        if me != b.root {
            b.group.send((me + 1) % n, &b.block(), TAG)?;
        }
        Ok(())
    }),
    ("send", |b| {
        let (n, me) = (b.group.size(), b.group.rank());
        if n == 1 {
            return Ok(());
        }
        let coming = b.group.start_receive(b.device, (me + n - 1) % n, b.rows, COLS, TAG)?;
        let going = b.group.start_send((me + 1) % n, b.block(), TAG)?;
        holds(&coming.wait()?, 1);
        going.wait().map(drop)
    }),
];

/// The group along an axis, or a part of it that `draw` stands for: blocks, or ranks of one colour.
pub(super) fn part<P: Place>(mesh: &Mesh<P>, axis: Axis, draw: usize) -> Group<P> {
    let group = mesh.group(axis);
    let sizes: Vec<_> = (1..=group.size()).filter(|&size| group.size().is_multiple_of(size)).collect();
    match draw % (2 * sizes.len()) {
        colours if colours >= sizes.len() => group.split(|rank| rank % (colours - sizes.len() + 1)).unwrap(),
        size => group.consecutive(sizes[size]).unwrap(),
    }
}
