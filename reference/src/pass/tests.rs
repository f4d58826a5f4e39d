use super::*;
use crate::proof::{
    assert_close, assert_derivative, deepseek, everything, kinds, learned, mixtral, moved, ragged,
    random_weights, small, under_two_keys, values,
};
use crate::{dropout, rms_norm};
use shape::{Rates, Shape};
use tensor::{Dual, F61, IGNORED};

const PASS: Pass = Pass { seed: 1, step: 2, first_sequence: 3, mean_over: 0, tokens: 8 };

/// Kills: any wrong, missing or doubled term of any gradient, a tied weight that lacks one of its uses, a
/// mask in the backward that is not the forward's.
#[test]
fn gradients_equal_the_derivative_of_the_loss_exactly() {
    under_two_keys(|| {
        for (kind, model) in kinds() {
            let (w, batch) = (random_weights::<Dual<F61>>(&model, 3), ragged());
            let w_values = w.iter().map(|(name, w)| (name.clone(), values(w))).collect();
            let (loss, g) = model.gradients_with(&w_values, &batch, 13, &PASS);
            assert!(g.keys().eq(moved(&w)), "{kind}: a gradient for every parameter that moves the loss");
            let (dual_loss, _) = model.gradients_with(&w, &batch, 13, &PASS);
            assert_eq!(loss, dual_loss.value, "{kind}");
            let inputs: Vec<_> = g.iter().map(|(name, g)| (w[name].as_slice(), g.as_slice())).collect();
            assert_derivative(&[F61::ONE], &[dual_loss], &inputs);
        }
    });
}

/// Tests softmax, and sigmoids with a dense first block. Kills: one block's counts instead of all blocks', a
/// gradient that flows through counts, a gradient that stops at the last block, a balance loss that is
/// reported and not trained.
#[test]
fn gradients_of_a_balance_of_all_blocks_equal_the_derivative_exactly() {
    under_two_keys(|| {
        for model in [mixtral(), deepseek()] {
            let mut model = Model::from(Shape { blocks: 3, ..*model });
            let none = model;
            model.shape.experts.as_mut().expect("experts").balance.pooled = 0.5;
            let (w, batch) = (random_weights::<Dual<F61>>(&model, 3), ragged());
            let still = w.iter().map(|(name, w)| (name.clone(), values(w))).collect();
            let (loss, g) = model.gradients_with(&still, &batch, 13, &PASS);
            let (moved, _) = model.gradients_with(&w, &batch, 13, &PASS);
            assert_eq!(loss, moved.value);
            assert_ne!(loss, none.gradients_with(&still, &batch, 13, &PASS).0);
            let inputs: Vec<_> = g.iter().map(|(name, g)| (w[name].as_slice(), g.as_slice())).collect();
            assert_derivative(&[F61::ONE], &[moved], &inputs);
        }
    });
}

/// Kills: bugs invisible in the field, such as a formula that is equally wrong in duals and in the backward.
#[test]
fn gradients_equal_central_differences() {
    for (kind, model) in kinds() {
        let (mut w, batch, h) = (random_weights::<f64>(&model, 4), ragged(), 1e-5);
        w.values_mut().flatten().for_each(|w| *w *= 0.5); // less curvature
        let (_, g) = model.gradients_with(&w, &batch, 8, &PASS);
        for (name, g) in &g {
            for (at, &g) in g.iter().enumerate() {
                let before = w[name][at];
                let mut loss = |x| {
                    w.get_mut(name).unwrap()[at] = x;
                    model.gradients_with(&w, &batch, 8, &PASS).0
                };
                let slope = (loss(before + h) - loss(before - h)) / (2.0 * h);
                loss(before);
                assert!((slope - g).abs() < 1e-8, "{kind}: {name}[{at}]: {g}, slope {slope}");
            }
        }
    }
}

/// Kills: a token that attends to the next, positions that continue into the next sequence, sequences that
/// attend to each other, two blocks whose windows do not reach further than one.
#[test]
fn logits_depend_on_earlier_tokens_of_the_same_sequence_only() {
    under_two_keys(|| {
        for (kind, model) in kinds() {
            let (w, mut batch) = (random_weights::<F61>(&model, 5), ragged());
            let rows = |batch: &[Sequence]| -> Vec<Vec<F61>> {
                model.logits(&w, batch).chunks(7).map(<[F61]>::to_vec).collect()
            };
            let before = rows(&batch);
            let alone: Vec<_> = batch.iter().flat_map(|s| rows(std::slice::from_ref(s))).collect();
            assert_eq!(before, alone, "{kind}");
            batch[2].ids[1] = 2; // row 5 of 8
            batch[2].targets.clear(); // targets are not read
            let after = rows(&batch);
            let changed: Vec<_> = (0..8).filter(|&r| before[r] != after[r]).collect();
            assert_eq!(changed, [5, 6, 7], "{kind}");
        }
    });
}

/// Kills: dropout of the embedding before its positions are added, dropout at another site or with another
/// mask, positions by row, a loss without the model's objective.
#[test]
fn embedding_equals_table_plus_positions_then_dropout_exactly() {
    under_two_keys(|| {
        let model = Model::from(Shape { blocks: 0, loss: everything().loss, ..*learned() });
        let (w, batch) = (random_weights::<F61>(&model, 9), ragged());
        let row = |name: &str, at: usize| &w[name][at * 4..][..4];
        let mut x = Vec::new();
        for sequence in &batch {
            for (p, &id) in sequence.ids.iter().enumerate() {
                x.extend(row("embedding", id as usize).iter().zip(row("positions", p)).map(|(&a, &b)| a + b));
            }
        }
        let logits = |x: &[F61]| linear(&rms_norm(x, &w["norm"], 0.01), &w["head"], [4, 7]);
        assert_eq!(model.logits(&w, &batch), logits(&x));
        let tokens = Tokens { lengths: vec![3, 1, 4], numbers: vec![3, 4, 5] };
        dropout(&mut x, 4, &tokens, &Dropout::new(0.375, 1, 2, "embedding"));
        let targets = [4, IGNORED, 0, 2, 3, 6, 5, IGNORED];
        let wanted = cross_entropy(&logits(&x), &targets, 7, 6, &model.loss);
        assert_eq!(model.gradients_with(&w, &batch, 6, &PASS).0, wanted);
    });
}

