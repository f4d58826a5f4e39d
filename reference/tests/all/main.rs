//! Training as PyTorch and transformers do it, step by step.
mod families;
mod llama;
