//! Every mutation does what it says to every operation, by hand, and nothing hangs. Ranks are r = 0, 1, 2.
mod started;
use super::*;
use crate::call::{Op, Reduce};
use crate::tag::TAG;
use crate::{CommError, Group, Ledger, Mesh, Result, World};
use tensor::{Category, Cpu, Tensor};

type Numbers = Vec<f64>;
type Act = fn(&Cpu<f64>, &Group<tensor::Host>) -> Result<Numbers>;

fn tensor(device: &Cpu<f64>, rows: usize, numbers: &[f64]) -> Tensor<Cpu<f64>> {
    Tensor::from_fn(device, Category::Buffers, rows, numbers.len() / rows, |i| numbers[i])
}
fn read(x: &Tensor<Cpu<f64>>) -> Numbers {
    x.read().expect("the host has values")
}
/// r + 1, and ten times as much.
fn two(device: &Cpu<f64>, group: &Group<tensor::Host>) -> Tensor<Cpu<f64>> {
    let x = (group.rank() + 1) as f64;
    tensor(device, 1, &[x, 10.0 * x])
}
/// (r + 1) · 1, 10, 100.
fn three(device: &Cpu<f64>, group: &Group<tensor::Host>) -> Tensor<Cpu<f64>> {
    let x = (group.rank() + 1) as f64;
    tensor(device, 3, &[x, 10.0 * x, 100.0 * x])
}

/// Result of each of three ranks in its only call, and the fate of the call's mutant.
fn with(mutation: Mutation, act: Act) -> (Vec<Numbers>, std::result::Result<Fate, NotReached>) {
    let honest = World::threads(&[(crate::Axis::Tp, 3)]).unwrap();
    let trial = Trial::of(Mutant { call: 1, mutation });
    let run = |device: Cpu<f64>, mesh: Mesh<_>| act(&device, mesh.group(crate::Axis::Tp));
    let (should, got) = (honest.run(run).unwrap(), honest.clone().on_trial(&trial).run(run).unwrap());
    let fate = trial.fate(compared(should == got));
    (got, fate)
}
fn compared(equal: bool) -> Outcome {
    if equal { Outcome::Equal } else { Outcome::Differs }
}
fn all(mutation: Mutation, act: Act) -> Vec<Numbers> {
    let (got, fate) = with(mutation, act);
    assert!(matches!(fate, Ok(Fate::Killed | Fate::Equivalent(_))), "{mutation}: {fate:?}");
    got
}
fn same(numbers: &[f64]) -> Vec<Numbers> {
    vec![numbers.to_vec(); 3]
}
fn ranks(of: impl Fn(f64) -> Numbers) -> Vec<Numbers> {
    [0.0, 1.0, 2.0].map(of).to_vec()
}

const ALL_REDUCE: Act = |device, group| {
    let mut x = two(device, group);
    group.all_reduce(&mut x, Reduce::Sum)?;
    Ok(read(&x))
};
const ALL_GATHER: Act = |device, group| Ok(read(&group.all_gather(&two(device, group))?));
const COLUMNS: Act = |device, group| Ok(read(&group.all_gather_columns(&two(device, group), 5)?));
const REDUCE_SCATTER: Act = |device, group| Ok(read(&group.reduce_scatter(&three(device, group))?));
const BROADCAST: Act = |device, group| {
    let mut x = two(device, group);
    group.broadcast(&mut x, 0)?;
    Ok(read(&x))
};
const GATHER: Act =
    |device, group| Ok(group.gather(&two(device, group), 1)?.map(|x| read(&x)).unwrap_or_default());
