//! What is done in place of a rank of another process: the calls that it tells of, in its order.
use super::frame::{Reader, Told, no_frame};
use super::meeting::Processes;
use crate::engine::Standing;
use crate::record::Begun;
use crate::shared::SharedPlace;
use crate::{Call, CommError, Engine, Engines, Members, Post, Record, Windows};
use bytemuck::cast_slice_mut;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Instant;

/// Stands in for a rank of another process.
pub(crate) struct StandIn<'a, P: SharedPlace> {
    rank: usize,
    place: &'a P,
    world: &'a dyn Engines<P>,
    record: &'a Record,
    found: &'a dyn Fn(&str), // told of ranks that wait for each other, as one of them finds
    standing: Vec<Stands<P>>,
    spare: Vec<(usize, P::Buffer)>,
}

/// How a rank has ended.
pub(crate) enum LastWord {
    Well,
    /// By this rank's failure.
    Failed(usize, String),
}

/// A post that stands; it ends before what it carries does.
struct Stands<P: SharedPlace> {
    members: Arc<[usize]>,
    post: Post,
    standing: Standing<P>,
    begun: Option<Begun>,
    carried: Vec<Carried<P>>,
}

/// What a call carries: so many bytes.
struct Carried<P: SharedPlace> {
    give: Option<P::Ptr>,
    buffer: Option<(usize, P::Buffer)>,
}

/// Calls of a frame.
type Calls<P> = Vec<(Call, Carried<P>)>;

