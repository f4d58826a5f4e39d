//! Calls as bytes. A frame is the length of its head, the head, and the elements that its calls carry.
use crate::call::{Message, Part};
use crate::engine::Post;
use crate::threads::{AllWindows, Into};
use crate::{Algorithm, Axes, Call, Counts, Elem, Op, Ranks, Reduce, Tag};
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

/// The longest head that is read: what is longer is no frame.
const LONGEST: usize = 1 << 26;

/// What a frame tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Now,
    Values,
    Start,
    Post,
    Finish,
    Withdraw,
    Well,
    Failed,
}

impl Told {
    const ALL: [Self; 8] = [
        Self::Now,
        Self::Values,
        Self::Start,
        Self::Post,
        Self::Finish,
        Self::Withdraw,
        Self::Well,
        Self::Failed,
    ];
}

/// The head of a frame that is written.
#[derive(Clone, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn told(&mut self, told: Told) {
        self.word(told as usize);
    }
    pub(super) fn word(&mut self, word: usize) {
        self.0.extend((word as u64).to_le_bytes());
    }
    pub(super) fn words<const N: usize>(&mut self, words: [usize; N]) {
        for word in words {
            self.word(word);
        }
    }
    pub(super) fn text(&mut self, text: &str) {
        self.word(text.len());
        self.0.extend(text.as_bytes());
    }
    pub(super) fn list(&mut self, list: impl ExactSizeIterator<Item = usize>) {
        self.word(list.len());
        list.for_each(|word| self.word(word));
    }
    pub(super) fn post(&mut self, Post { from, to, sends, lane, number }: Post) {
        self.words([from, to, sends.into(), number]);
        self.text(lane);
    }
    pub(super) fn call(&mut self, call: &Call) {
        let Call { op, reduce, peer, root, rows, cols, counts, elem, message, number, .. } = call;
        let (reduce, peer) = (reduce.map_or(0, |r| r as usize + 1), peer.map_or(0, |p| p + 1));
        let numbers = elem.join.is_some().into();
        self.words([*op as usize, reduce, peer, *root, *rows, *cols, *number, elem.size, elem.id, numbers]);
        self.text(elem.name);
        match counts {
            None => self.word(0),
            Some(Counts::Of(counts)) => {
                self.word(1);
                self.list(counts.iter().copied());
            }
            Some(Counts::Between(give, take)) => {
                self.word(2);
                self.list(give.iter().copied());
                self.list(take.iter().copied());
            }
            Some(Counts::Columns(n)) => self.words([3, *n]),
        }
        match message {
            None => self.word(0),
            Some(Message::Tagged(Tag { what, unit })) => {
                self.words([1, *unit]);
                self.text(what);
            }
            Some(Message::Part(Part { by, reduce, shape: [rows, cols], step })) => {
                self.words([2, by.node().unwrap_or(0), *reduce as usize, *rows, *cols, *step]);
                self.text(by.name());
            }
        }
        self.text(&call.to_string());
    }
    /// Writes it before these elements.
    pub(super) fn send(&self, mut to: impl Write, elements: &[&[u8]]) -> io::Result<()> {
        const SMALL: usize = 1 << 16; // goes in one piece
        let mut head = (self.0.len() as u64).to_le_bytes().to_vec();
        head.extend(&self.0);
        for elements in elements {
            if head.len() + elements.len() < SMALL {
                head.extend(*elements);
            } else {
                to.write_all(&head)?;
                head.clear();
                to.write_all(elements)?;
            }
        }
        to.write_all(&head)
    }
}

/// The head of a frame that was read; what is not as it was written reads as none.
pub(super) struct Reader {
    head: Vec<u8>,
    at: usize,
}

