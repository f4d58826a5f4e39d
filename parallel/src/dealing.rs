//! Strategies that deal the tokens of a sequence over context ranks, `cp`.
mod dealt;

use crate::strategies::lists::list;
pub use dealt::Dealing;

list! { Dealing, |dealing| &dealing.about;
    zigzag::ZIGZAG,
    contiguous::CONTIGUOUS,
    striped::STRIPED,
}
