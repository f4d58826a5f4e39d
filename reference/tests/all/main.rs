//! Training agrees with PyTorch and transformers, step by step.
mod families;
mod llama;
mod muon;
