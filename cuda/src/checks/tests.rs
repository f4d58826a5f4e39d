//! Every check on the driver's twin, and bugs that die there.
use super::*;
use crate::gpu::Gpu;
use crate::{Card, twin};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};
use std::{env, fs};
use tensor::PlaceError;

/// One family at a time: the order of blocks and threads is the twin's, not a test's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

thread_local! {
    /// Digest of all that this thread has read of a card.
    static BITS: Cell<u64> = const { Cell::new(0) };
}

/// Adds what was read of a card to the digest.
pub(super) fn record(bits: impl IntoIterator<Item = u64>) {
    bits.into_iter().for_each(|bits| BITS.set(mix(BITS.get() ^ bits)));
}

thread_local! {
    /// Kernels of the list that this thread has run on a card.
    static CALLED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
}

/// Notes a kernel that is run on a card.
pub(crate) fn called(kernel: &'static str) {
    CALLED.with_borrow_mut(|all| all.insert(kernel));
}

/// Runs the checks of a family, with blocks and threads in both orders, which must give the same bits. With
/// `QUICK` set, as by `cargo xtask sanitize`, only the first order is run.
fn all_of<'a>(family: impl IntoIterator<Item = &'a Check<Gpu>>) {
    let _alone = alone();
    if let Err(reason) = twin::install() {
        return twin::skipped(&reason);
    }
    let card = Card::open(0).unwrap();
    let orders = if env::var_os(QUICK).is_some() { &[false][..] } else { &[false, true] };
    for Check { name, kernels, run, .. } in family {
        CALLED.take();
        let bits = |&backwards: &bool| {
            twin::order(backwards);
            BITS.set(0);
            let outcome = PlaceError::caught(|| run(&Gpu::of(&card)));
            if let Err(error) = outcome.unwrap_or_else(|PlaceError(why)| Err(why)) {
                panic!("{name}, backwards {backwards}: {error}");
            }
            BITS.get()
        };
        let bits: Vec<_> = orders.iter().map(bits).collect();
        assert!(
            bits.iter().all(|of| *of == bits[0]),
            "{name}, backwards true: the bits differ from forwards"
        );
        let left_out = |kernel: &&&str| !CALLED.with_borrow(|all| all.contains(**kernel));
        assert_eq!(
            kernels.iter().find(left_out),
            None,
            "{name}: the table lists a kernel that the check does not run"
        );
        println!("{name}: as the host");
    }
}

macro_rules! families {
    ($($family:ident)*) => {$(
        /// Kills: a kernel that gives other numbers than the host, in any order of blocks and threads.
        /// Kills: a kernel whose check does not run it.
        #[test]
        fn $family() {
            all_of(all().filter(|check| check.family == stringify!($family)));
        }
    )*
        /// Kills: a family that is checked by no test.
        #[test]
        fn every_family_has_its_test() {
            let families = BTreeSet::from([$(stringify!($family)),*]);
            assert_eq!(all::<Gpu>().map(|check| check.family).collect::<BTreeSet<_>>(), families);
        }
    };
}
families! { attention elementwise gemm loss norm optimizer rotary router top_k }

/// Set if checks are run in one order.
const QUICK: &str = "EQUIPART_TWIN_QUICK";

/// As above, of one rung: what it waits for is no barrier of a block.
#[test]
fn products_of_hopper() {
    all_of([&Check { family: "gemm", name: "a product on Hopper", kernels: &[], run: gemm::on_hopper }]);
}

/// This program once more, for the checks of a family, with other sources or flags of the twin.
fn child(family: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", &format!("checks::tests::{family}")]);
    command.envs(variables.iter().copied()).output().unwrap()
}

