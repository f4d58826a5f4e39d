//! Matrices that are kept off their device between uses, in one unnamed file a rank. A thread moves them, in
//! the order in which moves are begun, while the rank computes.
//!
//! The file is read and written, not mapped: an error of the disk is then a sentence, where a mapping would end
//! the process. It has no name, so nothing is left of it however the process ends.
use crate::{Category, Device, Place, PlaceError, Tensor};
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;

/// A rank's store off its device. Its file is opened when the first room is reserved. Clones are one store.
#[derive(Clone)]
pub struct Store(Arc<Rank>);

struct Rank {
    folder: PathBuf,
    end: AtomicU64, // bytes reserved
    opened: OnceLock<Sender<Move>>,
}

/// Work of the thread that moves.
type Move = Box<dyn FnOnce(&mut File) + Send>;

impl Store {
    /// Creates a rank's store, in a file of this folder.
    pub fn new(folder: PathBuf) -> Self {
        Self(Arc::new(Rank { folder, end: AtomicU64::new(0), opened: OnceLock::new() }))
    }
    /// Ends the rank with a sentence on its file.
    fn fail(&self, why: impl Display) -> ! {
        let folder = self.0.folder.display();
        PlaceError(format!(
            "the file of offloaded state in {folder} fails: {why}; --offload-dir gives another folder"
        ))
        .unwind()
    }
    /// Lets the thread run `work` after all earlier work; returns where its outcome arrives.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut File) -> Result<T> + Send + 'static,
    ) -> Receiver<std::result::Result<T, String>> {
        let (done, outcome) = channel();
        let work = move |file: &mut File| {
            let worked = PlaceError::caught(|| work(file).map_err(|why| why.to_string()));
            let _ = done.send(worked.unwrap_or_else(|error| Err(error.0))); // nobody waits after a failure
        };
        let opened = self.0.opened.get_or_init(|| {
            let opened = tempfile::tempfile_in(&self.0.folder);
            let mut file = opened.unwrap_or_else(|why| self.fail(why));
            let (moves, coming) = channel::<Move>();
            thread::spawn(move || coming.iter().for_each(|work| work(&mut file)));
            moves
        });
        opened.send(Box::new(work)).unwrap_or_else(|_| self.fail("its thread has ended"));
        outcome
    }
    fn wait<T>(&self, outcome: &Receiver<std::result::Result<T, String>>) -> T {
        let outcome = outcome.recv().unwrap_or_else(|_| Err("its thread has ended".into()));
        outcome.unwrap_or_else(|why| self.fail(why))
    }
}

/// A matrix of a store. At first all its elements are zero.
pub struct Away<D: Device> {
    device: D,
    store: Store,
    at: u64,
    shape: [usize; 2],
    written: bool,
    coming: Option<Moving<D>>,
}

