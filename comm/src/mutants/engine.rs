//! An engine that does what another does, but in the mutant's call.
use super::answer::{Has, Scene, values};
use super::trial::{Effect, Trial};
use super::{Mutation, Outlook, Site};
use crate::axis::Axis;
use crate::call::{Call, Counts, Elem, Op, Reduce};
use crate::engine::{Engine, Post, nth_of};
use crate::error::Result;
use crate::record::Record;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tensor::{Category, Cpu, Scalar, Tensor, View, ViewMut};

/// How one rank reaches the ranks along an axis.
pub(crate) struct Way<S: Scalar> {
    pub(crate) engine: Arc<dyn Engine<Cpu<S>>>,
    pub(crate) axis: Axis,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
}

/// One rank's engine of one group in a world on trial.
pub(crate) struct Mutated<S: Scalar> {
    inner: Arc<dyn Engine<Cpu<S>>>,
    axis: Axis,
    ranks: usize,
    own: Arc<Own<S>>,
}

/// What all groups of one rank share.
struct Own<S: Scalar> {
    trial: Trial,
    record: Arc<Record>,
    rank: usize, // of the world
    ways: Vec<Way<S>>,
    memory: Mutex<Memory<S>>,
    device: Cpu<S>, // for what the program does not pay for
}

/// What calls gave: the last one of each operation and shape.
struct Memory<S: Scalar> {
    results: HashMap<(Op, Option<Reduce>, usize, usize), Vec<S>>,
    values: HashMap<(Op, Vec<usize>), Vec<Vec<u8>>>,
    sent: Vec<(Post, Tensor<Cpu<S>>)>, // what goes in place of a message, until it has gone
}

impl<S: Scalar> Mutated<S> {
    /// The engines of one rank of the world, by axis.
    pub(crate) fn of(trial: &Trial, rank: usize, record: &Arc<Record>, ways: Vec<Way<S>>) -> Vec<Self> {
        let memory = Memory { results: HashMap::new(), values: HashMap::new(), sent: Vec::new() };
        let (trial, record, memory) = (trial.clone(), record.clone(), Mutex::new(memory));
        let own = Arc::new(Own { trial, record, rank, ways, memory, device: Cpu::default() });
        let one = |way: &Way<S>| Self {
            inner: way.engine.clone(),
            axis: way.axis,
            ranks: way.ranks,
            own: own.clone(),
        };
        own.ways.iter().map(one).collect()
    }
    /// How this call goes wrong, if it does. In an honest trial it is listed.
    fn mutation(&self, call: &Call) -> Option<Mutation> {
        let (own, number) = (&*self.own, self.own.record.number());
        if call.part.is_some() {
            return None; // of an all-reduce by an algorithm
        }
        let site = || Site::new(number, call, self.ranks, self.other().map(|way| way.axis));
        match own.trial.mutant() {
            None => {
                own.trial.saw(own.rank, site());
                None
            }
            Some(mutant) => (mutant.call == number && site().outlook(mutant.mutation) != Outlook::None)
                .then_some(mutant.mutation),
        }
    }
    /// Another axis to go wrong along.
    fn other(&self) -> Option<&Way<S>> {
        self.own.ways.iter().find(|way| way.axis != self.axis && way.ranks > 1)
    }
    fn remembers(&self) -> bool {
        self.own.trial.mutant().is_some_and(|mutant| mutant.mutation == Mutation::Stale)
    }
    fn memory<T>(&self, with: impl FnOnce(&mut Memory<S>) -> T) -> T {
        with(&mut self.own.memory.lock().expect("nothing panics under this lock"))
    }
    /// Runs `honest`, which fills `out`; or lets the call go wrong.
    fn act(
        &self,
        (rank, root): (usize, usize),
        (mine, mut out): (Mine<S>, Option<ViewMut<Cpu<S>>>),
        call: &Call,
        honest: impl FnOnce(Option<ViewMut<Cpu<S>>>) -> Result<()>,
    ) -> Result<()> {
        let Some(mutation) = self.mutation(call) else {
            honest(out.as_mut().map(ViewMut::again))?;
            if let Some(out) = out.filter(|_| self.remembers()) {
                let (len, result) = (out.rows() * out.cols(), elements(out.read()));
                self.memory(|memory| memory.results.insert(key(call, len), result));
            }
            return Ok(());
        };
        let mine = match (mine, &out) {
            (Mine::Here(mine), _) => elements(mine),
            (Mine::InPlace, Some(out)) => elements(out.read()),
            (Mine::InPlace | Mine::Nothing, _) => Vec::new(),
        };
        let len = out.as_ref().map_or(0, |out| out.rows() * out.cols());
        let all = exchange(&*self.inner, &self.own.device, rank, &mine, call)?;
        let other = match self.other() {
            Some(way) if mutation == Mutation::Axis => {
                exchange(&*way.engine, &self.own.device, way.rank, &mine, call)?
            }
            _ => Vec::new(),
        };
        let last = self.memory(|memory| memory.results.get(&key(call, len)).cloned());
        let scene = Scene { call, rank, ranks: self.ranks, root, all, other, last, len };
        let wrong = scene.mutated(mutation);
        let results = exchange(&*self.inner, &self.own.device, rank, &wrong, call)?;
        let alike = results.windows(2).all(|pair| pair[0].data == pair[1].data);
        self.own.trial.did(Effect { changed: wrong != scene.honest(), alike, reduce: call.reduce });
        if let Some(out) = &mut out {
            out.flat().copy_from_slice(&wrong);
        }
        Ok(())
    }
    /// What goes in place of a message.
    fn message(&self, data: View<Cpu<S>>, call: &Call) -> Option<Tensor<Cpu<S>>> {
        let (mutation, mine) = (self.mutation(call), elements(data));
        let (key, len) = (key(call, mine.len()), mine.len());
        let sent = match mutation {
            None => None,
            Some(Mutation::Stale) => self.memory(|memory| memory.results.get(&key).cloned()),
            Some(Mutation::Tail) => Some([&mine[..len.saturating_sub(1)], &[S::ZERO][..len.min(1)]].concat()),
            Some(_) => Some(vec![S::ZERO; len]),
        };
        let wrong = mutation.map(|_| sent.unwrap_or_else(|| vec![S::ZERO; len]));
        if let Some(wrong) = &wrong {
            self.own.trial.did(Effect { changed: *wrong != mine, alike: false, reduce: None });
        } else if self.remembers() {
            self.memory(|memory| memory.results.insert(key, mine));
        }
        let [rows, cols] = [data.rows(), data.cols()];
        wrong.map(|x| Tensor::from_fn(&self.own.device, Category::Buffers, rows, cols, |i| x[i]))
    }
    fn gone(&self, post: Post) {
        self.memory(|memory| memory.sent.retain(|(of, _)| *of != post));
    }
}