/// A source, its right text, the same text where the bug may be (`BUG`: it is), and the family whose checks
/// must fail.
const BUGS: [[&str; 4]; 10] = [
    // A missing barrier: a warp reads what others have not written yet.
    [
        "row.cuh",
        "room[warp * N + n] = x[n];\n    __syncthreads();",
        "room[warp * N + n] = x[n];\n    if (!BUG) __syncthreads();",
        "norm",
    ],
    // A missing barrier: a warp writes what others have not read yet.
    [
        "row.cuh",
        "x[n] += room[w * N + n];\n    __syncthreads();",
        "x[n] += room[w * N + n];\n    if (!BUG) __syncthreads();",
        "norm",
    ],
    // A missing barrier: the second search for a row overwrites what a warp still reads of the first.
    [
        "rotary_hopper.cu",
        "of, back);\n    __syncthreads();",
        "of, back);\n    if (!BUG) __syncthreads();",
        "rotary",
    ],
    // A missing barrier: the first warp reads what all write, or all read what it writes.
    [
        "top_k.cu",
        "1u);\n        }\n        __syncthreads();",
        "1u);\n        }\n        if (!BUG) __syncthreads();",
        "top_k",
    ],
    // Barriers of the card's copies that others wait at before they are made: for ever.
    [
        "gemm_hopper.cu",
        "publish();\n    }\n    __syncthreads();",
        "publish();\n    }\n    if (!BUG) __syncthreads();",
        "products_of_hopper",
    ],
    // Blocks' sums in the order in which blocks come.
    ["sum.cuh", "of_blocks[blockIdx.x] = x;", "of_blocks[BUG ? ended : blockIdx.x] = x;", "optimizer"],
    // A wrong lane.
    [
        "row.cuh",
        "x += __shfl_xor_sync(~0u, x, apart)",
        "x += __shfl_xor_sync(~0u, x, apart ^ BUG)",
        "optimizer",
    ],
    // Off by one tile: the last one is fetched and never multiplied.
    ["gemm.cu", "k < a.cols + K; k += K", "k < a.cols + (BUG ? 0 : K); k += K", "gemm"],
    // A missing scale.
    [
        "norm.cu",
        "float scale = rsqrtf(block_sum(squares) * count",
        "float scale = rsqrtf(block_sum(squares) * (BUG ? 1.0f : count)",
        "norm",
    ],
    // A tail that is not masked: columns beyond C's window are written.
    [
        "product.cuh",
        "if (col + i < c.cols) c(row, col + i)",
        "if (BUG || col + i < c.cols) c(row, col + i)",
        "gemm",
    ],
];

/// Makes a copy of the twin's sources in which a variable selects one of the bugs: it is compiled once for
/// all.
fn with_bugs() -> tempfile::TempDir {
    let (home, copy) = (Path::new(env!("CARGO_MANIFEST_DIR")), tempfile::tempdir().unwrap());
    for folder in ["kernels", "twin"] {
        fs::create_dir(copy.path().join(folder)).unwrap();
        for source in fs::read_dir(home.join(folder)).unwrap().flatten() {
            fs::copy(source.path(), copy.path().join(folder).join(source.file_name())).unwrap();
        }
    }
    let plant = |file: &str, right: &str, wrong: &str| {
        let path = copy.path().join("kernels").join(file);
        let source = fs::read_to_string(&path).unwrap();
        assert_eq!(source.matches(right).count(), 1, "{file}: {right}");
        fs::write(path, source.replace(right, wrong)).unwrap();
    };
    let host = "#include \"../twin/cuda.h\"\n";
    plant(
        "number.cuh",
        host,
        &format!("{host}static const int bug = atoi(getenv(\"EQUIPART_TWIN_BUG\"));\n"),
    );
    for (number, [file, right, wrong, _]) in BUGS.iter().enumerate() {
        plant(file, right, &wrong.replace("BUG", &format!("(bug == {number})")));
    }
    copy
}

/// Kills: checks, or orders of threads, that a bug of a kernel lives through.
#[test]
fn planted_bugs_of_kernels_die() {
    if let Err(reason) = twin::install() {
        return twin::skipped(&reason);
    }
    let copy = with_bugs();
    let folder = copy.path().to_str().unwrap();
    for (number, [file, _, wrong, family]) in BUGS.iter().enumerate() {
        let number = number.to_string();
        let variables = [
            ("EQUIPART_TWIN_SOURCES", folder),
            ("EQUIPART_TWIN_FLAGS", "-O0"),
            ("EQUIPART_TWIN_BUG", &number),
        ];
        let output = child(family, &variables);
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(", backwards "), "{file}: {wrong} lives: {said}");
    }
}

/// Runs all tests of this crate without a C++ compiler. Kills: a test that passes without a word, though it
/// could try nothing.
#[test]
fn tests_without_a_compiler_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let (said, empty) = (folder.path().join("said"), folder.path().join("empty"));
    fs::create_dir(&empty).unwrap();
    let own = "checks::tests::tests_without_a_compiler_say_so";
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--skip", own]).env_remove("CXX").env("PATH", &empty).env("EQUIPART_SKIPPED", &said);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let (said, seen) = (fs::read_to_string(said).unwrap(), String::from_utf8_lossy(&output.stderr));
    let skipped: BTreeSet<_> = said.lines().collect();
    assert!(skipped.iter().all(|line| seen.contains(line) && line.contains(": no C++ compiler")), "{said}");
    let all = ["checks::tests::gemm", "checks::tests::planted_bugs_of_kernels_die"];
    assert!(
        all.iter().all(|test| said.contains(&format!("skipped: {test}: "))) && skipped.len() >= 18,
        "{said}"
    );
}
