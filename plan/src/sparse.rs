//! Time of a linear layer under sparse communication, by the equations of its source. Letters: `S` the share
//! of features that are left out, `N` ranks.
//!
//! ```text
//! messages  F·(1 − S)/B                       (8)
//! products  W·(1 − S_w)/(N·C)                 (9)
//! S_w     = S·(N − 1)/N                       (10), the share of weights that are 0
//! time    = max(messages, products)           (11), if they overlap
//! balance = (A·N − N)/(A·N − N + 1)           (12), or 0 if A ≤ 1; A = (N·C/W)·(F/B)
//! ```
//!
//! Source: Qin et al., "DISCO: distributed inference with sparse communications", §4, arXiv:2302.11180.
//! Chapter: sparse and shared.

/// A linear layer whose inputs ranks send each other.
#[derive(Clone, Copy, Debug)]
pub struct SparseLayer {
    /// Number of ranks `N`.
    pub ranks: usize,
    /// Seconds of a rank's products in the dense layer, `W/(N·C)`.
    pub dense_products: f64,
    /// Bytes that a rank receives in the dense layer, `F`.
    pub bytes: f64,
    /// Bytes a second that a rank receives, `B`.
    pub bandwidth: f64,
}

/// Share of a layer's weights that are 0 if a share `left_out` of the features is not sent (10).
pub fn zero_weights(left_out: f64, ranks: usize) -> f64 {
    left_out * (ranks - 1) as f64 / ranks as f64
}

impl SparseLayer {
    /// Seconds of the messages (8).
    pub fn messages(&self, left_out: f64) -> f64 {
        self.bytes * (1.0 - left_out) / self.bandwidth
    }
    /// Seconds of the products (9).
    pub fn products(&self, left_out: f64) -> f64 {
        self.dense_products * (1.0 - zero_weights(left_out, self.ranks))
    }
    /// Seconds of the layer, if messages and products overlap (11).
    pub fn seconds(&self, left_out: f64) -> f64 {
        self.messages(left_out).max(self.products(left_out))
    }
    /// Share of features from which on the products take longer than the messages (12).
    pub fn balance(&self) -> f64 {
        let (n, a) = (self.ranks as f64, self.messages(0.0) / self.products(0.0));
        if a <= 1.0 { 0.0 } else { (a * n - n) / (a * n - n + 1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kills: the share of features taken for that of weights, or the other way round; a balance below 0.
    #[test]
    fn messages_and_products_take_equally_long_at_the_balance() {
        for ranks in [2, 3, 4, 8] {
            for bandwidth in [1e5, 1e6, 1e7, 1e9] {
                let layer = SparseLayer { ranks, dense_products: 2.0 / ranks as f64, bytes: 3e6, bandwidth };
                let (at, seconds) = (layer.balance(), |s| layer.seconds(s));
                if layer.messages(0.0) > layer.products(0.0) {
                    let [messages, products] = [layer.messages(at), layer.products(at)];
                    assert!((messages / products - 1.0).abs() < 1e-9, "{layer:?}: {messages}, {products}");
                    assert!(seconds(at - 1e-3) > seconds(at) && at < 1.0, "{layer:?}");
                } else {
                    assert_eq!(at, 0.0, "{layer:?}");
                }
            }
        }
        let layer = SparseLayer { ranks: 2, dense_products: 2.0, bytes: 6.0, bandwidth: 1.0 };
        assert_eq!([layer.messages(0.5), layer.products(0.5), layer.balance()], [3.0, 1.5, 0.8]);
    }
}