impl Reader {
    /// Reads the next head.
    ///
    /// # Errors
    /// Those of the connection, and if what comes is no head.
    pub(super) fn receive(from: &mut impl Read) -> io::Result<Self> {
        let mut len = [0; 8];
        from.read_exact(&mut len)?;
        let len = usize::try_from(u64::from_le_bytes(len)).unwrap_or(usize::MAX);
        if len > LONGEST {
            return Err(no_frame());
        }
        let mut head = vec![0; len];
        from.read_exact(&mut head)?;
        Ok(Self { head, at: 0 })
    }
    fn bytes(&mut self, len: usize) -> Option<&[u8]> {
        let bytes = self.head.get(self.at..self.at.checked_add(len)?)?;
        self.at += len;
        Some(bytes)
    }
    pub(super) fn told(&mut self) -> Option<Told> {
        Told::ALL.get(self.word()?).copied()
    }
    pub(super) fn word(&mut self) -> Option<usize> {
        usize::try_from(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?)).ok()
    }
    pub(super) fn text(&mut self) -> Option<String> {
        let len = self.word()?;
        String::from_utf8(self.bytes(len)?.to_vec()).ok()
    }
    pub(super) fn list(&mut self) -> Option<Arc<[usize]>> {
        let len = self.word()?;
        (0..len).map(|_| self.word()).collect()
    }
    pub(super) fn post(&mut self) -> Option<Post> {
        let (from, to, sends, number) = (self.word()?, self.word()?, self.word()? == 1, self.word()?);
        Some(Post { from, to, sends, lane: lasting(&self.text()?), number })
    }
    pub(super) fn call(&mut self) -> Option<Call> {
        let op = *Op::ALL.get(self.word()?)?;
        let reduce = self.word()?.checked_sub(1);
        let reduce = reduce.map_or(Some(None), |r| Reduce::ALL.get(r).copied().map(Some))?;
        let (peer, root, rows, cols) =
            (self.word()?.checked_sub(1), self.word()?, self.word()?, self.word()?);
        let (number, size, id, numbers) = (self.word()?, self.word()?, self.word()?, self.word()? == 1);
        let elem = Elem { name: lasting(&self.text()?), size, id, join: numbers.then_some(never) };
        let counts = match self.word()? {
            0 => None,
            1 => Some(Counts::Of(self.list()?)),
            2 => Some(Counts::Between(self.list()?, self.list()?)),
            _ => Some(Counts::Columns(self.word()?)),
        };
        let message = match self.word()? {
            0 => None,
            1 => {
                let unit = self.word()?;
                Some(Message::Tagged(Tag { what: lasting(&self.text()?), unit }))
            }
            _ => {
                let (node, reduce, shape, step) =
                    (self.word()?, self.word()?, [self.word()?, self.word()?], self.word()?);
                let by = Algorithm::named(&self.text()?, node)?;
                Some(Message::Part(Part { by, reduce: *Reduce::ALL.get(reduce)?, shape, step }))
            }
        };
        let (over, at, told) = (Ranks::all(Axes::default()), Location::caller(), Some(self.text()?.into()));
        let label = None;
        Some(Call {
            op,
            reduce,
            peer,
            root,
            rows,
            cols,
            counts,
            elem,
            over,
            label,
            at,
            message,
            told,
            number,
        })
    }
}

/// What is read where a frame should be.
pub(super) fn no_frame() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is no call")
}

/// A stand-in takes nothing, so it reduces nothing.
unsafe fn never(_: &AllWindows, _: Into, _: Range<usize>, _: Reduce) {
    unreachable!("a stand-in reduces nothing")
}

/// A text that lasts. There are as many as kinds of messages and numbers in the program.
fn lasting(text: &str) -> &'static str {
    static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    known.get(text).copied().unwrap_or_else(|| {
        let lasting = &*text.to_owned().leak();
        known.insert(lasting);
        lasting
    })
}

/// Which of the elements that a rank gives in a call another one takes. Ranks count in the group, of so many.
pub(super) fn wanted(call: &Call, ranks: usize, from: usize, to: usize) -> Range<usize> {
    let (all, elements) = (0..call.gives(ranks, from), call.elements());
    let block = |counts: Option<&Arc<[usize]>>, elements| {
        let [at, len] = call.block(counts, ranks, to, elements);
        at..at + len
    };
    let wants = match (call.op, &call.counts) {
        (Op::AllToAll, Some(Counts::Between(give, _))) => return block(Some(give), 0),
        (Op::AllToAll, _) => return block(None, elements),
        (Op::ReduceScatter, _) => return block(call.one_list(), elements),
        (Op::Scatter, _) if from == call.root => return to * elements..(to + 1) * elements,
        (Op::Send | Op::Gather, _) => to == call.root,
        (Op::Broadcast, _) => from == call.root,
        (Op::AllReduce | Op::AllGather, _) => true,
        (Op::Scatter | Op::Barrier | Op::Receive, _) => false,
    };
    if wants { all } else { 0..0 }
}
