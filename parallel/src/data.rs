//! Strategies of data ranks: whether value, gradient and optimizer state of a parameter are kept whole or
//! sharded at rest, and whether a sharded value is gathered at once or in tiles. `ops::param` carries them
//! out.
mod state_split;

pub use state_split::StateSplit;

use crate::lists::list;

list! { StateSplit, |split| &split.about;
    replicated::REPLICATED,
    zero1::ZERO1,
    zero2::ZERO2,
    zero3::ZERO3,
    tile::TILE,
    classic::CLASSIC,
}
