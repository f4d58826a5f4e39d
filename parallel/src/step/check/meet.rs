//! Whether ranks meet: every message is received that is sent, and nobody waits for ever.
//!
//! Of the list's schedules naive, `GPipe`, 1F1B, ZB-H1 and Seq1F1B go without a buffer. Interleaved 1F1B, ZB-H2, ZB-V and
//! DualPipeV go with one message of a kind under way from a rank to another, looped breadth-first with M/K: where a rank begins
//! the next chunk late, what it will need has long been sent.
use super::{Payload, Plan, Step, Unit};
use std::collections::{BTreeMap, VecDeque};
use std::iter::successors;
use std::ops::Range;

/// The fewest messages of a kind from one rank to another that must be able to wait for these rows to come to their ends.
///
/// # Errors
/// If a message is not received as it is sent; if ranks wait for each other though every message can wait, the shortest cycle
/// of them.
pub(super) fn under_way(plan: &Plan, rows: &[Vec<Step>]) -> Result<usize, String> {
    matched(rows)?;
    let (mut least, mut most) = (2, plan.units().max(2));
    if let Some(cycle) = Play::over(plan, rows, most).cycle() {
        return Err(cycle);
    }
    let ends = |n: usize| Play::over(plan, rows, n).waits.iter().all(|n| *n == 0);
    if let Some(few) = (0..2).find(|n| ends(*n)) {
        return Ok(few);
    }
    while least < most {
        let middle = usize::midpoint(least, most);
        if ends(middle) { most = middle } else { least = middle + 1 }
    }
    Ok(most)
}

/// What is sent on each way is what is received, in this order: a message has a name, but no rank looks for it among others.
fn matched(rows: &[Vec<Step>]) -> Result<(), String> {
    let mut ways = BTreeMap::<_, [Vec<(Unit, &Step, Option<&Step>)>; 2]>::new(); // sent, received; by or for which cell
    for (rank, row) in rows.iter().enumerate() {
        for (n, step) in row.iter().enumerate() {
            let (way, side, of, by) = match *step {
                Step::Run { .. } | Step::Complete | Step::Update => continue,
                Step::Send(what, of, to) => ((rank, to, what as usize), 0, of, n.wrapping_sub(1)),
                Step::Receive(what, of, from) => ((from, rank, what as usize), 1, of, n + 1),
            };
            ways.entry(way).or_default()[side].push((of, step, row.get(by)));
        }
    }
    for ((from, to, _), [sent, received]) in ways {
        let n = sent.iter().zip(&received).take_while(|(sent, received)| sent.0 == received.0).count();
        if n < sent.len().max(received.len()) {
            let words = |all: Vec<(Unit, &Step, Option<&Step>)>| match all.get(n) {
                None => "do no such thing".into(),
                Some((_, step, Some(Step::Run { cell, .. }))) => format!("{step}, at {cell}"),
                Some((_, step, _)) => step.to_string(),
            };
            let (sent, received) = (words(sent), words(received));
            return Err(format!("rank {from} is first to {sent}, and rank {to} to {received}"));
        }
    }
    Ok(())
}

/// All rows gone through at once, each rank as far as it can.
struct Play<'a> {
    plan: &'a Plan,
    rows: &'a [Vec<Step>],
    most: usize,                                // messages of a kind to a rank under way
    ticks: Vec<Range<usize>>,                   // of each rank: the steps that it has posted last
    waits: Vec<usize>,                          // and for how much of that it waits
    posted: Vec<[[bool; 2]; 2]>,                // by unit and payload: to be sent, to be received
    ways: BTreeMap<(usize, usize, usize), Way>, // by sender, receiver and payload
    ready: Vec<usize>,                          // ranks that may be able to go on
}

/// Messages of a kind from one rank to another.
#[derive(Default)]
struct Way {
    under_way: usize,
    later: VecDeque<Unit>,
}

