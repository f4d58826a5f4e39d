//! Ranks as threads, seen from outside: what they compute and count, what they are told when one of them fails, how long
//! they take.
mod acts;
mod blocks;
mod failures;
mod promises;
mod requests;
mod steady_state;
mod stress;
mod timing;
