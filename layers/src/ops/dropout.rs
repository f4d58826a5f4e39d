//! Dropout of the tokens at hand. Which elements go is a hash of what they are, so a rank drops of its tokens what
//! any other would: the same on replicas, consistent over shards.
use super::Stream;
use crate::Cx;
use kernels::Kernels;
use tensor::Dropout;

/// Some elements taken away and the others scaled; its own backward.
#[must_use]
pub fn dropout<D: Kernels>(cx: &Cx<D>, x: Stream<D>, dropout: Option<&Dropout>) -> Stream<D> {
    let Some(dropout) = dropout else { return x };
    assert_eq!(cx.rows(), x.rows(), "a row for every token");
    let (device, share) = (x.device(), x.share());
    let mut y = share.beside(share.rows(), share.cols());
    device.copy(y.view_mut(), share.view());
    device.dropout(y.view_mut(), cx.tokens(), x.mine().start, dropout);
    x.with(y)
}
