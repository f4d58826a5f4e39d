//! The kernels as they are committed: PTX packed by `build.rs`, which the driver compiles for the card at
//! hand.
use flate2::read::ZlibDecoder;
use std::io::Read;
use std::sync::OnceLock;

/// The kernels of one source.
pub(crate) struct Module {
    pub(crate) name: &'static str,
    pub(crate) packed: &'static [u8],
    /// Unpacked PTX, filled on first use.
    pub(crate) text: OnceLock<String>,
    /// Least compute capability that runs the kernels.
    pub(crate) least: (i32, i32),
}

macro_rules! modules {
    ($(#[$doc:meta])* $all:ident: $($name:literal $least:expr;)*) => {
        $(#[$doc])*
        pub(crate) static $all: [Module; [$($name),*].len()] = [$(Module {
            name: $name,
            packed: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".z")),
            text: OnceLock::new(),
            least: $least,
        }),*];
    };
}
modules! { MODULES:
    "attention" (8, 0);
    "attention_backward" (8, 0);
    "attention_cores" (8, 0);
    "attention_hopper" (9, 0);
    "attention_hopper_backward" (9, 0);
    "attention_rows" (8, 0);
    "attention_rows_hopper" (9, 0);
    "attention_cores_backward" (8, 0);
    "elementwise" (8, 0);
    "rotary_hopper" (9, 0);
    "reduce" (8, 0);
    "gemm" (8, 0);
    "gemm_few" (8, 0);
    "gemm_row" (8, 0);
    "gemm_row_hopper" (9, 0);
    "gemm_tensor" (8, 0);
    "gemm_hopper" (9, 0);
    "optimizer" (8, 0);
    "adamw_8bit" (8, 0);
    "top_k" (8, 0);
    "router" (8, 0);
    "loss" (8, 0);
    "norm" (8, 0);
}

/// Digests of the kernels and of their PTX, as `sha256sum` prints them.
#[cfg(test)]
const MANIFEST: &str = include_str!("../ptx/manifest.txt");

modules! {
    /// Written by hand, for the course: cards load these kernels, but the host twin has no source of them.
    BY_HAND:
    "rms_norm" (8, 0);
}

impl Module {
    /// Returns the PTX of the module.
    pub(crate) fn ptx(&self) -> &str {
        self.text.get_or_init(|| {
            let mut text = String::new();
            ZlibDecoder::new(self.packed).read_to_string(&mut text).expect("build.rs packed it");
            text
        })
    }
    /// Returns true if a card of this compute capability runs the module. Kernels that use features of a
    /// single generation run on no other.
    pub(crate) fn runs_on(&self, capability: (i32, i32)) -> bool {
        let exact =
            self.ptx().lines().any(|line| line.starts_with(".target") && line.trim_end().ends_with('a'));
        if exact { capability == self.least } else { capability >= self.least }
    }
}

/// Returns the kernels of a PTX text, each with the bytes of its parameters.
pub(crate) fn kernels(ptx: &'static str) -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    ptx.split(".entry ").skip(1).map(|entry| {
        let (name, rest) = entry.split_once('(').expect("an entry has parameters");
        let (parameters, _) = rest.split_once(')').expect("the parameters end");
        (name.trim(), parameters.split(',').filter(|text| text.contains(".param")).map(bytes).collect())
    })
}

/// Returns the bytes of a parameter: `.param .u32 x` or `.param .align 8 .b8 x[32]`.
fn bytes(parameter: &str) -> usize {
    let words: Vec<_> = parameter.split_whitespace().collect();
    if let Some((_, len)) = parameter.split_once('[') {
        return len.trim_end().trim_end_matches(']').parse().expect("a number of bytes");
    }
    let bits = words.iter().find_map(|word| word.strip_prefix(['.'])?.get(1..)?.parse::<usize>().ok());
    bits.expect("a type with its number of bits") / 8
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    /// Kills: PTX that is not that of its source; a source without PTX, or with another card's.
    #[test]
    fn the_committed_ptx_is_that_of_the_kernels() {
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        let noted: BTreeMap<_, _> = MANIFEST
            .lines()
            .filter_map(|line| line.split_once("  "))
            .map(|(digest, file)| (file, digest))
            .collect();
        let mut seen = 0;
        for folder in ["kernels", "ptx"] {
            for entry in
                fs::read_dir(home.join(folder)).unwrap().flatten().filter(|entry| entry.path().is_file())
            {
                let file = format!("{folder}/{}", entry.file_name().to_string_lossy());
                if file == "ptx/manifest.txt" {
                    continue;
                }
                let bytes = Sha256::digest(fs::read(entry.path()).unwrap());
                let digest = bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"));
                assert_eq!(noted.get(&*file), Some(&&*digest), "{file} has changed: run `cargo xtask ptx`");
                seen += 1;
            }
        }
        assert_eq!(seen, noted.len(), "the manifest names files that are not there");
        for module in &MODULES {
            let source = fs::read_to_string(home.join(format!("kernels/{}.cu", module.name))).unwrap();
            let stated =
                source.lines().find_map(|line| line.split_once("ARCH: sm_")).map_or("80", |(_, to)| to);
            let (major, minor) = module.least;
            assert_eq!(stated.trim_end_matches('a'), format!("{major}{minor}"), "{}", module.name);
            let target = format!(".target sm_{stated}");
            assert!(
                module.ptx().lines().any(|line| line.trim_end() == target),
                "{} is not {target}",
                module.name
            );
            assert!(noted.contains_key(&*format!("kernels/{}.cu", module.name)));
        }
        let sources =
            noted.keys().filter(|file| Path::new(file).extension().is_some_and(|end| end == "cu")).count();
        assert_eq!(sources, MODULES.len(), "every source is in the list of modules");
    }

    /// Kills: a parameter that is overlooked or misread, so that a launch with other arguments goes
    /// unnoticed.
    #[test]
    fn parameters_are_read_from_ptx() {
        let text = ".visible .entry f(\n\t.param .u32 a,\n\t.param .align 8 .b8 b[32],\n\t.param .f64 c\n)\n{\n}\n.visible .entry g()\n";
        let read: Vec<_> = kernels(text).collect();
        assert_eq!(read, [("f", vec![4, 32, 8]), ("g", vec![])]);
    }

    /// Kills: a parameter that the compiled kernel has not, or that the text hides from us.
    #[test]
    fn a_kernel_by_hand_takes_what_the_compiled_one_takes() {
        let of = |modules: &'static [Module], name: &str| {
            let mut all = modules.iter().flat_map(|module| kernels(module.ptx()));
            all.find(|(kernel, _)| *kernel == name).expect("it is there").1
        };
        assert_eq!(of(&BY_HAND, "rms_norm_by_hand"), of(&MODULES, "rms_norm_f32"));
    }
}
