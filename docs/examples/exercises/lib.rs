//! Exercises of the course: functions to write, each in a file of its own, with its equations above and its
//! check below. `cargo xtask course` lists them with what is solved, `cargo xtask course dot` judges one.
//!
//! Everything computes in the field of 2^61 − 1 ([`tensor::F61`]), where sums are exact in any order: right
//! is equal, on 1, 2, 3, 4 and 8 ranks. Ranks are threads; [`ranks::Ranks`] is what one may ask of the
//! others. `solutions/` has an answer to each, and the wrong ones that are tried most, with what the check
//! says of them.
pub mod check;
pub mod dispatch;
pub mod dot;
pub mod mean;
pub mod pipeline;
pub mod ranks;
pub mod ring;
pub mod row;
#[cfg(test)]
#[allow(clippy::unnecessary_wraps)] // answers have the signatures of their holes
mod solutions;
pub mod state;
pub mod vocabulary;

use check::Verdict;

/// One exercise.
pub struct Exercise {
    /// Name: that of its file, too.
    pub name: &'static str,
    /// Task, in a few words.
    pub task: &'static str,
    /// Judges what its holes contain.
    pub check: fn() -> Verdict,
}

impl Exercise {
    /// File to edit, from the repository's root.
    pub fn file(&self) -> String {
        format!("docs/examples/exercises/{}.rs", self.name)
    }
}

/// All exercises, in the order of the chapters.
pub const ALL: [Exercise; 8] = [
    Exercise {
        name: "dot",
        task: "the dot product of vectors cut over ranks",
        check: || dot::check(dot::dot),
    },
    Exercise {
        name: "mean",
        task: "the loss of a step, a mean over the tokens of all ranks",
        check: || mean::check(mean::step_loss),
    },
    Exercise {
        name: "row",
        task: "a linear layer cut by rows: the sum and the bias",
        check: || row::check(row::Attempt { forward: row::forward, backward: row::backward }),
    },
    Exercise {
        name: "vocabulary",
        task: "a loss of logits cut by the vocabulary",
        check: || vocabulary::check(vocabulary::cross_entropy),
    },
    Exercise {
        name: "state",
        task: "an optimizer whose state is cut over ranks",
        check: || state::check(state::step),
    },
    Exercise {
        name: "pipeline",
        task: "one rank's row of the 1F1B schedule",
        check: || pipeline::check(pipeline::row),
    },
    Exercise {
        name: "dispatch",
        task: "tokens sent to the ranks of their experts, and back",
        check: || dispatch::check(dispatch::Attempt { order: dispatch::order, combine: dispatch::combine }),
    },
    Exercise {
        name: "ring",
        task: "the backward of attention over a ring of keys",
        check: || ring::check(ring::ring_backward),
    },
];
