//! Includes xtask's reader of the README, because `cargo test` leaves xtask out.
#[path = "../../../xtask/src/readme.rs"]
mod readme;
