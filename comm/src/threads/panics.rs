//! Catches a panic with its message and place, and without its noise on standard error.
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::path::Path;
use std::sync::Once;
use tensor::count::Uncountable;
use tensor::{Fault, PlaceError};

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
    static LEFT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Work that is called `0`, until this is dropped: a panic that ends it is reported with the innermost such name. Nothing is
/// written down before.
pub struct Within<T: Display>(pub T);

impl<T: Display> Drop for Within<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            LEFT.with_borrow_mut(|left| left.get_or_insert_with(|| self.0.to_string()).len());
        }
    }
}

/// A panic that was caught.
pub(super) struct Panic {
    /// Message and place.
    pub(super) message: String,
    trace: Option<Backtrace>, // if such are asked for
}

impl Panic {
    /// Its message; its backtrace goes to standard error. That may take long: others should know by then.
    pub(super) fn report(self) -> String {
        if let Some(trace) = self.trace {
            let thread = std::thread::current();
            let print = || eprintln!("{}: {}\n{trace}", thread.name().unwrap_or("a thread"), self.message);
            let _ = catch_unwind(AssertUnwindSafe(print)); // nobody may be there to read it
        }
        self.message
    }
}

/// What `body` returns, or its panic: message and place.
///
/// # Errors
/// If it panics. Nothing of that is printed on standard error, unless backtraces are asked for.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch(body).map_err(Panic::report)
}

/// What `body` returns, or its panic.
pub(super) fn catch<R>(body: impl FnOnce() -> R) -> Result<R, Panic> {
    let (mut body, mut returned) = (Some(body), None);
    erased(&mut || returned = body.take().map(|body| body()))?;
    Ok(returned.expect("it ran"))
}

/// [`catch`] of one type of body, so that it is compiled once.
fn erased(body: &mut dyn FnMut()) -> Result<(), Panic> {
    install();
    let outside = CATCHES.replace(true);
    LEFT.take(); // by a panic that others caught
    let outcome = catch_unwind(AssertUnwindSafe(body));
    CATCHES.set(outside);
    let anew = || Panic { message: "panicked anew, without a place".to_string(), trace: None };
    outcome.map_err(|payload| {
        let expected = None
            .or_else(|| Some(payload.downcast_ref::<Uncountable>()?.to_string()))
            .or_else(|| Some(payload.downcast_ref::<Fault>()?.to_string()))
            .or_else(|| Some(payload.downcast_ref::<PlaceError>()?.to_string()));
        if let Some(message) = expected {
            return Panic { message, trace: None }; // no bug: a size that was asked for, or a place that failed
        }
        let Panic { message, trace } = LAST.take().unwrap_or_else(anew);
        let left = LEFT.take().map_or_else(String::new, |left| format!(" ({left})"));
        Panic { message: message + &left, trace }
    })
}

/// Puts a hook before the process's own that keeps what is caught to itself.
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

/// A panic as a sentence, with its place if that is one of this workspace: the whole path of a place in a library is of
/// no use to the reader.
fn sentence(at: Option<(&str, u32)>, message: Option<&str>) -> String {
    let why = message.map(|message| format!(": {message}")).unwrap_or_default();
    match (at, message) {
        (Some((file, _)), _) if Path::new(file).has_root() => format!("a library gave up{why}"),
        (Some((file, line)), _) => format!("panicked at {file}:{line}{why}"),
        (None, _) => format!("panicked{why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::{Category, Cpu, Device, Tensor};

    /// Kills: the path of a dependency or of the compiler's library in a sentence, one of this workspace that is lost.
    #[test]
    fn a_panic_is_reported_with_its_place_where_that_is_ours() {
        let message = Some("index out of bounds");
        let ours = sentence(Some(("layers/src/linear/row.rs", 12)), message);
        assert_eq!(ours, "panicked at layers/src/linear/row.rs:12: index out of bounds");
        for path in
            ["/home/me/.cargo/registry/src/x/spm-0.1/src/lib.rs", "/rustc/abc/library/core/src/option.rs"]
        {
            assert_eq!(sentence(Some((path, 3)), message), "a library gave up: index out of bounds");
            assert_eq!(sentence(Some((path, 3)), None), "a library gave up");
        }
        let cpu = Cpu::<f32>::default();
        cpu.meter().limit(63);
        let none = caught(|| Tensor::empty(&cpu, Category::Weights, 4, 4).len()).unwrap_err();
        assert_eq!(none, "64 more bytes of weights do not fit beside the 0 held: the limit is 63");
    }
}
