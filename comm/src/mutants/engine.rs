//! An engine that does what another engine does, except in the mutant's call.
use super::answer::{Has, Scene, values};
use super::site::{CallSite, ExpectedResult, Mutation};
use super::trial::{Effect, Trial};
use crate::axis::Axis;
use crate::call::windows::chunk_range;
use crate::call::{Call, Counts, Elem, Op, Reduce};
use crate::engine::{Calls, Engine, Engines, Post, Windows};
use crate::error::Result;
use crate::grid::Grid;
use crate::members::Members;
use crate::record::RankRecord;
use std::collections::HashMap;
use std::iter::once;
use std::slice::{from_raw_parts, from_raw_parts_mut};
use std::sync::{Arc, Mutex};
use tensor::{Category, Cpu, Host, HostPtr, Scalar, Tensor};

/// Engine of the ranks along another axis, and this rank's place among them.
struct AxisEngine {
    engine: Arc<dyn Engine<Host>>,
    rank: usize,
}

/// One rank's engines in a world on trial.
pub(crate) struct OnTrial<S: Scalar>(Arc<RankEngineState<S>>);

/// Engine of one group in a world on trial.
struct Mutated<S: Scalar> {
    inner: Arc<dyn Engine<Host>>,
    members: Arc<[usize]>,
    own: Arc<RankEngineState<S>>,
}

/// State that all groups of one rank share.
struct RankEngineState<S: Scalar> {
    trial: Trial,
    record: Arc<RankRecord>,
    rank: usize, // in the world
    grid: Arc<Grid>,
    world: Arc<dyn Engines<Host>>,
    memory: Mutex<EarlierResults<S>>,
    device: Cpu<S>, // holds tensors that are not charged to the program
}

/// Results of earlier calls: the last one of each operation and shape.
struct EarlierResults<S: Scalar> {
    results: HashMap<(Op, Option<Reduce>, usize, usize), Vec<S>>,
    values: HashMap<(Op, Vec<usize>), Vec<Vec<u8>>>,
    sent: Vec<(Post, Tensor<Cpu<S>>)>, // tensors sent in place of messages, kept until their posts end
}

impl<S: Scalar> OnTrial<S> {
    /// Returns the engines of one rank. They do what `world`'s engines do, except in the mutant's call.
    pub(crate) fn new(
        trial: &Trial,
        rank: usize,
        record: &Arc<RankRecord>,
        grid: &Arc<Grid>,
        world: &Arc<dyn Engines<Host>>,
    ) -> Self {
        let memory = EarlierResults { results: HashMap::new(), values: HashMap::new(), sent: Vec::new() };
        let (trial, record, memory) = (trial.clone(), record.clone(), Mutex::new(memory));
        let (grid, world) = (grid.clone(), world.clone());
        Self(Arc::new(RankEngineState { trial, record, rank, grid, world, memory, device: Cpu::default() }))
    }
}

impl<S: Scalar> Engines<Host> for OnTrial<S> {
    fn of(&self, members: &Members) -> Arc<dyn Engine<Host>> {
        let own = self.0.clone();
        Arc::new(Mutated { inner: self.0.world.of(members), members: members.iter().collect(), own })
    }
}

