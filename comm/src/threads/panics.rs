//! Catches a panic with its message and place, and without its noise on standard error.
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use tensor::count::Uncountable;

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<Panic>> = const { RefCell::new(None) };
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
    let outcome = catch_unwind(AssertUnwindSafe(body));
    CATCHES.set(outside);
    let panic = |words: String| Panic { words, trace: None };
    outcome.map_err(|payload| match payload.downcast::<Uncountable>() {
        Ok(uncountable) => panic(uncountable.to_string()), // no bug: a size that was asked for
        Err(_) => LAST.take().unwrap_or_else(|| panic("panicked anew, without a place".into())),
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
