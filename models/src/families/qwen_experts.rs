//! Experts of Qwen: `decoder_sparse_step` and `mlp_only_layers` say which blocks have none, `norm_topk_prob`
//! whether gates sum to 1.
use super::aux_loss::EXPERTS;
use super::experts::{ExpertKeys, dense_key};
use layers::Experts;
use serde_json::json;

/// Experts of which none is shared.
pub(super) const ROUTED: ExpertKeys = ExpertKeys {
    read_keys: || {
        [(EXPERTS.read_keys)(), vec!["decoder_sparse_step mlp_only_layers norm_topk_prob"]].concat()
    },
    settings: |keys, experts| Ok(Experts { normalize: keys.flag("norm_topk_prob", false)?, ..experts }),
    dense: |keys| {
        let step = keys.size("decoder_sparse_step", Some(1))?;
        Ok(Box::new(move |block| !(block + 1).is_multiple_of(step)))
    },
    keys: |config, experts| {
        let normalize = ("norm_topk_prob", json!(experts.normalize));
        let own = [dense_key(&config.shape, 0), ("decoder_sparse_step", json!(1)), normalize];
        (EXPERTS.keys)(config, experts).into_iter().chain(own).collect()
    },
    ..EXPERTS
};
