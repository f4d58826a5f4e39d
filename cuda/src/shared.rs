//! Ranks on cards: threads of this process, which meet as they do on the host. If they share a card, their
//! copies and sums are launched on the card's one stream, after all that either rank launched before, and no
//! thread waits for the card. If each has its own card, NCCL runs their collectives: see `cards.rs`. A rank
//! that is a process has a card, too; without NCCL, what it sends and receives goes through the host.
use crate::card::{Card, arguments_of};
use crate::cards::Cards;
use crate::driver::CudaError;
use crate::gpu::{Gpu, GpuPtr, well};
use crate::launches::each;
use crate::nccl::Nccl;
use comm::{JointCall, Reduce, Reduction, SharedPlace};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::env;
use std::io::{self, Read};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tensor::PlaceError;

/// Most ranks in one reduction: a kernel's parameters hold this number of addresses.
pub const MOST_RANKS: usize = 256;

/// Addresses of the ranks' elements: `RankAddresses` of `reduce.cu`.
#[repr(C)]
struct RankAddresses {
    at: [u64; MOST_RANKS],
    count: u32,
}
arguments_of!(RankAddresses);

impl RankAddresses {
    fn of(addresses: impl Iterator<Item = u64>) -> Self {
        let mut ranks = Self { at: [0; MOST_RANKS], count: 0 };
        for address in addresses {
            ranks.at[ranks.count as usize] = address;
            ranks.count += 1;
        }
        ranks
    }
}

/// The engine that moves data between ranks on cards.
#[derive(Clone, Copy)]
pub enum CardEngine {
    /// The ranks of this process share one card.
    Card,
    /// NCCL: each rank has a card of its own.
    Nccl(&'static Nccl),
}

/// Card of a process that is one rank, and the least number of ranks on its machine.
static TAKEN: OnceLock<[usize; 2]> = OnceLock::new();

/// Makes this process one rank alone, with this local rank on its machine, of `here` ranks if their number is
/// known. Its card is `local` modulo the number of cards; returns the card's number.
///
/// # Errors
/// If there is no card.
pub fn take(local: usize, here: Option<usize>) -> Result<usize, CudaError> {
    let there = Card::count()?;
    Ok(TAKEN.get_or_init(|| [local % there, here.map_or(local + 1, |here| here.max(local + 1))])[0])
}

/// Returns the card of a process that is one rank.
fn taken() -> Option<usize> {
    TAKEN.get().map(|[card, _]| *card)
}

impl CardEngine {
    /// Returns the name that selects the engine.
    pub fn name(self) -> &'static str {
        match self {
            Self::Card => "card",
            Self::Nccl(_) => "nccl",
        }
    }
    /// Returns the engine of `ranks` ranks on this machine and, if there are several ranks, the reason in
    /// words. Chosen once: NCCL, if it is found and there is a card for each rank. The variable
    /// `EQUIPART_ENGINE` selects `card` or `nccl`.
    ///
    /// # Errors
    /// In one sentence, if there is no card or the selected engine cannot be used.
    pub fn of(ranks: usize) -> Result<(Self, Option<String>), String> {
        static CHOSEN: Mutex<BTreeMap<usize, Result<(CardEngine, Option<String>), String>>> =
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
        let gpus = if there == 1 { "1 GPU is".into() } else { format!("{there} GPUs are") };
        let own = TAKEN.get().map(|[_, ranks]| *ranks);
        // From 2.30 on, NCCL lets processes share a card if this variable is set.
        let shares = env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|set| set == "1");
        let few = there < own.map_or(ranks, |own| if shares { 1 } else { own });
        let why = match env::var("EQUIPART_ENGINE").ok().as_deref() {
            Some("card") => "EQUIPART_ENGINE=card".into(),
            Some("nccl") if few => {
                let who = own.map(|own| format!("{own} ranks or more are on this machine"));
                let who = who.unwrap_or_else(|| format!("{ranks} ranks"));
                return Err(format!(
                    "EQUIPART_ENGINE=nccl needs a GPU for each rank: {who}, and {gpus} available"
                ));
            }
            Some("nccl") => return Nccl::get().map(Self::with),
            Some(other) => return Err(format!("EQUIPART_ENGINE={other}: must be card or nccl")),
            None if few => format!("{gpus} available"),
            None if ranks < 2 => return Ok((Self::Card, None)),
            None => match Nccl::get() {
                Ok(nccl) => return Ok(Self::with(nccl)),
                Err(why) if env::var_os("EQUIPART_NCCL").is_some() => return Err(why),
                Err(why) => why,
            },
        };
        if ranks > MOST_RANKS {
            return Err(format!("{ranks} ranks on one GPU; at most {MOST_RANKS} can share it"));
        }
        let how = match own {
            None => format!("{ranks} ranks share the first GPU: {why}"),
            Some(_) => format!("each rank is a process with a GPU; data goes by host and TCP: {why}"),
        };
        Ok((Self::Card, (ranks > 1).then_some(how)))
    }
    fn with(nccl: &'static Nccl) -> (Self, Option<String>) {
        let why = format!("each rank has its own GPU, joined by NCCL {} ({})", nccl.version, nccl.library);
        (Self::Nccl(nccl), Some(why))
    }
}