impl<S: Scalar> Mutated<S> {
    /// Returns the mutation of this call, if the mutant is in it. An honest trial lists the call and returns
    /// `None`.
    fn mutation(&self, call: &Call) -> Option<Mutation> {
        let state = &*self.own;
        let number = self.own.record.number();
        let other = call.elem.join.is_some() && call.elem.id != Elem::of::<S>().id;
        if other && call.op != Op::Barrier {
            return None; // its dtype is not the world's
        }
        let site = || CallSite::new(number, call, &self.members, self.ways(call));
        let Some(mutant) = state.trial.mutant() else {
            state.trial.observe(state.rank, site());
            return None;
        };
        let there = || {
            let site = site();
            CallSite { other: state.trial.axis(site.other), ..site }.outlook(mutant.mutation)
                != ExpectedResult::None
        };
        (state.trial.is_at(state.rank, number) && there()).then_some(mutant.mutation)
    }
    /// Returns the other axes of the same factoring that the call can go wrong along, each with the ranks
    /// along it.
    fn ways(&self, call: &Call) -> Vec<(Axis, Arc<[usize]>)> {
        let (grid, axes) = (&self.own.grid, call.over.axes);
        let dense = axes.iter().all(|axis| Axis::DENSE.contains(&axis));
        let factoring = if dense { Axis::DENSE } else { Axis::EXPERT };
        let others = factoring.into_iter().filter(|&axis| !axes.contains(axis) && grid.size(axis) > 1);
        others.map(|axis| (axis, grid.members(axis, self.own.rank).iter().collect())).collect()
    }
    /// Returns the engine of the ranks along the other axis, if the mutation is [`Mutation::Axis`].
    fn way(&self, call: &Call, mutation: Mutation) -> Option<AxisEngine> {
        let first = || self.ways(call).first().map(|(axis, _)| *axis);
        let axis = (mutation == Mutation::Axis).then(|| self.own.trial.axis(first())).flatten()?;
        let members = self.own.grid.members(axis, self.own.rank);
        let rank = members.place(self.own.rank).expect("it lies around this rank");
        Some(AxisEngine { engine: self.own.world.of(&members), rank })
    }
    fn remembers(&self) -> bool {
        self.own.trial.mutant().is_some_and(|mutant| mutant.mutation == Mutation::Stale)
    }
    fn memory<T>(&self, with: impl FnOnce(&mut EarlierResults<S>) -> T) -> T {
        with(&mut self.own.memory.lock().expect("nothing panics under this lock"))
    }
    /// Runs `honest`, which fills `take`, or makes the call go wrong.
    ///
    /// # Safety
    /// Same as [`Engine::now`].
    unsafe fn act(
        &self,
        rank: usize,
        windows: &Windows<HostPtr>,
        call: &Call,
        honest: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let len = call.takes(self.members.len(), rank);
        let read = |window: Option<HostPtr>, len| match window {
            // SAFETY: the window has `len` elements, as the caller promises.
            Some(at) => unsafe { from_raw_parts(at.raw::<S>(), len) },
            None => &[],
        };
        let Some(mutation) = self.mutation(call) else {
            honest()?;
            if self.remembers() && call.elem.id == Elem::of::<S>().id {
                let result = read(windows.take, len).to_vec();
                self.memory(|memory| memory.results.insert(key(call, len), result));
            }
            return Ok(());
        };
        let mine = read(windows.give, call.gives(self.members.len(), rank)).to_vec();
        let all = exchange(&*self.inner, &self.own.device, rank, &mine, call)?;
        let other = match self.way(call, mutation) {
            Some(way) => exchange(&*way.engine, &self.own.device, way.rank, &mine, call)?,
            None => Vec::new(),
        };
        let last = self.memory(|memory| memory.results.get(&key(call, len)).cloned());
        let below = &Call { counts: None, ..call.clone() };
        let columns = columns(call);
        // A result with columns side by side is one with blocks below each other, rearranged.
        let (of, all_of_it) = match columns {
            Some(_) => (below, below.takes(self.members.len(), rank)),
            None => (call, len),
        };
        let scene = Scene {
            call: of,
            rank,
            ranks: self.members.len(),
            root: call.root,
            all,
            other,
            last,
            len: all_of_it,
        };
        let placed = |result: Vec<S>| match columns {
            None => result,
            Some(n) => side_by_side(&result, [call.rows, call.cols, n], self.members.len()),
        };
        let wrong = match (mutation, &scene.last) {
            (Mutation::Stale, Some(last)) => last.clone(), // placed already
            _ => placed(scene.mutated(mutation)),
        };
        let right = placed(scene.honest());
        let results = exchange(&*self.inner, &self.own.device, rank, &wrong, call)?;
        let alike = results.windows(2).all(|pair| pair[0].data == pair[1].data);
        self.own.trial.did(Effect { changed: wrong != right, alike, reduce: call.reduce });
        if let Some(take) = windows.take {
            // SAFETY: the window has `len` elements and is borrowed mutably, as the caller promises.
            unsafe { from_raw_parts_mut(take.raw::<S>(), len) }.copy_from_slice(&wrong);
        }
        Ok(())
    }
    /// Returns the elements to send in place of a message with elements `mine`; `None` if the message is not
    /// mutated.
    fn instead(&self, mine: &[S], call: &Call) -> Option<Tensor<Cpu<S>>> {
        let mutation = self.mutation(call);
        let len = mine.len();
        let key = key(call, len);
        let sent = match mutation {
            None => None,
            Some(Mutation::Stale) => self.memory(|memory| memory.results.get(&key).cloned()),
            Some(Mutation::Tail) => Some([&mine[..len.saturating_sub(1)], &[S::ZERO][..len.min(1)]].concat()),
            Some(_) => Some(vec![S::ZERO; len]),
        };
        let wrong = mutation.map(|_| sent.unwrap_or_else(|| vec![S::ZERO; len]));
        if let Some(wrong) = &wrong {
            self.own.trial.did(Effect { changed: wrong != mine, alike: false, reduce: None });
        } else if self.remembers() {
            self.memory(|memory| memory.results.insert(key, mine.to_vec()));
        }
        wrong.map(|x| Tensor::from_fn(&self.own.device, Category::Buffers, 1, len, |i| x[i]))
    }
    /// Starts a message, with other elements in its place if it is the mutant's.
    ///
    /// # Safety
    /// Same as [`Engine::start`].
    unsafe fn message(&self, rank: usize, windows: Windows<HostPtr>, call: Call) -> Result<Post> {
        let given = windows.give.filter(|_| call.elem.id == Elem::of::<S>().id);
        // SAFETY: the window has the elements of the call, as the caller says.
        let mine = given.map_or(&[][..], |own| unsafe { from_raw_parts(own.raw::<S>(), call.elements()) });
        let instead = match call.op {
            Op::Receive => self.mutation(&call).and(None), // listed; never mutated
            _ => self.instead(mine, &call),
        };
        let Some(wrong) = instead else {
            // SAFETY: the caller's promise.
            return unsafe { self.inner.start(rank, &mut once((windows, call))) };
        };
        let windows = Windows { give: Some(wrong.view().ptr()), take: None };
        // SAFETY: no code writes the tensor, and `memory` keeps it until the post has ended.
        let post = unsafe { self.inner.start(rank, &mut once((windows, call))) }?;
        self.memory(|memory| memory.sent.push((post, wrong)));
        Ok(post)
    }
    fn exited(&self, post: Post) {
        self.memory(|memory| memory.sent.retain(|(of, _)| *of != post));
    }
}

