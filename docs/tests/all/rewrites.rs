//! Files that tests compare with generated text: with `EQUIPART_REWRITE=1` they are rewritten, but never if
//! `CI` is set.

/// Returns true if files are to be rewritten.
///
/// # Panics
/// If `EQUIPART_REWRITE` and `CI` are both set: in CI files are only compared.
pub(crate) fn rewrites() -> bool {
    wanted(|name| std::env::var_os(name).is_some())
}

fn wanted(is_set: impl Fn(&str) -> bool) -> bool {
    let rewrites = is_set("EQUIPART_REWRITE");
    assert!(
        !rewrites || !is_set("CI"),
        "EQUIPART_REWRITE and CI are set, but CI writes no files anew: unset one"
    );
    rewrites
}

/// Kills: files rewritten in CI, where every comparison would then pass.
#[test]
fn nothing_is_written_anew_where_ci_is() {
    let of = |set: &'static [&str]| std::panic::catch_unwind(|| wanted(|name| set.contains(&name))).ok();
    let all: [&[&str]; 4] = [&[], &["CI"], &["EQUIPART_REWRITE"], &["CI", "EQUIPART_REWRITE"]];
    assert_eq!(all.map(of), [Some(false), Some(false), Some(true), None]);
}
