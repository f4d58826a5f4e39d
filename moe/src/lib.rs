//! Mixture of experts: a block has many feed-forwards in place of one, and each token goes through a few. A
//! router chooses them; a [token dispatcher](dispatcher) sends tokens to the ranks of their experts, and
//! back.
//!
//! ```text
//! router     G[B,k], E[B,k] = the k highest of X[B,D]·W_r[D,E]   no traffic
//! dispatch   R[N,D] = the rows of X routed to experts here       dispatch over ep, all-gather over etp
//! experts    Y_e = act(R_e · W_up[e]) · g · W_down[e]ᵀ           no traffic
//! combine    Y[B,D] = Σ over a token's experts                   the reverse
//! ```
//!
//! Every rank of a stage routes tokens of its own: those dealt to it, and its part of those that tensor ranks
//! replicate.
//!
//! Source: Shazeer et al., arXiv:1701.06538; Lepikhin et al., `GShard`, arXiv:2006.16668.

// The router's choice, and experts that more than one token shares.
mod routing;
mod shared;
pub mod sliced;

// Balance of the choice, and the trait of token dispatchers.
mod balance;
mod biases;
mod dispatch;

// A layer made of experts, and the list of dispatchers that it is built with.
pub mod dispatcher;
mod feed_forward;

pub use balance::Balancing;
pub use dispatch::{Dispatch, RowCapacity, RowKind, TokenDispatcher};
pub use feed_forward::{ExpertFeedForward, WithExperts};
pub use routing::{DROPPED, Routing};

use kernels::Kernels;
use layers::{Strategy, StrategyInfo};

/// The descriptions of all strategies of experts.
pub fn abouts() -> Vec<&'static StrategyInfo> {
    [&[&sliced::ABOUT], dispatcher::ALL].concat()
}

/// The strategies of experts that build layers, on a device.
pub fn on<D: Kernels>() -> Vec<&'static dyn Strategy<D>> {
    dispatcher::on()
}

#[cfg(test)]
mod tests;