/// Where what a rank gives lies: beside its result, in its place, or nowhere.
enum Mine<'a, S: Scalar> {
    Here(View<'a, Cpu<S>>),
    InPlace,
    Nothing,
}

fn key(call: &Call, len: usize) -> (Op, Option<Reduce>, usize, usize) {
    (call.op, call.reduce, len, call.cols)
}

fn elements<S: Scalar>(view: View<Cpu<S>>) -> Vec<S> {
    (0..view.rows()).flat_map(|i| view.row(i)).copied().collect()
}

/// What every rank of a group has for this call, on all of them. The ranks must make it together: an exchange meets no
/// call as it is written.
fn exchange<S: Scalar>(
    engine: &dyn Engine<Cpu<S>>,
    device: &Cpu<S>,
    rank: usize,
    mine: &[S],
    call: &Call,
) -> Result<Vec<Has<S>>> {
    const SIZES: Elem = Elem { name: "sizes", size: size_of::<usize>(), id: 1 << 40 };
    let give = match &call.counts {
        Some(Counts::Between(give, _)) => &give[..],
        _ => &[],
    };
    let said = Call { op: Op::AllGather, reduce: None, peer: None, counts: None, cols: 1, ..call.clone() };
    let sizes: Vec<usize> = std::iter::once(mine.len()).chain(give.iter().copied()).collect();
    let sizes =
        engine.values(rank, bytemuck::cast_slice(&sizes), &Call { rows: 1, elem: SIZES, ..said.clone() })?;
    let sizes: Vec<Vec<usize>> =
        sizes.iter().map(|bytes| bytemuck::allocation::pod_collect_to_vec(bytes)).collect();
    let counts: Arc<[usize]> = sizes.iter().map(|sizes| sizes[0]).collect();
    let all: usize = counts.iter().sum();
    let given = Tensor::from_fn(device, Category::Buffers, mine.len(), 1, |i| mine[i]);
    let mut came = Tensor::empty(device, Category::Buffers, all, 1);
    let said = Call { rows: mine.len(), counts: Some(Counts::Of(counts)), ..said };
    engine.all_gather(rank, given.view(), came.view_mut(), &said)?;
    let mut came = came.read().expect("the host has values").into_iter();
    let has =
        |sizes: Vec<usize>| Has { data: came.by_ref().take(sizes[0]).collect(), give: sizes[1..].to_vec() };
    Ok(sizes.into_iter().map(has).collect())
}