/// Kills: padding that learns from being read, padding that the head does not train, another row without a
/// gradient.
#[test]
fn padding_learns_from_a_tied_head_alone() {
    under_two_keys(|| {
        let batch = ragged();
        let gradients = |padding, tied| {
            let model = Model::from(Shape { padding, ..*small(tied) });
            let mut w = random_weights::<F61>(&small(false), 6);
            w.insert("head".into(), crate::linear::transpose(&w["embedding"], [7, 4]));
            w.retain(|name, _| !tied || name != "head");
            model.gradients(&w, &batch, 6).1
        };
        let (apart, both) = (gradients(None, false), gradients(None, true));
        for padding in [1, 2] {
            let row = 4 * padding..4 * padding + 4; // id 1 is read, id 2 is not
            let from_head = crate::linear::transpose(&apart["head"], [4, 7]);
            for (tied, alone, whole) in [(false, &vec![F61::ZERO; 28], &apart), (true, &from_head, &both)] {
                let mut wanted = whole.clone();
                wanted.get_mut("embedding").unwrap()[row.clone()].copy_from_slice(&alone[row.clone()]);
                let seen = gradients(Some(padding), tied);
                assert_eq!(seen, wanted);
                assert_eq!(seen == *whole, padding == 2);
            }
        }
    });
}

/// Kills: dropout outside training.
#[test]
fn logits_drop_nothing() {
    let (model, plain): (_, Model) =
        (everything(), Shape { dropout: Rates::default(), ..*everything() }.into());
    let (w, batch) = (random_weights::<f64>(&model, 5), ragged());
    assert_eq!(model.logits(&w, &batch), plain.logits(&w, &batch));
    let losses = [model, plain].map(|model| model.gradients_with(&w, &batch, 6, &PASS).0);
    assert_ne!(losses[0], losses[1]);
}

/// Kills: a mean over the microbatch instead of the step, a gradient that is not a sum over sequences, masks
/// by the position in the microbatch.
#[test]
fn gradients_of_microbatches_sum_to_those_of_the_whole_exactly() {
    under_two_keys(|| {
        for (kind, model) in kinds() {
            let (w, batch) = (random_weights::<F61>(&model, 6), ragged());
            let (whole, g) = model.gradients_with(&w, &batch, 8, &PASS);
            let (first, mut sum) = model.gradients_with(&w, &batch[..1], 8, &PASS);
            let later = Pass { first_sequence: 4, ..PASS };
            let (second, other) = model.gradients_with(&w, &batch[1..], 8, &later);
            sum.values_mut().zip(other.into_values()).for_each(|(sum, g)| add(sum, g));
            assert_eq!((whole, g), (first + second, sum), "{kind}");
        }
    });
}

/// Kills: a failure of a model without tokens, as on a rank with an empty local batch.
#[test]
fn no_token_no_gradient() {
    for (kind, model) in kinds() {
        let w = random_weights::<f64>(&model, 7);
        let (loss, g) = model.gradients_with(&w, &[], 3, &PASS);
        assert_close(&[loss], &[0.0], 0.0);
        assert!(g.keys().eq(moved(&w)), "{kind}");
        for (name, g) in &g {
            assert_close(g, &vec![0.0; w[name].len()], 0.0);
        }
    }
}

/// Kills: a constant that only f64 can represent.
#[test]
fn gradients_on_f32_are_those_on_f64_rounded() {
    for (kind, model) in kinds() {
        let wide = random_weights::<f64>(&model, 10);
        let narrow = wide.iter().map(|(name, w)| (name.clone(), w.iter().map(|&w| w as f32).collect()));
        let (loss, g) = model.gradients_with(&narrow.collect(), &ragged(), 6, &PASS);
        let (wanted, wanted_g) = model.gradients_with(&wide, &ragged(), 6, &PASS);
        assert!((f64::from(loss) / wanted - 1.0).abs() < 1e-4, "{kind}: {loss}, in f64 {wanted}");
        for (name, g) in g {
            let g: Vec<f64> = g.into_iter().map(f64::from).collect();
            let size = wanted_g[&name].iter().fold(1.0, |size, g| g.abs().max(size));
            assert_close(&g, &wanted_g[&name], 1e-4 * size);
        }
    }
}

#[test]
#[should_panic(expected = "each id needs one target")]
fn targets_that_do_not_fit_panic() {
    let (model, mut batch) = (small(false), ragged());
    batch[0].targets.pop();
    batch[1].targets.push(2);
    let _ = model.gradients(&random_weights::<f64>(&model, 8), &batch, 3);
}

#[test]
#[should_panic(expected = "call `gradients_with`")]
fn dropout_without_a_pass_panics() {
    let _ = everything().gradients(&random_weights::<f64>(&everything(), 8), &ragged(), 3);
}

#[test]
#[should_panic(expected = "a sequence has 5 tokens, the model 4 learned positions")]
fn a_sequence_beyond_the_learned_positions_panics() {
    let text = Sequence { ids: vec![1; 5], ..Sequence::default() };
    let _ = learned().logits(&random_weights::<f64>(&learned(), 8), &[text]);
}
