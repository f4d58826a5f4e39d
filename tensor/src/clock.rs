//! Time by kernel, for profiles.
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Calls and time by name.
#[derive(Debug, Default)]
pub struct Clock(Mutex<BTreeMap<&'static str, (usize, Duration)>>);

impl Clock {
    /// Runs `body` and adds its time to `name`.
    #[inline]
    pub fn time<R>(&self, name: &'static str, body: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let result = body();
        let mut times = self.0.lock().expect("nothing panics under this lock");
        let entry = times.entry(name).or_default();
        *entry = (entry.0 + 1, entry.1 + start.elapsed());
        result
    }
    /// Calls and time per name since the last call of this.
    pub fn take(&self) -> BTreeMap<&'static str, (usize, Duration)> {
        std::mem::take(&mut self.0.lock().expect("nothing panics under this lock"))
    }
}
