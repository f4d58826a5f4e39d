//! The architectures that are read and written, by the names that `transformers` gives them.

/// A family of models, and how its configuration and its tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// RMS norms, rotary positions, SwiGLU. Source: Touvron et al., arXiv:2302.13971; Llama 3, arXiv:2407.21783.
    Llama,
    /// Llama with a window in every block. Source: Jiang et al., arXiv:2310.06825.
    Mistral,
    /// Llama with experts in every block, and perhaps a window. Source: Jiang et al., arXiv:2401.04088.
    Mixtral,
    /// Llama with biases of queries, keys and values, and perhaps a window in the later blocks.
    /// Source: Yang et al., arXiv:2407.10671.
    Qwen2,
    /// Qwen2 with experts, one of them shared behind a gate, and without a window. Source: arXiv:2407.10671.
    Qwen2Moe,
    /// Qwen2 without its biases, queries and keys normalised head by head. Source: arXiv:2505.09388.
    Qwen3,
    /// Qwen3 with experts, none of them shared, and without a window. Source: arXiv:2505.09388.
    Qwen3Moe,
    /// Llama's attention with the experts of DeepSeek-V3, whose own attention is latent. Keys are named as theirs, but
    /// `transformers` has no such model. Source of the experts: DeepSeek-AI, arXiv:2412.19437.
    EquipartMoe,
    /// Layer norms, a table of positions, a plain feed-forward, biases everywhere. Source: Radford et al., "Language
    /// models are unsupervised multitask learners", 2019.
    Gpt2,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Architecture; 9] = [
        Self::Llama,
        Self::Mistral,
        Self::Mixtral,
        Self::Qwen2,
        Self::Qwen2Moe,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::EquipartMoe,
        Self::Gpt2,
    ];

    /// `model_type` in a `config.json`, and what `architectures` lists there.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Llama => ["llama", "LlamaForCausalLM"],
            Self::Mistral => ["mistral", "MistralForCausalLM"],
            Self::Mixtral => ["mixtral", "MixtralForCausalLM"],
            Self::Qwen2 => ["qwen2", "Qwen2ForCausalLM"],
            Self::Qwen2Moe => ["qwen2_moe", "Qwen2MoeForCausalLM"],
            Self::Qwen3 => ["qwen3", "Qwen3ForCausalLM"],
            Self::Qwen3Moe => ["qwen3_moe", "Qwen3MoeForCausalLM"],
            Self::EquipartMoe => ["equipart_moe", "EquipartMoeForCausalLM"],
            Self::Gpt2 => ["gpt2", "GPT2LMHeadModel"],
        }
    }
    /// `model_type` in a `config.json`.
    pub fn model_type(self) -> &'static str {
        self.names()[0]
    }
    /// What `architectures` lists in a `config.json`.
    pub fn class(self) -> &'static str {
        self.names()[1]
    }
    /// All `model_type`s, as a sentence lists them.
    pub(super) fn model_types() -> String {
        let quoted = Self::ALL.map(|known| format!("\"{}\"", known.model_type()));
        let (last, others) = quoted.split_last().expect("some");
        format!("{} or {last}", others.join(", "))
    }
}
