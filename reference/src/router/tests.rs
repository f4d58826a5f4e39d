use super::*;
use crate::proof::{assert_close, choosing, draw, few, grouped, under_two_keys};
use tensor::F61;

fn choose(experts: &Experts, s: &[f64]) -> Vec<usize> {
    Router(*experts).choose(0, s)
}

/// Kills: the higher index chosen in a tie, an order by index, −0 ranked below 0, fewer indices than
/// requested.
#[test]
fn the_lower_index_of_two_alike_is_chosen() {
    let three = Experts { chosen: 3, ..few() };
    assert_eq!(choose(&three, &[1.0, 3.0, 2.0, 3.0, 1.0]), [1, 3, 2]);
    assert_eq!(choose(&three, &[1.0, 0.0, 1.0, 1.0, 1.0]), [0, 2, 3]);
    assert_eq!(choose(&three, &[-1.0, -0.0, 0.0, f64::NAN, -0.0]), [1, 2, 4]);
    assert_eq!(choose(&Experts { chosen: 5, ..few() }, &[f64::NAN; 5]), [0, 1, 2, 3, 4]);
    let field = [7, 9, 9, F61::P - 1, 0].map(F61::new);
    assert_eq!(Router(three).choose(0, &field), [3, 1, 2]);
}

/// Chooses the best of the groups [0, 1], [2, 3], [4, 5]. Kills: a sum where the maximum counts, a maximum
/// where the sum counts, experts outside the chosen groups, the group of the higher index in a tie, groups
/// chosen by position instead of score.
#[test]
fn groups_are_chosen_by_their_highest_or_by_the_sum_of_two() {
    let of = |scoring, groups: usize, chosen| Experts {
        scoring,
        chosen,
        groups: Some(Groups { count: 3, chosen: groups }),
        ..grouped()
    };
    let s = [0.75, 0.0, 0.5, 0.5, 0.625, 0.125];
    assert_eq!(choose(&of(Scoring::Softmax, 1, 2), &s), [0, 1]);
    assert_eq!(choose(&of(Scoring::Softmax, 2, 3), &s), [0, 4, 5]);
    assert_eq!(choose(&of(Scoring::Sigmoid, 1, 2), &s), [2, 3]);
    assert_eq!(choose(&of(Scoring::Sigmoid, 2, 3), &s), [0, 2, 3], "the sums are 0.75, 1, 0.75");
    assert_eq!(choose(&of(Scoring::Sigmoid, 3, 3), &s), [0, 4, 2]);
    let single = Experts { count: 3, chosen: 1, ..of(Scoring::Sigmoid, 2, 1) };
    assert_eq!(choose(&single, &[0.5, 0.5, 0.75]), [2], "a group of one has no second");
}

/// Kills: tokens counted from 1, the next token dealt 1 expert further instead of k.
#[test]
fn forced_tokens_are_dealt_in_turn() {
    let forced = Experts { forced: true, ..few() };
    let dealt: Vec<_> = (0..4).map(|t| Router(forced).choose(t, &[0.0, 9.0, 0.0, 0.0, 9.0])).collect();
    assert_eq!(dealt, [[0, 1], [2, 3], [4, 0], [1, 2]]);
}

/// Kills: gates from logits or from biased scores, a softmax over the chosen experts where it is over all, a
/// sum over all experts, a scale lost in the sum, gates with a bias.
#[test]
fn gates_equal_the_formula_in_std_floats() {
    let logits: Vec<f64> = vec![0.5, -1.0, 2.0, 0.25, 1.0, -0.5, 3.0, 0.0, 1.5, 0.75];
    let bias = vec![0.0, 0.75, -0.5, 0.25, 0.125];
    for (t, l) in logits.chunks(5).enumerate() {
        let total: f64 = l.iter().map(|l| l.exp()).sum();
        for (normalize, scale) in [(true, 1.0), (true, 2.5), (false, 1.0), (false, 0.5)] {
            let of = Experts { normalize, scale, ..few() };
            let routing = Router(of).route(logits.clone(), None, None);
            let chosen = [[2, 4], [1, 3]][t];
            assert_eq!(routing.chosen[t], chosen);
            let p = chosen.map(|e| l[e].exp() / total);
            let by = scale / if normalize { p[0] + p[1] } else { 1.0 };
            assert_close(&routing.gates[t], &p.map(|p| by * p), 1e-14);
            let sigmoid = Experts { scoring: Scoring::Sigmoid, ..of };
            let routing = Router(sigmoid).route(logits.clone(), Some(&bias), None);
            let chosen = [[1, 4], [1, 3]][t];
            assert_eq!(routing.chosen[t], chosen, "1.02, 0.86, 0.81 and 1.70, 1.07, 0.80");
            let p = chosen.map(|e| 1.0 / (1.0 + (-l[e]).exp()));
            let by = scale / if normalize { p[0] + p[1] } else { 1.0 };
            assert_close(&routing.gates[t], &p.map(|p| by * p), 1e-14);
        }
    }
}

