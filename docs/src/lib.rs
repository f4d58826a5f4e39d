//! The course. Each chapter is a file in this folder, an entry of `SUMMARY.md` and one item below, which runs
//! its Rust blocks as doctests; `tests/all/book.rs` checks that none of the three is missing.

#[cfg(doctest)]
#[doc = include_str!("by-hand.md")]
mod by_hand {}

#[cfg(doctest)]
#[doc = include_str!("exercises.md")]
mod exercises {}

#[cfg(doctest)]
#[doc = include_str!("tensors-and-shares.md")]
mod tensors_and_shares {}

#[cfg(doctest)]
#[doc = include_str!("backward.md")]
mod backward {}

#[cfg(doctest)]
#[doc = include_str!("columns-and-rows.md")]
mod columns_and_rows {}

#[cfg(doctest)]
#[doc = include_str!("why-a-field-proves.md")]
mod why_a_field_proves {}

#[cfg(doctest)]
#[doc = include_str!("heads.md")]
mod heads {}

#[cfg(doctest)]
#[doc = include_str!("vocabulary-and-loss.md")]
mod vocabulary_and_loss {}

#[cfg(doctest)]
#[doc = include_str!("sequence-regions.md")]
mod sequence_parallelism {}

#[cfg(doctest)]
#[doc = include_str!("ranks-and-collectives.md")]
mod ranks_and_collectives {}

#[cfg(doctest)]
#[doc = include_str!("the-ring.md")]
mod the_ring {}

#[cfg(doctest)]
#[doc = include_str!("what-a-hang-is.md")]
mod what_a_hang_is {}

#[cfg(doctest)]
#[doc = include_str!("pytorch.md")]
mod pytorch {}

#[cfg(doctest)]
#[doc = include_str!("pytorch-packages.md")]
mod pytorch_packages {}

#[cfg(doctest)]
#[doc = include_str!("profile.md")]
mod profile {}

#[cfg(doctest)]
#[doc = include_str!("schedules.md")]
mod schedules {}

#[cfg(doctest)]
#[doc = include_str!("zero-bubble.md")]
mod zero_bubble {}

#[cfg(doctest)]
#[doc = include_str!("strategies.md")]
mod strategies {}

#[cfg(doctest)]
#[doc = include_str!("systems.md")]
mod systems {}

#[cfg(doctest)]
#[doc = include_str!("proof.md")]
mod proof {}

#[cfg(doctest)]
#[doc = include_str!("cannot-see.md")]
mod cannot_see {}

#[cfg(doctest)]
#[doc = include_str!("speed.md")]
mod speed {}

#[cfg(doctest)]
#[doc = include_str!("museum.md")]
mod museum {}

#[cfg(doctest)]
#[doc = include_str!("commands.md")]
mod commands {}

#[cfg(doctest)]
#[doc = include_str!("clusters.md")]
mod clusters {}

#[cfg(doctest)]
#[doc = include_str!("map.md")]
mod map {}

#[cfg(doctest)]
#[doc = include_str!("glossary.md")]
mod glossary {}

#[cfg(doctest)]
#[doc = include_str!("experts.md")]
mod experts {}

#[cfg(doctest)]
#[doc = include_str!("gpu.md")]
mod gpu {}

#[cfg(doctest)]
#[doc = include_str!("data-parallelism.md")]
mod data_parallelism {}

#[cfg(doctest)]
#[doc = include_str!("fitting-a-model.md")]
mod fitting_a_model {}

#[cfg(doctest)]
#[doc = include_str!("context-parallelism.md")]
mod context_parallelism {}

#[cfg(doctest)]
#[doc = include_str!("choosing-a-layout.md")]
mod choosing_a_layout {}

#[cfg(doctest)]
#[doc = include_str!("checkpoints.md")]
mod checkpoints {}

#[cfg(doctest)]
#[doc = include_str!("stale-weights.md")]
mod stale_weights {}

#[cfg(doctest)]
#[doc = include_str!("requests.md")]
mod requests {}

#[cfg(doctest)]
#[doc = include_str!("found-shardings.md")]
mod found_shardings {}

#[cfg(doctest)]
#[doc = include_str!("sparse-and-shared.md")]
mod sparse_and_shared {}

#[cfg(doctest)]
#[doc = include_str!("whole-matrices.md")]
mod whole_matrices {}

#[cfg(doctest)]
#[doc = include_str!("check-a-layout.md")]
mod check_a_layout {}

#[cfg(doctest)]
#[doc = include_str!("four-systems.md")]
mod four_systems {}

#[cfg(doctest)]
#[doc = include_str!("fsdp.md")]
mod fsdp {}

#[cfg(doctest)]
#[doc = include_str!("index.md")]
mod index {}

#[cfg(doctest)]
#[doc = include_str!("messages.md")]
mod messages {}

#[cfg(doctest)]
#[doc = include_str!("model-memory.md")]
mod model_memory {}

#[cfg(doctest)]
#[doc = include_str!("narrow-numbers.md")]
mod narrow_numbers {}

#[cfg(doctest)]
#[doc = include_str!("slices.md")]
mod slices {}

#[cfg(doctest)]
#[doc = include_str!("zero.md")]
mod zero {}
