//! A model made of layers: its shape, its blocks, the builder of its layers, and the context of a call.
pub mod block;
pub mod build;
pub mod chunk;
pub mod classifier;
pub mod cx;
mod default_layers;
pub mod design;
pub mod hooks;
pub mod part;
pub mod record;
pub mod spec;
pub mod stage;
pub mod strategy;