/// Routes ten copies of five tokens to five experts, two each on average. Kills: a capacity rounded down, one
/// capacity for all experts, a capacity without k, tokens dropped from the front, dropped copies that use up
/// capacity.
#[test]
fn experts_take_their_first_tokens_up_to_their_capacity() {
    let chosen = [[0, 1], [0, 2], [1, 0], [0, 1], [4, 1]].map(Vec::from);
    let taken = |capacity| Router(Experts { capacity, ..few() }).taken(&chosen);
    let all = [vec![(0, 0), (1, 0), (2, 1), (3, 0)], vec![(0, 1), (2, 0), (3, 1), (4, 1)]];
    let rest = [vec![(1, 1)], vec![], vec![(4, 0)]];
    let up_to = |n: usize| {
        [
            all.clone()
                .map(|mut all| {
                    all.truncate(n);
                    all
                })
                .to_vec(),
            rest.to_vec(),
        ]
        .concat()
    };
    assert_eq!(taken(None), up_to(4));
    assert_eq!(taken(Some(2.0)), up_to(4));
    assert_eq!(taken(Some(1.25)), up_to(3), "⌈2.5⌉");
    assert_eq!(taken(Some(1.0)), up_to(2));
    assert_eq!(taken(Some(0.25)), up_to(1), "⌈0.5⌉");
    assert_eq!(Router(Experts { capacity: Some(1.0), ..few() }).taken(&[]), vec![vec![]; 5]);
}

/// Tests six tokens, of which each of five experts takes ⌈0.5·2·6/5⌉ = 2. Kills: a choice by each token, a
/// choice by logits where P has another order, the token of the higher index in a tie, at least one expert
/// for each token, at most one expert for each token, gates divided by their sum, copies ordered by score.
#[test]
fn experts_choose_the_tokens_of_their_highest_p() {
    let of = Experts { capacity: Some(0.5), ..choosing() };
    let mut p = [
        [0.9, 0.1, 0.0, 0.0, 0.0],
        [0.4, 0.1, 0.3, 0.1, 0.1],
        [0.2, 0.2, 0.2, 0.2, 0.2],
        [0.3, 0.15, 0.2, 0.2, 0.15],
        [0.4, 0.3, 0.1, 0.1, 0.1],
        [0.1, 0.1, 0.3, 0.3, 0.2],
    ];
    let wanted: [&[usize]; 6] = [&[0], &[0, 2], &[1, 3, 4], &[], &[1], &[2, 3, 4]];
    let chosen = Router(of).choose_tokens(&p.concat());
    assert_eq!(chosen, wanted);
    assert_eq!(Router(of).taken(&chosen)[4], [(2, 2), (5, 2)]);
    // distinct values: rounding would break ties
    (p[3], p[4]) = ([0.3, 0.15, 0.2, 0.19, 0.16], [0.39, 0.31, 0.1, 0.1, 0.1]);
    let row = |(p, by): (&[f64; 5], f64)| p.map(|p| f64::ln(p + 1e-9) + by);
    let logits = p.iter().zip([40.0, 0.0, 9.0, 7.0, 3.0, 1.0]).flat_map(row).collect();
    let routing = Router(of).route(logits, None, None);
    assert_eq!(routing.chosen, wanted);
    assert_close(&routing.gates[2], &[0.5; 3], 1e-7);
    let all = Experts { capacity: Some(9.0), ..of };
    assert_eq!(Router(all).choose_tokens(&p.concat()), [[0, 1, 2, 3, 4]; 6], "there are no more");
    assert_eq!(Router(all).choose_tokens::<f64>(&[]), [[0; 0]; 0]);
}

/// Kills: a choice by sigmoid where it is by the softmax's logits, which have another order in the field.
#[test]
fn the_field_chooses_by_canonical_integers() {
    under_two_keys(|| {
        let (logits, bias): (Vec<F61>, Vec<F61>) = (draw(1, 20 * 5), draw(2, 5));
        let best = |s: &[F61]| {
            let mut order: Vec<usize> = (0..5).collect();
            order.sort_by_key(|&e| std::cmp::Reverse(s[e].canonical()));
            order[..2].to_vec()
        };
        let softmax: Vec<_> = logits.chunks(5).map(best).collect();
        assert_eq!(
            Router(few()).route(logits.clone(), Some(&bias), None).chosen,
            softmax,
            "the bias is one of sigmoids"
        );
        let sigmoid = Experts { scoring: Scoring::Sigmoid, bias: Some(0.0), ..few() };
        let s = |l: &[F61]| l.iter().zip(&bias).map(|(l, &b)| l.sigmoid() + b).collect::<Vec<_>>();
        let wanted: Vec<_> = logits.chunks(5).map(|l| best(&s(l))).collect();
        assert_eq!(Router(sigmoid).route(logits.clone(), Some(&bias), None).chosen, wanted);
        assert_ne!(wanted, softmax);
    });
}

#[test]
#[should_panic(expected = "2 experts are open, but a token chooses 3")]
fn more_choices_than_experts_in_the_groups_panic() {
    let groups = Some(Groups { count: 3, chosen: 1 });
    let _ = choose(&Experts { groups, ..grouped() }, &[0.0; 6]);
}