impl<S: Scalar> Engine<Cpu<S>> for Mutated<S> {
    fn all_reduce(&self, rank: usize, data: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let honest = |data: Option<ViewMut<_>>| self.inner.all_reduce(rank, data.expect("given below"), call);
        self.act((rank, 0), (Mine::InPlace, Some(data)), call, honest)
    }
    fn all_gather(&self, rank: usize, mine: View<Cpu<S>>, out: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let honest =
            |out: Option<ViewMut<_>>| self.inner.all_gather(rank, mine, out.expect("given below"), call);
        self.act((rank, 0), (Mine::Here(mine), Some(out)), call, honest)
    }
    fn all_gather_columns(
        &self,
        rank: usize,
        mine: View<Cpu<S>>,
        mut out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let ([rows, cols], n) = ([mine.rows(), mine.cols()], out.cols());
        let mut below = Tensor::empty(&self.own.device, Category::Buffers, self.ranks * rows, cols);
        self.all_gather(rank, mine, below.view_mut(), call)?;
        for i in 0..self.ranks * rows {
            let its = nth_of(i / rows, cols, n);
            out.row(i % rows)[its.clone()].copy_from_slice(&below.view().row(i)[..its.len()]);
        }
        Ok(())
    }
    fn reduce_scatter(
        &self,
        rank: usize,
        data: View<Cpu<S>>,
        out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let honest =
            |out: Option<ViewMut<_>>| self.inner.reduce_scatter(rank, data, out.expect("given below"), call);
        self.act((rank, 0), (Mine::Here(data), Some(out)), call, honest)
    }
    fn broadcast(&self, rank: usize, root: usize, data: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let honest =
            |data: Option<ViewMut<_>>| self.inner.broadcast(rank, root, data.expect("given below"), call);
        self.act((rank, root), (Mine::InPlace, Some(data)), call, honest)
    }
    fn gather(
        &self,
        rank: usize,
        mine: View<Cpu<S>>,
        out: Option<ViewMut<Cpu<S>>>,
        call: &Call,
    ) -> Result<()> {
        self.act((rank, 0), (Mine::Here(mine), out), call, |out| self.inner.gather(rank, mine, out, call))
    }
    fn scatter(
        &self,
        rank: usize,
        root: usize,
        data: Option<View<Cpu<S>>>,
        out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<()> {
        let honest =
            |out: Option<ViewMut<_>>| self.inner.scatter(rank, root, data, out.expect("given below"), call);
        self.act((rank, root), (data.map_or(Mine::Nothing, Mine::Here), Some(out)), call, honest)
    }
    fn all_to_all(&self, rank: usize, data: View<Cpu<S>>, out: ViewMut<Cpu<S>>, call: &Call) -> Result<()> {
        let honest =
            |out: Option<ViewMut<_>>| self.inner.all_to_all(rank, data, out.expect("given below"), call);
        self.act((rank, 0), (Mine::Here(data), Some(out)), call, honest)
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
        let other = match self.other() {
            Some(way) if mutation == Mutation::Axis => way.engine.values(way.rank, mine, call)?,
            _ => Vec::new(),
        };
        let last = self.memory(|memory| memory.values.get(&key()).cloned());
        let wrong = values(mutation, &came, &other, (rank, call.elem.size), last);
        self.own.trial.did(Effect { changed: wrong != came, alike: false, reduce: None });
        Ok(wrong)
    }
    fn barrier(&self, rank: usize, call: &Call) -> Result<()> {
        let _ = self.mutation(call); // listed, and never wrong
        self.inner.barrier(rank, call)
    }
    unsafe fn post_send(&self, rank: usize, to: usize, data: View<Cpu<S>>, call: &Call) -> Result<Post> {
        let Some(wrong) = self.message(data, call) else {
            // SAFETY: the caller's promise.
            return unsafe { self.inner.post_send(rank, to, data, call) };
        };
        // SAFETY: nobody writes it, and it is kept until the post has ended.
        let post = unsafe { self.inner.post_send(rank, to, wrong.view(), call) }?;
        self.memory(|memory| memory.sent.push((post, wrong)));
        Ok(post)
    }
    unsafe fn post_receive(
        &self,
        rank: usize,
        from: usize,
        out: ViewMut<Cpu<S>>,
        call: &Call,
    ) -> Result<Post> {
        let _ = self.mutation(call); // listed, and never wrong
        // SAFETY: the caller's promise.
        unsafe { self.inner.post_receive(rank, from, out, call) }
    }
    fn finish(&self, post: Post, call: &Call) -> Result<()> {
        let outcome = self.inner.finish(post, call);
        self.gone(post);
        outcome
    }
    fn withdraw(&self, post: Post) {
        self.inner.withdraw(post);
        self.gone(post);
    }
    fn part(&self, ranks: &[usize]) -> Arc<dyn Engine<Cpu<S>>> {
        let own = self.own.clone();
        Arc::new(Self { inner: self.inner.part(ranks), axis: self.axis, ranks: ranks.len(), own })
    }
}
