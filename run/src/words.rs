//! Numbers as people read them.

/// A number of tokens or pictures a second: `17.0k`.
#[must_use]
pub fn speed(per_second: f64) -> String {
    match per_second {
        x if x < 1e4 => format!("{x:.0}"),
        x if x < 1e6 => format!("{:.1}k", x / 1e3),
        x => format!("{:.1}M", x / 1e6),
    }
}

/// A number in words: `405.9 billion`.
#[must_use]
pub fn amount(number: f64) -> String {
    const NAMES: [(f64, &str); 3] = [(1e12, " trillion"), (1e9, " billion"), (1e6, " million")];
    match NAMES.iter().find(|(unit, _)| number >= *unit) {
        Some(_) if number >= 1e15 => format!("{number:.2e}"),
        Some((unit, name)) => format!("{:.1}{name}", number / unit),
        None => format!("{number:.0}"),
    }
}

/// Formats with as many digits as are significant.
#[must_use]
pub fn digits(x: f64) -> String {
    match x {
        x if x < 10.0 => format!("{x:.3}"),
        x if x < 1000.0 => format!("{x:.1}"),
        x => format!("{x:.0}"),
    }
}
