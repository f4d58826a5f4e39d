//! Latents of attention: few features of a token, from which the queries, or the keys and values, of all
//! heads are computed.
//!
//! Source: DeepSeek-AI, "DeepSeek-V2", §2.1, arXiv:2405.04434.
use crate::Heads;
use serde::{Deserialize, Serialize};

/// Multi-head latent attention (MLA): keys and values are computed from a latent. The plain features of a key
/// are a head's own; the others are computed from the token itself, and all heads share them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latent {
    /// Features of the latent of keys and values.
    pub keys: usize,
    /// Features of the latent of queries; `None`: queries are computed from the token itself.
    pub queries: Option<usize>,
    /// ε of the latents' norms.
    pub eps: f64,
}

impl Latent {
    /// Returns a sentence on what a model with these heads and these other parts cannot have beside its
    /// latents, if there is something.
    pub(crate) fn conflict(self, heads: Heads, parts: [(bool, &str); 3]) -> Option<String> {
        let part = parts.into_iter().find(|(has, _)| *has);
        if self.keys == 0 || self.queries == Some(0) {
            Some("the number of features of a latent is 0; it must be at least 1".into())
        } else if heads.keys != heads.queries {
            Some(format!(
                "the number of KV heads from a latent is {}; it must be {}, as many as query heads",
                heads.keys, heads.queries
            ))
        } else if !(1..heads.dim).contains(&heads.plain) {
            Some(format!(
                "the number of plain features of a key from a latent is {}; it must be at least 1 and below its {} \
                 features",
                heads.plain, heads.dim
            ))
        } else {
            part.map(|(_, what)| format!("attention from a latent has no {what}; leave them out"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Biases, ScoreTerms, Shape};

    /// Kills: a part that latents cannot have and that is taken, or a good model that is refused.
    #[test]
    fn parts_that_latents_cannot_have_are_refused() {
        let heads = Heads { plain: 1, rotated: 1, ..Heads::new(4, 4, 2) };
        let shape = Shape { heads, ..Shape::LLAMA };
        let latent = Latent { keys: 3, queries: Some(1), eps: 1e-6 };
        let why = |latent: Latent, shape: Shape| {
            Shape { latent: Some(latent), ..shape }.attention_conflict().unwrap_or_default()
        };
        assert_eq!(why(latent, shape), "");
        assert_eq!(
            why(latent, Shape { heads: Heads { keys: 2, ..heads }, ..shape }),
            "the number of KV heads from a latent is 2; it must be 4, as many as query heads"
        );
        for latent in [Latent { keys: 0, ..latent }, Latent { queries: Some(0), ..latent }] {
            assert!(why(latent, shape).contains("a latent is 0"));
        }
        for plain in [0, 2] {
            assert_eq!(
                why(latent, Shape { heads: Heads { plain, rotated: 2 - plain, ..heads }, ..shape }),
                format!(
                    "the number of plain features of a key from a latent is {plain}; it must be at least 1 and below \
                     its 2 features"
                )
            );
        }
        let bias = Biases { qkv: true, ..shape.bias };
        let sinks = ScoreTerms { sinks: true, ..ScoreTerms::NONE };
        let both = Shape { head_norm: true, joint_norm: true, ..shape };
        assert!(both.attention_conflict().is_some_and(|why| why.contains("choose one of the two")));
        for (other, says) in [
            (Shape { bias, ..shape }, "no biases of queries, keys and values"),
            (Shape { head_norm: true, ..shape }, "no norms of heads"),
            (Shape { joint_norm: true, ..shape }, "no norms of heads"),
            (Shape { scores: sinks, ..shape }, "no sinks of heads"),
        ] {
            assert!(why(latent, other).contains(says), "{says}");
        }
    }
}
