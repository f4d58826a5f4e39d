//! The trait of commands.
use parallel::Result;

/// Flags of a command, and the work they ask for.
pub(crate) trait Run {
    /// True if each rank may be a process of its own.
    const BY_PROCESSES: bool = false;

    /// Runs the command and prints JSON lines or text for people. Returns false if a comparison found a
    /// difference.
    ///
    /// # Errors
    /// One sentence on the failure.
    fn run(self, json: bool) -> Result<bool>;
}
