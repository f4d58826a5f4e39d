//! Where a rank's time goes: its kernels and layers, each with its beginning and its end. Off unless somebody asks: then
//! a kernel looks at one flag and reads no clock.
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

listed! {
    /// A kind of work that kernels do.
    KernelKind {
        /// Products of matrices.
        Product = "product",
        /// Scores, softmax and values of attention.
        Attention = "attention",
        /// Norms of rows.
        Norm = "norm",
        /// Anything element by element: activations, rotations, sums, dropout, copies.
        ElementWise = "element-wise",
        /// Table rows by id, the loss, and the choice among logits.
        EmbeddingAndLoss = "embedding and loss",
        /// Changes of weights, and the gradient's norm.
        Optimizer = "optimizer",
    }
}

listed! {
    /// Which way through a layer.
    Direction {
        /// From its input to its output.
        Forward = "forward",
        /// Back, either half.
        Backward = "backward",
    }
}

/// What was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A kernel ran.
    Kernel {
        /// What it is called.
        name: &'static str,
        /// Of which kind it is.
        kind: KernelKind,
        /// Floating point operations that the meter was told of for it.
        flops: u64,
    },
    /// A layer was gone through; what it did lies within.
    Layer {
        /// What it is called in the model.
        name: Arc<str>,
        /// Which way.
        pass: Direction,
    },
}

/// A piece of work with its times.
#[derive(Clone, Debug)]
pub struct Worked {
    /// What was done.
    pub work: Work,
    /// When it began.
    pub from: Instant,
    /// When it ended.
    pub to: Instant,
}

/// The profile of one rank. One writer, the rank's thread.
#[derive(Debug, Default)]
pub struct Profile {
    on: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    worked: Vec<Worked>,
    names: BTreeSet<Arc<str>>, // of layers: each is taken once
    flops: u64,                // that the meter had when the last kernel ended
}

/// Room that is taken when a profile begins: a step of a model of a hundred blocks.
const ROOM: usize = 1 << 14;

impl Profile {
    /// From now on work is noted, of a rank whose meter has counted so many operations.
    pub fn begin(&self, flops: u64) {
        let mut log = self.log();
        log.flops = flops;
        log.worked.reserve(ROOM);
        self.on.store(true, Relaxed);
    }
    /// Work is noted no more; what was, in the order in which it ended.
    pub fn end(&self) -> Vec<Worked> {
        self.on.store(false, Relaxed);
        std::mem::take(&mut self.log().worked)
    }
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics under this lock")
    }
    /// The time, if work is noted: when a kernel begins.
    #[inline(always)]
    pub fn now(&self) -> Option<Instant> {
        if self.on.load(Relaxed) { Some(Instant::now()) } else { None }
    }
    /// A kernel that began then has ended; the meter has counted so many operations.
    #[cold]
    pub fn kernel(&self, (name, kind): (&'static str, KernelKind), from: Instant, flops: u64) {
        let to = Instant::now();
        let mut log = self.log();
        let before = std::mem::replace(&mut log.flops, flops);
        log.worked.push(Worked { work: Work::Kernel { name, kind, flops: flops - before }, from, to });
    }
    /// A layer begins, and ends when this is dropped; nothing unless work is noted.
    #[inline]
    pub fn layer(&self, name: &str, pass: Direction) -> Option<LayerSpan<'_>> {
        if self.on.load(Relaxed) { Some(self.enter(name, pass)) } else { None }
    }
    #[cold]
    fn enter(&self, name: &str, pass: Direction) -> LayerSpan<'_> {
        let mut log = self.log();
        if !log.names.contains(name) {
            log.names.insert(name.into());
        }
        let name = log.names.get(name).expect("put there").clone();
        LayerSpan { profile: self, name, pass, from: Instant::now() }
    }
}

/// The time in a layer.
#[derive(Debug)]
#[must_use = "a layer ends when this is dropped"]
pub struct LayerSpan<'a> {
    profile: &'a Profile,
    name: Arc<str>,
    pass: Direction,
    from: Instant,
}

impl Drop for LayerSpan<'_> {
    fn drop(&mut self) {
        let (work, to) = (Work::Layer { name: self.name.clone(), pass: self.pass }, Instant::now());
        let mut log = self.profile.log();
        if self.profile.on.load(Relaxed) {
            log.worked.push(Worked { work, from: self.from, to }); // it lies within the profile as a whole
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(profile: &Profile, flops: u64) {
        let layer = profile.layer("blocks.0.up", Direction::Backward);
        if let Some(from) = profile.now() {
            profile.kernel(("product", KernelKind::Product), from, flops);
        }
        drop(layer);
    }

    /// Kills: work that is noted unasked, or after the end; room taken for nothing; a second profile with the first's
    /// work; operations of another kernel, or from before; a layer that ends before its
    /// kernels, or after the profile.
    #[test]
    fn work_is_noted_while_a_profile_is_taken() {
        let profile = Profile::default();
        one(&profile, 7);
        assert_eq!((profile.end().len(), profile.log().worked.capacity()), (0, 0));
        profile.begin(9);
        one(&profile, 14);
        one(&profile, 20);
        assert!(profile.log().worked.capacity() >= ROOM, "room is taken beforehand");
        let worked = profile.end();
        let layer = Work::Layer { name: "blocks.0.up".into(), pass: Direction::Backward };
        let kernel = |flops| Work::Kernel { name: "product", kind: KernelKind::Product, flops };
        let told: Vec<_> = worked.iter().map(|w| w.work.clone()).collect();
        assert_eq!(told, [kernel(5), layer.clone(), kernel(6), layer]);
        for pair in worked.chunks(2) {
            assert!(pair[1].from <= pair[0].from && pair[0].from <= pair[0].to && pair[0].to <= pair[1].to);
        }
        one(&profile, 30);
        profile.begin(30);
        let late = profile.layer("late", Direction::Forward);
        assert!(profile.end().is_empty());
        drop(late);
        assert!(profile.end().is_empty());
    }
}
