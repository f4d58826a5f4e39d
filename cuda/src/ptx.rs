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
    "loss" (8, 0);
    "norm" (8, 0);
}

/// Written by hand, for the course: cards load them, the twin has no source of them.
pub(crate) const BY_HAND: &[Module] =
    &[Module { name: "hand/rms_norm", ptx: include_str!("../ptx/hand/rms_norm.ptx"), least: (8, 0) }];

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

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: a parameter that the compiled kernel has not, or that the text hides from us.
    #[test]
    fn a_kernel_by_hand_takes_what_the_compiled_one_takes() {
        let of = |modules: &'static [Module], name: &str| {
            let mut all = modules.iter().flat_map(|module| kernels(module.ptx));
            all.find(|(kernel, _)| *kernel == name).expect("it is there").1
        };
        assert_eq!(of(BY_HAND, "rms_norm_by_hand"), of(MODULES, "rms_norm_f32"));
    }
}
