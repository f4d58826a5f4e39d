//! Ranks on cards: threads of this process, which meet as they do on the host. Where they share a card, what they copy and add is
//! launched on the card's one stream, so it comes after all that either rank launched before, and nobody waits for the card.
//! Where each has its own, NCCL does what they do together: see `cards.rs`. A rank that is a process has a card too, and what it
//! gives and gets goes through the host.
use crate::card::{Card, arguments_of};
use crate::cards::Cards;
use crate::driver::CudaError;
use crate::gpu::{Gpu, GpuPtr, well};
use crate::launches::each;
use crate::nccl::Nccl;
use comm::{Joint, Reduce, Reduction, SharedPlace};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::env;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tensor::PlaceError;

/// Ranks that a reduction takes: a kernel's parameters hold so many addresses.
pub const MOST_RANKS: usize = 256;

/// Where each rank's elements begin: `Ranks` of `reduce.cu`.
#[repr(C)]
struct Ranks {
    at: [u64; MOST_RANKS],
    count: u32,
}
arguments_of!(Ranks);

impl Ranks {
    fn of(addresses: impl Iterator<Item = u64>) -> Self {
        let mut ranks = Self { at: [0; MOST_RANKS], count: 0 };
        for address in addresses {
            ranks.at[ranks.count as usize] = address;
            ranks.count += 1;
        }
        ranks
    }
}

/// What carries the bytes between ranks on cards.
#[derive(Clone, Copy)]
pub enum Engine {
    /// The one card that they share: the first.
    Card,
    /// NCCL: each has a card of its own.
    Nccl(&'static Nccl),
}

/// The card of a process that is one rank.
static TAKEN: OnceLock<usize> = OnceLock::new();

/// From now on this process is one rank alone, the one of this number on its machine: it has the card of that number, counted
/// around where there are fewer; which that is.
///
/// # Errors
/// That there is no card.
pub fn take(local: usize) -> Result<usize, CudaError> {
    let there = Card::count()?;
    Ok(*TAKEN.get_or_init(|| local % there))
}

/// The card of this process, or of all its ranks if they share one.
fn first() -> usize {
    TAKEN.get().copied().unwrap_or(0)
}

impl Engine {
    /// That of so many ranks on this machine, chosen once, and in words why that one, if there are several ranks: NCCL, if it is
    /// there and as many cards are. The variable `EQUIPART_ENGINE` asks for one of them, `card` or `nccl`.
    ///
    /// # Errors
    /// In one sentence, that there is no card, or not what is asked for.
    pub fn of(ranks: usize) -> Result<(Self, Option<String>), String> {
        static CHOSEN: Mutex<BTreeMap<usize, Result<(Engine, Option<String>), String>>> =
            Mutex::new(BTreeMap::new());
        #[cfg(test)]
        if let Some(nccl) = crate::nccl::tests::PLACED.get() {
            return Ok((Self::Nccl(nccl), None));
        }
        let mut chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner);
        chosen.entry(ranks).or_insert_with(|| Self::choose(ranks)).clone()
    }
    fn choose(ranks: usize) -> Result<(Self, Option<String>), String> {
        let there = Card::count().map_err(|error| error.to_string())?;
        let asked = env::var("EQUIPART_ENGINE").ok();
        let gpus = if there == 1 { "1 GPU is".into() } else { format!("{there} GPUs are") };
        let why = match asked.as_deref() {
            Some("nccl") if TAKEN.get().is_some() => {
                return Err("EQUIPART_ENGINE=nccl: NCCL joins ranks that are threads, and RANK is set".into());
            }
            _ if TAKEN.get().is_some() => {
                let why = format!(
                    "each rank is a process with a GPU, of {there}; they are joined by TCP, through the host"
                );
                return Ok((Self::Card, Some(why)));
            }
            Some("card") => "EQUIPART_ENGINE=card".into(),
            Some("nccl") if there < ranks => {
                return Err(format!(
                    "EQUIPART_ENGINE=nccl: {ranks} ranks, and {gpus} there; NCCL takes one for each rank"
                ));
            }
            Some("nccl") => return Nccl::get().map(Self::with),
            Some(other) => return Err(format!("EQUIPART_ENGINE={other}: it is card or nccl")),
            None if there < ranks => format!("{gpus} there"),
            None if ranks < 2 => return Ok((Self::Card, None)),
            None => match Nccl::get() {
                Ok(nccl) => return Ok(Self::with(nccl)),
                Err(why) if env::var_os("EQUIPART_NCCL").is_some() => return Err(why),
                Err(why) => why,
            },
        };
        if ranks > MOST_RANKS {
            return Err(format!("{ranks} ranks on one GPU; {MOST_RANKS} are the most"));
        }
        Ok((Self::Card, (ranks > 1).then(|| format!("{ranks} ranks share the first GPU: {why}"))))
    }
    fn with(nccl: &'static Nccl) -> (Self, Option<String>) {
        let why = format!("each rank has its own GPU, by NCCL {} ({})", nccl.version, nccl.library);
        (Self::Nccl(nccl), Some(why))
    }
}

