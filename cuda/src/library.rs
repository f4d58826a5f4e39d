//! Shared libraries that may be there or not: looked for when the program runs, never when it is built.
use libloading::Library;

/// Declares a library's functions: a struct of their addresses, all of them found when it is bound. Each returns a status, 0 if
/// all is well, or what is said.
macro_rules! library {
    ($(#[$doc:meta])* $name:ident { $(fn $function:ident($($argument:ty),*) $(-> $back:ty)?;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(crate) struct $name {
            $(pub(crate) $function: unsafe extern "C" fn($($argument),*) -> $crate::library::given!($($back)?),)*
            _library: libloading::Library, // its functions are there as long as it is
        }
        #[allow(non_snake_case)]
        impl $name {
            /// Finds every function; the name of the first that is missing, if one is.
            pub(crate) fn bind(library: libloading::Library) -> Result<Self, &'static str> {
                // SAFETY: the signatures are those of the library's header.
                unsafe {
                    $(let $function = *library
                        .get(concat!(stringify!($function), "\0"))
                        .map_err(|_| stringify!($function))?;)*
                    Ok(Self { $($function,)* _library: library })
                }
            }
        }
    };
}
pub(crate) use library;

/// What a function returns: this, or a status.
macro_rules! given {
    () => {
        std::ffi::c_int
    };
    ($given:ty) => {
        $given
    };
}
pub(crate) use given;

/// Opens the first of these libraries that is there: with the name that it was found by.
///
/// # Errors
/// What the system says of each.
pub(crate) fn open(names: &[String]) -> Result<(Library, &str), String> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: what such a library runs when it is loaded is what its vendor means it to.
        match unsafe { Library::new(name) } {
            Ok(library) => return Ok((library, name)),
            Err(error) => reasons.push(match std::error::Error::source(&error) {
                Some(reason) => reason.to_string(),
                None => error.to_string(),
            }),
        }
    }
    Err(reasons.join("; "))
}
