//! An enumeration with names: one line per variant, from which the list, the count and the names derive.

/// An enumeration of variants that have names: `listed! { /// Docs. Name { /// Docs. Variant = "variant", } }`. Who calls it
/// depends on `serde`.
#[macro_export]
macro_rules! listed {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them, in the order of every report.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];
            /// The name in messages and reports.
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