impl SharedPlace for Gpu {
    fn of_world(ranks: usize, limit: Duration) -> Result<Self, String> {
        let open = |rank: usize| Card::open(rank % Card::count()?);
        let card = open(first()).map_err(|error| error.to_string())?;
        let cards = match Engine::of(ranks)?.0 {
            Engine::Card => None,
            Engine::Nccl(nccl) => {
                let cards: Result<Vec<_>, _> = (0..ranks).map(open).collect();
                Some(Cards::new(nccl, cards.map_err(|error| error.to_string())?, limit))
            }
        };
        Ok(Self::at(card, cards))
    }
    fn of_rank(&self, rank: usize) -> Self {
        match self.cards() {
            None => Self::of(self.card()),
            Some(cards) => Self::at(cards.card(rank).clone(), Some(cards.clone())),
        }
    }
    fn free_beside_the_host(ranks: usize) -> Option<u64> {
        let cards = match Engine::of(ranks) {
            Ok((Engine::Nccl(_), _)) => ranks,
            _ => 1,
        };
        let free = |ordinal| well(Card::open(ordinal).and_then(|card| card.memory()))[0] as u64;
        let all = Card::count().map_or(1, |there| there.min(ranks)) as u64;
        let of_processes = TAKEN.get().map(|&card| all * free(card)); // others have as much, as far as is known here
        Some(of_processes.unwrap_or_else(|| (0..cards).map(free).sum()))
    }
    fn raw(GpuPtr(at): GpuPtr) -> *mut () {
        at as *mut ()
    }
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        well(self.card().copy(from as u64, to as u64, bytes));
    }
    unsafe fn bytes<'a>(&self, from: *const u8, bytes: usize) -> Cow<'a, [u8]> {
        let mut read = vec![0; bytes];
        well(self.card().get(from as u64, &mut read));
        Cow::Owned(read)
    }
    unsafe fn reduce(&self, reduction: &Reduction) {
        let (range, bytes) = (reduction.range(), if reduction.number() == "bf16" { 2 } else { 4 });
        let sources = || reduction.windows().map(|window| window as u64 + (range.start * bytes) as u64);
        let targets = match reduction.place() {
            None => Ranks::of(sources()),
            Some(to) => Ranks::of(std::iter::once(to as u64)),
        };
        let (len, stab) = (range.len() as u64, u32::from(reduction.how() == Reduce::Stab));
        let kernel = ("reduce", reduction.number());
        self.launch(kernel, each(self, range.len()), &[&Ranks::of(sources()), &targets, &len, &stab]);
    }
    fn joins(&self) -> bool {
        self.cards().is_some()
    }
    unsafe fn jointly(&self, joint: &Joint) {
        // SAFETY: the caller's promise.
        let launched = self.cards().map_or(Ok(()), |cards| unsafe { cards.launch(joint) });
        launched.unwrap_or_else(|why| PlaceError(why).unwind());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nccl::tests::{PLACED, placed};
    use crate::{Cuda, twin};
    use comm::{Axis, CommError, InPlace, Mesh, Op, Tag, World};
    use tensor::{Bf16, Category, Cpu, Device, Scalar, Tensor};

    /// All that ranks do together, on numbers that differ by rank; what each has afterwards.
    fn together<D: kernels::Kernels<Place: SharedPlace>>() -> Vec<Vec<D::Elem>> {
        let world = World::threads(&[(Axis::Tp, 3)]).unwrap();
        let ran = world.run(|device: D, mesh| {
            let (group, rank) = (mesh.group(Axis::Tp), mesh.rank());
            let draw = |seed: usize, rows, cols| {
                let value = |i| D::Elem::sample(tensor::mix((seed * 1000 + rank * 100 + i) as u64), 1.0);
                Tensor::from_fn(&device, Category::Buffers, rows, cols, value)
            };
            let [mut sum, mut most, mut sent] = [1, 2, 3].map(|seed| draw(seed, 6, 7));
            group.all_reduce(&mut sum, Reduce::Sum)?;
            group.all_reduce(&mut most, Reduce::Stab)?;
            group.broadcast(&mut sent, 1)?;
            let started = group.start_together(InPlace::ReduceScatter, vec![draw(4, 6, 5)])?;
            let counts = [1, 3, 2];
            let mut all = vec![
                group.all_gather(&draw(5, 2, 3))?,
                group.all_gather_columns(&draw(6, 2, 3), 8)?,
                group.all_gather_columns(&draw(15, 2, 3), 5)?,
                group.reduce_scatter(&draw(7, 6, 3))?,
                group.reduce_scatter_v(&draw(8, 6, 3), &counts)?,
                group.all_to_all(&draw(9, 6, 2))?,
                group.all_to_all_v(
                    &draw(12, 4 + rank, 2),
                    &[1, 2, 1 + rank],
                    &[[1, 1, 1], [2, 2, 2], [1, 2, 3]][rank],
                )?,
                group.scatter(&device, (rank == 2).then(|| draw(13, 6, 2)).as_ref(), 2, 2, 2)?,
                group.all_gather_v(&draw(10, counts[rank], 2), &counts)?,
            ];
            let next = group.start_send((rank + 1) % 3, draw(11, 1, 4), Tag::new("ring", 0))?;
            all.push(group.receive(&device, (rank + 2) % 3, 1, 4, Tag::new("ring", 0))?);
            next.wait()?;
            all.extend([sum, most, sent]);
            all.extend(group.gather(&draw(14, 2, 2), 1)?);
            let own = started.wait()?.swap_remove(0).read().unwrap();
            let own = own[rank * 10..(rank + 1) * 10].iter().copied();
            Ok::<_, CommError>(all.iter().flat_map(|x| x.read().unwrap()).chain(own).collect::<Vec<_>>())
        });
        ran.unwrap()
    }

    /// Kills: another order of addends, a sum rounded after each, a window that is off by an element or a rank.
    #[test]
    fn ranks_on_one_card_have_what_ranks_on_the_host_have_bit_for_bit() {
        if let Err(reason) = twin::install() {
            return eprintln!("ranks on one card are skipped: {reason}");
        }
        assert_eq!(together::<Cuda<f32>>(), together::<Cpu<f32>>());
        assert_eq!(together::<Cuda<Bf16>>(), together::<Cpu<Bf16>>());
    }

    /// Kills: on NCCL, another count, block, root, order or kind of number of any call; a rank that sees another's result too
    /// early; a reduction that goes past NCCL.
    #[test]
    fn ranks_on_cards_of_their_own_have_what_ranks_on_the_host_have() {
        let Some(nccl) = placed(&[]) else { return };
        PLACED.set(Some(nccl));
        assert_eq!(together::<Cuda<f32>>(), together::<Cpu<f32>>());
        assert_eq!(together::<Cuda<Bf16>>(), together::<Cpu<Bf16>>());
    }

    /// What ends a run of so many ranks that are on cards of their own.
    fn ended(ranks: usize, program: impl Fn(Cuda<f32>, Mesh<Gpu>) -> Result<(), CommError> + Sync) -> String {
        let world = World::threads(&[(Axis::Tp, ranks)]).unwrap().limit(Duration::from_secs(2));
        let error = world.run(program).unwrap_err();
        assert!(!error.reason.contains("panicked"), "{error}");
        error.reason
    }
    /// A sum of so many numbers, and what comes after it.
    fn sum(device: &Cuda<f32>, mesh: &Mesh<Gpu>, len: usize) -> Result<Tensor<Cuda<f32>>, CommError> {
        let mut x = Tensor::from_fn(device, Category::Buffers, 1, len, |_| 1.0);
        mesh.group(Axis::Tp).named("loss").all_reduce(&mut x, Reduce::Sum)?;
        Ok(x)
    }

    /// Kills: a failure of NCCL that hangs, goes unnoticed, has another's name, or takes another world with it.
    #[test]
    fn what_fails_in_nccl_ends_all_ranks_with_its_sentence() {
        let Some(nccl) = placed(&[]) else { return };
        PLACED.set(Some(nccl));
        let broken = ended(3, |device, mesh| {
            let x = sum(&device, &mesh, 4001)?;
            drop(x.read());
            unreachable!("the sum is no sum")
        });
        let remote = "what NCCL was asked for failed: remote process exited or there was a network error";
        assert_eq!(broken, remote);
        let waits = ended(3, |device, mesh| {
            let x = sum(&device, &mesh, 4001)?;
            mesh.group(Axis::Tp).barrier()?;
            std::thread::sleep(2 * crate::cards::EVERY); // it is noticed by who watches
            sum(&device, &mesh, 7).map(|_| drop(x))
        });
        assert_eq!(waits, remote);
        let never = ended(3, |device, mesh| sum(&device, &mesh, 4003).map(drop));
        let words = "all_reduce(sum) over tp of 1x4003 f32 for loss at cuda/src/shared.rs:";
        let end = ": NCCL's rank 0 was not ready within 1s";
        assert!(never.starts_with(words) && never.ends_with(end), "{never}");
        let alone = ended(13, |device, mesh| sum(&device, &mesh, 7).map(drop));
        assert!(alone.ends_with(": ncclCommInitRankConfig failed: unhandled system error"), "{alone}");
        assert_eq!(together::<Cuda<f32>>(), together::<Cpu<f32>>(), "worlds after them are well");
    }

    /// Kills: a call that never ends on cards and nobody tells of, or of which the wrong one is told.
    #[test]
    fn cards_that_wait_for_ever_are_named() {
        let Some(nccl) = placed(&[]) else { return };
        PLACED.set(Some(nccl));
        let stuck = |came| {
            ended(3, |device, mesh| {
                if mesh.rank() == 0 {
                    twin::events(came); // those of the first launch, and what it stands for: rank 0 launches
                }
                let x = sum(&device, &mesh, 5)?;
                loop {
                    std::thread::sleep(crate::cards::EVERY);
                    x.read();
                }
            })
        };
        let words =
            "the GPU of rank 2 did not come within 2s to all_reduce(sum) over tp of 1x5 f32 for loss at ";
        let seen = stuck(2);
        assert!(seen.starts_with(words) && seen.ends_with("; that of ranks 0, 1 did"), "{seen}");
        let seen = stuck(3);
        let words = "the GPUs of ranks 0, 1, 2 came to all_reduce(sum) over tp of 1x5 f32 for loss at ";
        assert!(seen.starts_with(words) && seen.ends_with(" and did not end it within 2s"), "{seen}");
    }

    /// Kills: ranks on cards whose calls are not compared, or that wait for each other on their cards.
    #[test]
    fn who_disagrees_or_does_not_come_is_named_before_anything_is_launched() {
        let Some(nccl) = placed(&[]) else { return };
        PLACED.set(Some(nccl));
        let other = ended(2, |device, mesh| sum(&device, &mesh, 5 + mesh.rank()).map(drop));
        assert!(other.starts_with("ranks disagree: rank "), "{other}");
        let finished = ended(2, |device, mesh| match mesh.rank() {
            0 => sum(&device, &mesh, 5).map(drop),
            _ => Ok(()),
        });
        assert!(
            finished.starts_with("rank 1 has finished and will not come to all_reduce(sum)"),
            "{finished}"
        );
        let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap();
        let sums = world.run(|device: Cuda<f32>, mesh| {
            let (tp, dp) = (mesh.group(Axis::Tp), mesh.group(Axis::Dp));
            let one = |x: usize| vec![Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| x as f32)];
            let mut seen = Vec::new();
            for round in 0..100 {
                // Each ends what it started in the other order.
                let a = tp.start_together(InPlace::AllReduce(Reduce::Sum), one(mesh.rank() + round))?;
                let b = dp.start_together(InPlace::AllReduce(Reduce::Stab), one(mesh.rank() + round))?;
                let ended = if mesh.rank() % 2 == 0 {
                    [a.wait()?, b.wait()?]
                } else {
                    let b = b.wait()?;
                    [a.wait()?, b]
                };
                seen.extend(ended.map(|x| x[0].read().unwrap()[0] as usize - round));
            }
            let moved = mesh.ledger().get(Axis::Tp, Op::AllReduce).calls;
            Ok::<_, CommError>((moved, seen))
        });
        for (rank, (calls, seen)) in sums.unwrap().into_iter().enumerate() {
            let (sum, most) = (2 * (rank / 2 * 2) + 1, rank % 2 + 2);
            let wanted = (0..100).flat_map(|round| [sum + round, most]);
            assert_eq!(calls, 100);
            assert!(wanted.eq(seen), "rank {rank}");
        }
    }

    /// Kills: a failure of the driver that is a panic with a backtrace, or none at all.
    #[test]
    fn memory_that_a_card_has_not_ends_the_rank_with_a_sentence() {
        if let Err(reason) = twin::install() {
            return eprintln!("memory of a card is skipped: {reason}");
        }
        let world = World::threads(&[(Axis::Tp, 2)]).unwrap();
        let ran = world.run(|device: Cuda<f32>, mesh| {
            let rows = if mesh.rank() == 1 { 1 << 40 } else { 1 };
            let x = Tensor::empty(&device, Category::Weights, rows, 1);
            mesh.group(Axis::Tp).barrier()?;
            Ok::<_, CommError>(x.len())
        });
        let wanted =
            "4398046511104 more bytes of weights do not fit beside the 0 held: the system has no more";
        assert_eq!(ran.unwrap_err().reason, wanted);
        let device = Cuda::<f32>::default();
        assert!(device.place().card().settle().is_ok());
        let error = Card::open(1).err().map(|error| error.to_string());
        assert_eq!(error.unwrap(), "no GPU 1: there are 1, counted from 0");
    }
}
