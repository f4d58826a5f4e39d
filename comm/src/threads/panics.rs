//! Catches a panic with its message and place, and without its noise on standard error.
use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

thread_local! {
    static CATCHES: Cell<bool> = const { Cell::new(false) };
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// What `body` returns, or its panic in words: message and place.
///
/// # Errors
/// If it panics. Nothing is said of that on standard error, unless backtraces are asked for.
pub fn caught<R>(body: impl FnOnce() -> R) -> Result<R, String> {
    install();
    let outside = CATCHES.replace(true);
    let outcome = catch_unwind(AssertUnwindSafe(body));
    CATCHES.set(outside);
    outcome.map_err(|_| LAST.take().unwrap_or_else(|| "panicked anew, without a place".to_string()))
}

/// Puts a hook before the process's own that keeps what is caught to itself, unless backtraces are asked for.
fn install() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if CATCHES.get() {
                LAST.set(Some(words(info)));
                if Backtrace::capture().status() != BacktraceStatus::Captured {
                    return;
                }
            }
            before(info);
        }));
    });
}

fn words(info: &PanicHookInfo) -> String {
    let place = info.location().map(|at| format!(" at {}:{}", at.file(), at.line())).unwrap_or_default();
    let message = info.payload_as_str().map(|message| format!(": {message}")).unwrap_or_default();
    format!("panicked{place}{message}")
}
