//! Supported architectures, by their names in `transformers`: the keys of a configuration that each reads,
//! the keys that must have one value, and the keys that do not matter.
use super::keys::ConfigKeys;
use super::{experts, generation};
use parallel::Result;
use serde_json::{Value, json};

/// A family of models, with its own names of configuration keys and tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// RMS norms, rotary positions, SwiGLU. Source: Touvron et al., arXiv:2302.13971; Llama 3,
    /// arXiv:2407.21783.
    Llama,
    /// Llama with a window in every block. Source: Jiang et al., arXiv:2310.06825.
    Mistral,
    /// Llama with experts in every block, and optionally a window. Source: Jiang et al., arXiv:2401.04088.
    Mixtral,
    /// Llama with biases of queries, keys and values, and optionally a window in the later blocks. Source:
    /// Yang et al., arXiv:2407.10671.
    Qwen2,
    /// Qwen2 with experts, one of them shared behind a gate, and without a window. Source: arXiv:2407.10671.
    Qwen2Moe,
    /// Qwen2 without its biases, queries and keys normalised head by head. Source: arXiv:2505.09388.
    Qwen3,
    /// Qwen3 with experts, none of them shared, and without a window. Source: arXiv:2505.09388.
    Qwen3Moe,
    /// Llama's attention with the experts of DeepSeek-V3 (without its latent attention). The keys are those
    /// of DeepSeek-V3, but `transformers` has no such model. Source of the experts: DeepSeek-AI,
    /// arXiv:2412.19437.
    EquipartMoe,
    /// Layer norms, a table of positions, a plain feed-forward, biases everywhere. Source: Radford et al.,
    /// "Language models are unsupervised multitask learners", 2019.
    Gpt2,
}

impl Architecture {
    /// All architectures: each with its `model_type` and its entry of `architectures` in a `config.json`.
    const ALL: [(Self, &'static str, &'static str); 9] = [
        (Self::Llama, "llama", "LlamaForCausalLM"),
        (Self::Mistral, "mistral", "MistralForCausalLM"),
        (Self::Mixtral, "mixtral", "MixtralForCausalLM"),
        (Self::Qwen2, "qwen2", "Qwen2ForCausalLM"),
        (Self::Qwen2Moe, "qwen2_moe", "Qwen2MoeForCausalLM"),
        (Self::Qwen3, "qwen3", "Qwen3ForCausalLM"),
        (Self::Qwen3Moe, "qwen3_moe", "Qwen3MoeForCausalLM"),
        (Self::EquipartMoe, "equipart_moe", "EquipartMoeForCausalLM"),
        (Self::Gpt2, "gpt2", "GPT2LMHeadModel"),
    ];

    fn row(self) -> (Self, &'static str, &'static str) {
        Self::ALL.into_iter().find(|(known, ..)| *known == self).expect("all are listed")
    }
    /// Returns the `model_type` in a `config.json`.
    pub fn model_type(self) -> &'static str {
        self.row().1
    }
    /// Returns the entry of `architectures` in a `config.json`.
    pub fn class(self) -> &'static str {
        self.row().2
    }
    /// Returns the architecture of a `model_type`.
    pub(super) fn named(model_type: &Value) -> Option<Self> {
        Self::ALL.into_iter().find_map(|(known, name, _)| (model_type == name).then_some(known))
    }
    /// Returns all `model_type`s, as a list in a sentence.
    pub(super) fn model_types() -> String {
        let quoted = Self::ALL.map(|(_, name, _)| format!("\"{name}\""));
        let (last, others) = quoted.split_last().expect("some");
        format!("{} or {last}", others.join(", "))
    }
}

/// Keys whose values are read, separated by spaces.
const READ: &str = "bos_token_id eos_token_id tie_word_embeddings vocab_size";
const READ_ROTARY: &str = "\
    attention_dropout head_dim hidden_size intermediate_size max_position_embeddings num_attention_heads \
    num_hidden_layers num_key_value_heads pad_token_id rms_norm_eps rope_parameters rope_scaling \
    rope_theta";
const READ_LLAMA: &str = "attention_bias mlp_bias";
const READ_MISTRAL: &str = "sliding_window";
const READ_MIXTRAL: &str = "\
    equipart_balance num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef sliding_window";
const READ_QWEN2: &str = "layer_types max_window_layers sliding_window use_sliding_window";
const READ_QWEN3: &str = "attention_bias layer_types max_window_layers sliding_window use_sliding_window";
const READ_QWEN2_MOE: &str = "\
    decoder_sparse_step equipart_balance layer_types max_window_layers mlp_only_layers moe_intermediate_size \
    norm_topk_prob num_experts num_experts_per_tok output_router_logits qkv_bias router_aux_loss_coef \
    shared_expert_intermediate_size sliding_window";
const READ_QWEN3_MOE: &str = "\
    attention_bias decoder_sparse_step equipart_balance max_window_layers mlp_only_layers moe_intermediate_size \
    norm_topk_prob num_experts num_experts_per_tok num_local_experts output_router_logits router_aux_loss_coef \
    sliding_window";
const READ_EQUIPART_MOE: &str = "\
    attention_bias balance_loss_coef equipart_balance first_k_dense_replace mlp_only_layers moe_intermediate_size \
    moe_layer_freq n_group n_routed_experts n_shared_experts num_experts_per_tok router_bias_update_rate scoring_func \
    topk_group topk_method";
const READ_GPT2: &str = "\
    activation_function attn_pdrop embd_pdrop layer_norm_epsilon n_ctx n_embd n_head n_inner n_layer \
    n_positions resid_pdrop";

