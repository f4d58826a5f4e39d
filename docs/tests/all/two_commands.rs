//! `cargo test` leaves xtask out, so its reader of the README is tested here.
#[path = "../../../xtask/src/readme.rs"]
mod readme;
