//! Schedules of a pipeline.
use crate::strategies::list;
use layers::About;

/// Who goes through which part of the model when.
pub trait Schedule: Sync {
    /// What is said of it.
    fn about(&self) -> &'static About;
}

list! { dyn Schedule:
    gpipe::GPipe,
}
