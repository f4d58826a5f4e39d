//! GPT-OSS: a learned sink in each head's softmax, windows in every other block, and experts with biases and
//! a clamped gate. Source: `OpenAI`, "gpt-oss-120b & gpt-oss-20b model card", §2, arXiv:2508.10925.
use super::aux_loss;
use super::decoder::{ATTENTION_BIAS, DEFAULTS, Decoder, Defaults, ExpertKeys, Family, ShapeKeys, windows};
use super::parts::QUANTIZED;
use kernels::ScoreTerms;
use layers::{Biases, Experts, FeedForward, Gate, Positions, Shape};
use tensor::Scaling;

/// Scaling of a file that says nothing of frequencies.
fn yarn() -> Scaling {
    let magnitude = 0.1 * 32f64.ln() + 1.0;
    Scaling::Yarn { factor: 32.0, original: 4096.0, fast: 32.0, slow: 1.0, magnitude, truncate: false }
}

/// GPT-OSS.
pub const GPT_OSS: &dyn Family = &Decoder {
    fixed: "mlp_bias=false swiglu_alpha=1.702 swiglu_limit=7",
    defaults: Defaults {
        vocabulary: Some(201_088),
        queries: Some(64),
        key_heads: Some(8),
        head_dim: Some(64),
        positions: 131_072,
        eps: 1e-5,
        base: 150_000.0,
        ..DEFAULTS
    },
    usual: Shape {
        bias: Biases { qkv: true, out: true, mlp: false },
        scores: ScoreTerms { sinks: true, ..ScoreTerms::NONE },
        feed_forward: FeedForward::Gated(Gate::Clamped),
        ..Shape::LLAMA
    },
    bias_keys: &[ATTENTION_BIAS],
    parts: &[
        ShapeKeys {
            read_keys: "experts_per_token initial_context_length layer_types sliding_window",
            read: |keys, shape| {
                if let Positions::Rotary(rope) = &mut shape.positions
                    && ["rope_parameters", "rope_scaling"].iter().all(|key| keys.given(key).is_none())
                {
                    rope.scaling = yarn();
                }
                keys.windows(shape, (true, Some(128)), |block| block % 2 == 0)
            },
            keys: windows::listed_keys,
        },
        QUANTIZED,
    ],
    experts: Some(ExpertKeys {
        count: &["num_local_experts"],
        hidden: "intermediate_size",
        settings: |_, experts| Ok(Experts { biases: true, ..experts }),
        packed: true,
        ..aux_loss::EXPERTS
    }),
    ..Decoder::of("gpt_oss", "GptOssForCausalLM")
};