impl<'a> Play<'a> {
    /// Goes on until all ranks are at their ends, or none can go on.
    fn over(plan: &'a Plan, rows: &'a [Vec<Step>], most: usize) -> Self {
        let ranks = rows.len();
        let (posted, ready) = (vec![[[false; 2]; 2]; plan.units()], (0..ranks).collect());
        let (ticks, waits) = (vec![0..0; ranks], vec![0; ranks]);
        let mut play = Self { plan, rows, most, ticks, waits, posted, ways: BTreeMap::new(), ready };
        while let Some(rank) = play.ready.pop() {
            while play.waits[rank] == 0 && play.ticks[rank].end < rows[rank].len() {
                play.goes_on(rank);
            }
        }
        play
    }
    /// A rank runs what it can, and posts what comes then: the next message, or without a buffer all before the next cell.
    fn goes_on(&mut self, rank: usize) {
        let row = &self.rows[rank];
        let count = |from: usize, messages| {
            let all = |step: &&Step| matches!(step, Step::Send(..) | Step::Receive(..)) == messages;
            row[from..].iter().take_while(all).count()
        };
        let from = self.ticks[rank].end + count(self.ticks[rank].end, false);
        let tick = count(from, true);
        self.ticks[rank] = from..from + if self.most == 0 { tick } else { tick.min(1) };
        self.waits[rank] = self.ticks[rank].len();
        for step in &row[self.ticks[rank].clone()] {
            match *step {
                Step::Send(what, of, to) => {
                    self.ways.entry((rank, to, what as usize)).or_default().later.push_back(of);
                    self.post(rank, to, what);
                }
                Step::Receive(what, of, from) => {
                    let [sent, received] = &mut self.posted[self.plan.number(of)][what as usize];
                    *received = true;
                    if *sent {
                        self.meet(from, rank, what);
                        self.post(from, rank, what);
                    }
                }
                Step::Run { .. } | Step::Complete | Step::Update => {}
            }
        }
    }
    /// What is to be sent on a way is posted, as far as there is room.
    fn post(&mut self, from: usize, to: usize, what: Payload) {
        loop {
            let way = self.ways.entry((from, to, what as usize)).or_default();
            let Some(of) = way.later.pop_front_if(|_| way.under_way < self.most.max(1)) else { return };
            way.under_way += 1;
            self.waits[from] -= usize::from(self.most > 0);
            let [sent, received] = &mut self.posted[self.plan.number(of)][what as usize];
            *sent = true;
            if *received {
                self.meet(from, to, what);
            }
        }
    }
    fn meet(&mut self, from: usize, to: usize, what: Payload) {
        self.ways.entry((from, to, what as usize)).or_default().under_way -= 1;
        self.waits[from] -= usize::from(self.most == 0);
        self.waits[to] -= 1;
        self.ready.extend([from, to]);
    }
    /// The shortest cycle of ranks that wait to receive, if any wait: one message each, as a cell needs no more.
    fn cycle(&self) -> Option<String> {
        let awaited = |rank: usize| {
            self.rows[rank][self.ticks[rank].clone()].iter().find_map(|step| match *step {
                Step::Receive(what, of, from) if !self.posted[self.plan.number(of)][what as usize][0] => {
                    Some((step, from))
                }
                _ => None,
            })
        };
        let cycle = |start: usize| {
            let next = |&rank: &usize| awaited(rank).map(|(_, from)| from).filter(|from| *from != start);
            let all: Vec<_> = successors(Some(start), next).take(self.rows.len() + 1).collect();
            all.last().and_then(|last| awaited(*last)).filter(|(_, from)| *from == start).map(|_| all)
        };
        let shortest = (0..self.rows.len()).filter_map(cycle).min_by_key(Vec::len)?;
        let waits = |rank: &usize| {
            let (step, _) = awaited(*rank)?;
            let run = self.rows[*rank].get(self.ticks[*rank].end)?; // what it is for
            Some(format!("rank {rank} waits to {step}, to {run}"))
        };
        Some(shortest.iter().filter_map(waits).collect::<Vec<_>>().join(", and "))
    }
}
