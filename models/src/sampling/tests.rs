//! Sampling: which tokens are drawn and how often, and that the margin guarantees the draw.
use super::*;
use tensor::{Category, Cpu, Tensor};

const SAMPLE: Sampling = Sampling { temperature: Some(1.0), top_k: None, top_p: None, seed: 7 };

/// Random numbers for these tests.
struct Dice(u64);
impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = mix(self.0);
        (self.0 % n as u64) as usize
    }
    fn uniform(&mut self) -> f64 {
        self.below(1 << 30) as f64 / (1u64 << 30) as f64
    }
    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
    /// Rows of every kind: spread out, close together, with ties, far below the largest.
    fn logits(&mut self) -> Vec<f32> {
        let (n, spread, step) =
            (1 + self.below(40), self.pick(&[0.1, 3.0, 30.0]), self.pick(&[0.0, 0.0, 0.5]));
        let one = |dice: &mut Self| {
            let x = spread * (2.0 * dice.uniform() - 1.0);
            (if step > 0.0 { (x / step).round() * step } else { x }) as f32
        };
        (0..n).map(|_| one(self)).collect()
    }
    fn settings(&mut self) -> Sampling {
        let temperature = self.pick(&[None, Some(0.3), Some(1.0), Some(2.5)]);
        let k = 1 + self.below(12);
        let (top_k, top_p) =
            (self.pick(&[None, Some(k)]), self.pick(&[None, Some(0.137), Some(0.613), Some(0.951)]));
        let seed = self.below(1000) as u64;
        match temperature {
            None => Sampling { seed, ..Sampling::default() },
            _ => Sampling { temperature, top_k, top_p, seed },
        }
    }
}

/// A plain second implementation: the probabilities by id.
fn probabilities(s: &Sampling, logits: &[f32]) -> Vec<f64> {
    let t = s.temperature.unwrap();
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    ids.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap()); // stable: ties by id
    ids.truncate(s.top_k.unwrap_or(ids.len()));
    let mass = |ids: &[usize]| ids.iter().map(|&id| (f64::from(logits[id]) / t).exp()).sum::<f64>();
    let enough = |n: &usize| mass(&ids[..*n]) / mass(&ids) >= s.top_p.unwrap_or(1.0);
    let kept = if s.top_p.is_none() { ids.len() } else { (1..=ids.len()).find(enough).unwrap_or(ids.len()) };
    ids.truncate(kept);
    let mut all = vec![0.0; logits.len()];
    for &id in &ids {
        all[id] = mass(&[id]) / mass(&ids);
    }
    all
}

#[test]
fn greedy_takes_the_largest_and_of_equals_the_first() {
    let greedy = |logits: &[f32]| Sampling::default().choose(logits, 3, 5).unwrap();
    assert_eq!(greedy(&[1.0, 3.5, 3.0, -2.0]), SampledToken { id: 1, margin: 0.5 });
    assert_eq!(greedy(&[3.0, 3.5, 9.0]), SampledToken { id: 2, margin: 5.5 });
    assert_eq!(greedy(&[9.0, 3.5, 4.0]), SampledToken { id: 0, margin: 5.0 });
    assert_eq!(greedy(&[2.0, 4.0, 4.0]), SampledToken { id: 1, margin: 0.0 });
    assert_eq!(greedy(&[-0.0, 0.0]), SampledToken { id: 0, margin: 0.0 });
    assert_eq!(greedy(&[f32::MIN, f32::MAX]), SampledToken { id: 1, margin: 2.0 * f64::from(f32::MAX) });
    assert_eq!(greedy(&[-4.0]), SampledToken { id: 0, margin: f64::INFINITY });
}

