//! Catches a panic with its message and place, and without its noise on standard error.
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
    static LEFT: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Work that is called `0`, until this is dropped: a panic that ends it is told with the innermost such name. Nothing is
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
    pub(super) words: String,
    trace: Option<Backtrace>, // if such are asked for
}

impl Panic {
    /// Its words; its backtrace goes to standard error. That may take long: others should know by then.
    pub(super) fn told(self) -> String {
        if let Some(trace) = self.trace {
            let thread = std::thread::current();
            let print = || eprintln!("{}: {}\n{trace}", thread.name().unwrap_or("a thread"), self.words);
            let _ = catch_unwind(AssertUnwindSafe(print)); // nobody may be there to read it
        }
        self.words
    }
}

/// What `body` returns, or its panic in words: message and place.
///
/// # Errors
/// If it panics. Nothing is said of that on standard error, unless backtraces are asked for.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    catch(body).map_err(Panic::told)
}

/// What `body` returns, or its panic.
pub(super) fn catch<R>(body: impl FnOnce() -> R) -> Result<R, Panic> {
    install();
    let outside = CATCHES.replace(true);
    LEFT.take(); // by a panic that others caught
    let outcome = catch_unwind(AssertUnwindSafe(body));
    CATCHES.set(outside);
    let anew = || Panic { words: "panicked anew, without a place".to_string(), trace: None };
    outcome.map_err(|_| {
        let Panic { words, trace } = LAST.take().unwrap_or_else(anew);
        let left = LEFT.take().map_or_else(String::new, |left| format!(" ({left})"));
        Panic { words: words + &left, trace }
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
            LAST.set(Some(Panic { words: words(info), trace }));
        }));
    });
}

fn words(info: &PanicHookInfo) -> String {
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let message = info.payload_as_str().map(|message| format!(": {message}")).unwrap_or_default();
    format!("panicked{place}{message}")
}
