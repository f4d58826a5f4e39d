//! Checks of `elementwise.cu`.
use super::{Both, Check, Number, both};
use crate::gpu::Gpu;
use kernels::Kernels;
use tensor::{Cpu, Device};

pub(crate) const ALL: &[Check] = &[("sums and copies", both!(sums))];

/// Of windows that do not lie together.
fn sums<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (mut y, a) = (Both::<S>::draw(gpu, 1, 9, 70), Both::<S>::draw(gpu, 2, 9, 70));
    let (gpus, host) = (S::On::on(gpu), Cpu::<f64>::default());
    gpus.add(y.gpu.view_mut().take_cols(3, 61), a.gpu.view().take_cols(1, 61));
    host.add(y.host.view_mut().take_cols(3, 61), a.host.view().take_cols(1, 61));
    y.close("y += a", 1.0)?;
    gpus.copy(y.gpu.view_mut().take_rows(2, 5), a.gpu.view().take_rows(4, 5));
    host.copy(y.host.view_mut().take_rows(2, 5), a.host.view().take_rows(4, 5));
    y.close("y = a", 1.0)
}
