//! The proof of every algorithm: its schedule, run on symbols. A chunk of a rank is how often it holds each
//! rank's contribution; at the end everyone must hold everyone's once.
use crate::schedule::{Arrival, CommSchedule, Transfer};
use crate::{Algorithm, bound};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// `[rank][chunk][contributor]`: how often.
type Contributions = Vec<Vec<Vec<usize>>>;

/// Everyone's own data.
fn at_first(schedule: &CommSchedule) -> Contributions {
    let own = |rank| (0..schedule.ranks()).map(|contributor| usize::from(contributor == rank)).collect();
    (0..schedule.ranks()).map(|rank| vec![own(rank); schedule.chunks()]).collect()
}

/// A message arrives, with what its sender had.
fn arrive(transfer: &Transfer, had: &Contributions, held: &mut Contributions) {
    for chunk in transfer.chunks.clone() {
        let (sent, own) = (&had[transfer.from][chunk], &mut held[transfer.to][chunk]);
        match transfer.how {
            Arrival::Add => own.iter_mut().zip(sent).for_each(|(own, sent)| *own += sent),
            Arrival::Replace => own.clone_from(sent),
        }
    }
}

/// Every algorithm in every division into nodes, on 1 to 17 ranks.
fn all() -> impl Iterator<Item = (Algorithm, CommSchedule)> {
    let nodes = |ranks: usize| (1..=ranks).filter(move |node| ranks.is_multiple_of(*node));
    let of = move |ranks| nodes(ranks).flat_map(Algorithm::all).map(move |a| (a, a.schedule(ranks).unwrap()));
    (1..=17).flat_map(of)
}

/// Kills: a chunk of the wrong rank, a contribution that is lost or counted twice, a sum where a copy
/// belongs, a step too few.
#[test]
fn every_rank_ends_with_every_contribution_once() {
    for (algorithm, schedule) in all() {
        let (mut at_once, mut in_turn) = (at_first(&schedule), at_first(&schedule));
        for step in schedule.rounds() {
            let before = at_once.clone();
            step.transfers.iter().for_each(|transfer| arrive(transfer, &before, &mut at_once));
            step.transfers.iter().rev().for_each(|transfer| arrive(transfer, &in_turn.clone(), &mut in_turn));
        }
        let ranks = schedule.ranks();
        let wanted = vec![vec![vec![1; ranks]; schedule.chunks()]; ranks];
        assert!(at_once == wanted, "{algorithm:?} of {ranks} ranks: {at_once:?}");
        assert!(in_turn == wanted, "{algorithm:?} of {ranks} ranks, one by one: {in_turn:?}");
    }
}

/// Kills: transfers of one step that may not run at once; ranks, chunks or messages that are none.
#[test]
fn transfers_of_a_step_do_not_meet() {
    for (algorithm, schedule) in all() {
        let (ranks, chunks) = (schedule.ranks(), schedule.chunks());
        for step in schedule.rounds() {
            let (mut sent, mut written) = (HashSet::new(), HashMap::<_, &Transfer>::new());
            for t in &step.transfers {
                assert!(t.from < ranks && t.to < ranks && t.from != t.to, "{algorithm:?} of {ranks}: {t:?}");
                assert!(t.chunks.start < t.chunks.end && t.chunks.end <= chunks, "{algorithm:?}: {t:?}");
                sent.extend(t.chunks.clone().map(|chunk| (t.from, chunk)));
                for chunk in t.chunks.clone() {
                    if let Some(other) = written.insert((t.to, chunk), t) {
                        let both_add = [t.how, other.how] == [Arrival::Add; 2] && t.chunks == other.chunks;
                        assert!(
                            both_add && other.from < t.from,
                            "{algorithm:?} of {ranks}: written twice in {step:?}"
                        );
                    }
                }
            }
            assert!(
                sent.iter().all(|place| !written.contains_key(place)),
                "{algorithm:?} of {ranks}: sent and written in {step:?}"
            );
            // In one step of the direct algorithm all pairs of ranks talk, in one of the others each rank
            // with one.
            let all_pairs = algorithm == Algorithm::Direct;
            let once = |end: fn(&Transfer) -> usize| {
                let ends: HashSet<_> = step.transfers.iter().map(end).collect();
                ends.len() == step.transfers.len()
            };
            assert!(all_pairs || once(|t| t.from), "{algorithm:?}: two sent by one");
            assert!(all_pairs || once(|t| t.to), "{algorithm:?}: two received by one");
            assert!(!step.transfers.is_empty() && !step.phase.is_empty());
        }
    }
}

