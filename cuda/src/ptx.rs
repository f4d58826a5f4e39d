//! The kernels as they are committed: PTX, which the driver compiles for the card at hand.

/// The kernels of one source.
pub(crate) struct Module {
    pub(crate) name: &'static str,
    pub(crate) ptx: &'static str,
    /// The least compute capability that runs them.
    pub(crate) least: (i32, i32),
}

macro_rules! modules {
    ($($name:literal $least:expr;)*) => {
        pub(crate) const MODULES: &[Module] = &[$(Module {
            name: $name,
            ptx: include_str!(concat!("../ptx/", $name, ".ptx")),
            least: $least,
        }),*];
    };
}
modules! {
    "elementwise" (8, 0);
    "gemm" (8, 0);
    "gemm_few" (8, 0);
    "gemm_tensor" (8, 0);
    "gemm_hopper" (9, 0);
    "optimizer" (8, 0);
    "top_k" (8, 0);
    "router" (8, 0);
}

impl Module {
    /// Whether a card of this compute capability runs it: kernels of features that one generation alone has run on no other.
    pub(crate) fn runs_on(&self, capability: (i32, i32)) -> bool {
        let own = self.ptx.lines().any(|line| line.starts_with(".target") && line.trim_end().ends_with('a'));
        if own { capability == self.least } else { capability >= self.least }
    }
}

/// The kernels of a PTX text, each with the bytes of its parameters.
pub(crate) fn kernels(ptx: &'static str) -> impl Iterator<Item = (&'static str, Vec<usize>)> {
    ptx.split(".entry ").skip(1).map(|entry| {
        let (name, rest) = entry.split_once('(').expect("an entry has parameters");
        let (parameters, _) = rest.split_once(')').expect("which end");
        (name.trim(), parameters.split(',').filter(|text| text.contains(".param")).map(bytes).collect())
    })
}

/// The bytes of a parameter: `.param .u32 x` or `.param .align 8 .b8 x[32]`.
fn bytes(parameter: &str) -> usize {
    let words: Vec<_> = parameter.split_whitespace().collect();
    if let Some((_, len)) = parameter.split_once('[') {
        return len.trim_end().trim_end_matches(']').parse().expect("how many bytes");
    }
    let bits = words.iter().find_map(|word| word.strip_prefix(['.'])?.get(1..)?.parse::<usize>().ok());
    bits.expect("a type of so many bits") / 8
}
