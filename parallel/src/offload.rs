//! Stores of state off the device: between updates a rank keeps its moments and masters there, and under
//! ZeRO-3 its shards of values.
//!
//! ```text
//! update of parameter i    its state is here; that of i+1 comes, that of i−1 leaves
//! use of bucket i (ZeRO-3) its value is gathered; the shards of i+1 come
//! ```
//!
//! So the state of at most three parameters is on the device. Each rank keeps its own shards, whichever axes
//! split them. `ops::param` carries it out.
mod store;

use crate::lists::list;
pub use store::Offload;

list! { Offload, |offload| &offload.about;
    file::FILE,
    host::HOST,
}