/// Kills: a cut one token early or late, probabilities of all tokens instead of those kept, multiplication by
/// the temperature, an order that is not by logit.
#[test]
fn draws_are_distributed_as_the_probabilities_say() {
    const DRAWS: usize = 20_000;
    let mut dice = Dice(1);
    for case in 0..60 {
        let (logits, mut s) = (dice.logits(), dice.settings());
        s.temperature = s.temperature.or(Some(0.7));
        let (wanted, mut seen) = (probabilities(&s, &logits), vec![0usize; logits.len()]);
        for at in 0..DRAWS {
            seen[s.choose(&logits, at % 5, at / 5).unwrap().id as usize] += 1;
        }
        for (&seen, &p) in seen.iter().zip(&wanted) {
            let (n, deviation) = (DRAWS as f64, (DRAWS as f64 * p * (1.0 - p)).sqrt());
            assert!(
                (seen as f64 - n * p).abs() <= 5.0 * deviation + 1e-6,
                "case {case}: {seen}, not {} {s:?} {logits:?}",
                n * p
            );
        }
    }
}

/// Compares with the definition, computed by hand. Kills: intervals in another order, `u` on the wrong side
/// of a border.
#[test]
fn a_draw_is_the_candidate_on_whose_interval_u_falls() {
    let logits = [0.25f32, 0.5, 0.125, 0.125].map(f32::ln);
    let draw =
        |u, k, p| Candidates::new(&mut SamplingRoom::default(), Logits::All(&logits), 1.0, k, p).choose(u).id;
    for (u, wanted) in
        [(0.0, 1), (0.499, 1), (0.501, 0), (0.749, 0), (0.751, 2), (0.874, 2), (0.876, 3), (0.999, 3)]
    {
        assert_eq!(draw(u, None, None), wanted, "{u}");
    }
    assert_eq!(draw(1.0 - f64::EPSILON / 2.0, None, None), 3);
    assert_eq!((draw(0.66, Some(2), None), draw(0.67, Some(2), None)), (1, 0)); // 2/3 and 1/3
    assert_eq!((draw(0.99, None, Some(0.45)), draw(0.99, None, Some(0.55))), (1, 0));
    assert_eq!((draw(0.99, None, Some(1e-300)), draw(0.99, Some(9), Some(1.0))), (1, 3));
    // of 7/8, not of 1
    assert_eq!((draw(0.99, Some(3), Some(0.84)), draw(0.99, Some(3), Some(0.87))), (0, 2));
    let equal = Logits::All(&[0.5; 4]);
    assert_eq!(Candidates::new(&mut SamplingRoom::default(), equal, 1.0, Some(2), None).ids, [0, 1, 2]);
}

#[test]
fn seeds_sequences_and_positions_give_draws_of_their_own() {
    let logits = [0.0; 1000];
    let id = |seed, sequence, position| {
        Sampling { seed, ..SAMPLE }.choose(&logits, sequence, position).unwrap().id
    };
    let mut ids =
        vec![id(0, 0, 1), id(0, 1, 0), id(1, 0, 0), id(1, 1, 1), id(0, 2, 0), id(0, 0, 2), id(2, 0, 0)];
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 7);
    assert_eq!(id(5, 6, 7), id(5, 6, 7));
    assert_eq!([id(0, 0, 0), id(1, 2, 3)], [138, 814]); // fixed: these draws must never change
}

/// Largest change of the difference of two logits.
fn spread(a: &[f32], b: &[f32]) -> f64 {
    let changes = a.iter().zip(b).map(|(a, b)| f64::from(*b) - f64::from(*a));
    let (least, most) = changes.fold((f64::MAX, f64::MIN), |(l, m), c| (l.min(c), m.max(c)));
    most - least
}

/// Number of ways to change logits.
const PATTERNS: usize = 9;

/// Changes logits within an interval of this length: those above that of `id`, those below it, itself, all
/// others, those on one side of another logit, or any.
fn changed(logits: &[f32], id: usize, pattern: usize, length: f64, dice: &mut Dice) -> Vec<f32> {
    let (mine, pivot, shift) = (logits[id], logits[dice.below(logits.len())], dice.uniform() - 1.0);
    let change = |(at, &logit): (usize, &f32)| {
        let up = match pattern {
            0 => f64::from(logit > mine),
            1 => f64::from(logit >= mine),
            2 => f64::from(logit < mine),
            3 => f64::from(at == id),
            4 => f64::from(at != id),
            5 => f64::from(logit > pivot),
            6 => f64::from(logit <= pivot),
            7 => dice.below(2) as f64,
            _ => dice.uniform(),
        };
        (f64::from(logit) + length * (shift + up)) as f32
    };
    logits.iter().enumerate().map(change).collect()
}

