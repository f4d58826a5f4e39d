//! A model: the settings that its parameters do not determine, and their canonical names and shapes.
//!
//! | family | norm | positions | activation | biases | besides |
//! |---|---|---|---|---|---|
//! | GPT-2 | layer | learned | GeLU, tanh form | all | tied, dropout |
//! | Llama | root mean square | rotary | SwiGLU | none | |
//! | Mistral | " | " | " | none | windows |
//! | Qwen2 | " | " | " | qkv | |
//! | Qwen3 | " | " | " | none | norms of heads |
//! | Mixtral, DeepSeek | " | " | " | none | experts |
use crate::experts::Mixture;
use crate::feed_forward::Pair;
use crate::latent::{Latents, Projection};
use crate::mask::Mask;
use crate::parameters::{Map, MapKind, Shapes};
use shape::{Latent, NormKind, NormPlaces, Positions, Shape, Window};
use std::ops::Deref;
use tensor::Rope;

/// A decoder: all settings that its parameters do not determine.
#[derive(Clone, Copy, Debug)]
pub struct Model {
    /// Sizes and kinds of its parts.
    pub shape: Shape,
    /// True for blocks alone, without embedding and head: rows of features go in and come out, and the loss
    /// is the mean squared error.
    pub bare: bool,
}

impl From<Shape> for Model {
    fn from(shape: Shape) -> Self {
        Self { shape, bare: false }
    }
}
impl Deref for Model {
    type Target = Shape;
    fn deref(&self) -> &Shape {
        &self.shape
    }
}

/// The maps of one block.
pub(crate) struct BlockMaps {
    pub(crate) norm1: Map,
    pub(crate) qkv: Projection,
    pub(crate) head_gains: Option<[(String, usize); 2]>, // of queries and keys, with their features
    pub(crate) sinks: Option<String>,
    pub(crate) out: Map,
    pub(crate) post_norm1: Map,
    pub(crate) norm2: Map,
    pub(crate) fed: SecondBranch,
    pub(crate) post_norm2: Map,
}

/// The second branch of a block.
pub(crate) enum SecondBranch {
    Dense(Pair),
    Experts(Mixture),
}

impl Model {
    /// Canonical name and shape `[rows, cols]` of every parameter, in program order.
    pub fn shapes(&self) -> Vec<(String, [usize; 2])> {
        if self.bare {
            return (0..self.blocks).flat_map(|i| self.block_shapes(i)).collect();
        }
        let mut shapes = vec![("embedding".to_owned(), [self.vocabulary, self.width])];
        if let Positions::Learned(n) = self.positions {
            shapes.push(("positions".to_owned(), [n, self.width]));
        }
        for i in 0..self.blocks {
            shapes.extend(self.block_shapes(i));
        }
        shapes.extend(self.normed("norm".to_owned()).shapes());
        if !self.tied {
            shapes.push(("head".to_owned(), [self.width, self.vocabulary]));
        }
        shapes
    }

    fn block_shapes(&self, i: usize) -> Shapes {
        let of = self.maps(i);
        let gains = of.head_gains.iter().flatten().map(|(name, n)| (name.clone(), [1, *n])).collect();
        let sinks = of.sinks.map(|name| (name, [1, self.heads.queries])).into_iter().collect();
        let fed = match of.fed {
            SecondBranch::Dense(layer) => layer.shapes(),
            SecondBranch::Experts(layer) => layer.shapes(),
        };
        let attention =
            [of.norm1.shapes(), of.qkv.shapes(), gains, sinks, of.out.shapes(), of.post_norm1.shapes()];
        [attention.concat(), of.norm2.shapes(), fed, of.post_norm2.shapes()].concat()
    }

