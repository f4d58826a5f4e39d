//! Runs a schedule by messages: an all-reduce that goes by an algorithm.
use crate::call::{Message, Part};
use crate::{
    Algorithm, Arrival, Call, CommSchedule, CommStep, Group, Op, Reduce, Result, Standing, Transfer, Windows,
};
use kernels::Kernels;
use std::iter::once;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tensor::{Category, Device, Place, Tensor, View, ViewMut};

impl<P: Place> Group<P> {
    /// This group, whose all-reduces go by messages, in the algorithm's schedule; all ranks choose the same algorithm. The sum of
    /// an element is taken in the algorithm's order, which is the same on all ranks and in all runs; so in a field it is
    /// the sum of a group without an algorithm, and of floats it may differ in the last bits, but for
    /// [`Algorithm::Direct`]. Of narrow numbers, each addition of what a message brought is rounded. The ledger counts the
    /// bytes of these messages. Other calls go directly, and so do those of groups within this one.
    ///
    /// ```
    /// # use comm::{Algorithm, Axis, CommError, Op, Reduce, World};
    /// # use tensor::{Category, Cpu, Tensor};
    /// let sums = World::threads(&[(Axis::Tp, 4)])?.run(|device: Cpu<f32>, mesh| {
    ///     let ring = mesh.group(Axis::Tp).via(Algorithm::Ring)?;
    ///     let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 8, |i| (mesh.rank() + i) as f32);
    ///     ring.all_reduce(&mut x, Reduce::Sum)?;
    ///     Ok::<_, CommError>((x.read().expect("values")[1], mesh.ledger().get(Axis::Tp, Op::AllReduce).bytes))
    /// })?;
    /// assert_eq!(sums, [(10.0, 2 * 3 * 2 * 4); 4]); // 2(n−1) messages of two elements
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CommError::BadSchedule`](crate::CommError::BadSchedule) if the ranks are not made of the algorithm's nodes, or
    /// there are more than a schedule is made for.
    pub fn via(&self, algorithm: Algorithm) -> Result<Group<P>> {
        let schedule = whole(algorithm, self.size())?.of_rank(self.rank());
        Ok(self.routed(Arc::new(Via { algorithm, schedule })))
    }
}

/// The schedule of all ranks, which each asks for: the last one is kept.
fn whole(algorithm: Algorithm, ranks: usize) -> Result<Arc<CommSchedule>> {
    static LAST: Mutex<Option<(Algorithm, Arc<CommSchedule>)>> = Mutex::new(None);
    let mut last = LAST.lock().expect("nothing panics under this lock");
    if let Some((_, schedule)) = last.as_ref().filter(|(of, s)| (*of, s.ranks()) == (algorithm, ranks)) {
        return Ok(schedule.clone());
    }
    let schedule = Arc::new(algorithm.schedule(ranks)?);
    *last = Some((algorithm, schedule.clone()));
    Ok(schedule)
}

/// An algorithm, and what it has this rank do.
pub(crate) struct Via {
    algorithm: Algorithm,
    schedule: CommSchedule,
}

impl Via {
    /// The reduction that `call` names, in every rank's `data`.
    pub(crate) fn all_reduce<D: Kernels>(
        &self,
        group: &Group<D::Place>,
        data: &mut Tensor<D>,
        call: &Call,
    ) -> Result<()> {
        call.writes(data);
        let begun = group.record.begin(call, self.schedule.sent(group.rank, data.len()), false)?;
        let mut steps = self.schedule.steps().iter().enumerate();
        let reduce = call.reduce.expect("a reduction");
        let outcome = steps.try_for_each(|(number, step)| {
            let part = Part { by: self.algorithm, reduce, shape: data.shape(), step: number };
            Turn { schedule: &self.schedule, group, call, part }.take(step, data)
        });
        group.record.end(begun, None, call, &outcome);
        outcome
    }
}

/// One rank's part of a step.
struct Turn<'a, P: Place> {
    schedule: &'a CommSchedule,
    group: &'a Group<P>,
    call: &'a Call,
    part: Part,
}

impl<P: Place> Turn<'_, P> {
    /// Posts all messages of this rank, waits for all, and puts what came in its place.
    fn take<D: Kernels<Place = P>>(&self, step: &CommStep, data: &mut Tensor<D>) -> Result<()> {
        let me = self.group.rank();
        let mut came: Vec<_> =
            step.transfers.iter().filter(|t| t.to == me).map(|t| (t, self.room(t, data))).collect();
        let mut posted: Vec<Standing<P>> = Vec::new();
        for (transfer, room) in &mut came {
            let call = self.message(Op::Receive, transfer.from, room.len());
            let windows = Windows { give: None, take: Some(room.view_mut().ptr()) };
            // SAFETY: `posted`, declared after it and not leaked, ends the post before `came` is touched or dropped.
            let post = unsafe { self.group.engine.start(me, &mut once((windows, call.clone()))) };
            posted.push(Standing::new(&self.group.engine, post?, call));
        }
        for transfer in step.transfers.iter().filter(|t| t.from == me) {
            let window = part(data, &self.range(transfer, data));
            let call = self.message(Op::Send, transfer.to, window.cols());
            let windows = Windows { give: Some(window.ptr()), take: None };
            // SAFETY: as above; `data` is only read before the posts have ended.
            let post = unsafe { self.group.engine.start(me, &mut once((windows, call.clone()))) };
            posted.push(Standing::new(&self.group.engine, post?, call));
        }
        posted.iter_mut().try_for_each(Standing::finish)?;
        // The messages that add to one chunk follow each other, in rank order.
        for alike in came.chunk_by_mut(|(a, _), (b, _)| a.chunks == b.chunks) {
            self.put(alike, data);
        }
        Ok(())
    }
    fn range<D: Device>(&self, transfer: &Transfer, data: &Tensor<D>) -> Range<usize> {
        self.schedule.elements(transfer.chunks.clone(), data.len())
    }
    fn room<D: Device>(&self, transfer: &Transfer, data: &Tensor<D>) -> Tensor<D> {
        Tensor::empty(data.device(), Category::Buffers, 1, self.range(transfer, data).len())
    }
    fn message(&self, op: Op, root: usize, elements: usize) -> Call {
        let (peer, message) = (self.group.members.get(root), Some(Message::Part(self.part)));
        Call { op, reduce: None, peer, root, rows: 1, cols: elements, message, ..self.call.clone() }
    }
    /// Puts into `data` what came for the same chunks: one message that replaces them, or addends by rank. All addends are
    /// taken in rank order, this rank's own in its place.
    fn put<D: Kernels<Place = P>>(&self, came: &mut [(&Transfer, Tensor<D>)], data: &mut Tensor<D>) {
        let (transfer, device) = (came[0].0, data.device().clone());
        let range = &self.range(transfer, data);
        if transfer.how == Arrival::Replace {
            return device.copy(part_mut(data, range), came[0].1.view());
        }
        let join = |sum: ViewMut<D>, addend: View<D>| match self.part.reduce {
            Reduce::Stab => device.stab(sum, addend),
            Reduce::Sum => device.add(sum, addend),
        };
        let lower = came.partition_point(|(transfer, _)| transfer.from < transfer.to);
        let (lower, higher) = came.split_at_mut(lower);
        // Of two addends the order is nothing, so one lower one needs no place to be summed in.
        let rest = match lower {
            [(_, sum), rest @ ..] if !rest.is_empty() => {
                for (_, addend) in &*rest {
                    join(sum.view_mut(), addend.view());
                }
                join(sum.view_mut(), part(data, range));
                device.copy(part_mut(data, range), sum.view());
                &[]
            }
            lower => &*lower,
        };
        for (_, addend) in rest.iter().chain(&*higher) {
            join(part_mut(data, range), addend.view());
        }
    }
}

/// Elements of a tensor, in one row.
fn part<'a, D: Device>(data: &'a Tensor<D>, range: &Range<usize>) -> View<'a, D> {
    data.view().reshape(1, data.len()).take_cols(range.start, range.len())
}
/// Elements of a tensor, in one row, to be written.
fn part_mut<'a, D: Device>(data: &'a mut Tensor<D>, range: &Range<usize>) -> ViewMut<'a, D> {
    let len = data.len();
    data.view_mut().reshape(1, len).take_cols(range.start, range.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drawn::element;
    use crate::tag::TAG;
    use crate::{Axis, CommError, Ledger, Mesh, World};
    use std::ops::Add;
    use tensor::{Cpu, F61, Peaks, Scalar};

    /// Nothing, fewer elements than ranks, what no number of ranks divides.
    const SHAPES: [[usize; 2]; 5] = [[0, 3], [1, 1], [2, 5], [7, 13], [24, 10]];

    fn algorithms(ranks: usize) -> Vec<Algorithm> {
        let nodes = (1..=ranks).filter(|&node| ranks.is_multiple_of(node));
        let mut all = Algorithm::all(1);
        all.extend(nodes.map(|node| Algorithm::Hierarchical { node }));
        all
    }
    /// Both reductions of all shapes by all algorithms; the ledger after each, and what memory it took.
    fn program<D: Kernels>(
        device: &D,
        mesh: &Mesh<D::Place>,
        mut check: impl FnMut(&Tensor<D>, Algorithm, Reduce),
    ) -> Result<(Vec<Ledger>, Peaks)> {
        let (group, mut ledgers) = (mesh.group(Axis::Tp), Vec::new());
        for algorithm in algorithms(group.size()) {
            let by = group.via(algorithm)?;
            for ([rows, cols], reduce) in
                SHAPES.into_iter().flat_map(|s| [(s, Reduce::Sum), (s, Reduce::Stab)])
            {
                let value = |i| element(group.rank(), i);
                let mut x = Tensor::from_fn(device, Category::Weights, rows, cols, value);
                by.all_reduce(&mut x, reduce)?;
                check(&x, algorithm, reduce);
                ledgers.push(mesh.ledger());
            }
        }
        Ok((ledgers, device.meter().peaks_of_all()))
    }

    /// Kills: a chunk put in another's place, added where it should replace, taken before all messages of the step have
    /// ended; another reduction; bytes that are counted and not sent; memory of an engine's own.
    #[test]
    fn every_algorithm_equals_the_fold_in_the_field_with_its_schedules_traffic_and_price() {
        for ranks in 1..9 {
            let sizes = [(Axis::Tp, ranks)];
            let ran = World::threads(&sizes).unwrap().run(|device: Cpu<F61>, mesh| {
                program(&device, &mesh, |x, algorithm, reduce| {
                    let join = if reduce == Reduce::Sum { F61::add } else { F61::stab };
                    let fold = |i| (1..ranks).fold(element(0, i), |sum, rank| join(sum, element(rank, i)));
                    assert!(
                        x.read().unwrap().into_iter().eq((0..x.len()).map(fold)),
                        "{algorithm:?} {reduce}"
                    );
                })
            });
            for (rank, ran) in ran.unwrap().into_iter().enumerate() {
                let mesh = Mesh::ghost(&sizes, rank).unwrap();
                assert_eq!(
                    program(&kernels::meta_of::<Cpu<F61>>(), &mesh, |_, _, _| ()).unwrap(),
                    ran,
                    "rank {rank} of {ranks}"
                );
                let sent = |algorithm: Algorithm| {
                    let schedule = algorithm.schedule(ranks).unwrap();
                    SHAPES
                        .map(|[rows, cols]| 2 * 8 * schedule.sent(rank, rows * cols))
                        .into_iter()
                        .sum::<usize>()
                };
                let counted = ran.0.last().unwrap().get(Axis::Tp, Op::AllReduce).bytes;
                let calls = ran.0.last().unwrap().get(Axis::Tp, Op::AllReduce).calls;
                if ranks > 1 {
                    assert_eq!(counted, algorithms(ranks).into_iter().map(sent).sum::<usize>());
                    assert_eq!(calls, 2 * SHAPES.len() * algorithms(ranks).len());
                }
            }
        }
    }

    /// Kills: ranks that end with different bits. Five sums of positive numbers, each rounded once.
    #[test]
    fn floats_get_the_same_bits_on_all_ranks_and_nearly_the_direct_sum() {
        let ran = World::threads(&[(Axis::Tp, 6)]).unwrap().run(|device: Cpu<f32>, mesh| {
            let mut sums = Vec::new();
            program(&device, &mesh, |x, _, reduce| {
                for (i, &got) in x.read().unwrap().iter().enumerate().filter(|_| reduce == Reduce::Sum) {
                    let exact = (0..6).map(|rank| f64::from(element::<f32>(rank, i))).sum::<f64>();
                    assert!((f64::from(got) - exact).abs() <= 6.0 * 2f64.powi(-24) * exact);
                }
                sums.extend(x.read().unwrap().into_iter().map(f32::to_bits));
            })?;
            Ok::<_, CommError>(sums)
        });
        let ran = ran.unwrap();
        assert!(ran.iter().all(|bits| *bits == ran[0]));
    }

    /// Kills: addends in another order than that of the ranks, this rank's own out of its place.
    #[test]
    fn the_direct_algorithm_equals_the_call_without_one_bit_for_bit() {
        for ranks in 1..10 {
            let ran = World::threads(&[(Axis::Tp, ranks)]).unwrap().run(|device: Cpu<f32>, mesh| {
                let group = mesh.group(Axis::Tp);
                let ways = [group.clone(), group.via(Algorithm::Direct)?, group.via(Algorithm::Ring)?];
                let mut last = None;
                for ([rows, cols], reduce) in
                    SHAPES.into_iter().flat_map(|s| [(s, Reduce::Sum), (s, Reduce::Stab)])
                {
                    let mut sums = Vec::new();
                    for way in &ways {
                        let value = |i| element::<f32>(mesh.rank(), i) - 2048.0; // of both signs
                        let mut x = Tensor::from_fn(&device, Category::Weights, rows, cols, value);
                        way.all_reduce(&mut x, reduce)?;
                        sums.push(x.read().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>());
                    }
                    assert_eq!(sums[0], sums[1], "{ranks} ranks, {rows}x{cols}");
                    last = Some(sums).filter(|_| reduce == Reduce::Sum).or(last);
                }
                Ok::<_, CommError>(last.is_some_and(|sums| sums[0] != sums[2]))
            });
            // The ring's order shows in the same numbers from three ranks on.
            assert!(ran.unwrap().into_iter().all(|differs| differs == (ranks > 2)), "{ranks}");
        }
    }

    /// Kills: an all-reduce of one kind taken for one of another whose messages have the same sizes.
    #[test]
    fn ranks_that_reduce_otherwise_both_get_an_error() {
        type Act = fn(&Group<tensor::Host>) -> Result<()>;
        fn by(group: &Group<tensor::Host>, algorithm: Algorithm, rows: usize, reduce: Reduce) -> Result<()> {
            let mut x = Tensor::from_fn(&Cpu::default(), Category::Buffers, rows, 12 / rows, F61::from_usize);
            group.via(algorithm)?.all_reduce(&mut x, reduce)
        }
        let cases: [(Act, &str); 3] = [
            (|g| by(g, Algorithm::Ring, 2, Reduce::Stab), "of all_reduce(stab) of 2x6 by ring"),
            (|g| by(g, Algorithm::Ring, 3, Reduce::Sum), "of all_reduce(sum) of 3x4 by ring"),
            (|g| by(g, Algorithm::Hierarchical { node: 1 }, 2, Reduce::Sum), "by hierarchical (nodes of 1)"),
        ];
        for (act, message) in cases {
            let ran = World::threads(&[(Axis::Tp, 4)]).unwrap().run(|_: Cpu<F61>, mesh| {
                let group = mesh.group(Axis::Tp);
                if mesh.rank() == 3 { act(group) } else { by(group, Algorithm::Ring, 2, Reduce::Sum) }
            });
            let why = ran.unwrap_err().reason;
            assert!(why.contains(message) && why.contains(" of all_reduce(sum) of 2x6 by ring"), "{why}");
        }
    }

    /// Kills: messages of an all-reduce that wait for a request to be waited for, or take its place.
    #[test]
    fn an_all_reduce_goes_past_messages_under_way() {
        let ran = World::threads(&[(Axis::Tp, 2)]).unwrap().run(|device: Cpu<f32>, mesh| {
            let by = mesh.group(Axis::Tp).via(Algorithm::Ring)?;
            let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 2, |_| 1.0);
            let one = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| 5.0);
            let coming = (mesh.rank() == 0).then(|| by.start_receive(&device, 1, 1, 1, TAG)).transpose()?;
            by.all_reduce(&mut x, Reduce::Sum)?;
            match coming {
                Some(coming) => assert_eq!(coming.wait()?.read().unwrap(), [5.0]),
                None => by.send(0, &one, TAG)?,
            }
            Ok::<_, CommError>(x.read().unwrap())
        });
        assert_eq!(ran.unwrap(), [[2.0, 2.0], [2.0, 2.0]]);
    }

    /// Kills: parts of a group that take its algorithm, which was made for more ranks.
    #[test]
    fn parts_of_a_group_and_other_calls_go_directly() {
        let ran = World::threads(&[(Axis::Tp, 4)]).unwrap().run(|device: Cpu<f32>, mesh| {
            let by = mesh.group(Axis::Tp).via(Algorithm::Ring)?.named("w");
            let half = by.split(|rank| rank / 2)?;
            let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| 1.0);
            half.all_reduce(&mut x, Reduce::Sum)?;
            assert_eq!(by.all_gather(&x)?.read().unwrap(), [2.0; 4]);
            // Of all ranks, too, whatever it went by before.
            let all = if mesh.rank() == 0 { by.blocks(4)? } else { mesh.group(Axis::Tp).clone() };
            all.all_reduce(&mut x, Reduce::Sum)?;
            Ok::<_, CommError>(())
        });
        ran.unwrap();
    }
}
