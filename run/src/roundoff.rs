//! Unit roundoff of dtypes.
use tensor::dtype::Dtype;

/// Unit roundoff: half the distance from 1 to the next number.
#[must_use]
pub fn unit(dtype: Dtype) -> f64 {
    let digits = match dtype {
        Dtype::F64 => 53,
        Dtype::F32 => 24,
        Dtype::F16 => 11,
        _ => 8, // BF16
    };
    0.5f64.powi(digits)
}
