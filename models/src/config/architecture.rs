//! The architectures that are read and written, by the names that `transformers` gives them.

/// A family of models, and how its configuration and its tensors are named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// RMS norms, rotary positions, SwiGLU. Source: Touvron et al., arXiv:2302.13971; Llama 3, arXiv:2407.21783.
    Llama,
    /// Llama with a window in every block. Source: Jiang et al., arXiv:2310.06825.
    Mistral,
    /// Llama with biases of queries, keys and values, and perhaps a window in the later blocks.
    /// Source: Yang et al., arXiv:2407.10671.
    Qwen2,
    /// The same without these biases, queries and keys normalised head by head. Source: arXiv:2505.09388.
    Qwen3,
    /// Layer norms, a table of positions, a plain feed-forward, biases everywhere. Source: Radford et al., "Language
    /// models are unsupervised multitask learners", 2019.
    Gpt2,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Architecture; 5] = [Self::Llama, Self::Mistral, Self::Qwen2, Self::Qwen3, Self::Gpt2];

    /// `model_type` in a `config.json`, and what `architectures` lists there.
    fn names(self) -> [&'static str; 2] {
        match self {
            Self::Llama => ["llama", "LlamaForCausalLM"],
            Self::Mistral => ["mistral", "MistralForCausalLM"],
            Self::Qwen2 => ["qwen2", "Qwen2ForCausalLM"],
            Self::Qwen3 => ["qwen3", "Qwen3ForCausalLM"],
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
