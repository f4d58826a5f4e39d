//! The dtypes that a run can have, as flags name them and as programs are generic over them.
use crate::dump::DumpDtype;
use comm::SharedPlace;
use kernels::OrderedKernels;
use serde::{Deserialize, Serialize};
use std::fmt;
use tensor::safetensors::Storable;
use tensor::{Device, Real};

/// A device whose ranks are threads of this process, with a floating-point dtype that programs run on.
pub trait RunDevice:
    OrderedKernels<
        Place: SharedPlace,
        Elem: Real + DumpDtype,
        Wide: Device<Elem: Real + DumpDtype + Storable>,
    > + Default
{
}
impl<
    D: OrderedKernels<
            Place: SharedPlace,
            Elem: Real + DumpDtype,
            Wide: Device<Elem: Real + DumpDtype + Storable>,
        > + Default,
> RunDevice for D
{
}

/// The dtype of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DtypeName {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits, the upper half of f32; gradients, masters, moments and sums are f32.
    Bf16,
    /// 64 bits: the reference for the others.
    F64,
}

impl DtypeName {
    /// Every dtype, with its description.
    pub const ALL: [(Self, &str); 3] = [
        (Self::F32, "32 bits"),
        (Self::Bf16, "16 bits, the upper half of f32; gradients, masters, moments and sums are f32"),
        (Self::F64, "64 bits: the reference for the others"),
    ];
    /// The dtype's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
        }
    }
}

impl fmt::Display for DtypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `with_dtype!(name, D => work)`: evaluates `work` with `D` as the host's device of the dtype of that name.
#[macro_export]
macro_rules! with_dtype {
    ($number:expr, $device:ident => $work:expr) => {
        match $number {
            $crate::dtype::DtypeName::F32 => {
                type $device = tensor::Cpu<f32>;
                $work
            }
            $crate::dtype::DtypeName::Bf16 => {
                type $device = tensor::Cpu<tensor::Bf16>;
                $work
            }
            $crate::dtype::DtypeName::F64 => {
                type $device = tensor::Cpu<f64>;
                $work
            }
        }
    };
}