/// Kills: any condition of the margin left out, a margin twice as large.
#[test]
fn nothing_else_is_drawn_within_the_margin() {
    let (mut dice, mut tried) = (Dice(2), 0);
    for case in 0..20_000 {
        let (logits, s) = (dice.logits(), dice.settings());
        let choice = s.choose(&logits, 0, case).unwrap();
        assert!(choice.margin >= 0.0);
        for pattern in 0..PATTERNS {
            let length = choice.margin.min(20.0) * dice.pick(&[0.3, 0.9, 0.9999]);
            let other = changed(&logits, choice.id as usize, pattern, length, &mut dice);
            if spread(&logits, &other) < choice.margin {
                tried += 1;
                let now = s.choose(&other, 0, case).unwrap().id;
                assert_eq!(now, choice.id, "{s:?}, pattern {pattern}, {} of {logits:?}", choice.margin);
            }
        }
    }
    assert!(tried > 140_000, "{tried}");
}

/// Checks that the margin is almost exact without `top_p`. Kills: a needless condition, a factor too small.
#[test]
fn something_else_is_drawn_just_outside_the_margin() {
    let (mut dice, mut changes, mut all) = (Dice(3), 0, 0);
    for case in 0..5_000 {
        let (logits, s) = (dice.logits(), Sampling { top_p: None, ..dice.settings() });
        let choice = s.choose(&logits, 0, case).unwrap();
        if choice.margin > 1e-4 && choice.margin < 1e3 {
            let length = choice.margin * 1.01;
            let drawn = |pattern| {
                let other = changed(&logits, choice.id as usize, pattern, length, &mut dice);
                s.choose(&other, 0, case).unwrap().id
            };
            all += 1;
            changes += usize::from((0..PATTERNS).map(drawn).any(|id| id != choice.id));
        }
    }
    assert!(all > 3_000 && changes * 100 > all * 97, "{changes} of {all}");
}

#[test]
fn extreme_temperatures_and_logits_draw_without_failing() {
    let mut dice = Dice(4);
    for temperature in [5e-324, 1e-300, 1e-3, 1e300, f64::MAX] {
        for case in 0..200 {
            let mut logits = dice.logits();
            logits[0] = dice.pick(&[f32::MAX, f32::MIN, f32::MIN_POSITIVE, -0.0]);
            let s = Sampling { temperature: Some(temperature), ..dice.settings() };
            let choice = s.choose(&logits, case, 0).unwrap();
            assert!((choice.id as usize) < logits.len() && choice.margin >= 0.0, "{choice:?}");
        }
    }
    let cold = Sampling { temperature: Some(1e-9), ..SAMPLE }.choose(&[1.0, 1.5, 1.25], 0, 0).unwrap();
    assert_eq!((cold.id, Sampling::default().choose(&[1.0, 1.5, 1.25], 0, 0).unwrap().id), (1, 1));
    let large: Vec<f32> = (0..150_000).map(|_| dice.uniform() as f32).collect();
    assert!((SAMPLE.choose(&large, 0, 0).unwrap().id as usize) < large.len());
}

