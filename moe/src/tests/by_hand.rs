//! Lists of experts, worked out by hand.
use crate::balance::Counts;
use crate::routing::{NOBODY, Routing, Standing};
use comm::{Axis, Mesh, World};
use layers::{Error, Experts};
use tensor::Cpu;

fn routing(list: &[u32], chosen: usize) -> Routing {
    Routing { list: list.to_vec(), chosen }
}

/// Kills: a copy too many or too few, the last ones kept, one expert's copies counted for another, those of ranks before
/// forgotten.
#[test]
fn beyond_its_capacity_an_expert_takes_no_copy() {
    let dropped = |most, before: &[usize]| {
        let mut own = routing(&[0, 1, 0, 2, 0, 1], 2);
        own.drop_beyond(most, before.to_vec());
        own.list
    };
    assert_eq!(dropped(3, &[0, 0, 0]), [0, 1, 0, 2, 0, 1]);
    assert_eq!(dropped(2, &[0, 0, 0]), [0, 1, 0, 2, NOBODY, 1]);
    assert_eq!(dropped(2, &[1, 2, 0]), [0, NOBODY, NOBODY, 2, NOBODY, NOBODY]);
    assert_eq!(dropped(1, &[7, 0, 1]), [NOBODY, 1, NOBODY, NOBODY, NOBODY, NOBODY]);
    assert_eq!(dropped(0, &[0, 0, 0]), [NOBODY; 6]);
    let mut some = routing(&[0, 1, 0, 2, 0, 1], 2);
    some.drop_beyond(1, vec![0, 1, 0]);
    assert_eq!(some.counts(3), [1, 0, 1], "what was dropped is counted nowhere");
}

/// Kills: tokens that are counted anew on each rank, experts that are never in turn.
#[test]
fn tokens_go_to_experts_in_turn_by_their_number_in_the_microbatch() {
    let experts = Experts { count: 5, chosen: 2, ..Experts::MIXTRAL };
    let in_turn = |first, tokens| Routing::in_turn(&experts, &Standing { first, tokens, of: 9 });
    assert_eq!(in_turn(0, 3), routing(&[0, 1, 2, 3, 4, 0], 2));
    assert_eq!(in_turn(3, 2), routing(&[1, 2, 3, 4], 2));
    assert_eq!(in_turn(9, 0), routing(&[], 2));
    assert_eq!(in_turn(0, 5).counts(5), [2; 5]);
}

/// Every rank has a token of expert 0, and as many of expert 1 as its number. Kills: an order of ranks that is not that of tokens
/// (data ranks first, and of each the tensor ranks), counts of ranks that come later.
#[test]
fn capacity_is_used_up_in_the_order_of_tokens() {
    for order in [&[Axis::Tp, Axis::Dp], &[Axis::Dp, Axis::Tp]] {
        let world = World::threads(&[(Axis::Dp, 2), (Axis::Tp, 3)]).unwrap().order(order).unwrap();
        let run = |_: Cpu<f32>, mesh: Mesh<_>| {
            let token = mesh.coordinate(Axis::Dp, mesh.rank()) * 3 + mesh.coordinate(Axis::Tp, mesh.rank());
            let mut own = routing(&[&[0][..], &vec![1; token]].concat(), 1);
            let counts = Counts::of(&mesh, 2, &own)?;
            assert_eq!(counts.all, [6, 15]);
            assert_eq!(counts.before, [token, token * token.saturating_sub(1) / 2]);
            assert_eq!(counts.tokens, 21);
            own.drop_beyond(4, counts.before);
            Ok::<_, Error>((token, own.counts(2)))
        };
        for (token, kept) in world.run(run).unwrap_or_else(|why| panic!("{why}")) {
            let of_one = [0, 1, 2, 1, 0, 0][token]; // 4 in all: token 3 has 3, of which one finds room
            assert_eq!(kept, [usize::from(token < 4), of_one], "token {token}");
        }
    }
}
