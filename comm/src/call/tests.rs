use super::*;
use crate::axis::Axis;
use tensor::F61;

fn call(op: Op) -> Call {
    Call { op, rows: 4, cols: 6, elem: Elem::of::<F61>(), ..Call::barrier() }
}
fn between(give: [usize; 2], take: [usize; 2]) -> Call {
    Call { counts: Some(Counts::Between(give.into(), take.into())), ..call(Op::AllToAll) }
}

#[test]
fn calls_read_as_written() {
    let label = Some("blocks.0.attention.out".into());
    let sum = Call { reduce: Some(Reduce::Sum), label, ..call(Op::AllReduce) };
    let here = sum.at.line();
    let words = |c: &Call| c.to_string().replace(&format!("call/tests.rs:{here}"), "call.rs:57");
    assert_eq!(
        words(&sum),
        "all_reduce(sum) over tp of 4x6 f61 for blocks.0.attention.out at comm/src/call.rs:57"
    );
    let send = Call { peer: Some(3), ..call(Op::Send) };
    assert_eq!(words(&send), "send(to rank 3) over tp of 4x6 f61 at comm/src/call.rs:57");
    let broadcast = Call { peer: Some(0), ..call(Op::Broadcast) };
    assert_eq!(words(&broadcast), "broadcast(from rank 0) over tp of 4x6 f61 at comm/src/call.rs:57");
    let gather = Call { peer: Some(0), ..call(Op::Gather) };
    assert_eq!(words(&gather), "gather(to rank 0) over tp of 4x6 f61 at comm/src/call.rs:57");
    assert_eq!(words(&call(Op::Barrier)), "barrier over tp at comm/src/call.rs:57");
    let block = Call { over: Ranks::all(Axis::Tp).at(&[2, 3]), ..call(Op::Barrier) };
    assert_eq!(words(&block), "barrier over tp[2..4] at comm/src/call.rs:57");
    let uneven = Call { counts: Some(Counts::Of([3, 0, 2].into())), ..call(Op::AllGather) };
    assert_eq!(words(&uneven), "all_gather over tp of [3, 0, 2]x6 f61 at comm/src/call.rs:57");
    let tagged = Call { tag: Some(Tag::new("gradient", 5)), ..send };
    assert_eq!(words(&tagged), "send(to rank 3) over tp of 4x6 f61 as gradient of 5 at comm/src/call.rs:57");
    let all_to_all = "all_to_all over tp of [1, 2]x6 for [0, 4]x6 f61 at comm/src/call.rs:57";
    assert_eq!(words(&between([1, 2], [0, 4])), all_to_all);
}

/// Kills: a field left out of the comparison, a label or place let in.
#[test]
fn keys_differ_exactly_where_meanings_do() {
    let base = Call { reduce: Some(Reduce::Sum), ..call(Op::AllReduce) };
    let others = [
        Call { op: Op::ReduceScatter, ..base.clone() },
        Call { reduce: Some(Reduce::Stab), ..base.clone() },
        Call { reduce: None, ..base.clone() },
        Call { peer: Some(0), ..base.clone() },
        Call { peer: Some(1), ..base.clone() },
        Call { rows: 6, cols: 4, ..base.clone() },
        Call { rows: 5, ..base.clone() },
        Call { cols: 5, ..base.clone() },
        Call { elem: Elem::of::<f32>(), ..base.clone() },
        Call { counts: Some(Counts::Columns(6)), ..base.clone() },
        Call { counts: Some(Counts::Columns(5)), ..base.clone() },
        Call { counts: Some(Counts::Of([4, 4].into())), ..base.clone() },
        Call { counts: Some(Counts::Of([8, 0].into())), ..base.clone() },
        Call { counts: Some(Counts::Of([0, 8].into())), ..base.clone() },
    ];
    for (i, a) in others.iter().enumerate() {
        assert_ne!(a.key(), base.key(), "{a}");
        assert!(others[..i].iter().all(|b| a.key() != b.key()), "{a}");
    }
    assert_eq!(Call { label: Some("x".into()), at: Location::caller(), ..base.clone() }.key(), base.key());
}

/// Kills: a message taken for one that carries something else, or for one of another shape.
#[test]
fn messages_pass_to_wishes_for_the_same() {
    let of = |what, unit| Call { tag: Some(Tag::new(what, unit)), ..call(Op::Send) };
    let gradient = of("gradient", 5);
    let others = [
        call(Op::Send),
        of("gradient", 4),
        of("activation", 5),
        Call { rows: 6, cols: 4, ..gradient.clone() },
    ];
    assert!(gradient.passes(&gradient));
    assert!(others.iter().all(|other| !gradient.passes(other) && !other.passes(&gradient)));
}

/// Kills: what one gives compared with what the other gives.
#[test]
fn what_one_gives_is_what_the_other_takes() {
    let (zero, one) = (between([1, 2], [1, 5]), between([5, 7], [2, 7]));
    assert_eq!(zero.key(), one.key());
    assert!(zero.fits(0, &one, 1) && one.fits(1, &zero, 0));
    let other = between([4, 7], [2, 7]);
    assert!(!zero.fits(0, &other, 1) && !other.fits(1, &zero, 0));
}
