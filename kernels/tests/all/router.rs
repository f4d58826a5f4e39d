//! The router's choice against its definition.
use crate::proof::{draw, filled, index, read};
use kernels::{Kernels, RouterNoise, RouterTerms, Segment};
use tensor::{Category, Cpu, F61, Host, Index, Key, Noise, Scalar, Tensor};

/// The best of five for rows 2 to 6 of seven tokens, some in the middle of their sequence. Kills: noise by
/// row or by place in the slice, of another row, expert or sequence, one that a row without it has, one added
/// to the logits of sigmoids.
#[test]
fn noise_is_that_of_a_tokens_sequence_and_position() {
    let _held = Key(1).enter();
    let part = |row, len, position, sequence| Segment { row, len, position, sequence };
    let tokens = index([part(0, 3, 4, 7), part(3, 4, 0, 2)]);
    let places = [(7, 6), (2, 0), (2, 1), (2, 2), (2, 3)];
    let (logits, bias, noise) = (draw::<F61>(1, 5, 5), filled(1, 5, F61::ONE), Noise::new(0.5, 1, 2, "here"));
    for sigmoid in [false, true] {
        let terms = RouterTerms { chosen: 1, sigmoid, normalize: false, scale: 1.0, groups: None };
        let best = |noise| {
            let (mut chosen, mut list) = (Index::empty(&Host::default(), 5), Vec::new());
            Cpu::<F61>::default().choose(&mut chosen, logits.view(), Some(bias.view()), noise, &terms);
            assert!(chosen.read_into(&mut list));
            list
        };
        let wanted = |noisy: bool| -> Vec<u32> {
            let score = |(row, e): (usize, usize)| {
                let (l, (sequence, position)) = (read(&logits)[row * 5 + e], places[row]);
                let more = if noisy { noise.of(sequence, position, e as u64) } else { F61::ZERO };
                (if sigmoid { l.sigmoid() } else { l }) + F61::ONE + more
            };
            let of_row = |row| (0..5).max_by_key(|&e| score((row, e)).canonical());
            (0..5).map(|row| of_row(row).expect("five") as u32).collect()
        };
        assert_eq!(best(Some(RouterNoise { noise, tokens: &tokens, first: 2 })), wanted(true));
        assert_eq!(best(None), wanted(false));
        assert_ne!(wanted(true), wanted(false));
    }
}

/// Two groups of four, of which the best one is chosen from. By sigmoids, in the first row the two best
/// experts of group 0 are better together, all four of group 1 are; in the second the best expert of all is
/// in group 0, the better two are in group 1. Kills: a group scored by the sum of all its experts, or by its
/// best one, where it is the two best; by two where it is one.
#[test]
fn a_group_is_scored_by_its_two_best_sigmoids_or_its_best_logit() {
    let rows = [[2.0, -5.0, 2.0, -5.0, 1.0, 1.0, 1.0, 1.0], [3.0, -5.0, -5.0, -5.0, 1.0, -5.0, 1.5, -5.0]];
    let logits = Tensor::from_fn(&Cpu::<f32>::default(), Category::Activations, 2, 8, |i| rows[i / 8][i % 8]);
    for (sigmoid, wanted) in [(true, [0, 2, 6, 4]), (false, [0, 2, 0, 1])] {
        let terms = RouterTerms { chosen: 2, sigmoid, normalize: false, scale: 1.0, groups: Some([2, 1]) };
        let (mut chosen, mut list) = (Index::empty(&Host::default(), 4), Vec::new());
        Cpu::<f32>::default().choose(&mut chosen, logits.view(), None, None, &terms);
        assert!(chosen.read_into(&mut list));
        assert_eq!(list, wanted, "sigmoid {sigmoid}");
    }
}

/// Kills: rounding where there is nothing: Adam would make steps of it.
#[test]
fn what_all_normalized_gates_have_in_common_moves_no_logit() {
    let (logits, lse) = (draw::<f32>(1, 9, 5), filled(9, 1, 1.25));
    for (k, sigmoid) in [(1, false), (1, true), (3, false), (3, true)] {
        let terms = RouterTerms { chosen: k, sigmoid, normalize: true, scale: 2.5, groups: None };
        let list = (0..9 * k).map(|i| (i / k + i % k * 2) as u32 % 5);
        let chosen = Index::new(&Host::default(), 9 * k, list);
        let (mut d, dgates) = (filled(9, 5, 7.0f32), filled(9, k, 0.3));
        let (to, of) = (d.view_mut(), (logits.view(), lse.view(), dgates.view()));
        Cpu::<f32>::default().router_backward(to, of.0, of.1, of.2, &chosen, None, &terms);
        assert_eq!(read(&d), [0.0; 45]);
    }
}
