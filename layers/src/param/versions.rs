//! Versions of a parameter's value, as clones that share its memory until it changes (copy on write).
use crate::Param;
use kernels::Kernels;
use tensor::{Category, Tensor};

impl<D: Kernels> Param<D> {
    /// Returns the value of this rank, which must be kept whole. The next update writes a copy, so this
    /// version stays as it is as long as the caller keeps it.
    ///
    /// # Panics
    /// If the value is sharded at rest.
    pub fn version(&mut self) -> Tensor<D> {
        self.kept_versions = true;
        self.value.whole.clone().expect("versions of a value that is sharded at rest")
    }
    /// Exchanges the value and another version of it.
    ///
    /// # Panics
    /// If the value is sharded at rest.
    pub fn exchange(&mut self, version: &mut Tensor<D>) {
        let value = self.value.whole.as_mut().expect("versions of a value that is sharded at rest");
        std::mem::swap(value, version);
    }
    /// Prepares the value for a change: copies it if a version shares its memory.
    pub(super) fn leave_versions(&mut self) {
        if !std::mem::take(&mut self.kept_versions) {
            return;
        }
        let value = self.value.whole.as_mut().expect("versions of a value that is sharded at rest");
        if value.is_shared() {
            let mut own = Tensor::empty(&self.device, Category::Weights, value.rows(), value.cols());
            self.device.copy(own.view_mut(), value.view());
            *value = own;
        }
    }
}