const SCATTER: Act = |device, group| {
    let whole = (group.rank() == 1).then(|| tensor(device, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    Ok(read(&group.scatter(device, whole.as_ref(), 1, 1, 2)?))
};
const ALL_TO_ALL: Act = |device, group| Ok(read(&group.all_to_all(&three(device, group))?));
const VALUES: Act = |_, group| {
    let mine: Vec<f64> = (0..=group.rank()).map(|i| (10 * group.rank() + i + 1) as f64).collect();
    Ok(group.all_gather_values(&mine)?.concat())
};

#[test]
fn an_all_reduce_goes_wrong_in_every_way() {
    let of = |mutation| all(mutation, ALL_REDUCE);
    assert_eq!(of(Mutation::Skip), ranks(|r| vec![r + 1.0, 10.0 * (r + 1.0)]));
    assert_eq!(of(Mutation::Repeat), same(&[18.0, 180.0]));
    assert_eq!(of(Mutation::Part), same(&[5.0, 50.0]));
    assert_eq!(of(Mutation::Stale), same(&[0.0, 0.0]));
    assert_eq!(of(Mutation::Tail), ranks(|r| vec![6.0, 10.0 * (r + 1.0)]));
    assert_eq!(of(Mutation::Neighbour), same(&[6.0, 60.0]));
    let average = of(Mutation::Average).concat();
    assert!(average.chunks(2).all(|x| (x[0] - 2.0).abs() + (x[1] - 20.0).abs() < 1e-12), "{average:?}");
}

#[test]
fn copies_go_wrong_in_every_way() {
    let of = |mutation| all(mutation, ALL_GATHER);
    let own = |r: f64, j: usize| if r == j as f64 { [r + 1.0, 10.0 * (r + 1.0)] } else { [0.0, 0.0] };
    assert_eq!(of(Mutation::Skip), ranks(|r| [own(r, 0), own(r, 1), own(r, 2)].concat()));
    assert_eq!(of(Mutation::Part), same(&[0.0, 0.0, 2.0, 20.0, 3.0, 30.0]));
    assert_eq!(of(Mutation::Neighbour), same(&[3.0, 30.0, 1.0, 10.0, 2.0, 20.0]));
    assert_eq!(of(Mutation::Stale), same(&[0.0; 6]));
    assert_eq!(of(Mutation::Tail)[1], [1.0, 0.0, 2.0, 20.0, 3.0, 0.0]);
    assert_eq!(all(Mutation::Tail, COLUMNS)[1], [1.0, 0.0, 2.0, 20.0, 3.0]);
    assert_eq!(all(Mutation::Neighbour, GATHER), [vec![], vec![3.0, 30.0, 1.0, 10.0, 2.0, 20.0], vec![]]);
    assert_eq!(all(Mutation::Tail, GATHER)[1], [1.0, 0.0, 2.0, 20.0, 3.0, 0.0]);
    assert_eq!(all(Mutation::Skip, GATHER)[1], [0.0, 0.0, 2.0, 20.0, 0.0, 0.0]);
    let of = |mutation| all(mutation, BROADCAST);
    let own = ranks(|r| vec![r + 1.0, 10.0 * (r + 1.0)]);
    assert_eq!((of(Mutation::Skip), of(Mutation::Part)), (own.clone(), own));
    assert_eq!(of(Mutation::Neighbour), same(&[3.0, 30.0]));
    assert_eq!(of(Mutation::Tail), ranks(|r| vec![1.0, 10.0 * (r + 1.0)]));
    let of = |mutation| all(mutation, SCATTER);
    assert_eq!(of(Mutation::Skip), [vec![0.0, 0.0], vec![3.0, 4.0], vec![0.0, 0.0]]);
    assert_eq!(of(Mutation::Neighbour), [vec![3.0, 4.0], vec![5.0, 6.0], vec![1.0, 2.0]]);
    assert_eq!(of(Mutation::Tail), [vec![1.0, 0.0], vec![3.0, 4.0], vec![5.0, 0.0]]);
}

#[test]
fn sums_in_blocks_and_exchanges_go_wrong_in_every_way() {
    let of = |mutation| all(mutation, REDUCE_SCATTER).concat();
    assert_eq!(of(Mutation::Skip), [1.0, 20.0, 300.0]);
    assert_eq!(of(Mutation::Repeat), [12.0, 120.0, 1200.0]);
    assert_eq!(of(Mutation::Sum), [18.0, 180.0, 1800.0]);
    assert_eq!(of(Mutation::Part), [5.0, 50.0, 500.0]);
    assert_eq!(of(Mutation::Neighbour), [60.0, 600.0, 6.0]);
    assert_eq!(of(Mutation::Tail), [1.0, 20.0, 300.0]);
    let average = of(Mutation::Average);
    assert!(average.iter().zip([2.0, 20.0, 200.0]).all(|(x, y)| (x - y).abs() < 1e-10), "{average:?}");
    let of = |mutation| all(mutation, ALL_TO_ALL);
    assert_eq!(of(Mutation::Skip), [[1.0, 0.0, 0.0], [0.0, 20.0, 0.0], [0.0, 0.0, 300.0]]);
    assert_eq!(of(Mutation::Repeat), ranks(|r| [1.0, 10.0, 100.0].map(|x| (r + 1.0) * x).to_vec()));
    assert_eq!(of(Mutation::Part), [[0.0, 2.0, 3.0], [0.0, 20.0, 30.0], [0.0, 200.0, 300.0]]);
    assert_eq!(of(Mutation::Neighbour), [[30.0, 10.0, 20.0], [300.0, 100.0, 200.0], [3.0, 1.0, 2.0]]);
    assert_eq!(of(Mutation::Tail), of(Mutation::Skip)); // blocks of one element
}

/// Kills: blocks found by an even share where counts are given, a neighbour's block beyond this rank's end.
#[test]
fn blocks_that_differ_go_wrong_where_they_lie() {
    let gather: Act = |device, group| {
        let r = group.rank();
        let mine = tensor(device, r + 1, &vec![r as f64 + 1.0; r + 1]);
        Ok(read(&group.all_gather_v(&mine, &[1, 2, 3])?))
    };
    assert_eq!(all(Mutation::Tail, gather)[0], [1.0, 2.0, 0.0, 3.0, 3.0, 0.0]);
    assert_eq!(all(Mutation::Part, gather)[0], [0.0, 2.0, 2.0, 3.0, 3.0, 3.0]);
    assert_eq!(all(Mutation::Neighbour, gather)[0], [3.0, 1.0, 0.0, 2.0, 2.0, 0.0]);
    let scatter: Act = |device, group| {
        let x = tensor(device, 3, &[1.0, 10.0, 100.0]);
        Ok(read(&group.reduce_scatter_v(&x, &[2, 0, 1])?))
    };
    assert_eq!(all(Mutation::Part, scatter), [vec![2.0, 20.0], vec![], vec![200.0]]);
    assert_eq!(all(Mutation::Neighbour, scatter), [vec![0.0, 0.0], vec![], vec![3.0]]);
    let exchange: Act = |device, group| {
        let r = group.rank(); // gives i + 1 rows to rank i, takes r + 1 from each
        let x = tensor(device, 6, &(0..6).map(|i| (10 * r + i) as f64).collect::<Vec<_>>());
        Ok(read(&group.all_to_all_v(&x, &[1, 2, 3], &[r + 1; 3])?))
    };
    assert_eq!(all(Mutation::Skip, exchange)[1], [0.0, 0.0, 11.0, 12.0, 0.0, 0.0]);
    assert_eq!(all(Mutation::Tail, exchange)[1], [1.0, 0.0, 11.0, 12.0, 21.0, 0.0]);
    assert!(with(Mutation::Repeat, exchange).1.is_err());
}

#[test]
fn plain_values_go_wrong_too() {
    let of = |mutation| all(mutation, VALUES);
    assert_eq!(of(Mutation::Skip)[1], [0.0, 11.0, 12.0, 0.0, 0.0, 0.0]);
    assert_eq!(of(Mutation::Part)[2], [0.0, 11.0, 12.0, 21.0, 22.0, 23.0]);
    assert_eq!(of(Mutation::Neighbour)[0], [21.0, 22.0, 23.0, 1.0, 11.0, 12.0]);
    assert_eq!(of(Mutation::Tail)[0], [1.0, 11.0, 0.0, 21.0, 22.0, 0.0]);
    assert_eq!(of(Mutation::Stale), same(&[0.0; 6]));
}

/// Kills: a mutation of the receiver, memory of a message that is given back before it has gone.
#[test]
fn of_a_message_the_sender_goes_wrong() {
    let run = |trial: &Trial| {
        let world = World::threads(&[(crate::Axis::Tp, 2)]).unwrap().on_trial(trial);
        let ran = world.run(|device: Cpu<f64>, mesh| {
            let group = mesh.group(crate::Axis::Tp);
            if group.rank() == 0 {
                group.send(1, &tensor(&device, 1, &[1.0, 2.0]), TAG)?;
                group.start_send(1, tensor(&device, 1, &[3.0, 4.0]), TAG)?.wait().map(|x| read(&x))
            } else {
                group.receive(&device, 0, 1, 2, TAG)?;
                Ok(read(&group.receive(&device, 0, 1, 2, TAG)?))
            }
        });
        ran.unwrap()
    };
    let wrong = |mutation| {
        let trial = Trial::of(Mutant { call: 2, mutation });
        let got = run(&trial);
        assert_eq!((got[0].clone(), trial.effects()), (vec![3.0, 4.0], 1), "the sender keeps what it has");
        got[1].clone()
    };
    assert_eq!(wrong(Mutation::Skip), [0.0, 0.0]);
    assert_eq!(wrong(Mutation::Tail), [3.0, 0.0]);
    assert_eq!(wrong(Mutation::Stale), [1.0, 2.0]);
}

/// Four ranks, 1 to 4: 1, 2 along tp, then 3, 4. Kills: a sum over the right axis, or over all ranks.
#[test]
fn another_axis_gives_what_its_ranks_have() {
    let run = |mutation, act: Act, on_block: bool| {
        let sizes = [(crate::Axis::Dp, 2), (crate::Axis::Tp, if on_block { 4 } else { 2 })];
        let trial = Trial::of(Mutant { call: 1, mutation });
        let ran = World::threads(&sizes).unwrap().on_trial(&trial).run(|device: Cpu<f64>, mesh| {
            let group = mesh.group(crate::Axis::Tp);
            if on_block {
                return act(&device, &group.consecutive(2)?);
            }
            let mut x = tensor(&device, 1, &[(mesh.rank() + 1) as f64]);
            group.all_reduce(&mut x, Reduce::Sum)?;
            Ok::<_, CommError>([read(&x), read(&group.all_gather(&x)?)].concat())
        });
        (trial.effects(), ran.unwrap())
    };
    let (reported, got) = run(Mutation::Axis, ALL_GATHER, false);
    let sums: Vec<f64> = got.iter().map(|x| x[0]).collect();
    assert_eq!((reported, sums), (4, vec![4.0, 6.0, 4.0, 6.0]));
    assert_eq!(got[0][1..], [4.0, 6.0], "the next call is as it should be");
    let (reported, got) = run(Mutation::Axis, ALL_GATHER, true); // along dp stands the same rank of the block
    assert_eq!((reported, &got[5][..]), (8, &[2.0, 20.0, 2.0, 20.0][..]));
    let (reported, got) = run(Mutation::Skip, ALL_REDUCE, true);
    assert_eq!((reported, &got[3][..]), (8, &[2.0, 20.0][..]));
}

/// Kills: old data of another shape or operation, of the first call like it instead of the last.
#[test]
fn stale_data_are_those_of_the_last_call_like_it() {
    let trial = Trial::of(Mutant { call: 5, mutation: Mutation::Stale });
    let run = |device: Cpu<f64>, mesh: Mesh<_>| {
        let group = mesh.group(crate::Axis::Tp);
        let sum = |numbers: &[f64]| {
            let mut x = tensor(&device, 1, numbers);
            group.all_reduce(&mut x, Reduce::Sum).map(|()| read(&x))
        };
        sum(&[1.0, 1.0])?;
        sum(&[2.0, 3.0])?;
        sum(&[7.0])?;
        group.reduce_scatter(&tensor(&device, 2, &[8.0; 4]))?;
        let fifth = sum(&[9.0, 9.0])?;
        Ok::<_, CommError>((fifth, sum(&[9.0, 9.0])?))
    };
    let got = World::threads(&[(crate::Axis::Tp, 2)]).unwrap().on_trial(&trial).run(run).unwrap();
    assert_eq!(got[1], (vec![4.0, 6.0], vec![18.0, 18.0]));
}

/// Kills: a mutant that is never told, a mutation where there is none to tell.
#[test]
fn a_mutant_that_never_comes_is_an_error() {
    let says = |mutation, act| with(mutation, act).1.unwrap_err().to_string();
    assert_eq!(
        says(Mutation::Average, ALL_GATHER),
        "the mutant average of call 1 was never reached: the run makes no such call"
    );
    says(Mutation::Sum, ALL_REDUCE);
    says(Mutation::Axis, ALL_REDUCE);
    let barrier: Act = |_, group| group.barrier().map(|()| vec![]);
    says(Mutation::Skip, barrier);
    let trial = Trial::of(Mutant { call: 2, mutation: Mutation::Skip });
    let run = |device: Cpu<f64>, mesh: Mesh<_>| ALL_REDUCE(&device, mesh.group(crate::Axis::Tp));
    World::threads(&[(crate::Axis::Tp, 3)]).unwrap().on_trial(&trial).run(run).unwrap();
    let never = |trial: &Trial, outcome| trial.fate(outcome).is_err();
    assert!(
        never(&trial, Outcome::Equal) && never(&trial, Outcome::Differs) && never(&trial, Outcome::Fails)
    );
    assert!(never(&Trial::honest(), Outcome::Differs));
}

/// Kills: a reason that is believed and not looked at.
#[test]
fn what_is_called_equivalent_is() {
    let acts = [ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, GATHER, SCATTER, ALL_TO_ALL, VALUES];
    let mut counted = 0;
    for act in acts {
        let trial = Trial::honest();
        let run = |device: Cpu<f64>, mesh: Mesh<_>| act(&device, mesh.group(crate::Axis::Tp));
        World::threads(&[(crate::Axis::Tp, 3)]).unwrap().on_trial(&trial).run(run).unwrap();
        let [site] = &trial.sites(2)[..] else { panic!("one call") };
        for &mutation in Mutation::ALL {
            let fate = with(mutation, act).1;
            match site.outlook(mutation) {
                ExpectedResult::None => assert!(fate.is_err(), "{mutation}: {}", site.words),
                ExpectedResult::Same(_) => {
                    assert_eq!(fate, Ok(Fate::Equivalent(trial::UNCHANGED)), "{}", site.words);
                }
                ExpectedResult::Open => assert!(fate.is_ok(), "{mutation}: {}", site.words),
            }
            counted += usize::from(matches!(site.outlook(mutation), ExpectedResult::Same(_)));
        }
    }
    assert_eq!(counted, 6);
    assert_eq!(with(Mutation::Skip, ALL_REDUCE).1, Ok(Fate::Killed));
}

/// A stabiliser that is wrong on all ranks alike cancels; one that differs between them does not. Kills: any
/// survivor of a stabiliser excused.
#[test]
fn only_a_stabiliser_that_is_alike_cancels() {
    let stab: Act = |device, group| {
        let mut x = two(device, group);
        group.all_reduce(&mut x, Reduce::Stab)?;
        Ok(vec![])
    };
    assert_eq!(with(Mutation::Stale, stab).1, Ok(Fate::Equivalent(trial::CANCELS)));
    assert_eq!(with(Mutation::Skip, stab).1, Ok(Fate::Survived));
    let sum: Act = |device, group| ALL_REDUCE(device, group).map(|_| vec![]);
    assert_eq!(with(Mutation::Stale, sum).1, Ok(Fate::Survived));
}

/// Kills: traffic of the exchange in the ledger, a call that is not listed or counted twice, another number.
#[test]
fn the_record_lists_the_program_as_it_is_written() {
    let run = |device: Cpu<f64>, mesh: Mesh<tensor::Host>| {
        let group = mesh.group(crate::Axis::Tp).named("loss");
        ALL_REDUCE(&device, &group)?;
        group.barrier()?;
        ALL_GATHER(&device, &group)?;
        Ok::<Ledger, CommError>(mesh.ledger())
    };
    let world = World::threads(&[(crate::Axis::Tp, 3)]).unwrap();
    let (honest, trial) = (Trial::honest(), Trial::of(Mutant { call: 3, mutation: Mutation::Part }));
    let plain = world.run(run).unwrap();
    assert_eq!(world.clone().on_trial(&honest).run(run).unwrap(), plain);
    assert_eq!(world.on_trial(&trial).run(run).unwrap(), plain);
    assert_eq!((trial.effects(), honest.effects()), (3, 0));
    let sites = honest.sites(1);
    let seen: Vec<_> = sites.iter().map(|s| (s.call, s.op, s.ranks, s.label.as_deref())).collect();
    let named = Some("loss");
    let calls = [(1, Op::AllReduce, 3, named), (2, Op::Barrier, 3, named), (3, Op::AllGather, 3, named)];
    assert_eq!(seen, calls);
    assert!(
        sites[0]
            .words
            .starts_with("all_reduce(sum) over tp of 1x2 f64 for loss at comm/src/mutants/tests.rs:")
    );
}

/// Ranks whose call of that number is another one are told so. Kills: a hang, memory read while it is
/// written.
#[test]
fn ranks_that_go_wrong_alone_get_an_error_that_they_disagree() {
    let trial = Trial::of(Mutant { call: 2, mutation: Mutation::Skip });
    let ran =
        World::threads(&[(crate::Axis::Tp, 3)]).unwrap().on_trial(&trial).run(|device: Cpu<f64>, mesh| {
            let group = mesh.group(crate::Axis::Tp);
            if group.rank() == 0 {
                group.send(1, &two(&device, group), TAG)?;
            } else if group.rank() == 1 {
                group.receive(&device, 0, 1, 2, TAG)?;
            }
            ALL_REDUCE(&device, group)?;
            ALL_REDUCE(&device, group)
        });
    let why = ran.unwrap_err().reason;
    assert!(why.contains("disagree") && why.contains("all_reduce") && why.contains("all_gather"), "{why}");
}

/// A tally counts what came and keeps the words of survivors.
#[test]
fn a_tally_counts_ends_and_names_survivors() {
    let mut tally = MutantTally::default();
    let fates = [Fate::Killed, Fate::Failed, Fate::Equivalent("it is"), Fate::Survived].map(Some);
    fates.into_iter().chain([None]).for_each(|fate| tally.add(Mutation::Tail, fate, "a sum"));
    assert_eq!((tally.killed(), tally.survivors()), (2, &["tail: a sum".to_string()][..]));
    tally.add(Mutation::Skip, Some(Fate::Survived), "a sum");
    assert!(tally.survivors()[1].contains("skip: a sum (all compared results are equal without this call"));
}

/// Nothing reads the last element of the first sum; of the second all is read. Kills: an excuse without
/// another call that is watched; one by a call of another label or place.
#[test]
fn what_is_not_read_once_must_be_read_elsewhere() {
    let run = |trial: &Trial, read_on: usize, second: &'static str| {
        let world = World::threads(&[(crate::Axis::Tp, 2)]).unwrap().on_trial(trial);
        let ran = world.run(|device: Cpu<f64>, mesh| {
            let group = &mesh.group(crate::Axis::Tp).named("first");
            let sums = [ALL_REDUCE(&device, group)?, ALL_REDUCE(&device, &group.named(second))?];
            let seen = sums.iter().enumerate().map(|(n, sum)| sum[..=usize::from(n >= read_on)].to_vec());
            Ok::<_, CommError>(seen.collect::<Vec<_>>())
        });
        ran.unwrap()
    };
    for (read_on, second, fate) in [
        (1, "first", Fate::Equivalent(judge::UNREAD)),
        (1, "second", Fate::Survived),
        (2, "first", Fate::Survived),
        (0, "first", Fate::Killed),
    ] {
        let trial = Trial::honest();
        let should = run(&trial, read_on, second);
        let sites = trial.sites(0);
        let outcome = |_: &CallSite, trial: &Trial| compared(run(trial, read_on, second) == should);
        assert_eq!(judge(Mutation::Tail, &sites[0], &sites, outcome), Ok(Some(fate)), "{second}");
    }
}
