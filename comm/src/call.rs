//! What a rank is about to do, in words that name the place in the code.
use crate::axis::Ranks;
use std::fmt;
use std::panic::Location;

listed! {
    /// What ranks do together.
    Op {
        /// Every rank gets the reduction of all.
        AllReduce = "all_reduce",
        /// Every rank gets what all have, in rank order.
        AllGather = "all_gather",
        /// Every rank gets its block of the sum.
        ReduceScatter = "reduce_scatter",
        /// Every rank gets what one has.
        Broadcast = "broadcast",
        /// Nobody goes on before all have come.
        Barrier = "barrier",
        /// To one rank.
        Send = "send",
        /// From one rank.
        Receive = "receive",
    }
}

listed! {
    /// How addends become one value.
    Reduce {
        /// Their sum.
        Sum = "sum",
        /// Their stabiliser ([`tensor::Scalar::stab`]): the maximum on floats.
        Stab = "stab",
    }
}

/// One call of one rank. It borrows its label, so that making one allocates nothing.
#[derive(Clone, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) op: Op,
    pub(crate) reduce: Option<Reduce>,
    /// The root, receiver or sender, as a rank of the world.
    pub(crate) peer: Option<usize>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) elem: &'static str,
    /// The group.
    pub(crate) over: Ranks,
    pub(crate) label: Option<&'a str>,
    pub(crate) at: &'static Location<'static>,
}

impl Call<'_> {
    /// What ranks that meet must agree on; label and place may differ.
    pub(crate) fn key(&self) -> [usize; 3] {
        let reduce = self.reduce.map_or(0, |r| r as usize + 1);
        let peer = self.peer.map_or(0, |p| p + 1);
        [peer << 16 | reduce << 8 | self.op as usize, self.rows, self.cols]
    }
}

impl fmt::Display for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op.name())?;
        match (self.reduce, self.peer) {
            (Some(reduce), _) => write!(f, "({reduce})")?,
            (None, Some(to)) if self.op == Op::Send => write!(f, "(to rank {to})")?,
            (None, Some(from)) => write!(f, "(from rank {from})")?,
            (None, None) => {}
        }
        write!(f, " over {}", self.over)?;
        if self.op != Op::Barrier {
            write!(f, " of {}x{} {}", self.rows, self.cols, self.elem)?;
        }
        if let Some(label) = self.label {
            write!(f, " for {label}")?;
        }
        write!(f, " at {}:{}", self.at.file(), self.at.line())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axis::Axis;

    fn call(op: Op) -> Call<'static> {
        let (over, at) = (Ranks::all(Axis::Tp), Location::caller());
        Call { op, reduce: None, peer: None, rows: 4, cols: 6, elem: "f61", over, label: None, at }
    }

    #[test]
    fn calls_read_as_written() {
        let sum =
            Call { reduce: Some(Reduce::Sum), label: Some("blocks.0.attention.out"), ..call(Op::AllReduce) };
        let here = sum.at.line();
        let words = |c: &Call| c.to_string().replace(&format!("call.rs:{here}"), "call.rs:57");
        assert_eq!(
            words(&sum),
            "all_reduce(sum) over tp of 4x6 f61 for blocks.0.attention.out at comm/src/call.rs:57"
        );
        let send = Call { peer: Some(3), ..call(Op::Send) };
        assert_eq!(words(&send), "send(to rank 3) over tp of 4x6 f61 at comm/src/call.rs:57");
        let broadcast = Call { peer: Some(0), ..call(Op::Broadcast) };
        assert_eq!(words(&broadcast), "broadcast(from rank 0) over tp of 4x6 f61 at comm/src/call.rs:57");
        assert_eq!(words(&call(Op::Barrier)), "barrier over tp at comm/src/call.rs:57");
        let block = Call { over: Ranks { axis: Axis::Tp, block: Some((2, 4)) }, ..call(Op::Barrier) };
        assert_eq!(words(&block), "barrier over tp[2..4] at comm/src/call.rs:57");
    }

    /// Kills: a field left out of the comparison, a label or place let in.
    #[test]
    fn keys_differ_exactly_where_meanings_do() {
        let base = Call { reduce: Some(Reduce::Sum), ..call(Op::AllReduce) };
        let others = [
            Call { op: Op::ReduceScatter, ..base.clone() },
            Call { reduce: Some(Reduce::Stab), ..base.clone() },
            Call { reduce: None, ..base.clone() },
            Call { peer: Some(0), ..base.clone() },
            Call { peer: Some(1), ..base.clone() },
            Call { rows: 6, cols: 4, ..base.clone() },
            Call { rows: 5, ..base.clone() },
            Call { cols: 5, ..base.clone() },
        ];
        for (i, a) in others.iter().enumerate() {
            assert_ne!(a.key(), base.key(), "{a}");
            assert!(others[..i].iter().all(|b| a.key() != b.key()), "{a}");
        }
        assert_eq!(Call { label: Some("x"), at: Location::caller(), ..base.clone() }.key(), base.key());
    }
}
