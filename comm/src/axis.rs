//! The axes along which a world is split.

listed! {
    /// An axis of the mesh, outermost first: ranks that differ along the last one only are neighbours. A new axis is
    /// one line here.
    Axis {
        /// Data: each rank has its own part of the batch.
        Dp = "dp",
        /// Tensor: each rank has its own part of every layer.
        Tp = "tp",
    }
}
