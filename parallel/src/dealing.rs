//! Strategies that deal the tokens of a sequence over context ranks, `cp`.
mod dealt;

use crate::lists::list;
pub use dealt::Dealing;

list! { Dealing, |dealing| &dealing.about;
    zigzag::ZIGZAG,
    contiguous::CONTIGUOUS,
    striped::STRIPED,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pairs of a query of a rank and a key that it sees, by the hop of a ring in which they meet.
    fn pairs(dealing: &Dealing, tokens: usize, ranks: usize) -> Vec<Vec<usize>> {
        let of = |rank: usize| -> Vec<usize> {
            (dealing.stretches)(tokens, rank, ranks).into_iter().flatten().collect()
        };
        let met = |queries: usize, keys: usize| {
            let (queries, keys) = (of(queries), of(keys));
            queries.iter().map(|query| keys.iter().filter(|key| *key <= query).count()).sum()
        };
        let by_hop = |rank: usize| (0..ranks).map(|hop| met(rank, (rank + ranks - hop) % ranks)).collect();
        (0..ranks).map(by_hop).collect()
    }

    /// Kills: tokens that all are dealt once, and equal in every proof, but not so that ranks have the same
    /// work: the purpose of dealing them.
    #[test]
    fn zigzag_and_striped_tokens_give_ranks_the_same_work_in_every_hop() {
        for ranks in [2, 3, 4, 8] {
            let tokens = 6 * ranks; // pieces of three, stripes of one
            let zigzag = pairs(&zigzag::ZIGZAG, tokens, ranks);
            assert!(zigzag.iter().all(|hops| *hops == zigzag[0]), "{ranks} ranks: {zigzag:?}");
            let striped = pairs(&striped::STRIPED, tokens, ranks);
            for hop in 0..ranks {
                let work = || striped.iter().map(|hops| hops[hop]);
                let apart = work().max().unwrap() - work().min().unwrap();
                assert!(apart <= tokens / ranks, "{ranks} ranks, hop {hop}: {striped:?}");
            }
            let [all, others]: [usize; 2] = [&zigzag, &striped].map(|all| all.concat().iter().sum());
            assert!(all == tokens * (tokens + 1) / 2 && all == others, "{ranks} ranks");
            let contiguous = pairs(&contiguous::CONTIGUOUS, tokens, ranks);
            let [first, last]: [usize; 2] = [0, ranks - 1].map(|rank| contiguous[rank].iter().sum());
            assert!(first < last, "{contiguous:?}");
        }
    }
}
