//! Mixture of experts: in place of a block's feed-forward many, of which each token goes through a few. A router chooses
//! them, an [exchange] brings tokens to the ranks that have their experts, and back.
//!
//! ```text
//! router     G[B,k], E[B,k] = the k highest of X[B,D]·W_r[D,E]             no traffic
//! dispatch   R[N,D] = the rows of X that were handed to experts here       an exchange over ep, a gather over etp
//! experts    Y_e = act(R_e · W_up[e]) · g · W_down[e]ᵀ                     no traffic
//! combine    Y[B,D] = Σ over a token's experts                             the way back
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `routing.rs` | who is handed to whom, as lists: the router's choice, dropping, forced balance |
//! | `exchange.rs` | the ways of tokens to their experts: a list, a file each in `exchange/` |
//! | `feed_forward.rs` | the layer: a router, its experts, and a shared one |
//! | `shared.rs` | the expert that all tokens go through |
//! | `sliced.rs` | tensor parallelism of experts |
//! | `balance.rs` | what training adds to the loss, and how the bias of a choice moves |
//!
//! Every rank of a stage takes tokens of its own: those that it is dealt, and of those that tensor ranks have alike its part.
//! Source: Shazeer et al., arXiv:1701.06538; Lepikhin et al., `GShard`, arXiv:2006.16668.
mod balance;
pub mod exchange;
mod feed_forward;
mod routing;
mod shared;
pub mod sliced;

pub use balance::Balancing;
pub use exchange::{Carried, Dispatch, Exchange, MostRows};
pub use feed_forward::{ExpertFeedForward, WithExperts};
pub use routing::{NOBODY, Routing};

use kernels::Kernels;
use layers::{About, Strategy};

/// The descriptions of all strategies of experts.
pub fn abouts() -> Vec<&'static About> {
    [&[&sliced::ABOUT], exchange::ALL].concat()
}

/// The strategies of experts that build layers, on a device.
pub fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
    exchange::on()
}

#[cfg(test)]
mod tests;
