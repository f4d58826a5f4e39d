//! Catches a panic with its message and source location, without its output on standard error.
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;
use tensor::count::Overflow;
use tensor::{OutOfMemory, PlaceError};

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
    static LEFT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Names the work until this is dropped: a panic that ends the work is reported with the innermost name. The
/// name is formatted only then.
pub struct PanicContext<T: Display>(pub T);

impl<T: Display> Drop for PanicContext<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            LEFT.with_borrow_mut(|left| left.get_or_insert_with(|| self.0.to_string()).len());
        }
    }
}

/// A panic that was caught.
pub(crate) struct Panic {
    /// Message and source location.
    pub(crate) message: String,
    trace: Option<Backtrace>, // if backtraces are enabled
}

impl Panic {
    /// Prints the backtrace on standard error, and returns the message. This may take long: inform other
    /// ranks before.
    pub(crate) fn report(self) -> String {
        if let Some(trace) = self.trace {
            let thread = std::thread::current();
            let print = || eprintln!("{}: {}\n{trace}", thread.name().unwrap_or("a thread"), self.message);
            let _ = catch_unwind(AssertUnwindSafe(print)); // standard error may be closed
        }
        self.message
    }
}

/// Returns the result of `body`, or its panic: message and source location.
///
/// # Errors
/// If `body` panics. Nothing is printed on standard error, unless backtraces are enabled.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch(body).map_err(Panic::report)
}

/// Returns the result of `body`, or its panic.
pub(crate) fn catch<R>(body: impl FnOnce() -> R) -> Result<R, Panic> {
    let (mut body, mut returned) = (Some(body), None);
    erased(&mut || returned = body.take().map(|body| body()))?;
    Ok(returned.expect("it ran"))
}

/// Erased form of [`catch`], so that it is compiled once.
fn erased(body: &mut dyn FnMut()) -> Result<(), Panic> {
    install();
    let outside = CATCHES.replace(true);
    LEFT.take(); // from a panic that was caught elsewhere
    let outcome = catch_unwind(AssertUnwindSafe(body));
    CATCHES.set(outside);
    let anew = || Panic { message: "panicked again, without a source location".to_string(), trace: None };
    outcome.map_err(|payload| {
        let expected = None
            .or_else(|| Some(payload.downcast_ref::<Overflow>()?.to_string()))
            .or_else(|| Some(payload.downcast_ref::<OutOfMemory>()?.to_string()))
            .or_else(|| Some(payload.downcast_ref::<PlaceError>()?.to_string()));
        if let Some(message) = expected {
            return Panic { message, trace: None }; // no bug: a size that is too large, or a place that failed
        }
        let Panic { message, trace } = LAST.take().unwrap_or_else(anew);
        let left = LEFT.take().map_or_else(String::new, |left| format!(" ({left})"));
        Panic { message: message + &left, trace }
    })
}

/// Installs a panic hook before the process' own one: panics that are caught do not reach that one.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if !CATCHES.get() {
                return before(info);
            }
            let trace = Some(Backtrace::capture()).filter(|t| t.status() == BacktraceStatus::Captured);
            let at = info.location().map(|at| (at.file(), at.line()));
            LAST.set(Some(Panic { message: sentence(at, info.payload_as_str()), trace }));
        }));
    });
}

/// Formats a panic as a sentence, with its source location if that is in this workspace: the path of a
/// location in a library is of no use to the reader.
fn sentence(at: Option<(&str, u32)>, message: Option<&str>) -> String {
    let why = message.map(|message| format!(": {message}")).unwrap_or_default();
    match (at, message) {
        (Some((file, _)), _) if Path::new(file).has_root() => format!("a library panicked{why}"),
        (Some((file, line)), _) => format!("panicked at {file}:{line}{why}"),
        (None, _) => format!("panicked{why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::{Category, Cpu, Device, Tensor};

    /// Kills: the path of a dependency or of the compiler's library in a sentence, one of this workspace that
    /// is lost.
    #[test]
    fn a_panic_is_reported_with_its_place_where_that_is_ours() {
        let message = Some("index out of bounds");
        let ours = sentence(Some(("layers/src/linear/row.rs", 12)), message);
        assert_eq!(ours, "panicked at layers/src/linear/row.rs:12: index out of bounds");
        for path in
            ["/home/me/.cargo/registry/src/x/spm-0.1/src/lib.rs", "/rustc/abc/library/core/src/option.rs"]
        {
            assert_eq!(sentence(Some((path, 3)), message), "a library panicked: index out of bounds");
            assert_eq!(sentence(Some((path, 3)), None), "a library panicked");
        }
        let cpu = Cpu::<f32>::default();
        cpu.meter().limit(63);
        let none = caught(|| Tensor::empty(&cpu, Category::Weights, 4, 4).len()).unwrap_err();
        assert_eq!(none, "64 more bytes of weights do not fit beside the 0 held: the limit is 63");
    }
}
