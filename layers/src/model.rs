//! A model made of layers: its shape, its blocks, the builder of its layers, and the context of a call.
pub mod block;
pub mod chunk;
pub mod classifier;
mod default_layers;
