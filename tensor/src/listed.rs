//! Macro for an enumeration with names: each line defines a variant, its name and its place in `ALL`.

/// Defines an enumeration whose variants have names: `listed! { /// Docs. Name { /// Docs. Variant =
/// "variant", } }`. The calling crate must depend on `serde`.
#[macro_export]
macro_rules! listed {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All variants, in the order in which reports list them.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// Returns the name in messages and reports.
            pub fn name(self) -> &'static str {
                [$($text,)*][self as usize]
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}
