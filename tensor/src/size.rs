//! Sizes in bytes as text for people: `466.53 GB`, `80GB`, `80GiB`.

/// Bytes per unit; `B` is last because all units end in it. The first four are printed.
pub const UNITS: [(&str, f64); 9] = [
    ("TB", 1e12),
    ("GB", 1e9),
    ("MB", 1e6),
    ("kB", 1e3),
    ("TiB", (1u64 << 40) as f64),
    ("GiB", (1u64 << 30) as f64),
    ("MiB", (1u64 << 20) as f64),
    ("KiB", (1u64 << 10) as f64),
    ("B", 1.0),
];

/// Formats a size for people, in powers of 1000 and with two decimals: `999 B`, `29.36 MB`.
#[must_use]
pub fn readable(bytes: u128) -> String {
    let rounded = bytes as f64 * (1.0 + 5e-6); // 999 999 bytes are 1.00 MB, not 1000.00 kB
    match UNITS[..4].iter().find(|(_, per)| rounded >= *per) {
        Some((unit, per)) => format!("{:.2} {unit}", bytes as f64 / per),
        None => format!("{bytes} B"),
    }
}

/// Parses a size: a plain whole number of bytes, or a number and its unit: `80GB`, `1.5GiB`. `None` for
/// anything else.
#[must_use]
pub fn parse_bytes(text: &str) -> Option<usize> {
    let whole = |bytes: &f64| (0.0..usize::MAX as f64).contains(bytes);
    text.parse().ok().or_else(|| read(text, &UNITS).filter(whole).map(|bytes| bytes.round() as usize))
}

/// Parses a number with the first unit that fits, and multiplies it by the unit's value.
#[must_use]
pub fn read(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) = units.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, unit)))?;
    Some(number.parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: powers of 1024, a thousand of a unit where the next one begins, bytes beyond 64 bits.
    #[test]
    fn bytes_are_told_in_the_largest_unit() {
        let all = [0, 999, 1000, 29_360_128, 999_994, 999_996, 466_526_208_032, 1 << 64];
        let reported =
            ["0 B", "999 B", "1.00 kB", "29.36 MB", "999.99 kB", "1.00 MB", "466.53 GB", "18446744.07 TB"];
        assert_eq!(all.map(readable), reported);
    }

    /// Kills: a unit read as another, a plain number rounded, a negative one taken for 0, bits for bytes.
    #[test]
    fn bytes_are_read_with_and_without_a_unit() {
        let read = [
            ("0", Some(0)),
            ("9007199254740993", Some((1 << 53) + 1)),
            ("80GB", Some(80_000_000_000)),
            ("80GiB", Some(80 << 30)),
            ("1.5kB", Some(1500)),
            ("2TiB", Some(2 << 40)),
            ("7B", Some(7)),
        ];
        for (text, bytes) in read {
            assert_eq!(parse_bytes(text), bytes, "{text}");
        }
        for text in ["", "GB", "80", "80 GB", "-1GB", "nanGB", "infB", "1e300TB", "80Gb", "80gb", "1GB/s"] {
            assert_eq!(parse_bytes(text).is_some(), text == "80", "{text}");
        }
    }
}
