//! Matrices that are kept off their device between uses: in one unnamed file a rank, or in the host's pinned
//! memory. A thread moves them, in the order in which moves are begun, while the rank computes.
//!
//! The file is read and written, not mapped: an error of the disk is then a sentence, where a mapping would
//! end the process. It has no name, so nothing is left of it however the process ends.
use crate::{Category, Device, Place, PlaceError, StoreKind, Tensor, count, files, limits};
use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Result, Seek, SeekFrom, Write};
use std::mem::replace;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};

/// A rank's store off its device. Its file, if it has one, is opened when the first room is reserved. Clones
/// are one store.
#[derive(Clone)]
pub struct Store(Arc<Opened>);

struct Opened {
    folder: Option<PathBuf>,      // of the file
    end: AtomicU64,               // bytes reserved
    moves: OnceLock<Sender<Job>>, // once it is opened
}

/// Work of the thread that moves.
type Job = Box<dyn FnOnce(&mut Option<File>) + Send>;

impl Store {
    /// Creates a rank's store, in a file of this folder.
    pub fn file(folder: PathBuf) -> Self {
        Self::of(Some(folder))
    }
    /// Creates a rank's store, in pinned memory of the host.
    pub fn host() -> Self {
        Self::of(None)
    }
    fn of(folder: Option<PathBuf>) -> Self {
        Self(Arc::new(Opened { folder, end: AtomicU64::new(0), moves: OnceLock::new() }))
    }
    fn kind(&self) -> StoreKind {
        if self.0.folder.is_some() { StoreKind::File } else { StoreKind::Host }
    }
    /// Ends the rank with a sentence on its store.
    fn fail(&self, why: impl Display) -> ! {
        let said = match &self.0.folder {
            None => format!("offloaded state in the host's memory fails: {why}"),
            Some(folder) => {
                let folder = folder.display();
                format!(
                    "the file of offloaded state in {folder} fails: {why}; --offload-dir gives another folder"
                )
            }
        };
        PlaceError(said).unwind()
    }
    /// Lets the thread run `work` after all earlier work; returns where its outcome arrives.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Option<File>) -> Result<T> + Send + 'static,
    ) -> Receiver<std::result::Result<T, String>> {
        let (done, outcome) = channel();
        let work = move |file: &mut Option<File>| {
            let worked = PlaceError::caught(|| work(file).map_err(|why| why.to_string()));
            let _ = done.send(worked.unwrap_or_else(|error| Err(error.0))); // nobody waits after a failure
        };
        let opened = self.0.moves.get_or_init(|| {
            let opened = self.0.folder.as_ref().map(tempfile::tempfile_in).transpose();
            let mut file = opened.unwrap_or_else(|why| self.fail(why));
            let (moves, coming) = channel::<Job>();
            limits::spawn(move || coming.iter().for_each(|work| work(&mut file)));
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
    room: Room<D::Place>,
    shape: [usize; 2],
    written: bool,
    coming: Option<Move<D>>,
}

/// The place of a matrix in its store: the position in the file, or memory of its own.
enum Room<P: Place> {
    File(u64),
    Host(Arc<Mutex<P::Pinned>>),
}

impl<P: Place> Clone for Room<P> {
    fn clone(&self) -> Self {
        match self {
            Self::File(at) => Self::File(*at),
            Self::Host(memory) => Self::Host(memory.clone()),
        }
    }
}

impl<P: Place> Room<P> {
    /// Takes this many bytes of a store.
    fn new(store: &Store, place: &P, bytes: usize) -> Self {
        if store.0.folder.is_none() {
            let memory = place.pin(bytes).unwrap_or_else(|| store.fail("the system has no more"));
            return Self::Host(Arc::new(Mutex::new(memory)));
        }
        let offset = store.0.end.fetch_add(bytes as u64, Relaxed);
        if P::HOLDS {
            store.wait(&store.run(move |file| files::grow(opened(file), offset, bytes as u64)));
        }
        Self::File(offset)
    }
    /// Fills a piece of the device's memory.
    fn read(&self, file: &mut Option<File>, to: &mut P::Buffer, bytes: usize) -> Result<()> {
        let (at, file) = match self {
            Self::File(at) => (*at, opened(file)),
            Self::Host(memory) => {
                P::copy_in(&memory.lock().expect("nothing panics under this lock"), to, bytes);
                return Ok(());
            }
        };
        let mut failed = file.seek(SeekFrom::Start(at)).map(|_| ());
        P::put::<u8>(to, bytes, |_, to| {
            failed = replace(&mut failed, Ok(())).and_then(|()| file.read_exact(to));
        });
        failed
    }
    /// Takes over a piece of the device's memory.
    fn write(&self, file: &mut Option<File>, from: &P::Buffer, bytes: usize) -> Result<()> {
        match self {
            Self::File(at) => {
                let file = opened(file);
                file.seek(SeekFrom::Start(*at))?;
                P::bytes(from, bytes, &mut |some| file.write_all(some))
            }
            Self::Host(memory) => {
                P::copy_out(from, &mut memory.lock().expect("nothing panics under this lock"), bytes);
                Ok(())
            }
        }
    }
}

fn opened(file: &mut Option<File>) -> &mut File {
    file.as_mut().expect("a store of files opens one")
}

impl<D: Device> Away<D> {
    /// Reserves room for a matrix of this shape.
    ///
    /// # Panics
    /// With [`PlaceError`], if the file cannot be opened, or there is no room.
    pub fn new(store: &Store, device: &D, shape: [usize; 2]) -> Self {
        let bytes = bytes_of::<D>(shape);
        let (room, device, store) = (Room::new(store, device.place(), bytes), device.clone(), store.clone());
        device.meter().keep_away(bytes);
        Self { device, store, room, shape, written: false, coming: None }
    }
    fn bytes(&self) -> usize {
        bytes_of::<D>(self.shape)
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
    fn moved_here(&self) -> Move<D> {
        let [rows, cols] = self.shape;
        let mut here = Tensor::empty(&self.device, Category::InFlight, rows, cols);
        if !self.written {
            here.write(&mut |_| crate::Scalar::ZERO);
            return Move::Done(here);
        }
        self.device.meter().moves(self.bytes());
        let (room, bytes) = (self.room.clone(), self.bytes());
        self.moving(here, move |file, here| room.read(file, here.buffer_mut(), bytes))
    }
    /// Begins to write the matrix to its room. The result keeps its memory until it is waited for.
    ///
    /// # Panics
    /// If the matrix has another shape.
    pub fn begin_store(&mut self, matrix: Tensor<D>) -> Move<D> {
        assert_eq!(matrix.shape(), self.shape, "a matrix of another shape");
        self.written = true;
        self.device.meter().moves(self.bytes());
        let (room, bytes) = (self.room.clone(), self.bytes());
        self.moving(matrix, move |file, matrix| room.write(file, matrix.buffer(), bytes))
    }
    fn moving(
        &self,
        mut matrix: Tensor<D>,
        work: impl FnOnce(&mut Option<File>, &mut Tensor<D>) -> Result<()> + Send + 'static,
    ) -> Move<D> {
        if !D::Place::HOLDS {
            let clock = self.device.place().clock();
            let number = clock.map(|clock| clock.start_move(self.store.kind(), self.bytes()));
            return Move::Counted(matrix, number);
        }
        let work = move |file: &mut Option<File>| work(file, &mut matrix).map(|()| matrix);
        Move::UnderWay(self.store.clone(), self.store.run(work))
    }
}

impl<D: Device> Drop for Away<D> {
    fn drop(&mut self) {
        self.device.meter().forget_away(self.bytes());
    }
}

/// A matrix that is on its way to its device or from it.
#[must_use = "the matrix is on its way until it is waited for"]
pub enum Move<D: Device> {
    /// Finished.
    Done(Tensor<D>),
    /// Not made, on a place that computes nothing: its number on the clock, if there is one.
    Counted(Tensor<D>, Option<usize>),
    /// Under way.
    UnderWay(Store, Receiver<std::result::Result<Tensor<D>, String>>),
}

impl<D: Device> Move<D> {
    /// Waits for the move, and returns the matrix.
    ///
    /// # Panics
    /// With [`PlaceError`], if the move failed.
    pub fn wait(self) -> Tensor<D> {
        match self {
            Self::Done(matrix) => matrix,
            Self::Counted(matrix, number) => {
                let clock = matrix.device().place().clock();
                clock.zip(number).inspect(|(clock, number)| clock.finish_move(*number));
                matrix
            }
            Self::UnderWay(store, outcome) => store.wait(&outcome),
        }
    }
}

fn bytes_of<D: Device>([rows, cols]: [usize; 2]) -> usize {
    count::product("the bytes of offloaded state", &[rows, cols, size_of::<D::Elem>()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, MetaPlace, On, OutOfMemory};

    fn stores() -> [Store; 2] {
        [Store::file(std::env::temp_dir()), Store::host()]
    }

    /// Kills: a matrix in another's room, one read before it was written or begun, moves out of order, a
    /// matrix that begins with other values than zeros.
    #[test]
    fn matrices_come_back_as_they_left() {
        stores().iter().for_each(come_back);
    }
    fn come_back(store: &Store) {
        let host = crate::Host::default();
        let (f32s, bytes) = (Cpu::<f32>::on(&host), Cpu::<f64>::on(&host));
        let mut narrow: Vec<_> = (0..9).map(|n| Away::new(store, f32s, [n, 7])).collect();
        let mut wide = Away::new(store, bytes, [1, 1000]);
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
            drop((stored.into_iter().map(Move::wait).collect::<Vec<_>>(), all.wait()));
            assert_eq!(wide.read().read().unwrap()[999], (999 + round) as f64);
        }
    }

    /// Kills: bytes that are away counted as held, a copy that is in flight not counted, one counted twice; a
    /// price that differs from what is held; bytes that stay counted.
    #[test]
    fn a_meter_counts_what_is_away_what_moves_and_what_is_here() {
        fn counted<D: Device<Place: Default>>(store: &Store) -> Vec<(usize, usize, u64)> {
            let place = D::Place::default();
            let device = D::on(&place);
            let mut away = Away::new(store, device, [3, 5]);
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
            drop(Away::new(store, device, [2, 5]));
            seen.push(now());
            seen
        }
        let wanted = [(60, 0, 0), (60, 60, 0), (60, 60, 60), (60, 0, 60), (60, 60, 120)];
        for store in stores() {
            let host = counted::<Cpu<f32>>(&store);
            assert_eq!((&host[..5], host[5].0), (&wanted[..], 60));
            assert_eq!(counted::<On<MetaPlace, f32>>(&store)[..5], wanted);
        }
    }

    /// Kills: a panic or a silence in the place of a sentence.
    #[test]
    fn a_folder_that_takes_no_file_is_named() {
        let folder = tempfile::tempdir().unwrap().path().join("none");
        let store = Store::file(folder);
        let why = PlaceError::caught(|| drop(Away::new(&store, &Cpu::<f32>::default(), [1, 1]))).unwrap_err();
        assert!(
            why.0.starts_with("the file of offloaded state in ") && why.0.contains("none fails: "),
            "{why}"
        );
        let huge = || {
            let store = Store::file(std::env::temp_dir());
            drop(Away::new(&store, &Cpu::<f32>::default(), [1 << 31, 1 << 28]));
        };
        assert!(OutOfMemory::caught(|| PlaceError::caught(huge)).unwrap().is_err());
    }
}