/// Kills: a bound that is none, or that nothing reaches, or that adds up what may overlap. Nobody moves less
/// than 2(n−1)·N in all.
#[test]
fn nothing_beats_the_bound_and_free_latency_reaches_it() {
    let links = ["0s,1GB/s", "5us,25GB/s", "1ms,1TB/s"].map(|link| link.parse().unwrap());
    for (algorithm, schedule) in all() {
        let ranks = schedule.ranks();
        for elements in [0, 1, 1009, 720_720] {
            let sent: usize = (0..ranks).map(|rank| schedule.sent(rank, elements)).sum();
            assert_eq!(sent, 2 * (ranks - 1) * elements, "{algorithm:?} of {ranks}");
            for link in &links {
                let (taken, least) = (schedule.time(link, 4, elements), bound(ranks, link, 4, elements));
                let rounding = Duration::from_nanos(schedule.rounds().len() as u64 + 1);
                assert!(taken + rounding >= least, "{algorithm:?} of {ranks}: {taken:?} of {least:?}");
                let reaches = algorithm == Algorithm::Ring && elements.is_multiple_of(ranks);
                assert!(!reaches || link.latency() > Duration::ZERO || taken <= least + rounding);
            }
        }
    }
    let latency = |ranks| bound(ranks, &"1us,1TB/s".parse().unwrap(), 4, 0).as_micros();
    assert_eq!([0, 1, 2, 3, 4, 5, 8, 9, 64].map(latency), [0, 0, 1, 2, 2, 3, 3, 4, 6]);
    let both = |link: &str| bound(4, &link.parse().unwrap(), 4, 1000).as_micros(); // 2·α, 1500·4·β
    assert_eq!((both("2us,1GB/s"), both("4us,1GB/s")), (6, 8));
    assert_eq!(bound(64, &"0s,1B/s".parse().unwrap(), usize::MAX, usize::MAX).as_secs(), usize::MAX as u64);
}

/// Kills: an algorithm missing from the list, nodes that do not divide, a panic where there are no ranks.
#[test]
fn names_and_nodes_are_checked() {
    let names: Vec<_> = Algorithm::all(2).iter().map(|a| a.name()).collect();
    assert_eq!(
        (&names[..], Algorithm::NAMES),
        (&["naive", "direct", "ring", "tree", "hierarchical"][..], &names[..])
    );
    assert_eq!(Algorithm::named("hierarchical", 3), Some(Algorithm::Hierarchical { node: 3 }));
    assert_eq!((Algorithm::named("ring", 3), Algorithm::named("Ring", 3)), (Some(Algorithm::Ring), None));
    let nodes: Vec<_> = Algorithm::all(7).into_iter().map(Algorithm::node).collect();
    assert_eq!(nodes, [None, None, None, None, Some(7)]);
    for algorithm in Algorithm::all(1) {
        assert_eq!(
            algorithm.schedule(0).unwrap_err().to_string(),
            "an all-reduce needs 1 rank or more, not 0"
        );
    }
    for node in [0, 5, 24] {
        let why = Algorithm::Hierarchical { node }.schedule(12).unwrap_err().to_string();
        let wanted =
            format!("12 ranks cannot form nodes of {node}: a node's size must be 1, 2, 3, 4, 6 or 12");
        assert_eq!(why, wanted);
    }
}
