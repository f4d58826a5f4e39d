//! The dtypes that a run can have, as flags name them and as programs are generic over them.
use crate::dump::DumpDtype;
use comm::SharedPlace;
use kernels::OrderedKernels;
use ops::LossScaling;
use serde::{Deserialize, Serialize};
use std::fmt;
use tensor::dtype::{Dtype, Storable};
use tensor::{Device, Real, Scalar, every_float};

/// A device whose ranks are threads of this process, with a floating-point dtype that programs run on.
pub trait RunDevice:
    OrderedKernels<
        Place: SharedPlace,
        Elem: Real<Priced: Real> + DumpDtype + Storable,
        Wide: Device<Elem: Real + DumpDtype + Storable>,
    > + Default
{
}
impl<
    D: OrderedKernels<
            Place: SharedPlace,
            Elem: Real<Priced: Real> + DumpDtype + Storable,
            Wide: Device<Elem: Real + DumpDtype + Storable>,
        > + Default,
> RunDevice for D
{
}

/// Defines the names of the floats.
macro_rules! names {
    ($($variant:ident $number:ty, $about:literal;)*) => {
        /// The dtype of a run.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub enum DtypeName {
            #[default]
            $(#[doc = $about] $variant,)*
        }

        impl DtypeName {
            /// Every dtype, with its description.
            pub const ALL: &[(Self, &'static str)] = &[$((Self::$variant, $about)),*];
            /// Returns the usual loss scaling of training in it, if it needs any.
            pub fn loss_scaling(self) -> Option<LossScaling> {
                match self {
                    $(Self::$variant => LossScaling::usual::<$number>(),)*
                }
            }
            /// Returns the dtype of a file that holds it.
            pub fn stored(self) -> Dtype {
                match self {
                    $(Self::$variant => <$number as Storable>::DTYPE,)*
                }
            }
            /// The dtype's name.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => <$number as Scalar>::NAME,)*
                }
            }
        }
    };
}
every_float!(names);

impl fmt::Display for DtypeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `with_dtype!(name, D => work)`: evaluates `work` with `D` as the host's device of the dtype of that name.
#[macro_export]
macro_rules! with_dtype {
    ($number:expr, $device:ident => $work:expr) => {
        tensor::every_float!($crate::of_dtype, ($number, $device => $work))
    };
}
/// Cases of `with_dtype`.
#[doc(hidden)]
#[macro_export]
macro_rules! of_dtype {
    (($number:expr, $device:ident => $work:expr) $($variant:ident $of:ty, $about:literal;)*) => {
        match $number {
            $($crate::dtype::DtypeName::$variant => {
                type $device = tensor::Cpu<$of>;
                $work
            })*
        }
    };
}
