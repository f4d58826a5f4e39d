//! Whether ranks meet: every message is received that is sent, and nobody waits for ever.
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
    matched(plan, rows)?;
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

/// Every message once, from the rank that sends it to the rank that receives it.
fn matched(plan: &Plan, rows: &[Vec<Step>]) -> Result<(), String> {
    let mut ends = vec![[[None; 2]; 2]; plan.units()]; // by payload: as it is sent, as it is received
    for (rank, step) in
        rows.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |step| (rank, step)))
    {
        let (what, of, side, way) = match *step {
            Step::Run { .. } => continue,
            Step::Send(what, of, to) => (what, of, 0, (rank, to)),
            Step::Receive(what, of, from) => (what, of, 1, (from, rank)),
        };
        if ends[plan.number(of)][what as usize][side].replace(way).is_some() {
            return Err(format!("rank {rank} is twice to {step}"));
        }
    }
    for (rank, step) in
        rows.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |step| (rank, step)))
    {
        if let Step::Send(what, of, other) | Step::Receive(what, of, other) = *step {
            let [sent, received] = ends[plan.number(of)][what as usize];
            if sent != received {
                return Err(format!("rank {rank} is to {step}, and rank {other} has no such message"));
            }
        }
    }
    Ok(())
}

/// All rows gone through at once, each rank as far as it can.
struct Play<'a> {
    plan: &'a Plan,
    rows: &'a [Vec<Step>],
    most: usize,                                // messages of a kind to a rank under way
    ticks: Vec<Range<usize>>, // of each rank: what is between the cell that it has run and the next
    waits: Vec<usize>,        // and for how much of that it waits
    posted: Vec<[[bool; 2]; 2]>, // by unit and payload: to be sent, to be received
    ways: BTreeMap<(usize, usize, usize), Way>, // by sender, receiver and payload
    ready: Vec<usize>,        // ranks that may be able to go on
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
    /// A rank runs what it can, and posts what comes then: all that is before the next cell.
    fn goes_on(&mut self, rank: usize) {
        let row = &self.rows[rank];
        let count = |from: usize, runs| {
            row[from..].iter().take_while(|step| matches!(step, Step::Run { .. }) == runs).count()
        };
        let from = self.ticks[rank].end + count(self.ticks[rank].end, true);
        self.ticks[rank] = from..from + count(from, false);
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
                Step::Run { .. } => {}
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
