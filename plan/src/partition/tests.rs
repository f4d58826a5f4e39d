use super::*;
use tensor::mix;

/// A profile of small numbers, whose sums and products are exact, with many ties.
fn drawn(seed: u64) -> ModelProfile {
    let mut state = seed;
    let mut below = |n: u64| {
        state = mix(state.wrapping_add(1));
        (state % n) as usize
    };
    let parts = 1 + below(8);
    let heavy = [0, 1, 4][below(3)];
    let cost = |below: &mut dyn FnMut(u64) -> usize| PartCost {
        forward: (1 + below(3)) as f64,
        backward: (1 + below(6)) as f64,
        activation_bytes: 4 * below(5),
        weight_bytes: 60 * heavy * below(4),
    };
    let parts = (0..parts).map(|_| cost(&mut below)).collect();
    ModelProfile { parts, bandwidth: [1.0, 4.0, 64.0][below(3)] }
}

/// All partitions: numbers of parts and of ranks of each stage.
fn all(parts: usize, ranks: usize, replicas: usize) -> Vec<Vec<[usize; 2]>> {
    let mut found = if parts == 0 { vec![Vec::new()] } else { Vec::new() };
    for size in 1..=parts {
        for own in 1..=ranks.min(replicas) {
            let rest = all(parts - size, ranks - own, replicas);
            found.extend(rest.into_iter().map(|rest| [vec![[size, own]], rest].concat()));
        }
    }
    found
}

/// The bottleneck of a partition, by the paper's words: each stage's T and each message there and back.
fn bottleneck(profile: &ModelProfile, stages: &[[usize; 2]]) -> f64 {
    let (mut at, mut worst) = (0, 0.0_f64);
    for &[size, m] in stages {
        let (mut compute, mut sync) = (0.0, 0.0);
        for part in &profile.parts[at..at + size] {
            compute += part.forward + part.backward;
            sync += (4 * (m - 1) * part.weight_bytes / m) as f64 / profile.bandwidth;
        }
        let m = m as f64;
        worst = worst.max(compute / m).max(sync / m);
        at += size;
        if at < profile.parts.len() {
            worst = worst.max(2.0 * profile.parts[at - 1].activation_bytes as f64 / profile.bandwidth);
        }
    }
    worst
}

/// By trying every split and every number of ranks, up to 8 parts and 6 ranks. Kills: a message counted one
/// way, or the one after another part; a stage that synchronises weights for nothing, or not; ranks beyond
/// those that there are, or beyond a stage's sequences; ranks that must all be used; more stages or ranks
/// than the same bottleneck needs; a bottleneck that is not that of the stages.
#[test]
fn the_partition_equals_the_best_of_all_to_the_bit() {
    let mut idle = 0;
    for seed in 0..240 {
        let profile = drawn(seed);
        let (parts, ranks, replicas) =
            (profile.parts.len(), 1 + seed as usize % 6, 1 + seed as usize / 6 % 6);
        let partition = profile.partition(ranks, replicas);
        let sizes: Vec<_> = partition.stages.iter().map(|stage| [stage.parts.len(), stage.ranks]).collect();
        let used = |sizes: &[[usize; 2]]| sizes.iter().map(|[_, own]| own).sum::<usize>();
        let mut at = 0;
        for ReplicatedStage { parts, ranks, seconds } in &partition.stages {
            assert_eq!((parts.start, *seconds), (at, profile.stage(parts.clone(), *ranks)));
            at = parts.end;
        }
        assert_eq!(at, parts, "every part is in a stage");
        let worth = |sizes: &Vec<[usize; 2]>| (bottleneck(&profile, sizes), sizes.len(), used(sizes));
        let every = all(parts, ranks, replicas);
        assert!(every.contains(&sizes), "{sizes:?} of {ranks} ranks, {replicas} a stage");
        let least = every.iter().map(worth).min_by(|a, b| a.partial_cmp(b).unwrap()).unwrap();
        let wanted = (least.0.to_bits(), least.1, least.2);
        let seen = (partition.bottleneck.to_bits(), sizes.len(), used(&sizes));
        assert_eq!(seen, wanted, "{sizes:?} on {ranks} ranks, {replicas} a stage: {profile:?}");
        assert_eq!(worth(&sizes), least, "{sizes:?}");
        idle += usize::from(used(&sizes) < ranks.min(parts * replicas));
    }
    assert!(idle > 10, "in {idle} cases some ranks are better idle");
}

/// As in the figure of the papers: a stage that takes twice as long gets twice the ranks. Kills: ranks dealt
/// evenly; replicas where a stage may have one rank.
#[test]
fn a_slower_stage_has_more_ranks() {
    let part = |seconds: f64, weight_bytes| PartCost {
        forward: seconds / 3.0,
        backward: seconds * 2.0 / 3.0,
        activation_bytes: 1,
        weight_bytes,
    };
    let profile = ModelProfile { parts: vec![part(6.0, 0), part(3.0, 600)], bandwidth: 64.0 };
    let partition = profile.partition(3, 8);
    let stage = |parts, ranks| ReplicatedStage { parts, ranks, seconds: 3.0 };
    assert_eq!(partition, Partition { stages: vec![stage(0..1, 2), stage(1..2, 1)], bottleneck: 3.0 });
    assert_eq!(profile.seconds(), 9.0);
    assert_eq!(profile.partition(3, 1).stages.len(), 2);
}

/// By hand: stages of 3 seconds a microbatch, M of them in (M + 1) · 3 seconds, and the first message's way
/// there and the last gradient's way back. Kills: a forward that takes as long as its backward, replicas that
/// do not share a stage's time, messages that take no time, or that of another stage.
#[test]
fn a_simulated_step_fills_and_drains_the_pipeline() {
    let part = |forward: f64, backward, activation_bytes| PartCost {
        forward,
        backward,
        activation_bytes,
        weight_bytes: 0,
    };
    let cut = |profile: &ModelProfile, sizes: &[(Range<usize>, usize)]| {
        let stage = |(parts, ranks): &(Range<usize>, usize)| ReplicatedStage {
            parts: parts.clone(),
            ranks: *ranks,
            seconds: profile.stage(parts.clone(), *ranks),
        };
        Partition { stages: sizes.iter().map(stage).collect(), bottleneck: 0.0 }
    };
    let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} for {b}");
    for (bytes, microbatches, seconds) in [(0, 4, 15.0), (8, 1, 6.25)] {
        let parts = vec![part(2.0, 4.0, bytes), part(1.0, 2.0, 64)];
        let profile = ModelProfile { parts, bandwidth: 64.0 };
        let stages = cut(&profile, &[(0..1, 2), (1..2, 1)]);
        near(stages.simulated(&profile, microbatches).unwrap(), microbatches as f64 / seconds);
        near(cut(&profile, &[(0..2, 1)]).simulated(&profile, 2).unwrap(), 2.0 / 18.0);
    }
    let uneven = ModelProfile { parts: vec![part(1.0, 5.0, 0), part(2.0, 1.0, 0)], bandwidth: 1.0 };
    near(cut(&uneven, &[(0..1, 1), (1..2, 1)]).simulated(&uneven, 2).unwrap(), 2.0 / 14.0);
}
