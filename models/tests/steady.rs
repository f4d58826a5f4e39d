//! Generated tokens allocate no memory after the first ones. A separate test binary, because it counts
//! allocations in the global allocator.
#[path = "../../comm/src/tests/counting.rs"]
mod counting;
#[path = "../../cuda/src/twin/tests/skipped.rs"]
mod skipped;

use kernels::Heads;
use layers::Shape;
use models::families;
use models::generate::{Prompts, generate};
use models::sampling::Sampling;
use models::{Config, Model};
use parallel::Network;
use skipped::skipped;
use std::sync::Mutex;

/// Number of allocations for each token, counted by the reporting rank.
fn each_token(layout: &str, sampling: Sampling) -> Vec<usize> {
    let heads = Heads::new(4, 2, 8);
    let shape = Shape { width: 32, blocks: 2, heads, hidden: 64, vocabulary: 256, ..Shape::LLAMA };
    let (family, eos) = (families::LLAMA, Vec::new());
    let model = Model::fresh(
        Config { family, shape, positions: 128, bos: None, eos, spare_coefficient: 0.0, wrapper: None },
        5,
    );
    let prompts = vec![(0..40).collect(), vec![7, 8, 9]];
    let request = Prompts { prompts, max_new: 60, sampling, ..Prompts::default() };
    let seen = Mutex::new(Vec::with_capacity(request.max_new));
    let watch = |_| seen.lock().unwrap().push(counting::taken());
    generate::<tensor::Cpu<f32>>(&model, (&layout.parse().unwrap(), &Network::default()), &request, &watch)
        .unwrap();
    seen.into_inner().unwrap().windows(2).map(|pair| pair[1] - pair[0]).skip(2).collect()
}

/// Kills: a list of ids, lengths or logits allocated for each token, candidates sorted in fresh memory, a
/// text buffer that grows, a cache, a table or scratch memory that grows with the tokens.
#[test]
fn a_generated_token_takes_no_memory() {
    if !own_products() {
        return skipped("this machine's products are a library's, which takes memory of its own");
    }
    let drawn = Sampling { temperature: Some(0.8), top_k: Some(40), top_p: Some(0.9), seed: 3 };
    for sampling in [Sampling::default(), drawn, Sampling { top_k: None, ..drawn }] {
        let alone = each_token("none", sampling);
        assert!(alone.len() > 50 && alone.iter().all(|&taken| taken == 0), "{alone:?}");
        for layout in ["tp=2", "tp=2,sp", "dp=2"] {
            let each = each_token(layout, sampling); // a long wait prints a message, which allocates
            assert!(each.iter().filter(|&&taken| taken == 0).count() > each.len() / 2, "{layout}: {each:?}");
        }
    }
}

fn own_products() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::is_x86_feature_detected!("avx512f");
    #[cfg(not(target_arch = "x86_64"))]
    false
}
