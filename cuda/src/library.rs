//! Optional shared libraries: looked for when the program runs, never when it is built.
use libloading::Library;

/// Declares a library's functions: a struct of their addresses, all of them found when the library is bound.
/// Each function returns a status, 0 for success, or the type that is named.
macro_rules! library {
    ($(#[$doc:meta])* $name:ident { $(fn $function:ident($($argument:ty),*) $(-> $back:ty)?;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        pub(crate) struct $name {
            $(pub(crate) $function: unsafe extern "C" fn($($argument),*) -> $crate::library::given!($($back)?),)*
            _library: libloading::Library, // keeps the functions loaded
        }
        #[allow(non_snake_case)]
        impl $name {
            /// Binds every function. The error is the name of the first one that is missing.
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

/// The return type of a function: the named one, or a status.
macro_rules! given {
    () => {
        std::ffi::c_int
    };
    ($given:ty) => {
        $given
    };
}
pub(crate) use given;

/// Opens the first of these libraries that is found, and returns it with its name.
///
/// # Errors
/// The system's reason for each library.
pub(crate) fn open(names: &[String]) -> Result<(Library, &str), String> {
    let mut reasons = Vec::new();
    for name in names {
        // SAFETY: the library's initializers are its vendor's, and are meant to run when it is loaded.
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
