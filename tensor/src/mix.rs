//! A hash of numbers, by which values are drawn.

/// `SplitMix64`: a hash of (seed, global index). Source: Steele, Lea, Flood, "Fast splittable pseudorandom
/// number generators", OOPSLA 2014.
#[must_use]
pub fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
