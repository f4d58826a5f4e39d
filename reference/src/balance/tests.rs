use super::*;
use crate::proof::{assert_close, draw, few, under_two_keys};
use shape::{Balance, Experts};
use tensor::F61;

fn of(scoring: Scoring, balance: Balance) -> Experts {
    Experts { count: 2, chosen: 1, scoring, balance, ..few() }
}
const MICROBATCH: Balance = Balance { microbatch: 0.5, sequence: 0.0, pooled: 0.0, z: 0.0 };
const SEQUENCE: Balance = Balance { microbatch: 0.0, sequence: 0.5, pooled: 0.0, z: 0.0 };

/// Compares with sums by hand for two experts and three tokens of two sequences, whose P are (¾, ¼), (½, ½),
/// (¼, ¾) by logits of ln 3: the first two tokens choose expert 0, the third expert 1. Kills: counts that
/// include dropped copies, counts of all copies, a mean over tokens taken twice or not at all, another
/// microbatch's tokens, sequences merged, E or k left out.
#[test]
fn balances_equal_sums_worked_out_by_hand() {
    let l = 3f64.ln();
    let loss = |balance, lengths: &[usize]| {
        let experts = of(Scoring::Softmax, balance);
        Router(experts).auxiliary(
            &Router(experts).route(vec![l, 0.0, 0.0, 0.0, 0.0, l], None, None),
            lengths,
            4,
        )
    };
    // Σₜ P = (1.5, 1.5), n = (2, 1): ½·2/3·4.5 / 4
    assert_close(&[loss(MICROBATCH, &[2, 1]), loss(SEQUENCE, &[3])], &[0.375; 2], 1e-15);
    // n = (2, 0) with Σ P = (1.25, 0.75), and (0, 1) with (¼, ¾): ½·(2/2·2.5 + 2/1·0.75) / 4
    assert_close(&[loss(SEQUENCE, &[2, 0, 1])], &[0.5], 1e-15);
    let both = Balance { microbatch: 0.5, ..SEQUENCE };
    assert_close(&[loss(both, &[2, 1])], &[0.875], 1e-15);
    // ln 4, ln 2, ln 4
    let squares = 2.0 * 4f64.ln().powi(2) + 2f64.ln().powi(2);
    assert_close(&[loss(Balance { z: 0.25, ..Balance::default() }, &[3])], &[0.25 * squares / 4.0], 1e-15);
    assert_close(&[loss(Balance::default(), &[3])], &[0.0], 0.0);
}

/// Compares with sums by hand over the rows of two blocks: the first block is the one above, and in the other
/// P is (¼, ¾) three times: 2 of 6 rows chose expert 0, and its mean P is 2.25/6. Kills: means of one block
/// only, a sum of the blocks' balance losses, a fraction of targets instead of tokens, the square of the rows
/// taken once.
#[test]
fn the_balance_of_all_blocks_is_that_of_their_rows_together() {
    let l = 3f64.ln();
    let experts = of(Scoring::Softmax, Balance { pooled: 0.5, ..Balance::default() });
    let blocks = [vec![l, 0.0, 0.0, 0.0, 0.0, l], vec![0.0, l, 0.0, l, 0.0, l]];
    let mut pool = BalanceSums::EMPTY;
    for logits in blocks {
        Router(experts).pool(&Router(experts).route(logits, None, None), &mut pool);
    }
    let pass = Pass { mean_over: 2, tokens: 4, ..Pass::default() };
    // ½·2·(2/6·2.25/6 + 4/6·3.75/6), for 3 of the step's 4 tokens
    assert_close(&Router(experts).pooled_slopes(&pool, pass), &[0.75 * 2.0 / 36.0, 0.75 * 4.0 / 36.0], 1e-15);
    let w = crate::Weights::new();
    let pooled = |pool, pass| Router(experts).pooled(&Walk { pool, ..Walk::unseen(&w, pass) });
    assert_close(&[pooled(pool.clone(), Some(pass))], &[0.75 * (0.125 + 2.5 / 6.0)], 1e-15);
    for silent in [None, Some(Pass { mean_over: 0, ..pass }), Some(Pass { tokens: 0, ..pass })] {
        assert_close(&[pooled(pool.clone(), silent)], &[0.0], 0.0);
    }
    assert_close(&[pooled(BalanceSums::EMPTY, Some(pass))], &[0.0], 0.0);
}

/// Kills: sigmoids not divided by their sum, a capacity that changes the counts.
#[test]
fn sigmoids_are_balanced_as_shares() {
    let l = 3f64.ln(); // sigmoid(l) = ¾, sigmoid(−l) = ¼, sigmoid(0) = ½
    let experts = Experts { capacity: Some(0.1), ..of(Scoring::Sigmoid, MICROBATCH) };
    let routing = Router(experts).route(vec![l, -l, l, l, 0.0, l], None, None);
    // P̂ = (¾, ¼), (½, ½), (0.4, 0.6); n = (2, 1): ½·2/3·(2·1.65 + 1.35) / 3
    assert_close(&[Router(experts).auxiliary(&routing, &[3], 3)], &[4.65 / 9.0], 1e-15);
}

/// Checks that each balance loss equals its weight, whatever the scores, if the tokens are spread evenly over
/// the experts. Kills: k left out.
#[test]
fn an_even_spread_costs_its_weight() {
    under_two_keys(|| {
        for (balance, lengths) in [(MICROBATCH, vec![2, 3]), (SEQUENCE, vec![5])] {
            let experts = Experts { forced: true, balance, ..few() };
            let routing = Router(experts).route(draw::<F61>(3, 5 * 5), None, None);
            assert_eq!(Router(experts).auxiliary(&routing, &lengths, 5), F61::from_f64(0.5));
        }
    });
}

/// Kills: 1/0 in a microbatch or a sequence without tokens, 1/0 in a step without counted targets.
#[test]
fn no_token_no_loss() {
    let _held = tensor::Key(1).enter();
    let all = Balance { z: 0.5, microbatch: 0.5, ..SEQUENCE };
    for scoring in [Scoring::Softmax, Scoring::Sigmoid] {
        let experts = of(scoring, all);
        let none = Router(experts).route::<F61>(Vec::new(), None, None);
        assert_eq!(Router(experts).auxiliary(&none, &[0, 0], 3), F61::ZERO);
        assert_eq!(Router(experts).auxiliary_backward(&none, &[], 3, &[]), [vec![], vec![]]);
        let some = Router(experts).route::<F61>(draw(1, 4), None, None);
        assert_eq!(Router(experts).auxiliary(&some, &[2], 0), F61::ZERO);
        assert_eq!(
            Router(experts).auxiliary_backward(&some, &[2], 0, &[]),
            [[F61::ZERO; 4]; 2].map(Vec::from)
        );
    }
}
