//! Dropout of this rank's tokens. A hash of an element's identity decides whether it is dropped, so any rank
//! drops the same elements of a token: replicas agree, and shards are consistent.
use crate::{PassContext, Stream};
use kernels::Kernels;
use tensor::Dropout;

/// Zeroes some elements and scales the others, in X's memory if no one else holds it. It is its own backward.
#[must_use]
pub fn dropout<D: Kernels>(cx: &PassContext<D>, mut x: Stream<D>, dropout: Option<&Dropout>) -> Stream<D> {
    let Some(dropout) = dropout else { return x };
    assert_eq!(cx.rows(), x.rows(), "a row for every token");
    let (device, first) = (x.device().clone(), x.mine().start);
    if x.share().is_shared() {
        let mut copy = x.share().along(x.cols());
        device.copy(copy.view_mut(), x.share().view());
        x = x.with(copy);
    }
    device.dropout(x.share_mut().view_mut(), cx.tokens_on(device.place()), first, dropout);
    x
}