impl<D: Device> Away<D> {
    /// Reserves room for a matrix of this shape.
    ///
    /// # Panics
    /// With [`PlaceError`], if the file cannot be opened or has no room.
    pub fn new(store: &Store, device: &D, shape: [usize; 2]) -> Self {
        let (device, store) = (device.clone(), store.clone());
        let mut away = Self { device, store, at: 0, shape, written: false, coming: None };
        away.at = away.store.0.end.fetch_add(away.bytes() as u64, Relaxed);
        away.device.meter().keep_away(away.bytes());
        if D::Place::HOLDS {
            let (at, bytes) = (away.at, away.bytes() as u64);
            away.store.wait(&away.store.run(move |file| grow(file, at, bytes)));
        }
        away
    }
    fn bytes(&self) -> usize {
        self.shape[0] * self.shape[1] * size_of::<D::Elem>()
    }
    /// Begins to bring the matrix to the device, unless that has begun.
    ///
    /// # Panics
    /// With [`OutOfMemory`](crate::OutOfMemory), if there is no memory for it.
    pub fn begin_load(&mut self) {
        self.coming = Some(self.coming.take().unwrap_or_else(|| self.moved_here()));
    }
    /// Brings the matrix to the device.
    ///
    /// # Panics
    /// As [`begin_load`](Self::begin_load), and with [`PlaceError`], if the file cannot be read.
    pub fn load(&mut self) -> Tensor<D> {
        self.begin_load();
        self.coming.take().expect("begun above").wait()
    }
    /// Returns a copy of the matrix.
    ///
    /// # Panics
    /// As [`load`](Self::load).
    pub fn read(&self) -> Tensor<D> {
        self.moved_here().wait()
    }
    fn moved_here(&self) -> Moving<D> {
        let [rows, cols] = self.shape;
        let mut here = Tensor::empty(&self.device, Category::InFlight, rows, cols);
        if !self.written {
            here.write(&mut |_| crate::Scalar::ZERO);
            return Moving::Done(here);
        }
        self.device.meter().moves(self.bytes());
        let (at, bytes) = (self.at, self.bytes());
        self.moving(here, move |file, here| {
            let mut failed = file.seek(SeekFrom::Start(at)).map(|_| ());
            D::Place::put::<u8>(here.buffer_mut(), bytes, |_, to| {
                failed = std::mem::replace(&mut failed, Ok(())).and_then(|()| file.read_exact(to));
            });
            failed
        })
    }
    /// Begins to write the matrix to its room. The result keeps its memory until it is waited for.
    ///
    /// # Panics
    /// If the matrix has another shape.
    pub fn begin_store(&mut self, matrix: Tensor<D>) -> Moving<D> {
        assert_eq!(matrix.shape(), self.shape, "a matrix of another shape");
        self.written = true;
        self.device.meter().moves(self.bytes());
        let (at, bytes) = (self.at, self.bytes());
        self.moving(matrix, move |file, matrix| {
            file.seek(SeekFrom::Start(at))?;
            D::Place::bytes(matrix.buffer(), bytes, &mut |some| file.write_all(some))
        })
    }
    fn moving(
        &self,
        mut matrix: Tensor<D>,
        work: impl FnOnce(&mut File, &mut Tensor<D>) -> Result<()> + Send + 'static,
    ) -> Moving<D> {
        if !D::Place::HOLDS {
            return Moving::Done(matrix);
        }
        let work = move |file: &mut File| work(file, &mut matrix).map(|()| matrix);
        Moving::UnderWay(self.store.clone(), self.store.run(work))
    }
}

impl<D: Device> Drop for Away<D> {
    fn drop(&mut self) {
        self.device.meter().forget_away(self.bytes());
    }
}

/// A matrix that is on its way to its device or from it.
#[must_use = "the matrix is on its way until it is waited for"]
pub enum Moving<D: Device> {
    /// It has arrived.
    Done(Tensor<D>),
    /// It is on its way.
    UnderWay(Store, Receiver<std::result::Result<Tensor<D>, String>>),
}

impl<D: Device> Moving<D> {
    /// Waits for the move, and returns the matrix.
    ///
    /// # Panics
    /// With [`PlaceError`], if the move failed.
    pub fn wait(self) -> Tensor<D> {
        match self {
            Self::Done(matrix) => matrix,
            Self::UnderWay(store, outcome) => store.wait(&outcome),
        }
    }
}

