//! The binary `equipart`: see [`equipart::cli`].

/// Memory that the system refuses ends the program with a sentence.
#[global_allocator]
static MEMORY: tensor::limits::EndingAllocator = tensor::limits::EndingAllocator;

fn main() -> std::process::ExitCode {
    equipart::commands::main()
}
