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

/// The checks of a family with the threads of a block in two orders: one warp after the other, and mixed. The first is what a
/// child takes that was told so, and so, where it can, the test of the kernels' memory, of all families.
fn all_of(family: &[Check]) {
    let _alone = alone();
    if let Err(reason) = twin::install() {
        return eprintln!("{} checks are skipped: {reason}", family.len());
    }
    let card = Card::open(0).unwrap();
    let orders = match (env::var_os(QUICK), twin::sanitizer()) {
        (Some(_), _) => &[3][..],
        (None, Some(_)) => &[2],
        (None, None) => &[3, 2],
    };
    for (name, check) in family {
        for &order in orders {
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

/// A source, what stands there, what stands there where the bug may be (`BUG`: it is), and the family whose checks must fail.
const BUGS: [[&str; 4]; 5] = [
    // A missing barrier: a warp reads what others have not written yet.
    [
        "row.cuh",
        "room[warp * N + n] = x[n];\n    __syncthreads();",
        "room[warp * N + n] = x[n];\n    if (!BUG) __syncthreads();",
        "optimizer",
    ],
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

/// A copy of the twin's sources in which a variable says which of the bugs is there: it is compiled once for all.
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
        return eprintln!("{} planted bugs are skipped: {reason}", BUGS.len());
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
        assert!(!output.status.success() && said.contains("wanted"), "{file}: {wrong} lives: {said}");
    }
}

/// Kills: a kernel that reads or writes outside of its memory. `AddressSanitizer` has its library loaded first.
#[test]
fn kernels_stay_inside_their_memory() {
    let Some(library) = twin::sanitizer() else {
        return eprintln!("skipped: the C++ compiler has no AddressSanitizer");
    };
    for family in ["attention", "elementwise", "gemm", "loss", "norm", "optimizer", "router", "top_k"] {
        let options = "detect_leaks=0:detect_stack_use_after_return=0:use_sigaltstack=0";
        let sanitized = [
            ("EQUIPART_TWIN_FLAGS", "-O1 -fsanitize=address"),
            ("LD_PRELOAD", &library),
            ("ASAN_OPTIONS", options),
        ];
        let output = child(family, &sanitized);
        assert!(output.status.success(), "{family}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