/// Takes these bytes of the disk for the file, so that no later write finds the disk full.
fn grow(file: &File, at: u64, bytes: u64) -> Result<()> {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: an open file, and numbers.
        let taken = unsafe { libc::fallocate(file.as_raw_fd(), 0, at as i64, bytes.max(1) as i64) };
        let why = std::io::Error::last_os_error();
        if taken == 0 || why.raw_os_error() != Some(libc::EOPNOTSUPP) {
            return if taken == 0 { Ok(()) } else { Err(why) };
        }
    }
    file.set_len(at + bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, MetaPlace, On, OutOfMemory};

    fn store<D: Device<Place: Default>>() -> (D::Place, Store) {
        (D::Place::default(), Store::new(std::env::temp_dir()))
    }

    /// Kills: a matrix in another's room, one read before it was written or begun, moves out of order, a
    /// matrix that begins with other values than zeros.
    #[test]
    fn matrices_come_back_as_they_left() {
        let (host, store) = store::<Cpu<f32>>();
        let (f32s, bytes) = (Cpu::<f32>::on(&host), Cpu::<f64>::on(&host));
        let mut narrow: Vec<_> = (0..9).map(|n| Away::new(&store, f32s, [n, 7])).collect();
        let mut wide = Away::new(&store, bytes, [1, 1000]);
        assert_eq!(wide.load().read().unwrap(), [0.0; 1000]);
        let of = |n: usize, round: usize| {
            Tensor::from_fn(f32s, Category::Optimizer, n, 7, |i| (i + n + 10 * round) as f32)
        };
        for round in 0..3 {
            let stored: Vec<_> =
                narrow.iter_mut().zip(0..).map(|(n, i)| n.begin_store(of(i, round))).collect();
            let all = wide
                .begin_store(Tensor::from_fn(bytes, Category::Optimizer, 1, 1000, |i| (i + round) as f64));
            narrow.iter_mut().for_each(Away::begin_load);
            let loaded: Vec<_> = narrow.iter_mut().map(|n| n.load().read().unwrap()).collect();
            assert_eq!(loaded, (0..9).map(|n| of(n, round).read().unwrap()).collect::<Vec<_>>());
            drop((stored.into_iter().map(Moving::wait).collect::<Vec<_>>(), all.wait()));
            assert_eq!(wide.read().read().unwrap()[999], (999 + round) as f64);
        }
    }

    /// Kills: bytes that are away counted as held, a copy that is in flight not counted, one counted twice; a
    /// price that differs from what is held; bytes that stay counted.
    #[test]
    fn a_meter_counts_what_is_away_what_moves_and_what_is_here() {
        fn counted<D: Device<Place: Default>>() -> Vec<(usize, usize, u64)> {
            let (place, store) = store::<D>();
            let device = D::on(&place);
            let mut away = Away::new(&store, device, [3, 5]);
            let now = || {
                let meter = device.meter();
                (meter.away(), meter.now(Category::InFlight), meter.moved())
            };
            let mut seen = vec![now()];
            let matrix = away.load();
            seen.push(now());
            let stored = away.begin_store(matrix);
            seen.push(now());
            drop(stored.wait());
            seen.push(now());
            away.begin_load();
            away.begin_load();
            seen.push(now());
            drop(away);
            seen.push(now());
            seen
        }
        let wanted = [(60, 0, 0), (60, 60, 0), (60, 60, 60), (60, 0, 60), (60, 60, 120)];
        let host = counted::<Cpu<f32>>();
        assert_eq!((&host[..5], host[5].0), (&wanted[..], 0));
        assert_eq!(counted::<On<MetaPlace, f32>>()[..5], wanted);
    }

    /// Kills: a panic or a silence in the place of a sentence.
    #[test]
    fn a_folder_that_takes_no_file_is_named() {
        let folder = tempfile::tempdir().unwrap().path().join("none");
        let store = Store::new(folder);
        let why = PlaceError::caught(|| drop(Away::new(&store, &Cpu::<f32>::default(), [1, 1]))).unwrap_err();
        assert!(
            why.0.starts_with("the file of offloaded state in ") && why.0.contains("none fails: "),
            "{why}"
        );
        let huge = || {
            let store = Store::new(std::env::temp_dir());
            drop(Away::new(&store, &Cpu::<f32>::default(), [1 << 31, 1 << 28]));
        };
        assert!(OutOfMemory::caught(|| PlaceError::caught(huge)).unwrap().is_err());
    }
}
