//! Kernels on the host, tried from outside: against definitions, derivatives and each other.
mod activation;
mod attention;
mod elementwise;
mod layer_norm;
mod loss;
mod narrow;
mod optimizer;
mod packed;
mod proof;
mod router;
mod top_k;