/// Post number of a started call that was made at once.
const MADE: usize = usize::MAX;

fn key(call: &Call, len: usize) -> (Op, Option<Reduce>, usize, usize) {
    (call.op, call.reduce, len, call.cols)
}

/// Number of columns in an all-gather whose result has the columns of all ranks side by side.
fn columns(call: &Call) -> Option<usize> {
    match call.counts {
        Some(Counts::Columns(n)) => Some(n),
        _ => None,
    }
}

/// Places blocks `[rows, cols]` that lie below each other side by side, and keeps the first `n` columns.
fn side_by_side<S: Scalar>(below: &[S], [rows, cols, n]: [usize; 3], ranks: usize) -> Vec<S> {
    let row = |row: usize| {
        (0..ranks).flat_map(move |rank| {
            let its = chunk_range(rank, cols, n);
            &below[(rank * rows + row) * cols..][..its.len()]
        })
    };
    (0..rows).flat_map(row).copied().collect()
}

/// Gathers the input of every rank of a group to this call, on all its ranks. All of them must call this
/// together: the gather does not match the call as the program makes it.
fn exchange<S: Scalar>(
    engine: &dyn Engine<Host>,
    device: &Cpu<S>,
    rank: usize,
    mine: &[S],
    call: &Call,
) -> Result<Vec<Has<S>>> {
    const SIZES: Elem = Elem { name: "sizes", size: size_of::<usize>(), id: 1 << 40, join: None };
    let give = match &call.counts {
        Some(Counts::Between(give, _)) => &give[..],
        _ => &[],
    };
    let call_copy =
        Call { op: Op::AllGather, reduce: None, peer: None, root: 0, counts: None, cols: 1, ..call.clone() };
    let sizes: Vec<usize> = once(mine.len()).chain(give.iter().copied()).collect();
    let sizes = engine.values(
        rank,
        bytemuck::cast_slice(&sizes),
        &Call { rows: 1, elem: SIZES, ..call_copy.clone() },
    )?;
    let sizes: Vec<Vec<usize>> =
        sizes.iter().map(|bytes| bytemuck::allocation::pod_collect_to_vec(bytes)).collect();
    let counts: Arc<[usize]> = sizes.iter().map(|sizes| sizes[0]).collect();
    let total: usize = counts.iter().sum();
    let given = Tensor::from_fn(device, Category::Buffers, mine.len(), 1, |i| mine[i]);
    let mut came = Tensor::empty(device, Category::Buffers, total, 1);
    let call_copy = Call { rows: mine.len(), counts: Some(Counts::Of(counts)), ..call_copy };
    let windows = Windows { give: Some(given.view().ptr()), take: Some(came.view_mut().ptr()) };
    // SAFETY: the windows have the counted elements and are borrowed until this returns.
    unsafe { engine.now(rank, windows, &call_copy) }?;
    let mut came = came.read().expect("the host has values").into_iter();
    let has =
        |sizes: Vec<usize>| Has { data: came.by_ref().take(sizes[0]).collect(), give: sizes[1..].to_vec() };
    Ok(sizes.into_iter().map(has).collect())
}