    /// The maps of block `i`.
    pub(crate) fn maps(&self, i: usize) -> BlockMaps {
        let part = |part: &str| format!("blocks.{i}.{part}");
        let affine = |name, shape, bias| Map { name: part(name), shape, bias, does: MapKind::Affine };
        let (d, heads, mlp) = (self.width, self.heads, part("mlp"));
        let is_dense = self.pattern.dense.iter().any(|dense| dense == i);
        let fed = if let Some(experts) = self.shape.experts.filter(|_| !is_dense) {
            SecondBranch::Experts(Mixture { name: mlp, width: d, kind: self.feed_forward, experts })
        } else {
            SecondBranch::Dense(Pair::new(&mlp, self.feed_forward, [d, self.hidden], self.bias.mlp))
        };
        let norm = |name, there| {
            let norm = self.normed(part(name));
            if there { norm } else { Map { does: MapKind::Same, ..norm } }
        };
        let [before, after] = [NormPlaces::After, NormPlaces::Before].map(|without| self.norms != without);
        BlockMaps {
            norm1: norm("norm1", before),
            qkv: self.projection(&part("attention")),
            head_gains: (self.head_norm || self.joint_norm).then(|| {
                let features =
                    [heads.q(), heads.k()].map(|all| if self.joint_norm { all.len() } else { heads.dim });
                [(part("attention.q_norm"), features[0]), (part("attention.k_norm"), features[1])]
            }),
            sinks: self.scores.sinks.then(|| part("attention.scores.sinks")),
            out: affine("attention.out", [heads.gathered(), d], self.bias.out),
            post_norm1: norm("post_norm1", after),
            norm2: norm("norm2", before),
            fed,
            post_norm2: norm("post_norm2", after),
        }
    }

    /// The maps from the residual stream to queries, keys and values.
    fn projection(&self, name: &str) -> Projection {
        let Shape { width: d, heads, .. } = self.shape;
        let affine =
            |part, shape, bias| Map { name: format!("{name}.{part}"), shape, bias, does: MapKind::Affine };
        let Some(Latent { keys, queries, eps }) = self.latent else {
            return Projection::Fused(affine("qkv", [d, heads.row()], self.bias.qkv));
        };
        let norm = |part, width| Map { does: MapKind::Norm(eps), ..affine(part, [1, width], false) };
        let outputs = heads.queries * heads.dim;
        let queries = match queries {
            None => vec![affine("q", [d, outputs], false)],
            Some(n) => {
                vec![affine("q_a", [d, n], false), norm("q_norm", n), affine("q_b", [n, outputs], false)]
            }
        };
        Projection::Latents(Box::new(Latents {
            heads,
            queries,
            down: affine("kv_a", [d, keys + heads.dim - heads.plain], false),
            norm: norm("kv_norm", keys),
            up: affine("kv_b", [keys, heads.queries * (heads.plain + heads.value)], false),
        }))
    }

    pub(crate) fn normed(&self, name: String) -> Map {
        let bias = self.norm == NormKind::Layer;
        Map { name, shape: [1, self.width], bias, does: MapKind::Norm(self.eps) }
    }

    /// Returns the rotary positions of block `i`, if it has any.
    pub(crate) fn rope(&self, i: usize) -> Option<Rope> {
        let Positions::Rotary(rope) = self.positions else { return None };
        let other = self.pattern.other_positions.iter().any(|other| other == i);
        if other { self.pattern.other_rope } else { Some(rope) }
    }