impl<'a, P: SharedPlace> StandIn<'a, P> {
    /// For this rank, on these engines.
    pub(crate) fn new(
        rank: usize,
        (place, world): (&'a P, &'a dyn Engines<P>),
        record: &'a Record,
        found: &'a dyn Fn(&str),
    ) -> Self {
        Self { rank, place, world, record, found, standing: Vec::new(), spare: Vec::new() }
    }
    /// Makes the rank's calls until it tells that it has ended: with which failure of which rank, if with one. What else comes
    /// of a call is the rank's own to tell.
    ///
    /// # Errors
    /// That its process ended without a word.
    pub(crate) fn run(mut self, processes: &Processes) -> Result<LastWord, String> {
        let gone = |why: io::Error| match why.kind() {
            io::ErrorKind::InvalidData => format!("its process tells what cannot be understood: {why}"),
            _ => format!("its process ended without a word, or its connection broke ({why})"),
        };
        processes.told_by(self.rank, |from| {
            loop {
                match self.next(from) {
                    Ok(None) => {}
                    Ok(Some(ended)) => return Ok(ended),
                    Err(why) => return Err(gone(why)),
                }
            }
        })
    }
    /// Does what the next frame tells; its end, if it is that.
    fn next(&mut self, from: &mut impl Read) -> io::Result<Option<LastWord>> {
        let mut head = Reader::receive(from)?;
        let told = head.told().ok_or_else(no_frame)?;
        if matches!(told, Told::Well | Told::Failed) {
            let mut failure = || Some(LastWord::Failed(head.word()?, head.text()?));
            let word = if told == Told::Well { Some(LastWord::Well) } else { failure() };
            return word.ok_or_else(no_frame).map(Some);
        }
        let members = head.list().ok_or_else(no_frame)?;
        let place = members.iter().position(|&member| member == self.rank).ok_or_else(no_frame)?;
        let engine = self.world.of(&Members::List(members.clone()));
        self.does(told, (&engine, place, members), &mut head, from).map(|()| None)
    }
    fn does(
        &mut self,
        told: Told,
        (engine, rank, members): (&Arc<dyn Engine<P>>, usize, Arc<[usize]>),
        head: &mut Reader,
        from: &mut impl Read,
    ) -> io::Result<()> {
        match told {
            Told::Now => {
                let (call, carried) = self.calls(head, from)?.pop().ok_or_else(no_frame)?;
                let begun = self.record.begin(&call, 0, false).ok();
                // SAFETY: what it gives is the rank's to say; nobody else touches it, and nothing is taken.
                let outcome = unsafe { engine.now(rank, Windows { give: carried.give, take: None }, &call) };
                self.ended(begun, None, &call, &outcome);
                self.keep(carried);
            }
            Told::Values => {
                let call = head.call().ok_or_else(no_frame)?;
                let mut values = vec![0; head.word().ok_or_else(no_frame)?];
                from.read_exact(&mut values)?;
                let begun = self.record.begin(&call, 0, false).ok();
                let outcome = engine.values(rank, &values, &call);
                self.ended(begun, None, &call, &outcome);
            }
            Told::Start | Told::Post => {
                let calls = self.calls(head, from)?;
                let first = calls.first().ok_or_else(no_frame)?.0.clone();
                let begun = self.record.begin(&first, 0, true).ok();
                // SAFETY: as above; what is given is kept until the post has ended.
                let post = unsafe {
                    if told == Told::Start {
                        let windows = |(call, carried): &(Call, Carried<P>)| {
                            (Windows { give: carried.give, take: None }, call.clone())
                        };
                        engine.start(rank, &mut calls.iter().map(windows))
                    } else {
                        engine.post(rank, calls[0].1.give, &first)
                    }
                };
                if let Ok(post) = post {
                    let standing = Standing::new(engine, post, first);
                    let carried = calls.into_iter().map(|(_, carried)| carried).collect();
                    self.standing.push(Stands { members, post, standing, begun, carried });
                } else {
                    self.ended(begun, None, &first, &post);
                }
            }
            _ => {
                let post = head.post().ok_or_else(no_frame)?;
                let at = self.standing.iter().position(|s| s.post == post && s.members == members);
                let Some(at) = at else { return Ok(()) }; // of a world that has failed
                let Stands { mut standing, begun, carried, .. } = self.standing.swap_remove(at);
                if told == Told::Finish {
                    let waited = Instant::now();
                    let outcome = standing.finish();
                    self.ended(begun, Some(waited), &standing.call, &outcome);
                }
                drop(standing);
                for carried in carried {
                    self.keep(carried);
                }
            }
        }
        Ok(())
    }
    fn ended<T>(
        &self,
        begun: Option<Begun>,
        waited: Option<Instant>,
        call: &Call,
        outcome: &Result<T, CommError>,
    ) {
        begun.inspect(|&begun| self.record.end(begun, waited, call, outcome));
        if let Err(error @ CommError::Deadlock { .. }) = outcome {
            (self.found)(&error.to_string());
        }
    }
    /// Keeps memory that is free again, for what comes next.
    fn keep(&mut self, carried: Carried<P>) {
        const MOST: usize = 32;
        self.spare.extend(carried.buffer);
        if self.spare.len() > MOST {
            self.spare.remove(0);
        }
    }
    /// The calls of a frame, with what they carry.
    fn calls(&mut self, head: &mut Reader, from: &mut impl Read) -> io::Result<Calls<P>> {
        let mut read = || {
            let n = head.word()?;
            let calls: Option<Vec<_>> = (0..n).map(|_| head.call()).collect();
            let ranges: Option<Vec<_>> = (0..n).map(|_| Some([head.word()?, head.word()?])).collect();
            Some(calls?.into_iter().zip(ranges?))
        };
        let read = read().ok_or_else(no_frame)?;
        read.map(|(call, [at, len])| Ok((call, self.carried(at, len, from)?))).collect()
    }
    /// Bytes that come, which lie so far behind where the window begins.
    fn carried(&mut self, at: usize, len: usize, from: &mut impl Read) -> io::Result<Carried<P>> {
        if len == 0 {
            return Ok(Carried { give: None, buffer: None });
        }
        let mut words = vec![0u64; len.div_ceil(8)];
        from.read_exact(&mut cast_slice_mut(&mut words)[..len])?;
        let room = self.spare.iter().position(|(room, _)| *room == words.len());
        let new = || Some((words.len(), self.place.alloc(8 * words.len())?));
        let buffer = room.map(|at| self.spare.swap_remove(at)).or_else(new);
        let mut buffer = buffer.ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        P::put(&mut buffer.1, words.len(), |at, to| to.copy_from_slice(&words[at..][..to.len()]));
        let give = P::offset(P::ptr(&buffer.1), at.wrapping_neg());
        Ok(Carried { give: Some(give), buffer: Some(buffer) })
    }
}