impl SharedPlace for Gpu {
    fn of_world(ranks: usize, limit: Duration) -> Result<Self, String> {
        let open = |rank: usize| Card::open(rank % Card::count()?);
        let card = open(taken().unwrap_or(0)).map_err(|error| error.to_string())?;
        let cards = match CardEngine::of(ranks)?.0 {
            CardEngine::Card => None,
            CardEngine::Nccl(nccl) => {
                let cards: Result<Vec<_>, _> = (0..ranks).map(|rank| open(taken().unwrap_or(rank))).collect();
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
    fn free_device_bytes(ranks: usize) -> Option<u64> {
        let cards = match CardEngine::of(ranks) {
            Ok((CardEngine::Nccl(_), _)) => ranks,
            _ => 1,
        };
        let free = |ordinal| well(Card::open(ordinal).and_then(|card| card.memory()))[0] as u64;
        let all = Card::count().map_or(1, |there| there.min(ranks)) as u64;
        // other processes are assumed to have as much
        Some(taken().map_or_else(|| (0..cards).map(free).sum(), |card| all * free(card)))
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
    unsafe fn fill(&self, to: *mut u8, bytes: usize, from: &mut dyn Read) -> io::Result<()> {
        let mut read = vec![0; bytes];
        from.read_exact(&mut read)?;
        well(self.card().put(to as u64, &read));
        Ok(())
    }
    unsafe fn reduce(&self, reduction: &Reduction) {
        let (range, bytes) = (reduction.range.clone(), if reduction.number() == "bf16" { 2 } else { 4 });
        let sources = || reduction.windows().map(|window| window as u64 + (range.start * bytes) as u64);
        let targets = match reduction.place {
            None => RankAddresses::of(sources()),
            Some(to) => RankAddresses::of(std::iter::once(to as u64)),
        };
        let (len, stab) = (range.len() as u64, u32::from(reduction.how == Reduce::Stab));
        let kernel = ("reduce", reduction.number());
        self.launch(kernel, each(self, range.len()), &[&RankAddresses::of(sources()), &targets, &len, &stab]);
    }
    fn joins(&self) -> bool {
        self.cards().is_some()
    }
    unsafe fn jointly(&self, joint: &JointCall) {
        // SAFETY: the caller promises it.
        let launched = self.cards().map_or(Ok(()), |cards| unsafe { cards.launch(joint) });
        launched.unwrap_or_else(|why| PlaceError(why).unwind());
    }
    fn drawn(&self) -> Vec<u8> {
        let drawn = self.cards().map_or(Ok(Vec::new()), |cards| cards.drawn());
        drawn.unwrap_or_else(|why| PlaceError(why).unwind())
    }
}

#[cfg(test)]
mod tests;
