//! The order of a card's launches: a launch is held while the next one might do its work, too, and a kernel
//! may begin before the one before it has ended.
use super::Card;
use super::argument::CardLaunch;
use crate::driver::CudaError;
use std::ops::Range;
use std::sync::{MutexGuard, PoisonError};

/// Launches of a card that are held, or that may still run.
pub(super) struct LaunchQueue {
    held: Option<CardLaunch>,
    /// Memory of kernels that may still run when the next one begins early; `None` if not all is known.
    in_use: Option<Vec<Range<u64>>>,
    started: u64,
}

impl Default for LaunchQueue {
    fn default() -> Self {
        Self { held: None, in_use: Some(Vec::new()), started: 0 }
    }
}

impl LaunchQueue {
    /// Adds a launch.
    ///
    /// # Errors
    /// The driver's, of this launch or of the held one.
    fn add(&mut self, card: &Card, next: CardLaunch) -> Result<(), CudaError> {
        let next = if let Some(held) = self.held.take() {
            if let Some(both) = held.rules.merged(&card.kernels, &held, &next) {
                both
            } else {
                self.start(card, held)?;
                next
            }
        } else {
            next
        };
        if next.rules.may_merge(&card.kernels, &next) {
            self.held = Some(next);
            return Ok(());
        }
        self.start(card, next)
    }
    /// Starts the held launch, if there is one.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn flush(&mut self, card: &Card) -> Result<(), CudaError> {
        self.held.take().map_or(Ok(()), |held| self.start(card, held))
    }
    fn start(&mut self, card: &Card, launch: CardLaunch) -> Result<(), CudaError> {
        let (mut launch, beside) = self.ordered(card, launch);
        self.started += 1;
        card.start(&mut launch, beside)
    }
    /// Returns the launch as it is to start, and whether it begins before the kernel before it has ended.
    fn ordered(&mut self, card: &Card, mut launch: CardLaunch) -> (CardLaunch, bool) {
        let beside = launch.rules.begins_early(&launch);
        if beside && let Some(in_use) = &self.in_use {
            launch = launch.rules.reading_early(&card.kernels, launch, in_use);
        }
        self.in_use = match (launch.touched.clone(), self.in_use.take()) {
            (now, _) if !beside => now, // all kernels before it have ended when it begins
            (Some(now), Some(before)) => Some([before, now].concat()),
            _ => None,
        };
        (launch, beside)
    }
}

impl Card {
    /// Returns the number of launches so far.
    pub fn launches(&self) -> u64 {
        self.queue().started
    }
    pub(super) fn queue(&self) -> MutexGuard<'_, LaunchQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Launches a kernel, at the latest when the host next waits for the card.
    ///
    /// # Errors
    /// The driver's, also of an earlier launch.
    pub(crate) fn launch(&self, launch: CardLaunch) -> Result<(), CudaError> {
        self.queue().add(self, launch)
    }
}

#[cfg(test)]
#[path = "tests/queue.rs"]
mod tests;