impl<S: Scalar> Engine<Host> for Mutated<S> {
    unsafe fn now(&self, rank: usize, windows: Windows<HostPtr>, call: &Call) -> Result<()> {
        // SAFETY: the caller's promise.
        let honest = || unsafe { self.inner.now(rank, windows, call) };
        if call.op == Op::Barrier {
            let _ = self.mutation(call); // listed; never mutated
            return honest();
        }
        // SAFETY: the caller's promise.
        unsafe { self.act(rank, &windows, call, honest) }
    }
    unsafe fn start(&self, rank: usize, calls: Calls<HostPtr>) -> Result<Post> {
        let mut calls = calls.peekable();
        if let Some((windows, call)) = calls.next_if(|(_, call)| call.is_message()) {
            // SAFETY: the caller's promise.
            return unsafe { self.message(rank, windows, call) };
        }
        if self.own.trial.mutant().is_none() {
            let mut listed = calls.inspect(|(_, call)| {
                let _ = self.mutation(call);
            });
            // SAFETY: the caller's promise.
            return unsafe { self.inner.start(rank, &mut listed) };
        }
        // In a mutant's trial a started call is made at once: all ranks start it, and a wrong result is wrong
        // from then on.
        for (windows, call) in calls {
            // SAFETY: the caller's promise.
            unsafe { self.now(rank, windows, &call) }?;
        }
        Ok(Post::started(rank, MADE))
    }
    fn values(&self, rank: usize, mine: &[u8], call: &Call) -> Result<Vec<Vec<u8>>> {
        let mutation = self.mutation(call);
        let came = self.inner.values(rank, mine, call)?;
        let key = || (call.op, came.iter().map(Vec::len).collect());
        let Some(mutation) = mutation else {
            if self.remembers() {
                self.memory(|memory| memory.values.insert(key(), came.clone()));
            }
            return Ok(came);
        };
        let other = match self.way(call, mutation) {
            Some(way) => way.engine.values(way.rank, mine, call)?,
            None => Vec::new(),
        };
        let last = self.memory(|memory| memory.values.get(&key()).cloned());
        let wrong = values(mutation, &came, &other, (rank, call.elem.size), last);
        self.own.trial.did(Effect { changed: wrong != came, alike: false, reduce: None });
        Ok(wrong)
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        if post.is_started() && post.number == MADE {
            return Ok(());
        }
        let outcome = self.inner.finish(post, call);
        self.exited(post);
        outcome
    }
    fn withdraw(&self, post: Post) {
        if post.is_started() && post.number == MADE {
            return;
        }
        self.inner.withdraw(post);
        self.exited(post);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Axes, CommError, World};

    /// Kills: another axis that is one of the group's, of one rank, or of the other factoring.
    #[test]
    fn calls_go_wrong_along_another_axis_of_their_factoring() {
        let sizes = [(Axis::Pp, 1), (Axis::Dp, 2), (Axis::Cp, 2), (Axis::Tp, 2), (Axis::Ep, 4)];
        let other = |axes: Axes| {
            let trial = Trial::honest();
            let world = World::threads(&sizes).unwrap().on_trial(&trial);
            world.run(|_: Cpu<f32>, mesh| mesh.over(axes)?.barrier()).unwrap();
            trial.sites(0)[0].other
        };
        let dense = [Axis::Tp.into(), Axis::Dp.into(), Axis::Dp | Axis::Cp, Axis::Dp | Axis::Cp | Axis::Tp];
        assert_eq!(dense.map(other), [Some(Axis::Dp), Some(Axis::Cp), Some(Axis::Tp), None]);
        let expert = [Axis::Ep.into(), Axis::Edp.into(), Axis::Edp | Axis::Ep];
        assert_eq!(expert.map(other), [Some(Axis::Edp), Some(Axis::Ep), None]);
    }

    /// Kills: an exchange with the ranks along another axis than the one that was named.
    #[test]
    fn a_call_over_a_set_goes_wrong_over_the_axis_beside_it() {
        let sizes = [(Axis::Dp, 2), (Axis::Cp, 2), (Axis::Tp, 2)];
        let trial = Trial::of(crate::mutants::site::Mutant { call: 1, mutation: Mutation::Axis });
        let sums = World::threads(&sizes).unwrap().on_trial(&trial).run(|device: Cpu<f32>, mesh| {
            let mut x = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| mesh.rank() as f32);
            mesh.over(Axis::Dp | Axis::Cp)?.all_reduce(&mut x, Reduce::Sum)?;
            Ok::<_, CommError>(x.read().expect("the host has values")[0])
        });
        assert_eq!(sums.unwrap(), [1.0, 1.0, 5.0, 5.0, 9.0, 9.0, 13.0, 13.0]);
    }
}
