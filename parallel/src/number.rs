//! The dtypes that a run can have, as flags name them and as programs are generic over them.
use crate::dump::Number;
use comm::SharedPlace;
use kernels::Selects;
use serde::{Deserialize, Serialize};
use std::fmt;
use tensor::{Device, Real};

/// A device whose ranks are threads of this process, with a floating-point dtype that programs run on.
pub trait Runs:
    Selects<Place: SharedPlace, Elem: Real + Number, Wide: Device<Elem: Real + Number>> + Default
{
}
impl<D: Selects<Place: SharedPlace, Elem: Real + Number, Wide: Device<Elem: Real + Number>> + Default> Runs
    for D
{
}

/// The dtype of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NumberName {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits, the upper half of f32; gradients, masters, moments and sums are f32.
    Bf16,
    /// 64 bits: the reference for the others.
    F64,
}

impl NumberName {
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

impl fmt::Display for NumberName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `in_number!(name, D => work)`: evaluates `work` with `D` as the host's device of the dtype of that name.
#[macro_export]
macro_rules! in_number {
    ($number:expr, $device:ident => $work:expr) => {
        match $number {
            $crate::number::NumberName::F32 => {
                type $device = tensor::Cpu<f32>;
                $work
            }
            $crate::number::NumberName::Bf16 => {
                type $device = tensor::Cpu<tensor::Bf16>;
                $work
            }
            $crate::number::NumberName::F64 => {
                type $device = tensor::Cpu<f64>;
                $work
            }
        }
    };
}
