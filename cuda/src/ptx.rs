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
    "attention" (8, 0);
    "attention_backward" (8, 0);
    "attention_cores" (8, 0);
    "attention_rows" (8, 0);
    "attention_cores_backward" (8, 0);
    "elementwise" (8, 0);
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
