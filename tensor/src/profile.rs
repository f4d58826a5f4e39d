//! Profile of a rank: its kernels and layers, each with start and end time. The profile is off by default: a
//! kernel then checks one flag and reads no clock.
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

listed! {
    /// Kind of work that a kernel does.
    KernelKind {
        /// Matrix products.
        Product = "product",
        /// Scores, softmax and values of attention.
        Attention = "attention",
        /// Norms of rows.
        Norm = "norm",
        /// Element-wise work: activations, rotations, sums, dropout, copies.
        ElementWise = "element-wise",
        /// Embedding lookups, the loss, and the choice among logits.
        EmbeddingAndLoss = "embedding and loss",
        /// Updates of weights, and the gradient's norm.
        Optimizer = "optimizer",
    }
}

listed! {
    /// Direction of a pass through a layer.
    Direction {
        /// From the layer's input to its output.
        Forward = "forward",
        /// Backward, either half: gradients of the input or of the weights.
        Backward = "backward",
    }
}

/// Work that is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A kernel ran.
    Kernel {
        /// Name of the kernel.
        name: &'static str,
        /// Kind of the kernel.
        kind: KernelKind,
        /// Floating point operations that the meter counted since the previous kernel ended.
        flops: u64,
    },
    /// A layer ran; its entries lie within it.
    Layer {
        /// Name of the layer in the model.
        name: Arc<str>,
        /// Direction of the pass.
        pass: Direction,
    },
}

/// Recorded work with its times.
#[derive(Clone, Debug)]
pub struct ProfileEntry {
    /// The work.
    pub work: Work,
    /// Start time.
    pub from: Instant,
    /// End time.
    pub to: Instant,
}

/// Profile of one rank. Only the rank's thread writes it.
#[derive(Debug, Default)]
pub struct Profile {
    on: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    worked: Vec<ProfileEntry>,
    names: BTreeSet<Arc<str>>, // names of layers, each stored once
    flops: u64,                // the meter's count when the last kernel ended
}

/// Capacity reserved when a profile begins: enough for a step of a model of a hundred blocks.
const ROOM: usize = 1 << 14;

impl Profile {
    /// Starts recording, on a rank whose meter has counted `flops` operations so far.
    pub fn begin(&self, flops: u64) {
        let mut log = self.log();
        log.flops = flops;
        log.worked.reserve(ROOM);
        self.on.store(true, Relaxed);
    }
    /// Stops recording and returns the recorded work, in the order in which it ended.
    pub fn end(&self) -> Vec<ProfileEntry> {
        self.on.store(false, Relaxed);
        std::mem::take(&mut self.log().worked)
    }
    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().expect("nothing panics under this lock")
    }
    /// Returns the time when a kernel starts, or `None` if no work is recorded.
    #[inline(always)]
    pub fn now(&self) -> Option<Instant> {
        if self.on.load(Relaxed) { Some(Instant::now()) } else { None }
    }
    /// Records a kernel that started at `from` and ends now; `flops` is the meter's count so far.
    #[cold]
    pub fn kernel(&self, (name, kind): (&'static str, KernelKind), from: Instant, flops: u64) {
        let to = Instant::now();
        let mut log = self.log();
        let before = std::mem::replace(&mut log.flops, flops);
        log.worked.push(ProfileEntry { work: Work::Kernel { name, kind, flops: flops - before }, from, to });
    }
    /// Starts a layer, which ends when the span drops; `None` if no work is recorded.
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

/// Time span of a layer, recorded when it drops.
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
            // the whole span lies within the profile
            log.worked.push(ProfileEntry { work, from: self.from, to });
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

    /// Kills: work that is noted unasked, or after the end; room taken for nothing; a second profile with the
    /// first's work; operations of another kernel, or from before; a layer that ends before its kernels, or
    /// after the profile.
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
        let reported: Vec<_> = worked.iter().map(|w| w.work.clone()).collect();
        assert_eq!(reported, [kernel(5), layer.clone(), kernel(6), layer]);
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
