//! Every check on the driver's twin, and bugs that die there.
use super::*;
use crate::{Card, twin};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};
use std::{env, fs};

/// One family at a time: the order of threads is the twin's, not a test's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The checks of a family with the threads of a block in four orders; a child that was told so takes one alone.
fn all_of(family: &[Check]) {
    let _alone = alone();
    if let Err(reason) = twin::install() {
        return eprintln!("{} checks are skipped: {reason}", family.len());
    }
    let card = Card::open(0).unwrap();
    let orders = if env::var_os(QUICK).is_some() { 3..4 } else { 0..4 };
    for (name, check) in family {
        for order in orders.clone() {
            twin::order(order);
            if let Err(error) = check(&Gpu::of(&card)) {
                panic!("{name}, threads in order {order}: {error}");
            }
        }
        println!("{name}: as the host");
    }
}

macro_rules! families {
    ($($family:ident)*) => {$(
        /// Kills: a kernel that gives other numbers than the host, in any order of threads.
        #[test]
        fn $family() {
            all_of(super::$family::ALL);
        }
    )*
        /// Kills: a family that is checked by no test.
        #[test]
        fn every_family_has_its_test() {
            assert_eq!([$(super::$family::ALL),*].concat().len(), ALL.concat().len());
        }
    };
}
families! { attention elementwise gemm loss norm optimizer router top_k }

const QUICK: &str = "EQUIPART_TWIN_QUICK";

/// This program once more, for the checks of a family, with other sources or flags of the twin.
fn child(family: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("checks::tests::{family}")]).env(QUICK, "1");
    command.envs(variables.iter().copied()).output().unwrap()
}

/// A source, what stands there, what is planted, and the family whose checks must fail.
const BUGS: [[&str; 4]; 6] = [
    // A missing barrier: a block reads what its other warps have not written yet.
    ["sum.cuh", BARRIER, "", "optimizer"],
    // A wrong lane.
    ["hash.cuh", "z ^ z >> 30", "z ^ z >> 29", "elementwise"],
    // Off by one tile.
    ["gemm.cu", TILE, "k < cut - 1", "gemm"],
    // A missing scale.
    ["dropout.cuh", "? dropout.scale : 0.0f", "? 1.0f : 0.0f", "elementwise"],
    // A tail that is not masked.
    ["norm.cu", TAIL, "", "norm"],
    ["attention.cuh", MASK, "", "attention"],
];
const BARRIER: &str = "";
const TILE: &str = "";
const TAIL: &str = "";
const MASK: &str = "";