#[test]
fn bad_settings_and_logits_are_said_in_one_sentence() {
    let why = |s: Sampling| s.choose(&[0.0], 0, 0).unwrap_err().to_string();
    for t in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let wanted = "it must be a number above 0, or left out for the likeliest token";
        assert_eq!(
            why(Sampling { temperature: Some(t), ..SAMPLE }),
            format!("the temperature is {t}; {wanted}")
        );
    }
    assert_eq!(why(Sampling { top_k: Some(0), ..SAMPLE }), "top_k is 0; it must be at least 1");
    for p in [0.0, -0.5, 1.5, f64::NAN] {
        let wanted = format!("top_p is {p}; it must be above 0 and at most 1");
        assert_eq!(why(Sampling { top_p: Some(p), ..SAMPLE }), wanted);
    }
    let greedy =
        "but there is no temperature; without one the likeliest token is chosen, so give both or neither";
    assert_eq!(why(Sampling { top_k: Some(40), ..Sampling::default() }), format!("top_k is 40, {greedy}"));
    assert_eq!(why(Sampling { top_p: Some(0.9), ..Sampling::default() }), format!("top_p is 0.9, {greedy}"));
    for s in [SAMPLE, Sampling::default()] {
        assert_eq!(s.choose(&[], 0, 0).unwrap_err().why, "there are no logits to choose from");
        for (bad, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
            let why = s.choose(&[0.0, bad], 3, 17).unwrap_err().to_string();
            let wanted = "in sequence 3 at position 17; logits must be finite numbers";
            assert_eq!(why, format!("the logit of token 1 is {name} {wanted}"));
        }
    }
}

/// Chooses from the logits that the kernel selects from a row.
fn of_first(s: &Sampling, logits: &[f32], sequence: usize, position: usize) -> Result<SampledToken> {
    let Some(n) = s.needs(logits.len()) else { return s.choose(logits, sequence, position) };
    let place = Cpu::<f32>::default();
    let x = Tensor::from_fn(&place, Category::Activations, 1, logits.len(), |i| logits[i]);
    let (values, ids) = ops::top_k(&x, n);
    let (values, ids) = (values.read().unwrap(), ids.words());
    s.choose_in(&mut SamplingRoom::default(), Logits::First(&values, ids), sequence, position)
}

/// Compares ids, margins and errors with those of the whole row, bit by bit: rows with many ties, rows longer
/// than a block of the kernel, rows without a choice. Kills: a sum over other candidates or in another order,
/// ties in another order, the candidate behind the last kept left out of the margin, another error for a row
/// that is not finite.
#[test]
fn the_first_logits_choose_what_the_whole_row_chooses() {
    let (mut dice, mut selected) = (Dice(5), 0);
    for case in 0..20_000 {
        let s = dice.settings();
        let mut logits = dice.logits();
        if case % 4 == 0 {
            logits = (0..=dice.below(300)).map(|_| dice.below(9) as f32 - 4.0).collect();
        }
        if case % 16 == 1 {
            let at = dice.below(logits.len());
            logits[at..].fill(dice.pick(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY]));
        }
        selected += usize::from(s.needs(logits.len()).is_some());
        let (whole, first) = (s.choose(&logits, case % 3, case), of_first(&s, &logits, case % 3, case));
        let bits =
            |c: Result<SampledToken>| c.map(|c| (c.id, c.margin.to_bits())).map_err(|why| why.to_string());
        assert_eq!(bits(first), bits(whole), "{s:?} {logits:?}");
    }
    assert!(selected > 10_000, "{selected}");
}

/// Compares with numbers computed by hand. Kills: a choice among all tokens made from some of them, one
/// candidate more or less than the margin needs.
#[test]
fn a_choice_needs_its_candidates_and_the_one_behind() {
    let needs = |top_k, top_p| Sampling { top_k, top_p, ..SAMPLE }.needs(50);
    assert_eq!((Sampling::default().needs(50), Sampling::default().needs(1)), (Some(2), None));
    assert_eq!((needs(None, None), needs(None, Some(0.5))), (None, None));
    assert_eq!((needs(Some(1), None), needs(Some(49), Some(0.5))), (Some(2), Some(50)));
    assert_eq!((needs(Some(50), None), needs(Some(usize::MAX), None)), (None, None));
}

/// Kills: one candidate more, or fewer, than are needed where their share is exactly `top_p`.
#[test]
fn a_share_that_is_met_exactly_is_enough() {
    for (top_p, kept) in [(0.25, 1), (0.5, 2), (0.75, 3), (0.5 + 1e-12, 3)] {
        let sampling = Sampling { top_p: Some(top_p), ..SAMPLE };
        let drawn = (0..200).map(|step| sampling.choose(&[2.0; 4], 0, step).unwrap().id);
        assert_eq!(drawn.collect::<std::collections::BTreeSet<_>>().len(), kept, "{top_p}");
    }
}
