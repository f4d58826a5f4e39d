//! When a card has come to a point of its stream: events, and what work takes between two of them.
use super::Card;
use crate::driver::{CudaError, Handle, call};
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

impl Card {
    /// An event, to be recorded as often as one likes.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn event(&self) -> Result<Handle, CudaError> {
        const WITHOUT_TIME: c_uint = 2;
        self.enter()?;
        let mut event = null_mut();
        call!(self.driver, cuEventCreate(&raw mut event, WITHOUT_TIME))?;
        Ok(event)
    }
    /// Lets an event pass when all that was launched before is done.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn record(&self, event: Handle) -> Result<(), CudaError> {
        self.enter()?;
        call!(self.driver, cuEventRecord(event, self.stream))
    }
    /// Whether an event has passed.
    ///
    /// # Errors
    /// The driver's; among them those of kernels that were launched before.
    pub(crate) fn passed(&self, event: Handle) -> Result<bool, CudaError> {
        const NOT_READY: c_int = 600;
        self.enter()?;
        // SAFETY: it is this card's event.
        match unsafe { (self.driver.functions.cuEventQuery)(event) } {
            NOT_READY => Ok(false),
            status => self.driver.check("cuEventQuery", status).map(|()| true),
        }
    }
    /// Ends an event.
    pub(crate) fn forget(&self, event: Handle) {
        let _ = self.enter().and_then(|()| call!(self.driver, cuEventDestroy_v2(event)));
    }
    /// Seconds that the card takes for what `work` launches.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn seconds(&self, work: impl FnOnce()) -> Result<f64, CudaError> {
        self.enter()?;
        let mut events = [null_mut(); 2];
        for event in &mut events {
            call!(self.driver, cuEventCreate(event, 0))?;
        }
        let [from, to] = events;
        call!(self.driver, cuEventRecord(from, self.stream))?;
        work();
        call!(self.driver, cuEventRecord(to, self.stream))?;
        call!(self.driver, cuEventSynchronize(to))?;
        let mut milliseconds = 0.0;
        call!(self.driver, cuEventElapsedTime(&raw mut milliseconds, from, to))?;
        for event in events {
            call!(self.driver, cuEventDestroy_v2(event))?;
        }
        Ok(f64::from(milliseconds) / 1000.0)
    }
}
