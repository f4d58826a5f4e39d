//! Operations on distributed matrices: shapes checked, FLOPs counted, results allocated, the same on every
//! device.
pub(crate) mod activation;
pub(crate) mod attention;
pub(crate) mod bias;
pub(crate) mod dropout;
pub(crate) mod exchange;
pub(crate) mod expert_biases;
pub(crate) mod experts;
pub(crate) mod features;
pub(crate) mod gradients;
pub(crate) mod heads;
pub(crate) mod joint_norm;
pub(crate) mod latent;
pub(crate) mod loss;
pub(crate) mod norm;
pub(crate) mod ring;
pub(crate) mod root;
pub(crate) mod router;
pub(crate) mod running;
pub(crate) mod tokens;