/// Keys that change what the model computes, or would if `transformers` read them; each with the values (as
/// JSON, without blanks) that change nothing.
const FIXED: &str =
    "add_cross_attention=false is_encoder_decoder=false pruned_heads={} quantization_config=null";
const FIXED_ROTARY: &str = r#"hidden_act="silu","swish" partial_rotary_factor=1 rope_interleaved=false"#;
const FIXED_LLAMA: &str = "is_llama_config=true sliding_window=null use_sliding_window=false";
const FIXED_MISTRAL: &str = "attention_bias=false mlp_bias=false";
const FIXED_MIXTRAL: &str = "attention_bias=false mlp_bias=false router_jitter_noise=0";
const FIXED_QWEN2: &str = "mlp_bias=false use_mrope=false";
const FIXED_QWEN3: &str = "mlp_bias=false";
/// Keys that Qwen3-Coder's files have, and `transformers` ignores.
const FIXED_QWEN3_MOE: &str = "\
    mlp_bias=false qkv_bias=false shared_expert_intermediate_size=0 use_mrope=false use_qk_norm=true \
    use_sliding_window=false";
/// `use_sliding_window` must be false: the versions of `transformers` give the window to different blocks.
const FIXED_QWEN_MOE: &str = "mlp_bias=false use_mrope=false use_sliding_window=false";
const FIXED_GPT2: &str =
    "reorder_and_upcast_attn=false scale_attn_by_inverse_layer_idx=false scale_attn_weights=true";

/// Keys that do not change the computation: metadata, settings of initialization and training, and options of
/// running `transformers`. Keys that begin with `_`, and those of [generation](super::generation), are free
/// too.
const FREE: &str = "\
    attn_implementation chunk_size_feed_forward cross_attention_hidden_size decoder_start_token_id dtype finetuning_task \
    gradient_checkpointing id2label initializer_range is_decoder label2id max_sequence_length name_or_path num_labels \
    output_attentions \
    output_hidden_states output_past output_router_logits output_scores prefix pretraining_tp problem_type return_dict \
    return_dict_in_generate sep_token_id task_specific_params tf_legacy_loss tie_encoder_decoder tokenizer_class \
    torch_dtype torchscript transformers.js_config transformers_version unsloth_fixed unsloth_version use_bfloat16 use_cache";
/// Keys of GPT-2's other heads; and of padding, which GPT-2's embedding ignores.
const FREE_GPT2: &str = "\
    pad_token_id summary_activation summary_first_dropout summary_proj_to_labels summary_type \
    summary_use_proj";

/// Beginnings of the `model_type`s with latent attention.
const LATENT_TYPES: [&str; 5] = ["deepseek_v", "glm_moe_dsa", "kimi_k2", "longcat_flash", "minicpm3"];
/// Added to the error for these.
const LATENT: &str =
    "; latent attention (MLA) is not supported; \"equipart_moe\" has such experts and Llama's attention";

impl Architecture {
    /// Returns the two lists of keys that this architecture reads or ignores and the two lists of fixed keys,
    /// in addition to those of all architectures.
    fn keys(self) -> [[&'static str; 2]; 2] {
        match self {
            Self::Llama => [[READ_ROTARY, READ_LLAMA], [FIXED_ROTARY, FIXED_LLAMA]],
            Self::Mistral => [[READ_ROTARY, READ_MISTRAL], [FIXED_ROTARY, FIXED_MISTRAL]],
            Self::Mixtral => [[READ_ROTARY, READ_MIXTRAL], [FIXED_ROTARY, FIXED_MIXTRAL]],
            Self::Qwen2 => [[READ_ROTARY, READ_QWEN2], [FIXED_ROTARY, FIXED_QWEN2]],
            Self::Qwen2Moe => [[READ_ROTARY, READ_QWEN2_MOE], [FIXED_ROTARY, FIXED_QWEN_MOE]],
            Self::Qwen3 => [[READ_ROTARY, READ_QWEN3], [FIXED_ROTARY, FIXED_QWEN3]],
            Self::Qwen3Moe => [[READ_ROTARY, READ_QWEN3_MOE], [FIXED_ROTARY, FIXED_QWEN3_MOE]],
            Self::EquipartMoe => [[READ_ROTARY, READ_EQUIPART_MOE], [FIXED_ROTARY, FIXED_QWEN3]],
            Self::Gpt2 => [[READ_GPT2, FREE_GPT2], [FIXED_GPT2, ""]],
        }
    }
}

impl ConfigKeys<'_> {
    /// Returns the architecture of this configuration.
    pub(super) fn architecture(&self) -> Result<Architecture> {
        let is_latent = |s: &str| LATENT_TYPES.iter().any(|kind| s.starts_with(kind));
        let latent = self.given("model_type").and_then(Value::as_str).is_some_and(is_latent);
        let note = if latent { LATENT } else { "" };
        let wanted = Architecture::model_types() + note;
        self.read("model_type", &wanted, Architecture::named)?
            .ok_or_else(|| self.missing("model_type", &wanted))
    }
    /// Checks that every key is read, does not matter, or has a value that changes nothing.
    pub(super) fn check(&self, architecture: Architecture) -> Result<()> {
        let class = json!([architecture.class()]);
        let wanted = format!("{class}, or left out");
        self.read("architectures", &wanted, |value| (*value == class).then_some(()))?;
        let [[own, other], fixed] = architecture.keys();
        let free = [READ, own, other, FREE, "architectures model_type"];
        self.check_against(&[FIXED, fixed[0], fixed[1]], |key| {
            key.starts_with('_')
                || generation::is_key(key)
                || experts::is_field(architecture, key)
                || free.iter().any(|list| list.split(' ').any(|word| word == key))
        })
    }
}
