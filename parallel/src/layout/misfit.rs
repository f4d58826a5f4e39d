//! The error for a layout whose ranks cannot share a model; it lists the sizes that can.
use crate::Error;
use comm::Axis;
use std::fmt;

/// The most sizes that an error lists.
const MOST: usize = 12;

/// An axis size that does not divide `things` of the model, such as "4 KV heads"; lists the `possible` sizes
/// that do. If a method of the axis is the reason, the error names the method, and the `others` that fit this
/// size.
pub(super) fn misfit(
    (axis, ranks): (Axis, usize),
    (method, others): (Option<&str>, &[&str]),
    things: &str,
    possible: &[usize],
) -> Error {
    let named = |before: &str| method.map_or(String::new(), |method| format!("{before}{method}"));
    let mut some: Vec<_> = possible.iter().take(MOST).map(usize::to_string).collect();
    some.extend((possible.len() > MOST).then(|| "another multiple".into()));
    let fits = if possible.is_empty() {
        format!("no number of {axis} ranks does")
    } else {
        format!("{axis} can be {}{}", either(&some, "or"), named(" with "))
    };
    let others = match others {
        [] => String::new(),
        _ => format!("; {axis}={ranks} fits with {}", either(others, "or")),
    };
    Error::new(format!("{axis}={ranks}{} does not fit {things}: {fits}{others}", named(":")))
}

/// "1", "1 or 2", "1, 2 or 4".
pub fn either<T: fmt::Display>(all: &[T], last: &str) -> String {
    let words: Vec<_> = all.iter().map(T::to_string).collect();
    match words.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => words.concat(),
    }
}