    /// Returns the mask of the tokens of block `i`.
    pub(crate) fn mask(&self, i: usize) -> Mask {
        match self.window {
            Some(Window { size, sinks }) if self.pattern.whole.iter().all(|whole| whole != i) => {
                Mask::Window { size, sinks }
            }
            _ => Mask::Causal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::{deepseek, everything, gpt2, mixtral, qwen3, small, windowed};
    use shape::{Activation, FeedForward, Pattern};

    /// Asserts the names and shapes before, in and after the blocks of a model with two.
    fn assert_shapes(model: &Model, front: &str, block: &str, behind: &str) {
        let blocks =
            (0..2).map(|i| block.split_whitespace().map(|p| format!("blocks.{i}.{p}")).collect::<Vec<_>>());
        let outside = |names: &str| names.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let wanted = [outside(front), blocks.collect::<Vec<_>>().concat(), outside(behind)].concat();
        let seen = model.shapes().into_iter().map(|(name, [rows, cols])| format!("{name}[{rows},{cols}]"));
        assert_eq!(seen.collect::<Vec<_>>(), wanted);
    }

    /// Kills: a renamed, reordered, transposed or forgotten parameter of a Llama.
    #[test]
    fn shapes_of_a_llama_are_canonical_and_in_program_order() {
        let block =
            "norm1[1,4] attention.qkv[4,12] attention.out[6,4] norm2[1,4] mlp.gate_up[4,10] mlp.down[5,4]";
        assert_shapes(&small(false), "embedding[7,4]", block, "norm[1,4] head[4,7]");
        assert_shapes(&small(true), "embedding[7,4]", block, "norm[1,4]");
    }

    /// Kills: a renamed, reordered, transposed or forgotten parameter of the other families, a bias of
    /// another matrix.
    #[test]
    fn shapes_of_other_families_are_canonical_and_in_program_order() {
        let block = "norm1[1,4] norm1.bias[1,4] attention.qkv[4,18] attention.qkv.bias[1,18]
            attention.out[6,4] attention.out.bias[1,4] norm2[1,4] norm2.bias[1,4]
            mlp.up[4,5] mlp.up.bias[1,5] mlp.down[5,4] mlp.down.bias[1,4]";
        assert_shapes(&gpt2(), "embedding[7,4] positions[5,4]", block, "norm[1,4] norm.bias[1,4]");
        let block = "norm1[1,4] attention.qkv[4,12] attention.q_norm[1,3] attention.k_norm[1,3]
            attention.out[6,4] norm2[1,4] mlp.gate_up[4,10] mlp.down[5,4]";
        assert_shapes(&qwen3(), "embedding[7,4]", block, "norm[1,4] head[4,7]");
        let block = "norm1[1,4] attention.qkv[4,12] attention.qkv.bias[1,12] attention.out[6,4]
            norm2[1,4] mlp.up[4,5] mlp.down[5,4]";
        assert_shapes(&windowed(), "embedding[7,4]", block, "norm[1,4] head[4,7]");
        let block = "norm1[1,4] norm1.bias[1,4] attention.qkv[4,12] attention.qkv.bias[1,12]
            attention.q_norm[1,3] attention.k_norm[1,3] attention.out[6,4] attention.out.bias[1,4]
            norm2[1,4] norm2.bias[1,4] mlp.gate_up[4,10] mlp.gate_up.bias[1,10] mlp.down[5,4] mlp.down.bias[1,4]";
        assert_shapes(&everything(), "embedding[7,4]", block, "norm[1,4] norm.bias[1,4]");
    }

    /// Kills: a parameter of experts that is renamed, misplaced, of another shape, or in a block without
    /// experts.
    #[test]
    fn shapes_of_experts_are_canonical_and_in_program_order() {
        let front = "norm1[1,4] attention.qkv[4,12] attention.out[6,4] norm2[1,4]";
        let block = format!("{front} mlp.router[4,5] mlp.experts.gate_up[20,6] mlp.experts.down[20,3]");
        assert_shapes(&mixtral(), "embedding[7,4]", &block, "norm[1,4] head[4,7]");
        let relu = Shape { feed_forward: FeedForward::Plain(Activation::Relu), ..*mixtral() }.into();
        let block = block.replace("gate_up[20,6]", "up[20,3]");
        assert_shapes(&relu, "embedding[7,4]", &block, "norm[1,4] head[4,7]");
        let experts = "mlp.router[4,6] mlp.router.bias[1,6] mlp.experts.gate_up[24,6] mlp.experts.down[24,3]
            mlp.shared.gate_up[4,4] mlp.shared.down[2,4] mlp.shared.gate[4,1]";
        let of = |i: usize, names: &str| {
            names.split_whitespace().map(|name| format!("blocks.{i}.{name}")).collect::<Vec<_>>()
        };
        let dense = of(0, &format!("{front} mlp.gate_up[4,10] mlp.down[5,4]"));
        let wanted = [dense, of(1, front), of(1, experts)].concat();
        let seen =
            deepseek().shapes().into_iter().map(|(name, [rows, cols])| format!("{name}[{rows},{cols}]"));
        assert_eq!(seen.filter(|name| name.starts_with("blocks")).collect::<Vec<_>>(), wanted);
    }

    /// Kills: rotary positions of the model in a block that has others, or of others in all.
    #[test]
    fn positions_are_those_of_the_block() {
        let rope = |base: f64| Some(Rope::from(base));
        let at = |other_rope| {
            let pattern = Pattern { other_positions: vec![1].into(), other_rope, ..Pattern::NONE };
            let model: Model =
                Shape { positions: Positions::Rotary(20.0.into()), pattern, ..*small(false) }.into();
            [0, 1, 2].map(|i| model.rope(i))
        };
        assert_eq!(at(None), [rope(20.0), None, rope(20.0)]);
        assert_eq!(at(rope(7.0)), [rope(20.0), rope(7.0), rope(20.0)]);
        assert_eq!(gpt2().rope(1), None);
    }

    /// Kills: a window that begins one block early or late, a window in a model without windows.
    #[test]
    fn windows_begin_at_their_block() {
        let masks = |model: Model| [0, 1, 2].map(|i| model.mask(i));
        let window = Mask::Window { size: 2, sinks: 1 };
        assert_eq!(masks(windowed()), [Mask::Causal, window, window]);
        assert_eq!((masks(everything()), masks(small(true))), ([window; 3], [Mask::Causal; 3]));
    }
}
